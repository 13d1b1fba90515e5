"""If with a known condition; Loop and Scan with a known trip count; sequences of known length.

Source: ONNX operators If-16, Loop-16, Scan-9, SequenceAt-11 and its kin, SequenceMap-17.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tt_core.models.rewrites.graph import Graph
from tt_core.models.rewrites.node import Node, Rewrite, RewriteError

__all__ = ["SELECT_MOST", "TRIPS_MOST", "operators"]

LOOP_FROM = 32
"""Trips beyond which a loop stays a loop, if its steps are alike."""
TRIPS_MOST = 4096
"""Longest loop that is unrolled."""
SELECT_MOST = 8
"""Operators of a branch up to which both branches are computed and one result selected."""


def operators() -> dict[tuple[str, str], Rewrite]:
    """The rewritings of this family."""
    return {
        ("", "If"): _if,
        ("", "Loop"): _loop,
        ("", "Scan"): _scan,
        ("", "SequenceConstruct"): lambda n, g: [g.sequence(n.inputs)],
        ("", "SequenceEmpty"): lambda n, g: [g.sequence([])],
        ("", "SequenceInsert"): _insert,
        ("", "SequenceErase"): _erase,
        ("", "SequenceAt"): _at,
        ("", "SequenceLength"): _length,
        ("", "SplitToSequence"): _split,
        ("", "ConcatFromSequence"): _concat,
        ("", "SequenceMap"): _map,
        ("", "Optional"): lambda n, g: [n.input(0)] if n.input(0) else None,
        ("", "OptionalGetElement"): lambda n, g: [n.input(0)] if n.input(0) else None,
        ("", "OptionalHasElement"): _has,
        ("", "ReverseSequence"): _reverse_sequence,
    }


def _if(node: Node, g: Graph) -> Sequence[str]:
    condition = g.value(node.input(0))
    if condition is not None:
        branch = "then_branch" if condition.reshape(-1)[0] else "else_branch"
        return g.inline(node.get(branch), (), node)
    branches = node.get("then_branch"), node.get("else_branch")
    if all(len(b.node) <= SELECT_MOST for b in branches):
        yes, no = (g.inline(b, (), node) for b in branches)
        if all(_same(a, b, g) for a, b in zip(yes, no, strict=True)):
            return [g.op("Where", node.input(0), a, b) for a, b in zip(yes, no, strict=True)]
    raise RewriteError(
        f"its condition {node.input(0)!r} is computed while the model runs: fix the input that it depends on,"
        " --fix NAME=VALUE"
    )


def _same(a: str, b: str, g: Graph) -> bool:
    return g.has_type(a) and g.has_type(b) and (g.shape(a), g.dtype(a)) == (g.shape(b), g.dtype(b))


def _loop(node: Node, g: Graph) -> Sequence[str]:
    limit = g.value(node.input(0)) if node.input(0) else None
    trips = None if limit is None else int(limit.reshape(-1)[0])
    if node.input(0) and trips is None:
        raise RewriteError(
            f"its trip count {node.input(0)!r} is computed while the model runs: fix the input that it depends on,"
            " --fix NAME=VALUE"
        )
    if trips is not None and trips > LOOP_FROM:
        try:
            if (looped := _looped(node, trips, g)) is not None:
                return looped
        except RewriteError:  # its steps differ in shapes or in what is known: each of them is written
            pass
    return _unrolled(node, trips, g)


def _looped(node: Node, trips: int, g: Graph) -> Sequence[str] | None:
    """A Loop that runs to its trip count, as a loop."""
    body, given, carried = node.get("body"), node.input(1), node.inputs[2:]
    if given and not ((first := g.value(given)) is not None and bool(first.reshape(-1)[0])):
        return None
    scalar: list[bool] = []

    def step(states: list[str], slices: list[str]) -> tuple[list[str], list[str]]:
        values = g.inline(body, [g.reshape(slices[0], ()), g.const(True), *_bare(states, carried, g)], node)
        goes_on = g.value(values[0])
        if goes_on is None or not bool(goes_on.reshape(-1)[0]):
            raise RewriteError("it may stop before its trip count")
        scalar[:] = [not g.shape(v) for v in values[1 + len(carried) :]]
        return _dressed(values[1 : 1 + len(carried)], g), _dressed(values[1 + len(carried) :], g)

    series = [g.const(np.arange(trips)[:, None], np.int64)]
    after, outputs = g.loop(trips, _dressed(carried, g), series, step)
    outputs = [g.reshape(v, (trips,)) if bare else v for v, bare in zip(outputs, scalar, strict=True)]
    return [*_bare(after, carried, g), *outputs]


def _dressed(values: Sequence[str], g: Graph) -> list[str]:
    """Scalars as vectors of one element: a loop carries arrays."""
    return [v if g.shape(v) else g.reshape(v, (1,)) for v in values]


def _bare(values: Sequence[str], like: Sequence[str], g: Graph) -> list[str]:
    return [v if g.shape(of) else g.reshape(v, ()) for v, of in zip(values, like, strict=True)]


def _unrolled(node: Node, trips: int | None, g: Graph) -> Sequence[str]:
    body = node.get("body")
    condition, carried = node.input(1), list(node.inputs[2:])
    count = len(carried)
    stacked: list[list[str]] = [[] for _ in body.output[1 + count :]]
    i = 0
    while trips is None or i < trips:
        if condition and not bool(_condition(condition, g).reshape(-1)[0]):
            break
        if i == TRIPS_MOST:
            raise RewriteError(f"it runs more than {TRIPS_MOST} times, the longest loop that is unrolled")
        values = g.inline(body, [g.const(i, np.int64), condition or g.const(True), *carried], node)
        condition = values[0] if condition else ""
        carried = values[1 : 1 + count]
        for found, value in zip(stacked, values[1 + count :], strict=True):
            found.append(value)
        i += 1
    return [*carried, *(_stacked(s, o, g) for s, o in zip(stacked, body.output[1 + count :], strict=True))]


def _condition(name: str, g: Graph) -> np.ndarray:
    found = g.value(name)
    if found is None:
        raise RewriteError(
            f"it stops on a condition {name!r} that is computed while the model runs: fix the input that it depends"
            " on, --fix NAME=VALUE"
        )
    return found


def _stacked(values: Sequence[str], output: Any, g: Graph) -> str:
    """One value a step, along a new first axis."""
    if values:
        return g.concat([g.unsqueeze(v, 0) for v in values], 0)
    from onnx import helper

    of = output.type.tensor_type
    return g.const(np.zeros((0, *(d.dim_value for d in of.shape.dim)), helper.tensor_dtype_to_np_dtype(of.elem_type)))


def _scan(node: Node, g: Graph) -> Sequence[str]:
    body, scanned = node.get("body"), int(node.get("num_scan_inputs"))
    states, series = list(node.inputs[:-scanned]), list(node.inputs[-scanned:])
    outputs = len(body.output) - len(states)
    in_axes, out_axes = node.get("scan_input_axes") or [0] * scanned, node.get("scan_output_axes") or [0] * outputs
    backwards = node.get("scan_input_directions") or [0] * scanned
    turned = node.get("scan_output_directions") or [0] * outputs
    axes = [a % len(g.shape(s)) for s, a in zip(series, in_axes, strict=True)]
    trips = g.shape(series[0])[axes[0]]
    if trips > LOOP_FROM:
        try:
            return _scanned(node, trips, axes, g)
        except RewriteError:  # as above
            pass
    if trips > TRIPS_MOST:
        raise RewriteError(f"it runs {trips} times, the longest loop that is unrolled has {TRIPS_MOST}")
    pieces = []
    for value, axis, back in zip(series, axes, backwards, strict=True):
        cut = [g.squeeze(p, axis) for p in g.split(value, [1] * trips, axis)]
        pieces.append(cut[::-1] if back else cut)
    collected: list[list[str]] = [[] for _ in range(outputs)]
    for step in zip(*pieces, strict=True):
        values = g.inline(body, [*states, *step], node)
        states = values[: len(states)]
        for found, value in zip(collected, values[len(states) :], strict=True):
            found.append(value)
    results = []
    for found, axis, back in zip(collected, out_axes, turned, strict=True):
        at = axis % (len(g.shape(found[0])) + 1)
        results.append(g.concat([g.unsqueeze(v, at) for v in (found[::-1] if back else found)], at))
    return [*states, *results]


def _scanned(node: Node, trips: int, axes: Sequence[int], g: Graph) -> list[str]:
    """A Scan as a loop."""
    body, scanned = node.get("body"), len(axes)
    carried, given = node.inputs[:-scanned], node.inputs[-scanned:]
    outputs = len(body.output) - len(carried)
    in_turn, out_turn = (node.get(f"scan_{w}_directions") for w in ("input", "output"))
    series = []
    for value, axis, back in zip(given, axes, in_turn or [0] * scanned, strict=True):
        value = g.slice(value, axis, -1, -(1 << 62), -1) if back else value
        series.append(_moved(value, axis, 0, g))
    scalar: list[bool] = []

    def step(states: list[str], slices: list[str]) -> tuple[list[str], list[str]]:
        bare = [s if len(g.shape(v)) > 1 else g.reshape(s, ()) for s, v in zip(slices, given, strict=True)]
        values = g.inline(body, [*_bare(states, carried, g), *bare], node)
        scalar[:] = [not g.shape(v) for v in values[len(carried) :]]
        return _dressed(values[: len(carried)], g), _dressed(values[len(carried) :], g)

    series = [v if len(g.shape(v)) > 1 else g.reshape(v, (trips, 1)) for v in series]
    after, found = g.loop(trips, _dressed(carried, g), series, step)
    results = []
    for value, bare, axis, back in zip(
        found, scalar, node.get("scan_output_axes") or [0] * outputs, out_turn or [0] * outputs, strict=True
    ):
        value = g.reshape(value, (trips,)) if bare else value
        value = g.slice(value, 0, -1, -(1 << 62), -1) if back else value
        results.append(_moved(value, 0, axis % len(g.shape(value)), g))
    return [*_bare(after, carried, g), *results]


def _moved(x: str, axis: int, to: int, g: Graph) -> str:
    """`x` with one axis elsewhere."""
    order = [i for i in range(len(g.shape(x))) if i != axis]
    return g.transpose(x, [*order[:to], axis, *order[to:]])


def _items(node: Node, g: Graph, i: int = 0) -> list[str]:
    found = g.items(node.input(i))
    if found is None:
        raise RewriteError(f"the length of the sequence {node.input(i)!r} is not known before the model runs")
    return found


def _position(node: Node, g: Graph, i: int) -> int | None:
    return int(g.known(node.input(i), "position").reshape(-1)[0]) if node.input(i) else None


def _insert(node: Node, g: Graph) -> Sequence[str] | None:
    items, at = _items(node, g), _position(node, g, 2)
    at = len(items) if at is None else at + len(items) if at < 0 else at
    return [g.sequence([*items[:at], node.input(1), *items[at:]])]


def _erase(node: Node, g: Graph) -> Sequence[str] | None:
    items, at = _items(node, g), _position(node, g, 1)
    del items[-1 if at is None else at]
    return [g.sequence(items)]


def _at(node: Node, g: Graph) -> Sequence[str] | None:
    at = _position(node, g, 1)
    return [_items(node, g)[at if at is not None else 0]]


def _length(node: Node, g: Graph) -> Sequence[str] | None:
    return [g.const(len(_items(node, g)), np.int64)]


def _split(node: Node, g: Graph) -> Sequence[str] | None:
    x, axis = node.input(0), int(node.get("axis", 0))
    n = g.shape(x)[axis]
    sizes, single = [1] * n, not node.input(1)
    if not single:
        given = g.known(node.input(1), "split")
        whole = int(given.reshape(-1)[0]) if given.ndim == 0 else 0
        sizes = [min(whole, n - i) for i in range(0, n, whole)] if whole else [int(s) for s in given]
    pieces = g.split(x, sizes, axis)
    return [g.sequence([g.squeeze(p, axis) for p in pieces] if single and not node.get("keepdims", 1) else pieces)]


def _concat(node: Node, g: Graph) -> Sequence[str] | None:
    items, axis = _items(node, g), int(node.get("axis"))
    if node.get("new_axis", 0):
        axis %= len(g.shape(items[0])) + 1
        items = [g.unsqueeze(i, axis) for i in items]
    return [g.concat(items, axis)]


def _map(node: Node, g: Graph) -> Sequence[str] | None:
    first = _items(node, g)
    others = [g.items(i) or [i] * len(first) for i in node.inputs[1:]]
    steps = [g.inline(node.get("body"), step, node) for step in zip(first, *others, strict=True)]
    return [g.sequence(of) for of in zip(*steps, strict=True)]


def _has(node: Node, g: Graph) -> Sequence[str] | None:
    return [g.const(bool(node.input(0)))]


def _reverse_sequence(node: Node, g: Graph) -> Sequence[str]:
    """ReverseSequence-10: the first `sequence_lens[b]` entries of each batch element in reverse."""
    x, time, batch = node.input(0), int(node.get("time_axis", 0)), int(node.get("batch_axis", 1))
    lengths = g.known(node.input(1), "sequence_lens").astype(np.int64)
    n = g.shape(x)[time]
    steps = np.arange(n)[:, None]
    order = np.where(steps < lengths, lengths - 1 - steps, steps)  # (time, batch)
    order = order if time < batch else order.T
    order = order.reshape(order.shape + (1,) * (len(g.shape(x)) - 2))
    return [g.op("GatherElements", x, np.ascontiguousarray(np.broadcast_to(order, g.shape(x))), axis=time)]
