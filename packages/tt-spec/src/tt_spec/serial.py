"""Vocabulary to JSON and back, exactly: tuples stay tuples, arrays keep dtype and shape, inf stays inf."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from typing import Any

import numpy as np

from tt_spec import space, types

__all__ = ["JsonObject", "from_json", "to_json"]

JsonObject = dict[str, Any]
"""An object of JSON: plain data by name."""

_CLASSES: dict[str, type] = {
    c.__name__: c
    for c in (
        space.Knob,
        space.Limit,
        space.Space,
        types.Task,
        types.Measurement,
        types.RunRecord,
        types.Noise,
        types.Trial,
        types.Prediction,
        types.Statements,
        types.Bar,
        types.Timing,
        types.Proposal,
        types.Selection,
        types.Batch,
        types.Slot,
        types.TaskState,
    )
}


def to_json(thing: Any) -> str:
    """JSON text of any vocabulary object, or of lists, tuples and dicts of them."""
    return json.dumps(_pack(thing), separators=(",", ":"), allow_nan=False)


def from_json(text: str | bytes) -> Any:
    """The object that `to_json` wrote. Raises ValueError that says what is wrong with the text."""
    try:
        return _unpack(json.loads(text))
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as e:
        raise ValueError(f"not a tt object in JSON: {type(e).__name__}: {e}") from e


def _pack(x: Any) -> Any:
    if isinstance(x, float) and not math.isfinite(x):
        return {"$float": repr(float(x))}
    if x is None or isinstance(x, bool | int | float | str):
        return x
    if isinstance(x, np.generic):
        return _pack(x.item())
    if isinstance(x, bytes):
        return {"$bytes": base64.b64encode(x).decode()}
    if isinstance(x, tuple):
        return {"$tuple": [_pack(v) for v in x]}
    if isinstance(x, list):
        return [_pack(v) for v in x]
    if isinstance(x, np.ndarray):
        if x.dtype.hasobject or x.dtype.names:
            raise ValueError(f"an array of {x.dtype} cannot be serialised: use numbers or text")
        data = base64.b64encode(np.ascontiguousarray(x).tobytes()).decode()
        return {"$array": data, "dtype": str(x.dtype), "shape": list(x.shape)}
    if isinstance(x, dict):
        if any(not isinstance(k, str) or k.startswith("$") for k in x):
            raise ValueError(f"dict keys must be text without a leading '$', got {list(x)[:5]}")
        return {k: _pack(v) for k, v in x.items()}
    if type(x).__name__ in _CLASSES and isinstance(x, _CLASSES[type(x).__name__]):
        fields = {f.name: _pack(getattr(x, f.name)) for f in dataclasses.fields(x) if f.init}
        return {"$type": type(x).__name__, **fields}
    raise ValueError(f"{type(x).__name__} is not part of the vocabulary and cannot be serialised")


def _unpack(x: Any) -> Any:
    if isinstance(x, list):
        return [_unpack(v) for v in x]
    if not isinstance(x, dict):
        return x
    if "$float" in x:
        return float(x["$float"])
    if "$bytes" in x:
        return base64.b64decode(x["$bytes"], validate=True)
    if "$tuple" in x:
        return tuple(_unpack(v) for v in x["$tuple"])
    if "$array" in x:
        flat = np.frombuffer(base64.b64decode(x["$array"], validate=True), dtype=np.dtype(x["dtype"]))
        return flat.reshape(x["shape"]).copy()
    if "$type" in x:
        if x["$type"] not in _CLASSES:
            raise ValueError(f"unknown type {x['$type']!r} (known: {', '.join(sorted(_CLASSES))})")
        return _CLASSES[x["$type"]](**{k: _unpack(v) for k, v in x.items() if k != "$type"})
    return {k: _unpack(v) for k, v in x.items()}
