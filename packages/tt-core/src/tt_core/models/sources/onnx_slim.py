"""onnxslim, whose inference of shapes does without the weights."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["simplified"]

LARGE = 1 << 16
"""Bytes of a constant that is no shape, nor anything else that the shapes of results follow from."""

_lock = threading.Lock()


def simplified(model: ModelProto, fixed: Mapping[str, Sequence[int]]) -> ModelProto:
    """The model simplified, its inputs having these shapes. onnxslim raises many types."""
    import onnxslim

    shapes = [f"{n}:{','.join(map(str, s))}" for n, s in fixed.items() if s]
    with _inferring_lightly():
        return onnxslim.slim(model, **({"input_shapes": shapes} if shapes else {}), model_check=False)


@contextlib.contextmanager
def _inferring_lightly() -> Iterator[None]:
    """onnxslim infers shapes time and again, and ONNX writes and reads the whole model each time: seven of ten seconds
    for an encoder of 340 MB."""
    from onnxslim import core

    with _lock:
        before = core.shape_infer
        core.shape_infer = lambda model: _without_weights(model, before)
        try:
            yield
        finally:
            core.shape_infer = before


def _without_weights(model: ModelProto, infer: Callable[[ModelProto], ModelProto]) -> ModelProto:
    """What `infer` makes of a model that is needed no more."""
    weights = {t.name: t.raw_data for t in model.graph.initializer if len(t.raw_data) >= LARGE}
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.ClearField("raw_data")
    inferred = infer(model)
    for tensor in inferred.graph.initializer:
        if tensor.name in weights:
            tensor.raw_data = weights[tensor.name]
    return inferred
