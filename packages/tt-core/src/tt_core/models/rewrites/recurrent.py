"""LSTM, GRU and RNN as matrix products and elementwise operators.

Source: ONNX operators LSTM-14, GRU-14, RNN-14. The input's product with the weights is one product for all steps; a
step is one product of the state with the recurrent weights and what follows it. Symbols are the specification's: T
steps, B batch, I inputs, H hidden units, D directions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tt_core.models.rewrites.graph import Graph
from tt_core.models.rewrites.node import Node, Rewrite, RewriteError

__all__ = ["Cell", "directions", "lstm", "operators", "unrolled"]

STEPS_MOST = 4
"""Longest series that is unrolled; a longer one is a loop."""
UNROLL_MOST = 1024
"""The same where a loop cannot be compiled."""

_ALPHA = {"affine": 1.0, "elu": 1.0, "hardsigmoid": 0.2, "leakyrelu": 0.01, "scaledtanh": 1.0, "thresholdedrelu": 1.0}
_BETA = {"affine": 0.0, "hardsigmoid": 0.5, "scaledtanh": 1.0}
"""Activations that take an alpha or a beta, and ONNX's defaults."""

Activation = Callable[[str], str]
Step = Callable[[str, "tuple[str, ...]"], "tuple[str, ...]"]
"""From a step's projected input (B, gates * H) and the states (B, H) to the new states, the output first."""

Product = Callable[[int, int], Callable[[str], str]]
"""From input 1 (W) or 2 (R) and a direction to the product of a matrix (n, I or H) with it, (n, gates * H)."""


@dataclass(frozen=True)
class Cell:
    """One direction of a recurrent operator, its weights made ready.

    Args:
        projected: (T, B, gates * H): inputs times W, biases added.
        states: Before the first step, (B, H) each; the output first.
        step: What one step computes.
        backwards: From the last step to the first.
    """

    projected: str
    states: tuple[str, ...]
    step: Step
    backwards: bool


def operators() -> dict[tuple[str, str], Rewrite]:
    """The rewritings of this family."""
    return {("", "LSTM"): _lstm, ("", "GRU"): _gru, ("", "RNN"): _rnn}


def _lstm(node: Node, g: Graph) -> Sequence[str]:
    return lstm(node, g, _products(node, g))


def lstm(node: Node, g: Graph, product: Product) -> list[str]:
    """Y, Y_h and Y_c of an LSTM whose products with weights another function computes."""

    def cell(d: int, x: str, backwards: bool) -> Cell:
        hidden, f = _hidden(node, g), _activations(node, d, ["Sigmoid", "Tanh", "Tanh"], g)
        projected = _projected(product(1, d), x, _biases(node, g, d, 4), g)
        recurrent, peep = product(2, d), _peepholes(node, g, d)

        def step(gates: str, states: tuple[str, ...]) -> tuple[str, ...]:
            h, c = states
            gates = _plus_product(gates, h, recurrent, g)
            i, o, forget, new = _gates(gates, hidden, 4, g)
            i, forget = _plus(i, _times(c, peep[0], g), g), _plus(forget, _times(c, peep[2], g), g)
            i = f[0](_clip(i, node, g))
            forget = (
                g.op("Sub", np.array(1, g.dtype(i)), i) if node.get("input_forget", 0) else f[0](_clip(forget, node, g))
            )
            c = g.op("Add", g.op("Mul", forget, c), g.op("Mul", i, f[1](_clip(new, node, g))))
            o = f[0](_clip(_plus(o, _times(c, peep[1], g), g), node, g))
            return g.op("Mul", o, f[2](c)), c  # onnxruntime does not clip the cell

        return Cell(projected, (_initial(node, g, d, 5), _initial(node, g, d, 6)), step, backwards)

    return directions(node, g, cell, 3)


