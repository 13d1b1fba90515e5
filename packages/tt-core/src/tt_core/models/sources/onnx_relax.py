"""From a checked ONNX model to Relax: as it is where TVM takes it, else rewritten before."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tt_spec import Plugins

from tt_core.errors import ModelError, summary
from tt_core.models import rewrites
from tt_core.models.sources import shapes as shape_options
from tt_core.models.sources.onnx_slim import simplified

if TYPE_CHECKING:
    import tvm
    from onnx import ModelProto, NodeProto

__all__ = ["Imported", "NodeError", "to_relax"]

Shapes = dict[str, tuple[int, ...]]


class NodeError(ModelError):
    """A model that cannot be imported because of some of its nodes.

    Args:
        text: Names the nodes and says why; the way out is added.
        nodes: Numbers of the nodes in the user's file, counted from 0; empty where simplifying made them.
        source: The user's file.
    """

    def __init__(self, text: str, nodes: Sequence[int], source: str) -> None:
        super().__init__(f"{text}; tt split {source} --out DIR writes the parts that can be imported")
        self.nodes, self.why = tuple(nodes), text


@dataclass(frozen=True)
class Imported:
    """A model in Relax.

    Args:
        model: The ONNX model that TVM imported; its inputs are those of `mod`.
        mod: Constants inside.
        rewritten: Whether it holds what the user's file does not.
        notes: What the user should know, a line each.
    """

    model: ModelProto
    mod: tvm.IRModule
    rewritten: bool = False
    notes: tuple[str, ...] = ()


def to_relax(
    model: ModelProto, original: ModelProto, fixed: Shapes, source: str, plugins: Plugins | None = None
) -> Imported:
    """Import a model under fixed shapes; `original` is the user's file, in which errors count nodes.

    A model that TVM takes is not touched. One that it does not take, or that holds an operator with a rewriting, is
    rewritten.
    """
    under = f"{source} under {shape_options.shown(fixed)}"
    found, known = rewrites.registered(plugins), _known()
    refused: ModelError | None = None
    if not rewrites.needed(model, found, known):
        try:
            return _plain(model, original, fixed, source, under)
        except ModelError as e:
            refused = e
    still = _with_shapes(model, fixed)
    for loops in (True, False):
        try:
            written, graph = rewrites.apply(still, found, known, loops)
        except rewrites.RewriteError as e:
            if refused is not None:
                raise refused from e
            at = "" if e.node is None else f" at the {e.node.op_type}, {_place(e.node, original)}"
            if e.node is None:
                raise ModelError(f"TVM cannot import {under}: {e}") from e
            raise NodeError(f"TVM cannot import {under}{at}: {e}", _numbers([e.node], original), source) from e
        if not graph.used and refused is None:
            try:
                return _plain(model, original, fixed, source, under)
            except ModelError as e:
                refused = e
        slim = _as_slim_as_can_be(written)
        try:
            mod = _from_onnx(slim, original, fixed, source, under)
        except ModelError as e:
            if loops and graph.loops:  # a step that TVM does not take may be one with constants in its place
                continue
            raise refused or e from e
        return Imported(slim, mod, True, tuple(graph.remarks))
    raise AssertionError("the second pass returns or raises")


def _as_slim_as_can_be(written: ModelProto) -> ModelProto:
    try:
        return simplified(written, {})
    except Exception:  # onnxslim raises many types; it only makes the graph smaller
        return written


def _plain(model: ModelProto, original: ModelProto, fixed: Shapes, source: str, under: str) -> Imported:
    try:
        slim = simplified(model, fixed)
    except Exception as e:
        raise ModelError(f"onnxslim cannot simplify {under}: {summary(e)}") from e
    return Imported(slim, _from_onnx(slim, original, fixed, source, under))


def _with_shapes(model: ModelProto, fixed: Shapes) -> ModelProto:
    """A copy whose inputs have these shapes."""
    copy = type(model)()
    copy.CopyFrom(model)
    for value in copy.graph.input:
        if value.name in fixed:
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            for size in fixed[value.name]:
                shape.dim.add().dim_value = size
    return copy


def _known() -> frozenset[str]:
    """Operators of the standard domain that TVM's importer takes as the standard defines them."""
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    return frozenset({*_get_convert_map(), "Constant"} - _MICROSOFT)


_MICROSOFT = {"Attention", "BiasGelu", "EmbedLayerNormalization", "FastGelu", "SkipLayerNormalization"}
"""Names under which TVM takes onnxruntime's operators, whatever the domain."""


def _from_onnx(slim: ModelProto, original: ModelProto, fixed: Shapes, source: str, under: str) -> tvm.IRModule:
    from tvm.relax.frontend.onnx import from_onnx

    from tt_core.models.sources.onnx_own import importing_own

    _refuse_unsupported(slim, original, source)
    try:
        with (
            importing_own(),
            redirect_stdout(io.StringIO()),
        ):  # the importer prints what it fails at, many lines of it
            return from_onnx(slim, shape_dict={n: list(s) for n, s in fixed.items()}, keep_params_in_input=False)
    except Exception as e:
        node = _node_in_hand(e)
        if node is None:
            raise ModelError(f"TVM cannot import {under}: {summary(e)}") from e
        where = f"at the {node.op_type}, {_place(node, original)}"
        raise NodeError(f"TVM cannot import {under} {where}: {summary(e)}", _numbers([node], original), source) from e


_DOMAINS = ("", "ai.onnx", "com.microsoft", "tt")


def _refuse_unsupported(slim: ModelProto, original: ModelProto, source: str) -> None:
    """Name every operator that TVM's importer has no conversion for, and its first node in the user's file."""
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    supported = {*_get_convert_map(), "If", "Constant", rewrites.LOOP, rewrites.WHOLE}
    lacking = [n for n in rewrites.nodes(slim.graph) if n.op_type not in supported or n.domain not in _DOMAINS]
    first: dict[str, NodeProto] = {}
    for node in sorted(lacking, key=lambda n: _number(n, original) or 0):
        first.setdefault(f"{node.domain}.{node.op_type}".lstrip("."), node)
    if first:
        kinds = "operators" if len(first) > 1 else "operator"
        places = "; ".join(f"{kind} at {_place(node, original)}" for kind, node in first.items())
        text = f"TVM has no import for the {kinds} of {source}: {places}"
        raise NodeError(text, _numbers(lacking, original), source)


def _place(node: NodeProto, original: ModelProto) -> str:
    """`node 17 'Conv_3' -> out`, counted from 0 in the user's file."""
    number = _number(node, original)
    outputs = ", ".join(o for o in node.output if o)
    return f"{'a node' if number is None else f'node {number}'} {node.name!r} -> {outputs}"


def _numbers(nodes: Sequence[NodeProto], original: ModelProto) -> list[int]:
    return sorted({n for n in (_number(node, original) for node in nodes) if n is not None})


def _number(node: NodeProto, original: ModelProto) -> int | None:
    """Where a node stands in the user's file; None if simplifying made it, with outputs of its own."""
    outputs = {o for o in node.output if o}
    return next((i for i, n in enumerate(rewrites.nodes(original.graph)) if outputs & set(n.output)), None)


def _node_in_hand(e: BaseException) -> NodeProto | None:
    """The node that TVM's importer was at when it raised: a local variable of its loop over the nodes."""
    trace, found = e.__traceback__, None
    while trace is not None:
        node = trace.tb_frame.f_locals.get("node")
        if hasattr(node, "op_type"):
            found = node
        trace = trace.tb_next
    return found
