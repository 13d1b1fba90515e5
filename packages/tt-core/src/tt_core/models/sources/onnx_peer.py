"""onnxruntime, against which ONNX models are verified."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from tt_core.compiler.arrays import difference, mean_difference
from tt_core.models.model import Arrays, Change, Peer, Roundings
from tt_core.models.sources.roundings import PHASE, SIZE, nudged
from tt_core.models.sources.unsigned_weights import unsigned_weights

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["changes", "peer"]

NUDGE, DRAWS = 1e-6, 12
"""How far a float is moved before it is rounded, as a share of itself: eight units in the last place, what another
order of a sum or an exponential by another formula costs; and how often."""


def peer(model: ModelProto, rest: Mapping[str, np.ndarray]) -> Peer:
    """onnxruntime on a model; `rest` are inputs that the tuned program does not have."""
    model = unsigned_weights(model)
    run = functools.partial(_ways, model.SerializeToString(), dict(rest))
    if (of := nudged(model)) is None or not of.outputs:
        return Peer("onnxruntime", run)
    drawn = functools.partial(_draws, of.model.SerializeToString(), dict(rest))
    return Peer("onnxruntime", run, Roundings(of.outputs, drawn))


def changes(exact: Peer, form: Peer, outputs: Sequence[str], inputs: Arrays) -> dict[str, Change]:
    """By how much the outputs of another form of a model differ; nothing without onnxruntime."""
    ways = [p.run(inputs)[-1:] for p in (exact, form)]
    if not all(ways):
        return {}
    pairs = zip(outputs, ways[1][0], ways[0][0], strict=True)
    return {name: Change(difference(a, b), mean_difference(a, b)) for name, a, b in pairs if b.dtype.kind == "f"}


def _ways(data: bytes, rest: Arrays, inputs: Arrays) -> list[list[np.ndarray]]:
    """The outputs with optimisations and without."""
    if (onnxruntime := _installed()) is None:
        return []
    levels = onnxruntime.GraphOptimizationLevel
    ways = (levels.ORT_ENABLE_ALL, levels.ORT_DISABLE_ALL)
    return [_session(onnxruntime, data, level).run(None, {**rest, **inputs}) for level in ways]


def _draws(data: bytes, rest: Arrays, inputs: Arrays) -> list[list[np.ndarray]]:
    """The outputs as the graph is written, what it rounds being nudged."""
    if (onnxruntime := _installed()) is None:
        return []
    session = _session(onnxruntime, data, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    size = {SIZE: np.array(NUDGE, np.float32)}
    phases = ({PHASE: np.array(1.0 + i, np.float32)} for i in range(DRAWS))
    return [session.run(None, {**rest, **inputs, **size, **phase}) for phase in phases]


def _installed() -> ModuleType | None:
    try:
        import onnxruntime
    except ImportError:
        return None
    onnxruntime.set_default_logger_severity(3)
    return onnxruntime


def _session(onnxruntime: ModuleType, data: bytes, level: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