def _gru(node: Node, g: Graph) -> Sequence[str]:
    reset_after, product = bool(node.get("linear_before_reset", 0)), _products(node, g)

    def cell(d: int, x: str, backwards: bool) -> Cell:
        hidden, f = _hidden(node, g), _activations(node, d, ["Sigmoid", "Tanh"], g)
        bias = _bias(node, g, d)
        both = None
        if bias is not None:
            w, r = g.slice(bias, 0, 0, 3 * hidden), g.slice(bias, 0, 3 * hidden, 6 * hidden)
            if reset_after:
                zeros = np.zeros(hidden, g.dtype(bias))
                both = g.op("Add", w, g.concat([g.slice(r, 0, 0, 2 * hidden), g.const(zeros)], 0))
            else:
                both = g.op("Add", w, r)
        projected = _projected(product(1, d), x, both, g)
        recurrent = _of(g.transpose(node.input(2), (0, 2, 1)), d, g)
        of_hidden = None if bias is None else g.slice(bias, 0, 5 * hidden, 6 * hidden)
        to_gates, to_new = g.slice(recurrent, 1, 0, 2 * hidden), g.slice(recurrent, 1, 2 * hidden, 3 * hidden)

        def step(gates: str, states: tuple[str, ...]) -> tuple[str, ...]:
            (h,) = states
            if reset_after:
                product = g.op("MatMul", h, recurrent)
                parts, own = _gates(gates, hidden, 3, g), _gates(product, hidden, 3, g)
                z, r = (f[0](_clip(g.op("Add", a, b), node, g)) for a, b in zip(parts[:2], own[:2], strict=True))
                inner = own[2] if of_hidden is None else g.op("Add", own[2], of_hidden)
                new = g.op("Add", parts[2], g.op("Mul", r, inner))
            else:
                first = _plus_product(g.slice(gates, 1, 0, 2 * hidden), h, _times_matrix(to_gates, g), g)
                z, r = (f[0](_clip(s, node, g)) for s in _gates(first, hidden, 2, g))
                last = g.slice(gates, 1, 2 * hidden, 3 * hidden)
                new = _plus_product(last, g.op("Mul", r, h), _times_matrix(to_new, g), g)
            new = f[1](_clip(new, node, g))
            rest = g.op("Sub", np.array(1, g.dtype(z)), z)
            return (g.op("Add", g.op("Mul", rest, new), g.op("Mul", z, h)),)

        return Cell(projected, (_initial(node, g, d, 5),), step, backwards)

    return directions(node, g, cell, 2)


def _rnn(node: Node, g: Graph) -> Sequence[str]:
    product = _products(node, g)

    def cell(d: int, x: str, backwards: bool) -> Cell:
        (f,) = _activations(node, d, ["Tanh"], g)
        projected, recurrent = _projected(product(1, d), x, _biases(node, g, d, 1), g), product(2, d)

        def step(gates: str, states: tuple[str, ...]) -> tuple[str, ...]:
            return (f(_clip(_plus_product(gates, states[0], recurrent, g), node, g)),)

        return Cell(projected, (_initial(node, g, d, 5),), step, backwards)

    return directions(node, g, cell, 2)


# -- directions and steps -------------------------------------------------------------------------------------------


def directions(node: Node, g: Graph, cell: Callable[[int, str, bool], Cell], outputs: int) -> list[str]:
    """Y (T, D, B, H), Y_h (D, B, H) and, of an LSTM, Y_c; with layout 1 the batch first."""
    x, first = node.input(0), bool(node.get("layout", 0))
    if first:
        x = g.transpose(x, (1, 0, 2))
    which = node.get("direction", "forward")
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}.get(which)
    if backwards is None:
        raise RewriteError(f"its direction must be forward, reverse or bidirectional, it is {which!r}")
    steps = g.shape(x)[0]
    lasts, series = [], []
    run = looped if steps > STEPS_MOST and (g.loops_allowed or steps > UNROLL_MOST) else unrolled
    for d, back in enumerate(backwards):
        y, states = run(cell(d, x, back), steps, _lengths(node, g, steps), g)
        if node.wants(0):
            series.append(g.reshape(y, (steps, 1, *g.shape(y)[1:])))
        lasts.append(states)
    found = [g.concat(series, 1) if node.wants(0) else ""]
    found += [g.concat([g.unsqueeze(s[i], 0) for s in lasts], 0) for i in range(outputs - 1)]
    if first:
        found = [g.transpose(v, (2, 0, 1, 3) if i == 0 else (1, 0, 2)) if v else v for i, v in enumerate(found)]
    return found[: len(node.outputs)]


