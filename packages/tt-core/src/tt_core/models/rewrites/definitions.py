"""What ONNX itself says of an operator of the standard: its schema, and its definition by other operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tt_core.models.rewrites.node import Node, as_attribute, attribute

if TYPE_CHECKING:
    from onnx import FunctionProto, TypeProto

__all__ = ["body", "defaults", "schema"]


def schema(op: str, opset: int) -> Any:
    """`onnx.defs.OpSchema` as it stands in this opset, None where ONNX has no such operator."""
    import onnx

    try:
        return onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None


def defaults(op: str, opset: int) -> dict[str, Any]:
    """The values of attributes that a node may leave out."""
    if (of := schema(op, opset)) is None:
        return {}
    return {n: attribute(a.default_value) for n, a in of.attributes.items() if a.default_value.type}


def body(node: Node, types: list[TypeProto | None], opset: int) -> FunctionProto | None:
    """ONNX's own definition of an operator by others, as it stands in this opset.

    Args:
        types: Of the node's inputs, None for one that is not given.
    """
    import onnx

    if (of := schema(node.op, opset)) is None:
        return None
    text = of.get_function_with_opset_version(opset) if of.has_function else None
    if text is None and of.has_context_dependent_function:
        proto = onnx.helper.make_node(node.op, node.inputs, node.outputs)
        proto.attribute.extend(as_attribute(n, v) for n, v in node.attributes.items())
        versions = [v for v in of.context_dependent_function_opset_versions if v <= opset]
        if versions:
            text = of.get_context_dependent_function_with_opset_version(
                max(versions), proto.SerializeToString(), [b"" if t is None else t.SerializeToString() for t in types]
            )
    if not text:
        return None
    return onnx.FunctionProto.FromString(text) if isinstance(text, bytes) else text
