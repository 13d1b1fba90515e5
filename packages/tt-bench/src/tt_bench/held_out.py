"""Operators that no data set holds: whatever weights ship is judged on them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tt_spec import Task

__all__ = ["held_out", "signature", "signatures"]

LIST = Path(__file__).with_name("held_out.txt")
"""Operators of the recordings, ResNet-18, SqueezeNet, the encoder and rapidocr's text detector, a signature a line;
`tools/held_out.py` writes it."""

_IMAGES = 4
"""Dimensions from which on the first one is the batch: an operator stays held out at any batch."""


def held_out(task: Task) -> bool:
    """Whether the task is one of the operators held out, by its shapes, whatever is fused into it."""
    return signature(task) in signatures()


def signature(task: Task) -> str:
    """The operator's kind and the dimensions of its first input and its outputs, in order of size.

    Layouts and packed weights do not show: a convolution is held out in NCHW and NHWC, alone and with what a model
    fuses into it. Nor does the kernel: a convolution of 1 x 1 is held out beside one of 3 x 3 between the same images,
    so that the list errs on the safe side.
    """
    inputs, _, outputs = task.shapes.partition("->")
    shapes = [inputs.split(",")[0], *outputs.split(",")]
    return " ".join([task.op, *map(_dimensions, shapes)])


@cache
def signatures() -> frozenset[str]:
    """Of all operators held out."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def _dimensions(shape: str) -> str:
    found = [int(d) for d in re.findall(r"\d+", shape)]
    if len(found) >= _IMAGES:
        found = found[1:]
    return "x".join(map(str, sorted(d for d in found if d > 1))) or "1"