def unrolled(cell: Cell, steps: int, lengths: str | None, g: Graph) -> tuple[str, tuple[str, ...]]:
    """The outputs (T, B, H) in the series' order, and the last states.

    With lengths (B,), a state stays as it is and an output is zero at the steps beyond the length.
    """
    pieces = [g.squeeze(p, 0) for p in g.split(cell.projected, [1] * steps, 0)]
    states, ys = cell.states, [""] * steps
    for t in range(steps - 1, -1, -1) if cell.backwards else range(steps):
        at = None if lengths is None else g.const([t], np.int64)
        states, ys[t] = _stepped(cell, pieces[t], states, at, lengths, g)
    batch, hidden = g.shape(ys[0])  # rows one below the other, so that no step has an operator for its place
    return g.reshape(g.concat(ys, 0), (steps, batch, hidden)), states


def looped(cell: Cell, steps: int, lengths: str | None, g: Graph) -> tuple[str, tuple[str, ...]]:
    """The outputs of `unrolled`, by one function that loops over time."""
    series = [cell.projected]
    if lengths is not None:
        series.append(g.const(np.arange(steps)[:, None], np.int64))

    def step(states: list[str], slices: list[str]) -> tuple[tuple[str, ...], list[str]]:
        after, y = _stepped(cell, slices[0], tuple(states), slices[1] if lengths is not None else None, lengths, g)
        return after, [y]

    states, (y,) = g.loop(steps, cell.states, series, step, cell.backwards)
    return y, tuple(states)


def _stepped(
    cell: Cell, gates: str, states: tuple[str, ...], at: str | None, lengths: str | None, g: Graph
) -> tuple[tuple[str, ...], str]:
    """The states after a step, and its output; `at` (1,) is its place in the series."""
    new = cell.step(gates, states)
    y = new[0]
    if at is not None:
        within = g.unsqueeze(g.op("Less", at, lengths), 1)
        new = tuple(g.op("Where", within, n, s) for n, s in zip(new, states, strict=True))
        y = g.op("Where", within, y, np.array(0, g.dtype(y)))
    return new, y


def _lengths(node: Node, g: Graph, steps: int) -> str | None:
    """sequence_lens (B,) as int64; None if every series has all steps."""
    name = node.input(4)
    if not name:
        return None
    value = g.value(name)
    if value is not None and (value >= steps).all():
        return None
    return g.cast(name, np.int64)


# -- parts of a cell ------------------------------------------------------------------------------------------------


def _hidden(node: Node, g: Graph) -> int:
    return int(node.get("hidden_size", 0)) or g.shape(node.input(2))[-1]


def _products(node: Node, g: Graph) -> Product:
    return lambda i, d: _times_matrix(_of(g.transpose(node.input(i), (0, 2, 1)), d, g), g)


def _times_matrix(weights: str, g: Graph) -> Callable[[str], str]:
    return lambda x: g.op("MatMul", x, weights)


def _of(name: str, d: int, g: Graph) -> str:
    """Direction d of a weight (D, ...)."""
    return g.squeeze(g.slice(name, 0, d, d + 1), 0)


def _projected(product: Callable[[str], str], x: str, bias: str | None, g: Graph) -> str:
    """All steps at once, (T, B, gates * H)."""
    steps, batch, inputs = g.shape(x)
    flat = product(g.reshape(x, (steps * batch, inputs)))
    flat = flat if bias is None else g.op("Add", flat, bias)
    return g.reshape(flat, (steps, batch, g.shape(flat)[1]))


def _bias(node: Node, g: Graph, d: int) -> str | None:
    return _of(node.input(3), d, g) if node.input(3) else None


