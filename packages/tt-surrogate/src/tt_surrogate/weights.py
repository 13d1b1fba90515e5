"""Weights: the file that keeps what a model learned beforehand.

Safetensors (github.com/huggingface/safetensors): arrays by name, no code, no pickle. The metadata hold one text, `tt`:
JSON of everything else, with the SHA-256 of the rest of it and of all arrays. A file that is not exactly what was
written is refused, and so is one for other features. Needs the extra `[pretrained]`.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from tt_spec import PluginError

__all__ = [
    "FEATURES",
    "FORMAT",
    "OPERATOR",
    "SHIPPED",
    "STATEMENT",
    "Weights",
    "WeightsError",
    "file_of",
    "forgive",
    "from_bytes",
    "read",
    "write",
]

FORMAT = 1
"""Of the file."""

FEATURES = 1
"""Version of the features: what the columns mean. 1: those of TVM 0.27's PerStoreFeature, then the operator's."""

STATEMENT, OPERATOR = 164, 174
"""Columns of a statement: its own, and with the operator's 10 behind them."""

SHIPPED = Path(__file__).with_name("shipped")
"""Folder of the weights that come with the package."""

MOST = 1 << 30
"""Bytes of a file at most."""


class WeightsError(PluginError):
    """A file of weights that cannot be read, written or used."""


@dataclass(frozen=True)
class Weights:
    """Weights that a model learned beforehand.

    Args:
        model: The name of the piece.
        options: Those that the arrays depend on, e.g. the width of a layer.
        tensors: Arrays by name; those of floats are finite. Trees are one of uint8, their library's own bytes.
        card: What the model learned from and how well: plain data.
        width: Columns of a statement that it reads, `STATEMENT` or `OPERATOR`.
        features: Version of the features.
    """

    model: str
    options: dict[str, Any]
    tensors: dict[str, np.ndarray]
    card: dict[str, Any] = field(default_factory=dict)
    width: int = OPERATOR
    features: int = FEATURES


def file_of(weights: str | Path, name: str) -> Path:
    """The file that an option `weights` means: "shipped" are those of that name that come with the package."""
    return SHIPPED / f"{name}.safetensors" if weights == "shipped" else Path(weights)


def forgive(weights: str | Path, error: WeightsError) -> None:
    """Warn that shipped weights cannot be used, which does not end a run; the error of a named file is raised."""
    if weights != "shipped":
        raise error
    warnings.warn(f"searching without what tt-surrogate learned beforehand: {error}", stacklevel=3)


def from_bytes(raw: bytes | bytearray) -> np.ndarray:
    """A library's own bytes as a tensor `(n,) uint8`; `tobytes()` gives them back."""
    return np.frombuffer(bytes(raw), dtype=np.uint8)


def write(path: str | Path, weights: Weights) -> None:
    """Write the file, whole or not at all; the same weights give the same bytes. Raises `WeightsError`."""
    path, tensors = Path(path), {k: np.asarray(v, order="C") for k, v in weights.tensors.items()}
    for name, value in tensors.items():
        if not _finite(value):
            raise WeightsError(f"{path}: weights must be finite, {name} is not: train again with a lower rate")
    header = {
        "format": FORMAT,
        "features": weights.features,
        "width": weights.width,
        "model": weights.model,
        "options": weights.options,
        "card": dict(weights.card),
    }
    header["sha256"] = _digest(header, tensors)
    data = _safetensors(path).save(tensors, {"tt": _text(header)})  # of two texts the order would be random
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as e:
        raise WeightsError(f"weights {path} cannot be written: {e.strerror or e}") from e
    finally:
        part.unlink(missing_ok=True)


def read(path: str | Path, model: str | None = None, widths: Sequence[int] = (OPERATOR,)) -> Weights:
    """The weights in a file. Raises `WeightsError`, one line, for anything but what `write` wrote.

    Args:
        model: The piece that wants them; None takes those of any.
        widths: Columns of a statement that it can read.
    """
    data = _bytes(path)
    library = _safetensors(path)
    try:
        tensors = library.load(data)
        length = int.from_bytes(data[:8], "little")
        header = json.loads(json.loads(data[8 : 8 + length]).get("__metadata__", {}).get("tt", "null"))
        stated = header.pop("sha256", None) if isinstance(header, dict) else None
        actual = None if stated is None else _digest(header, tensors)
    except Exception as e:  # SafetensorError, and whatever numpy and JSON say of what they do not have
        why = _line(e)
        raise WeightsError(f"weights {path} are damaged, or no safetensors ({why}): copy or train them again") from e
    if stated is None:
        raise WeightsError(f"weights {path} are safetensors of another program: tt train writes those of tt")
    if stated != actual:
        raise WeightsError(f"weights {path} are damaged: their SHA-256 is another one; copy or train them again")
    found = _weights(path, header, tensors)
    for name, value in tensors.items():
        if not _finite(value):
            raise WeightsError(f"weights {path}: {name} has values that are not finite; train them again")
    _check(path, found, model, widths)
    return found


def _weights(path: str | Path, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> Weights:
    if header.get("format") != FORMAT:
        raise WeightsError(
            f"weights {path} are of format {header.get('format')}, this tt reads {FORMAT}: upgrade, or train them again"
        )
    names, kinds = ("model", "options", "card", "width", "features"), (str, dict, dict, int, int)
    if any(not isinstance(header.get(name), kind) for name, kind in zip(names, kinds, strict=True)):
        raise WeightsError(f"weights {path} lack one of {', '.join(names)}: train them again")
    about = [header[name] for name in names]
    return Weights(about[0], about[1], tensors, *about[2:])


def _check(path: str | Path, found: Weights, model: str | None, widths: Sequence[int]) -> None:
    if model is not None and found.model != model:
        raise WeightsError(f"weights {path} are of {found.model!r}, not of {model!r}: set surrogate={found.model}")
    if found.features != FEATURES:
        raise WeightsError(
            f"weights {path} were learned on features of version {found.features},"
            f" these programs have {FEATURES}: train them again"
        )
    if found.width not in widths:
        wanted = " or ".join(map(str, widths))
        raise WeightsError(
            f"weights {path} read {found.width} columns of a statement, the model reads {wanted}: train them again"
        )


def _bytes(path: str | Path) -> bytes:
    try:
        if not os.path.isfile(path):
            raise WeightsError(f"no weights {path}: tt train writes some")
        if os.path.getsize(path) > MOST:
            raise WeightsError(f"weights {path} have more than {MOST >> 20} MB, which no model has")
        return Path(path).read_bytes()
    except (OSError, ValueError) as e:
        raise WeightsError(f"weights {path} cannot be read: {_line(e)}") from e


def _safetensors(path: str | Path) -> ModuleType:
    try:
        import safetensors.numpy
    except ModuleNotFoundError as e:
        raise WeightsError(f"weights {path} need safetensors: pip install 'tt-surrogate[pretrained]'") from e
    return safetensors.numpy


def _text(header: Mapping[str, Any]) -> str:
    return json.dumps(header, sort_keys=True, allow_nan=False)


def _digest(header: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(_text(header).encode())
    for name in sorted(tensors):
        value = np.asarray(tensors[name], order="C")
        digest.update(f"\0{name}\0{value.dtype.str}\0{value.shape}\0".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def _finite(value: np.ndarray) -> bool:
    return value.dtype.kind != "f" or bool(np.isfinite(value).all())


def _line(e: BaseException) -> str:
    return " ".join(str(e).split())[:200]
