"""Arrays on which programs are tried: random ones, and how far two of them may differ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = [
    "INTEGERS_BELOW",
    "TOLERANCES",
    "compare",
    "difference",
    "is_float",
    "mean_difference",
    "nudged",
    "random_array",
]

INTEGERS_BELOW = 2
"""Integers that index nothing are 0 or 1: valid as a mask, a flag, a segment."""

NOTHING = 1e-30
"""A float32 output that is smaller throughout consists of what was left of denormals."""

TOLERANCES = {"float64": 1e-10, "float32": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}
"""Largest allowed difference between a tuned and the untuned operator, relative to the largest output magnitude."""


def random_array(
    shape: Sequence[int], dtype: str, rng: np.random.Generator, below: int | None = INTEGERS_BELOW
) -> np.ndarray:
    """Standard normal floats, integers from 0 to `below` - 1, random booleans.

    With `below` None integers index nothing: those of 8 bits, quantised values, take every value there is.
    """
    if dtype.startswith(("float", "bfloat")):
        return rng.standard_normal(shape).astype("float32" if dtype == "bfloat16" else dtype)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if below is None:
        ends = np.iinfo(dtype)
        low, high = (ends.min, ends.max + 1) if ends.bits == 8 else (0, INTEGERS_BELOW)
        return rng.integers(low, high, size=shape).astype(dtype)
    return rng.integers(0, min(below, np.iinfo(dtype).max), size=shape).astype(dtype)


def compare(got: np.ndarray, want: np.ndarray, tolerance: float | None = None, rounded: bool = False) -> str | None:
    """None if equal within tolerance, else how far apart.

    Floats are compared in float64: the largest absolute difference over the largest finite magnitude of `want` may
    not exceed `TOLERANCES[dtype]` (or `tolerance`), and inf and NaN must stand in the same places. Integers and
    booleans must be equal, but for 8-bit integers that a program has `rounded` from floats: a float that differs in its
    last place may be rounded to the neighbour, in one of a thousand places at most, and in one at least.
    """
    if got.shape != want.shape:
        return f"shape {got.shape} instead of {want.shape}"
    if want.dtype.kind not in "fV":
        wrong = int((got != want).sum())
        few = rounded and want.dtype.kind in "iu" and want.dtype.itemsize == 1 and wrong <= max(1, want.size // 1000)
        if few and np.abs(got.astype(np.int16) - want.astype(np.int16)).max(initial=0) <= 1:
            return None
        return f"{wrong} of {want.size} values differ" if wrong else None
    limit = TOLERANCES.get(str(want.dtype), 1e-4) if tolerance is None else tolerance
    a, b = got.astype("float64"), want.astype("float64")
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return "infinities or NaNs stand in other places than in the untuned program's output"
    if not finite.any():
        return None
    error = difference(got, want)
    if error <= limit:
        return None
    return f"the output differs by {error:.2e} of its largest magnitude (allowed: {limit:.1e})"


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """The largest absolute difference over the largest magnitude of `want`, in float64, where `want` is finite.

    For float32 the magnitude counts as `NOTHING` at least: one program may compute denormals, the other zeros.
    """
    a, b, largest = _finite(got, want)
    return float(np.abs(a - b).max()) / largest if a.size else 0.0


def mean_difference(got: np.ndarray, want: np.ndarray) -> float:
    """The root of the mean square of the differences, over the same magnitude."""
    a, b, largest = _finite(got, want)
    return float(np.sqrt(np.mean((a - b) ** 2))) / largest if a.size else 0.0


def _finite(got: np.ndarray, want: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Both where `want` is finite, in float64, and the magnitude that differences are seen against."""
    least = NOTHING if want.dtype == np.float32 else 0.0
    a, b = got.astype("float64"), want.astype("float64")
    finite = np.isfinite(b)
    largest = float(np.abs(b[finite]).max(initial=0.0))
    return a[finite], b[finite], max(largest, least) if largest else 1.0


def is_float(a: np.ndarray) -> bool:
    """Whether an array holds floats, bfloat16 included."""
    return a.dtype.kind in "fV"


def nudged(a: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Each float changed by a half to the whole of that share of itself, up or down."""
    if not is_float(a) or not a.size:
        return a
    n = min(a.size, 65537)  # a prime: what repeats does not fall into step with rows
    by = 1 + share * rng.uniform(0.5, 1.0, n) * rng.choice((-1.0, 1.0), n)
    by = by.astype(np.float32 if a.dtype.itemsize <= 4 else np.float64)
    flat, whole = a.ravel(), a.size - a.size % n
    made = [(flat[:whole].reshape(-1, n) * by).ravel(), flat[whole:] * by[: a.size - whole]]
    return np.concatenate(made).astype(a.dtype, copy=False).reshape(a.shape)