def _biases(node: Node, g: Graph, d: int, gates: int) -> str | None:
    """Wb + Rb."""
    bias, n = _bias(node, g, d), gates * _hidden(node, g)
    return None if bias is None else g.op("Add", g.slice(bias, 0, 0, n), g.slice(bias, 0, n, 2 * n))


def _initial(node: Node, g: Graph, d: int, i: int) -> str:
    """The state before the first step, (B, H)."""
    x, batch_first = node.input(0), bool(node.get("layout", 0))
    if not node.input(i):
        return g.const(np.zeros((g.shape(x)[0 if batch_first else 1], _hidden(node, g)), g.dtype(x)))
    state = g.transpose(node.input(i), (1, 0, 2)) if batch_first else node.input(i)
    return _of(state, d, g)


def _peepholes(node: Node, g: Graph, d: int) -> list[str | None]:
    """Those of the gates i, o and f."""
    if not node.input(7):
        return [None, None, None]
    return [*_gates(g.unsqueeze(_of(node.input(7), d, g), 0), _hidden(node, g), 3, g)]


def _gates(x: str, hidden: int, count: int, g: Graph) -> list[str]:
    """The columns of each gate: slices, which fuse with what follows them."""
    return [g.slice(x, 1, k * hidden, (k + 1) * hidden) for k in range(count)]


def _plus_product(x: str, h: str, product: Callable[[str], str], g: Graph) -> str:
    state = g.value(h)
    if state is not None and not state.any():
        return x
    return g.op("Add", product(h), x)


def _times(x: str, factor: str | None, g: Graph) -> str | None:
    return None if factor is None else g.op("Mul", x, factor)


def _plus(x: str, more: str | None, g: Graph) -> str:
    return x if more is None else g.op("Add", x, more)


def _clip(x: str, node: Node, g: Graph) -> str:
    """The operand of an activation within the attribute `clip`."""
    most = node.get("clip")
    if most is None:
        return x
    return g.op("Clip", x, np.array(-most, g.dtype(x)), np.array(most, g.dtype(x)))


def _activations(node: Node, d: int, defaults: list[str], g: Graph) -> list[Activation]:
    """Functions of a direction; alphas and betas belong, in their order, to the functions that take one."""
    given = [a.decode() if isinstance(a, bytes) else a for a in node.get("activations") or ()]
    alphas, betas = list(node.get("activation_alpha") or ()), list(node.get("activation_beta") or ())
    found = []
    for name in given or defaults * (d + 1):
        kind = name.lower()
        alpha = (alphas.pop(0) if alphas else _ALPHA[kind]) if kind in _ALPHA else 0.0
        beta = (betas.pop(0) if betas else _BETA[kind]) if kind in _BETA else 0.0
        found.append(_activation(name, float(alpha), float(beta), g))
    return found[d * len(defaults) : (d + 1) * len(defaults)]


def _activation(name: str, alpha: float, beta: float, g: Graph) -> Activation:
    def scaled(x: str, factor: float) -> str:
        return x if factor == 1.0 else g.op("Mul", x, np.array(factor, g.dtype(x)))

    kinds: dict[str, Activation] = {
        "affine": lambda x: g.op("Add", scaled(x, alpha), np.array(beta, g.dtype(x))),
        "elu": lambda x: g.op("Elu", x, alpha=alpha),
        "hardsigmoid": lambda x: g.op("HardSigmoid", x, alpha=alpha, beta=beta),
        "leakyrelu": lambda x: g.op("LeakyRelu", x, alpha=alpha),
        "relu": lambda x: g.op("Relu", x),
        "scaledtanh": lambda x: scaled(g.op("Tanh", scaled(x, beta)), alpha),
        "sigmoid": lambda x: g.op("Sigmoid", x),
        "softplus": lambda x: g.op("Softplus", x),
        "softsign": lambda x: g.op("Softsign", x),
        "tanh": lambda x: g.op("Tanh", x),
        "thresholdedrelu": lambda x: g.op("ThresholdedRelu", x, alpha=alpha),
    }
    if name.lower() not in kinds:
        raise RewriteError(f"it has an activation {name!r} that ONNX does not know")
    return kinds[name.lower()]
