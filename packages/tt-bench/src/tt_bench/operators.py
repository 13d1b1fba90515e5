"""Operators that programs beside the product record and tune, by the names of their recordings."""

from __future__ import annotations

__all__ = ["RESNET18"]

RESNET18 = {
    "resnet18-stem": "op:conv2d:1,3,224,64,7,2,3",
    "resnet18-64": "op:conv2d:1,64,56,64,3,1,1",
    "resnet18-128-stride": "op:conv2d:1,64,56,128,3,2,1",
    "resnet18-128": "op:conv2d:1,128,28,128,3,1,1",
    "resnet18-256": "op:conv2d:1,256,14,256,3,1,1",
    "resnet18-512": "op:conv2d:1,512,7,512,3,1,1",
}
"""ResNet-18's kinds of convolution."""
