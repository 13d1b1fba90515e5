"""Fourier transforms as products with the matrix of the transform.

Source: ONNX operators DFT-17 and DFT-20, STFT-17; onnxruntime's Rfft and Irfft. MelWeightMatrix, the windows and other
constants are computed by ONNX's reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tt_core.models.rewrites.graph import Graph
from tt_core.models.rewrites.node import Node, Rewrite

__all__ = ["operators"]


def operators() -> dict[tuple[str, str], Rewrite]:
    """The rewritings of this family."""
    return {
        ("", "DFT"): _dft,
        ("", "STFT"): _stft,
        ("com.microsoft", "Rfft"): _rfft,
        ("com.microsoft", "Irfft"): _irfft,
    }


def _dft(node: Node, g: Graph) -> Sequence[str]:
    """Input (..., n, ..., 1 or 2): real, or real and imaginary parts."""
    x = node.input(0)
    shape, dtype = g.shape(x), g.dtype(x)
    axis = (
        int(g.known(node.input(2), "axis").reshape(-1)[0])
        if node.input(2)
        else int(node.get("axis", 1 if g.opset < 20 else -2))
    )
    axis %= len(shape)
    inverse, onesided = bool(node.get("inverse", 0)), bool(node.get("onesided", 0))
    n = int(g.known(node.input(1), "dft_length").reshape(-1)[0]) if node.input(1) else 0
    to_real = inverse and onesided
    n = n or (2 * (shape[axis] - 1) if to_real else shape[axis])
    x = _fitted(x, axis, n // 2 + 1 if to_real else n, g)
    order = [i for i in range(len(shape)) if i != axis]
    x = g.transpose(x, [*order, axis])  # (..., 1 or 2, n)
    parts = [g.squeeze(g.slice(x, len(shape) - 2, i, i + 1), len(shape) - 2) for i in range(shape[-1])]
    if to_real:
        found = [_real(parts, n, dtype, g)]
    else:
        cos, sin = _matrices(n, inverse, dtype)
        bins = n // 2 + 1 if onesided else n
        cos, sin = cos[:, :bins], sin[:, :bins]
        found = [g.op("MatMul", parts[0], cos), g.op("MatMul", parts[0], sin)]
        if len(parts) == 2:
            found[0] = g.op("Sub", found[0], g.op("MatMul", parts[1], sin))
            found[1] = g.op("Add", found[1], g.op("MatMul", parts[1], cos))
    y = g.concat([g.unsqueeze(f, len(shape) - 1) for f in found], len(shape) - 1)  # (rest, bins, parts)
    rest = len(shape) - 2
    return [g.transpose(y, [*range(axis), rest, *range(axis, rest), rest + 1])]


def _stft(node: Node, g: Graph) -> Sequence[str]:
    """Signal (B, L, 1 or 2) to (B, frames, bins, 2): a convolution whose filters are the windowed waves."""
    signal, step = node.input(0), int(g.known(node.input(1), "frame_step").reshape(-1)[0])
    batch, _, parts = g.shape(signal)
    dtype = g.dtype(signal)
    window = g.known(node.input(2), "window") if node.input(2) else None
    n = int(g.known(node.input(3), "frame_length").reshape(-1)[0]) if node.input(3) else 0
    n = n or (len(window) if window is not None else g.shape(signal)[1])
    onesided = bool(node.get("onesided", 1)) and parts == 1
    bins = n // 2 + 1 if onesided else n
    cos, sin = _matrices(n, False, np.dtype(np.float64))
    if window is not None:
        cos, sin = cos * window[:, None], sin * window[:, None]
    cos, sin = cos[:, :bins].T, sin[:, :bins].T  # (bins, n)
    filters = np.stack([np.concatenate([cos, sin]), np.concatenate([-sin, cos])], 1)[:, :parts].astype(dtype)
    x = g.transpose(signal, (0, 2, 1))
    y = g.op("Conv", x, np.ascontiguousarray(filters), strides=[step])
    frames = g.shape(y)[2]
    return [g.transpose(g.reshape(y, (batch, 2, bins, frames)), (0, 3, 2, 1))]


def _rfft(node: Node, g: Graph) -> Sequence[str]:
    """Rfft over the last axis: (..., n) to (..., n / 2 + 1, 2)."""
    x = node.input(0)
    n = g.shape(x)[-1]
    cos, sin = (m[:, : n // 2 + 1] for m in _matrices(n, False, g.dtype(x)))
    rank = len(g.shape(x))
    return [g.concat([g.unsqueeze(g.op("MatMul", x, np.ascontiguousarray(m)), rank) for m in (cos, sin)], rank)]


def _irfft(node: Node, g: Graph) -> Sequence[str]:
    """Irfft: (..., n / 2 + 1, 2) to (..., n)."""
    x = node.input(0)
    rank = len(g.shape(x))
    parts = [g.squeeze(g.slice(x, rank - 1, i, i + 1), rank - 1) for i in range(2)]
    return [_real(parts, 2 * (g.shape(x)[-2] - 1), g.dtype(x), g)]


def _real(parts: list[str], n: int, dtype: np.dtype, g: Graph) -> str:
    """The real series of n values of which these are the first n / 2 + 1 frequencies, real and imaginary part."""
    bins = n // 2 + 1
    cos, sin = (m[:bins].copy() for m in _matrices(n, True, np.dtype(np.float64)))
    twice = [k for k in range(1, bins) if 2 * k != n]  # the other half of the frequencies mirrors these
    cos[twice] *= 2
    sin[twice] *= 2
    y = g.op("MatMul", parts[0], cos.astype(dtype))
    return y if len(parts) == 1 else g.op("Sub", y, g.op("MatMul", parts[1], sin.astype(dtype)))


def _matrices(n: int, inverse: bool, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Real and imaginary part of exp(-2 pi i j k / n), (n, n); of the inverse, conjugate and divided by n."""
    angle = 2 * np.pi * (np.outer(np.arange(n), np.arange(n)) % n) / n
    cos, sin = np.cos(angle), -np.sin(angle)
    if inverse:
        cos, sin = cos / n, -sin / n
    return cos.astype(dtype), sin.astype(dtype)


def _fitted(x: str, axis: int, n: int, g: Graph) -> str:
    """Cut or padded with zeros to n entries of an axis."""
    shape = g.shape(x)
    if shape[axis] >= n:
        return g.slice(x, axis, 0, n) if shape[axis] > n else x
    pads = np.zeros(2 * len(shape), np.int64)
    pads[len(shape) + axis] = n - shape[axis]
    return g.op("Pad", x, pads)
