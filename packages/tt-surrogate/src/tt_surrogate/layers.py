"""Layers of networks, written once for numpy and PyTorch: `xp` is either module, P holds parameters by name.

Learning takes PyTorch's gradients; predicting needs numpy alone, so that shipped weights work without PyTorch.
Shapes: n programs, L statements (padding included), d units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = [
    "Drop",
    "attention",
    "drawn",
    "encoder",
    "linear",
    "lstm",
    "normalise",
    "relu",
    "shape_of_attention",
    "shape_of_encoder",
    "shape_of_linear",
    "shape_of_lstm",
]

Drop = Callable[[Any], Any]
"""Dropout while learning; what changes nothing, else."""

NEVER = -1e30
"""The score of a key that is padding: its share of attention is exactly 0."""


def linear(P: Mapping[str, Any], name: str, x: Any) -> Any:
    """x W + b: `(…, d_in)` to `(…, d_out)`."""
    W = P[f"{name}.weight"]
    flat = x.reshape(-1, x.shape[-1])  # numpy would make a small product of each program
    return (flat @ W + P[f"{name}.bias"]).reshape(*x.shape[:-1], W.shape[1])


def relu(x: Any) -> Any:
    """max(x, 0)."""
    return x.clip(min=0)


def normalise(P: Mapping[str, Any], name: str, x: Any) -> Any:
    """Layer normalisation (Ba et al. 2016, arXiv:1607.06450)."""
    centred = x - x.mean(-1, keepdims=True)
    scale = ((centred * centred).mean(-1, keepdims=True) + 1e-5) ** 0.5
    return centred / scale * P[f"{name}.weight"] + P[f"{name}.bias"]


def attention(P: Mapping[str, Any], name: str, x: Any, keep: Any, heads: int, xp: Any) -> Any:
    """Multi-head self-attention, softmax(Q K^T / sqrt(d_k)) V (Vaswani et al. 2017; ATFormer's equation 3).

    Args:
        x: `(n, L, d)`.
        keep: `(n, L)` bool: statements that may be looked at.
    """
    n, length, d = x.shape
    each = linear(P, f"{name}.qkv", x).reshape(n, length, 3, heads, d // heads)
    q, k, v = (each[:, :, i].swapaxes(1, 2) for i in range(3))
    scores = q @ k.swapaxes(2, 3) * (d // heads) ** -0.5
    scores = xp.where(keep[:, None, None, :], scores, xp.full_like(scores, NEVER))
    shares = xp.exp(scores - xp.amax(scores, -1, keepdims=True))
    shares = shares / shares.sum(-1, keepdims=True)
    return linear(P, f"{name}.out", (shares @ v).swapaxes(1, 2).reshape(n, length, d))


def shape_of_attention(name: str, d: int) -> dict[str, tuple[int, ...]]:
    return shape_of_linear(f"{name}.qkv", d, 3 * d) | shape_of_linear(f"{name}.out", d, d)


def encoder(P: Mapping[str, Any], name: str, x: Any, keep: Any, heads: int, xp: Any, drop: Drop) -> Any:
    """One encoder layer as PyTorch has it: attention, then two linear layers, each added to its input and normalised
    (Vaswani et al. 2017, section 3.1)."""
    x = normalise(P, f"{name}.norm1", x + drop(attention(P, name, x, keep, heads, xp)))
    hidden = drop(relu(linear(P, f"{name}.up", x)))
    return normalise(P, f"{name}.norm2", x + drop(linear(P, f"{name}.down", hidden)))


def shape_of_encoder(name: str, d: int, hidden: int) -> dict[str, tuple[int, ...]]:
    shapes = shape_of_attention(name, d)
    shapes |= shape_of_linear(f"{name}.up", d, hidden) | shape_of_linear(f"{name}.down", hidden, d)
    return shapes | {f"{name}.norm{i}.{what}": (d,) for i in (1, 2) for what in ("weight", "bias")}


def lstm(P: Mapping[str, Any], name: str, x: Any, keep: Any, xp: Any) -> Any:
    """The last state `(n, d)` of a long short-term memory over a program's statements (Hochreiter and Schmidhuber
    1997), gates in the order input, forget, cell, output; where `keep` is false the state stays."""
    _, length, d = x.shape
    inputs = linear(P, f"{name}.input", x)
    state = cell = inputs[:, 0, :d] * 0
    for i in range(length):
        gates = inputs[:, i] + linear(P, f"{name}.state", state)
        enter, forget, leave = (_sigmoid(gates[:, j * d : (j + 1) * d], xp) for j in (0, 1, 3))
        new_cell = forget * cell + enter * xp.tanh(gates[:, 2 * d : 3 * d])
        here = keep[:, i, None]
        cell, state = xp.where(here, new_cell, cell), xp.where(here, leave * xp.tanh(new_cell), state)
    return state


def shape_of_lstm(name: str, d: int) -> dict[str, tuple[int, ...]]:
    return shape_of_linear(f"{name}.input", d, 4 * d) | shape_of_linear(f"{name}.state", d, 4 * d)


def shape_of_linear(name: str, wide: int, out: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (wide, out), f"{name}.bias": (out,)}


def drawn(shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Parameters to begin with, as PyTorch draws those of a linear layer: uniform within 1 / sqrt(d_in); norms 1, 0."""
    P: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        matrix = shapes[name.removesuffix("bias") + "weight"] if name.endswith("bias") else shape
        if len(matrix) == 1:
            P[name] = np.full(shape, float(name.endswith("weight")), np.float32)
        else:
            P[name] = rng.uniform(-1, 1, shape).astype(np.float32) * np.float32(matrix[0] ** -0.5)
    return P


def _sigmoid(x: Any, xp: Any) -> Any:
    return 0.5 * (1.0 + xp.tanh(0.5 * x))
