"""The operator's own ten features, which stand beside those of its statements."""

from __future__ import annotations

import re

import numpy as np

from tt_spec.types import Task

__all__ = ["OPERATOR_FEATURES", "operator_features"]

OPERATOR_FEATURES = (
    "max",
    "min",
    "add",
    "conv2d",
    "conv2d_winograd",
    "depthwise_conv2d",
    "dense",
    "softmax",
    "batch_matmul",
    "other",
)
"""Columns of `operator_features`, in order."""

_WORDS = {
    "max": ("max", "relu", "clip", "hardswish", "hardsigmoid"),
    "min": ("min", "relu6", "clip", "hardswish", "hardsigmoid"),
    "add": ("add", "bias"),
    "conv2d": ("conv1d", "conv2d", "conv3d"),
    "depthwise_conv2d": ("dwconv", "depthwise"),
    "dense": ("matmul", "dense"),
    "softmax": ("softmax",),
}
"""Beginnings of words that set a feature."""


def operator_features(task: Task) -> np.ndarray:
    """The parts of a task's fused operator, `(10,)` float64 of zeros and ones, in the order of `OPERATOR_FEATURES`.

    Read from the task's kind, name and shapes, so that recordings of any version have them. Several may be set.
    A batched product is not also a dense one, nor a depthwise convolution a plain one. `conv2d_winograd` is set beside
    `conv2d` where the task's space offers it; whether a program is one is for its statements to say.

    Source: Bai et al. (2023), ATFormer, EMNLP, appendix A.1, names nine: max, min, add, Conv2dOutput, conv2d_winograd,
    DepthwiseConv2d, dense, softmax and "compute(b, i, j)", which is how TVM prints a batched product. The tenth is
    ours: any other operator, so that no task has zeros only.
    """
    words = re.split(r"[^a-z0-9]+", f"{task.op}_{task.name}".lower())
    found = {f: any(w.startswith(p) for w in words for p in parts) for f, parts in _WORDS.items()}
    found["conv2d"] &= not found["depthwise_conv2d"]
    found["batch_matmul"] = found["dense"] and ("batch" in words or _batched(task.shapes))
    found["dense"] &= not found["batch_matmul"]
    found["conv2d_winograd"] = any({"winograd", "steps"} & set(s.name.split("+")) for s in task.spaces)
    found["other"] = not any(found.values())
    return np.array([found[f] for f in OPERATOR_FEATURES], dtype=np.float64)


def _batched(shapes: str) -> bool:
    """Whether the first two inputs, as `12x128x64, 12x64x128 -> 12x128x128` has them, share a batch."""
    first, *rest = (re.findall(r"\d+", s) for s in shapes.split("->")[0].split(","))
    return bool(rest) and len(first) > 2 and len(rest[0]) == len(first) and rest[0][:-2] == first[:-2]
