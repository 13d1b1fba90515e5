"""An ONNX graph written again, node by node, under fixed shapes.

One pass in the file's order: what is known is computed, what has a rewriting is replaced, all else is copied. What a
rewriting emits goes through the same pass, so rewritings may build on each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto

__all__ = ["DOMAIN", "LOOP", "WHOLE", "After", "Graph", "Node", "Only", "Rewrite", "RewriteError"]

Operand = str | np.ndarray | np.generic | float | None
"""An operator's input: a value's name, a constant, or none."""

FOLD_MOST = 1 << 22
"""Elements of the largest constant that is computed from smaller ones."""
LOOP, WHOLE, DOMAIN = "TtLoop", "TtWhole", "tt"
"""The operators that `Graph.loop` and `Graph.whole` emit, and their domain."""
NODES_MOST = 200_000
"""Nodes after which unrolling is given up."""

_RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
_GROWING = {"ConstantOfShape", "Expand", "Tile", "Range", "Pad", "EyeLike", "OneHot", "Resize"}


class RewriteError(Exception):
    """A node that no rewriting can express; the message says why and the way out.

    Args:
        message: A sentence about the node, which "it" stands for.
    """

    node: NodeProto | None = None
    """The node of the file, as protobuf."""


@dataclass(frozen=True)
class Node:
    """A node with its inputs resolved.

    Args:
        inputs: Names of values; "" for one that is not given.
        outputs: As in the file; "" for one that nobody asks for.
        attributes: By name, as Python values: numbers, lists, text, numpy arrays, `onnx.GraphProto`.
        scope: Names of the enclosing graphs that a subgraph among the attributes refers to.
    """

    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    name: str = ""
    scope: Mapping[str, str] = field(default_factory=dict)

    def input(self, i: int) -> str:
        """Name of input i, "" if it is not given."""
        return self.inputs[i] if i < len(self.inputs) else ""

    def wants(self, i: int) -> bool:
        """Whether output i is used."""
        return i < len(self.outputs) and bool(self.outputs[i])

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, text decoded."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value


Rewrite = Callable[[Node, "Graph"], "Sequence[str] | None"]
"""Emits operators through the graph and returns one value for each output; None leaves the node as it is."""


@dataclass(frozen=True)
class After:
    """A rewriting that concerns a model only if another operator stands in it.

    Args:
        operator: Of the standard domain: "DequantizeLinear".
    """

    operator: str
    rewrite: Rewrite

    def __call__(self, node: Node, graph: Graph) -> Sequence[str] | None:
        return self.rewrite(node, graph)


@dataclass(frozen=True)
class Only:
    """A rewriting of some forms of an operator, the others of which the importer takes.

    Args:
        applies: Whether a node, as protobuf, has such a form.
    """

    applies: Callable[[NodeProto], bool]
    rewrite: Rewrite

    def __call__(self, node: Node, graph: Graph) -> Sequence[str] | None:
        return self.rewrite(node, graph)


class Graph:
    """A model's graph while it is written again.

    Args:
        model: `onnx.ModelProto`, opset 13 or newer, its inputs of fixed shape.
        rewrites: By domain and operator.
        known: Operators of the standard domain that the importer takes; one that is missing is replaced by ONNX's own
            function body, where there is one.
        loops_allowed: Whether `loop` may be called; where it fails, a rewriting unrolls.
    """

    def __init__(
        self,
        model: ModelProto,
        rewrites: Mapping[tuple[str, str], Rewrite],
        known: Iterable[str],
        loops_allowed: bool = True,
    ) -> None:
        self.loops_allowed = loops_allowed
        self.opset = next((int(o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
        self.used: set[str] = set()
        """Operators that were rewritten, as they stand in messages."""
        self.remarks: list[str] = []
        """Notes for the user, a line each."""
        self.loops = 0
        """Loops that stayed loops."""
        self.own = False
        """Whether an operator of `DOMAIN` was emitted."""
        self._inside = False
        self._model, self._rewrites, self._known = model, dict(rewrites), frozenset(known)
        self._functions = {(f.domain, f.name): f for f in model.functions}
        self._values: dict[str, np.ndarray] = {}
        self._types: dict[str, TypeProto] = {}
        self._alias: dict[str, str] = {}
        self._nodes: list[NodeProto] = []
        self._lists: dict[str, list[str]] = {}
        self._makers: dict[str, Node] = {}
        self._count = itertools.count()

    # -- what a rewriting asks ------------------------------------------------------------------------------------

    def value(self, name: str) -> np.ndarray | None:
        """The array of a value that is known, else None."""
        return self._values.get(self._resolved(name)) if name else None

    def known(self, name: str, what: str) -> np.ndarray:
        """The array of a value that must be known; `what` is how the message calls it."""
        found = self.value(name)
        if found is None:
            raise RewriteError(
                f"its {what} {name!r} is computed while the model runs; if it depends on an input, {_FIX}"
            )
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        """The fixed shape of a value."""
        if (found := self.value(name)) is not None:
            return found.shape
        of = self._types.get(self._resolved(name))
        if of is None or not of.HasField("tensor_type") or not of.tensor_type.HasField("shape"):
            raise RewriteError(f"the shape of {name!r} is not known; if it depends on an input, {_FIX}")
        if any(not d.HasField("dim_value") for d in of.tensor_type.shape.dim):
            raise RewriteError(f"the shape of {name!r} depends on values; if they come from an input, {_FIX}")
        return tuple(int(d.dim_value) for d in of.tensor_type.shape.dim)

    def dtype(self, name: str) -> np.dtype:
        """The element type of a value."""
        from onnx import helper

        if (found := self.value(name)) is not None:
            return found.dtype
        of = self._types.get(self._resolved(name))
        if of is None or not of.tensor_type.elem_type:
            raise RewriteError(f"the element type of {name!r} is not known")
        return helper.tensor_dtype_to_np_dtype(of.tensor_type.elem_type)

    def has_type(self, name: str) -> bool:
        """Whether shape and element type of a value are known."""
        try:
            return self.shape(name) is not None and self.dtype(name) is not None
        except RewriteError:
            return False

    def maker(self, name: str) -> Node | None:
        """The node that computes a value, also if the value is known by now."""
        return self._makers.get(self._resolved(name))

    def items(self, name: str) -> list[str] | None:
        """The tensors of a sequence whose length is known, else None."""
        found = self._lists.get(self._resolved(name))
        return None if found is None else list(found)

    # -- what a rewriting emits -----------------------------------------------------------------------------------

    def const(self, value: Any, dtype: Any = None) -> str:
        """A constant."""
        name = self._fresh("constant")
        self._values[name] = np.array(value, dtype)  # a copy: of a scalar too
        return name

    def sequence(self, items: Sequence[str]) -> str:
        """A sequence of tensors, which exists while the graph is rewritten only."""
        name = self._fresh("sequence")
        self._lists[name] = [self._resolved(i) for i in items]
        return name

    def op(self, op: str, *inputs: Operand, domain: str = "", **attributes: Any) -> str:
        """One operator with one output; inputs are names of values, arrays and numbers become constants."""
        return self.ops(op, *inputs, outputs=1, domain=domain, **attributes)[0]

    def ops(self, op: str, *inputs: Operand, outputs: int, domain: str = "", **attributes: Any) -> list[str]:
        """One operator with several outputs."""
        from onnx import helper

        names = [i if isinstance(i, str) else self.const(i) for i in inputs]
        while names and not names[-1]:
            names.pop()
        made = [self._fresh(op) for _ in range(outputs)]
        self._visit(helper.make_node(op, names, made, name=made[0], domain=domain, **attributes), {})
        return [self._resolved(m) for m in made]

    def cast(self, x: str, dtype: Any) -> str:
        """`x` as another element type."""
        from onnx import helper

        if self.has_type(x) and self.dtype(x) == np.dtype(dtype):
            return x
        return self.op("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def whole(self, x: str, dtype: Any) -> str:
        """`x`, floats that are whole numbers in the range of an integer type, as that type. ONNX's Cast says what
        becomes of all others too, and TVM computes that."""
        from onnx import helper

        if (known := self.value(x)) is not None:
            return self.const(known, dtype)
        name = self._fresh(WHOLE)
        self._types[name] = _tensor(np.dtype(dtype), self.shape(x))
        self._nodes.append(
            helper.make_node(WHOLE, [self._resolved(x)], [name], name=name, domain=DOMAIN, dtype=np.dtype(dtype).name)
        )
        self.own = True
        return name

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        return x if self.shape(x) == tuple(shape) else self.op("Reshape", x, np.array(shape, np.int64))

    def transpose(self, x: str, order: Sequence[int]) -> str:
        return x if list(order) == sorted(order) else self.op("Transpose", x, perm=list(order))

    def squeeze(self, x: str, *axes: int) -> str:
        return self.op("Squeeze", x, np.array(axes, np.int64))

    def unsqueeze(self, x: str, *axes: int) -> str:
        return self.op("Unsqueeze", x, np.array(axes, np.int64))

    def slice(self, x: str, axis: int, start: int, stop: int, step: int = 1) -> str:
        return self.op("Slice", x, *(np.array([v], np.int64) for v in (start, stop, axis, step)))

    def concat(self, values: Sequence[str], axis: int) -> str:
        return values[0] if len(values) == 1 else self.op("Concat", *values, axis=axis)

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        if len(sizes) == 1:
            return [x]
        return self.ops("Split", x, np.array(sizes, np.int64), outputs=len(sizes), axis=axis)

    def reduce(self, op: str, x: str, axes: Sequence[int], keep: bool = True) -> str:
        """`ReduceMean` and its kin: axes became an input with opset 18, those of ReduceSum with 13."""
        if self.opset >= 18 or op == "ReduceSum":
            return self.op(op, x, np.array(axes, np.int64), keepdims=int(keep))
        return self.op(op, x, axes=list(axes), keepdims=int(keep))

    def inline(self, graph: GraphProto, inputs: Sequence[str], node: Node) -> list[str]:
        """The nodes of a subgraph, its inputs bound to these values; returns the values of its outputs."""
        from onnx import numpy_helper

        prefix = f"{next(self._count)}/"
        scope: dict[str, str] = dict(node.scope)
        scope.update(zip((i.name for i in graph.input), inputs, strict=False))
        for weight in graph.initializer:
            scope[weight.name] = prefix + weight.name
            self._values[prefix + weight.name] = numpy_helper.to_array(weight)
        for inner in graph.node:
            self._visit(inner, scope, prefix)
        return [self._resolved(scope.get(o.name, o.name)) for o in graph.output]

    def loop(
        self,
        trips: int,
        states: Sequence[str],
        series: Sequence[str],
        step: Callable[[list[str], list[str]], tuple[Sequence[str], Sequence[str]]],
        backwards: bool = False,
    ) -> tuple[list[str], list[str]]:
        """A loop that stays one, whatever its length.

        Args:
            states: Before the first step; shapes and element types stay the same.
            series: `(trips, ...)`; a step gets the slices, of at least one dimension.
            step: From states and slices to the next states and outputs.
            backwards: From the last step to the first.

        Returns:
            The states after the last step, and the outputs `(trips, ...)`.
        """
        if self._inside or not self.loops_allowed:
            raise RewriteError("its steps cannot be one function that TVM compiles")
        outer, self._nodes, self._inside = self._nodes, [], True
        made = next(self._count)
        names = [f"loop/{made}/{i}" for i in range(len(states) + len(series))]
        for i, (name, value) in enumerate(zip(names, [*states, *series], strict=True)):
            self._types[name] = _tensor(self.dtype(value), self.shape(value)[0 if i < len(states) else 1 :])
        try:
            after, outputs = step(names[: len(states)], names[len(states) :])
            body = self._loop_body(
                names, states, [self._resolved(a) for a in after], [self._resolved(o) for o in outputs]
            )
        finally:
            self._nodes, self._inside = outer, False
        return self._emit_loop(body, trips, states, [series[i] for i in body.read], backwards)

    def _loop_body(
        self, names: Sequence[str], states: Sequence[str], after: Sequence[str], outputs: Sequence[str]
    ) -> _Body:
        """The nodes that a loop's step has emitted, as a graph."""
        from onnx import helper, numpy_helper

        alive = _alive(self._nodes, [*after, *outputs])
        inside = {o for n in alive for o in n.output}
        for value, first in zip(after, states, strict=True):
            if value not in inside or after.count(value) > 1:
                raise RewriteError("a state of it is not computed by its step")
            if (self.shape(value), self.dtype(value)) != (self.shape(first), self.dtype(first)):
                raise RewriteError("a state of it changes its shape or its element type")
        used = dict.fromkeys(i for n in alive for i in _mentioned(n) if i not in inside)
        if any(name not in used for name in names[: len(states)]):  # TVM drops what a function does not read
            raise RewriteError("a state of it is not read by its step")
        read = [i for i, name in enumerate(names[len(states) :]) if name in used]
        names = [*names[: len(states)], *(names[len(states) + i] for i in read)]
        own = [o for o in dict.fromkeys(outputs) if o not in after]
        if any(o not in inside for o in own):
            raise RewriteError("an output of it is not computed by its step")
        weights = [numpy_helper.from_array(self._values[u], u) for u in used if u in self._values]
        free = [u for u in used if u not in self._values and u not in names]
        inputs = [helper.make_value_info(n, self._type(n)) for n in (*names, *free)]
        results = [helper.make_value_info(n, self._type(n)) for n in (*after, *own)]
        graph = helper.make_graph(alive, "step", inputs, results, weights)
        return _Body(graph, free, list(after), list(outputs), own, read)

    def _emit_loop(
        self, body: _Body, trips: int, states: Sequence[str], series: Sequence[str], backwards: bool
    ) -> tuple[list[str], list[str]]:
        from onnx import helper

        followed = [i for i, a in enumerate(body.after) if a in body.outputs]
        stacked = [*(body.after[i] for i in followed), *body.own]
        names = [self._fresh(LOOP) for _ in (*body.after, *stacked)]
        for i, (name, inner) in enumerate(zip(names, [*body.after, *stacked], strict=True)):
            self._types[name] = _tensor(self.dtype(inner), (*([trips] if i >= len(states) else []), *self.shape(inner)))
        attributes: dict[str, Any] = {
            "body": body.graph.SerializeToString(),  # hidden from tools that drop a body's weights
            "trips": trips,
            "states": len(states),
            "series": len(series),
            "backwards": int(backwards),
            **({"followed": followed} if followed else {}),
        }
        inputs = [self._resolved(n) for n in (*states, *series, *body.free)]
        node = helper.make_node(LOOP, inputs, names, name=names[0], domain=DOMAIN, **attributes)
        self._nodes.append(node)
        self.loops += 1
        self.own = True
        of = dict(zip(stacked, names[len(states) :], strict=True))
        return names[: len(states)], [of[o] for o in body.outputs]

    # -- the pass -------------------------------------------------------------------------------------------------

    def written(self) -> ModelProto:
        """The rewritten model."""
        from onnx import helper, numpy_helper

        source = self._model.graph
        for weight in source.initializer:
            self._values[weight.name] = numpy_helper.to_array(weight)
        for value in source.input:
            if value.name not in self._values:
                self._types[value.name] = value.type
        for node in source.node:
            try:
                self._visit(node, {})
            except RewriteError as e:
                e.node = node
                raise
        outputs = [o.name for o in source.output]
        for name in outputs:
            if self._resolved(name) != name or name in self._values:
                self._nodes.append(helper.make_node("Identity", [self._resolved(name)], [name], name=f"{name}_is"))
        nodes = _alive(self._nodes, outputs)
        needed = dict.fromkeys(i for n in nodes for i in _mentioned(n) if i in self._values)
        weights = [numpy_helper.from_array(self._values[n], n) for n in needed]
        taken = set(self._values)
        graph = helper.make_graph(
            nodes, source.name or "model", [i for i in source.input if i.name not in taken], source.output, weights
        )
        for value in graph.output:  # as inferred: a file may say less
            of = self._types.get(self._resolved(value.name))
            if of is not None and of.HasField("tensor_type"):
                value.type.CopyFrom(of)
        domains = sorted({n.domain for n in nodes} - {"", "ai.onnx"})
        imports = [helper.make_opsetid("", self.opset)]
        imports += [o for o in self._model.opset_import if o.domain in domains]
        imports += [helper.make_opsetid(DOMAIN, 1)] if self.own else []
        return helper.make_model(graph, opset_imports=imports, ir_version=self._model.ir_version)

    def _visit(self, proto: NodeProto, scope: dict[str, str], prefix: str = "") -> None:
        outputs = [prefix + o if o else "" for o in proto.output]
        inputs = [self._resolved(scope.get(i, i)) if i else "" for i in proto.input]
        scope.update((o, n) for o, n in zip(proto.output, outputs, strict=True) if o and prefix)
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        attributes = {a.name: _attribute(a) for a in proto.attribute}
        node = Node(proto.op_type, domain, tuple(inputs), tuple(outputs), attributes, proto.name, scope)
        self._makers.update((o, node) for o in outputs if o)
        if self._fold(proto, domain, inputs, outputs):
            return
        results = self._rewritten(node)
        if results is not None:
            for name, result in zip(outputs, results, strict=False):
                if name:
                    self._alias[name] = self._resolved(result)
            return
        if any(isinstance(a, _graph_type()) for a in attributes.values()):
            raise RewriteError("it has a body, and nothing here takes it out")
        self._emit(proto, domain, inputs, outputs)

    def _rewritten(self, node: Node) -> Sequence[str] | None:
        if (function := self._functions.get((node.domain, node.op))) is not None:
            return self._inlined(function, node)
        rewrite = self._rewrites.get((node.domain, node.op))
        if rewrite is not None and (results := rewrite(node, self)) is not None:
            self.used.add(f"{node.domain}.{node.op}".lstrip("."))
            return results
        if node.domain == "" and node.op not in self._known and (body := self._body(node)) is not None:
            self.used.add(node.op)
            return self._inlined(body, node)
        return None

    def _inlined(self, function: FunctionProto, node: Node) -> list[str]:
        """A function's nodes with the node's inputs and attributes in place of its own."""
        prefix = f"{next(self._count)}/"
        defaults = {a.name: _attribute(a) for a in function.attribute_proto}
        if node.domain == "" and (schema := _schema(node.op, self.opset)) is not None:
            known = {n: a.default_value for n, a in schema.attributes.items() if a.default_value.type}
            defaults |= {n: _attribute(a) for n, a in known.items()}
        given = {**defaults, **node.attributes}
        scope: dict[str, str] = dict(
            itertools.zip_longest(function.input, node.inputs[: len(function.input)], fillvalue="")
        )
        for proto in function.node:
            inner = type(proto)()
            inner.CopyFrom(proto)
            del inner.attribute[:]
            for a in proto.attribute:
                if not a.ref_attr_name:
                    inner.attribute.append(a)
                elif a.ref_attr_name in given:
                    inner.attribute.append(_as_attribute(a.name, given[a.ref_attr_name]))
            inner.input[:] = [i if scope.get(i, i) else "" for i in inner.input]
            self._visit(inner, scope, prefix)
        return [self._resolved(scope.get(o, o)) for o in function.output]

    def _body(self, node: Node) -> FunctionProto | None:
        """ONNX's own definition of an operator by others, as it stands in this opset."""
        import onnx

        schema = _schema(node.op, self.opset)
        if schema is None:
            return None
        text = schema.get_function_with_opset_version(self.opset) if schema.has_function else None
        if text is None and schema.has_context_dependent_function:
            proto = onnx.helper.make_node(node.op, node.inputs, node.outputs)
            proto.attribute.extend(_as_attribute(n, v) for n, v in node.attributes.items())
            types = [self._type(i).SerializeToString() if i else b"" for i in node.inputs]
            versions = [v for v in schema.context_dependent_function_opset_versions if v <= self.opset]
            if versions:
                text = schema.get_context_dependent_function_with_opset_version(
                    max(versions), proto.SerializeToString(), types
                )
        if not text:
            return None
        return onnx.FunctionProto.FromString(text) if isinstance(text, bytes) else text

    def _fold(self, proto: NodeProto, domain: str, inputs: list[str], outputs: list[str]) -> bool:
        """Whether the node's outputs are known now."""
        op = proto.op_type
        if domain or len(outputs) == 0:
            return False
        if op in ("Shape", "Size") and inputs[0] not in self._values:
            try:
                shape = self.shape(inputs[0])
            except RewriteError:
                return False
            if op == "Size":
                self._values[outputs[0]] = np.array(math.prod(shape), np.int64)
                return True
            ends = {a.name: a.i for a in proto.attribute}
            self._values[outputs[0]] = np.array(shape[ends.get("start", 0) : ends.get("end", len(shape))], np.int64)
            return True
        if op == "Identity" and outputs[0] and inputs[0] not in self._lists:
            self._alias[outputs[0]] = inputs[0]
            return True
        if op in _RANDOM or any(i and i not in self._values for i in inputs) or (domain, op) in self._functions:
            return False
        if any(a.HasField("g") for a in proto.attribute):
            return False
        if op in _GROWING and self._result_size(proto, inputs, outputs) > FOLD_MOST:
            return False
        try:
            found = _evaluated(proto, inputs, outputs, self._values, self.opset)
        except Exception:  # onnx's reference raises many types; the importer has its own word on the node
            return False
        if not all(isinstance(f, np.ndarray | np.generic) for f in found):
            return False
        self._values.update((o, np.asarray(f)) for o, f in zip(outputs, found, strict=False) if o)
        return True

    def _result_size(self, proto: NodeProto, inputs: list[str], outputs: list[str]) -> int:
        try:
            of = self._inferred(proto, inputs, outputs)[outputs[0]]
            return math.prod(d.dim_value for d in of.tensor_type.shape.dim)
        except Exception:  # onnx raises several types
            return 0

    def _emit(self, proto: NodeProto, domain: str, inputs: list[str], outputs: list[str]) -> None:
        node = type(proto)()
        node.CopyFrom(proto)
        node.input[:], node.output[:], node.domain = inputs, outputs, domain
        self._nodes.append(node)
        if len(self._nodes) > NODES_MOST:
            raise RewriteError(f"unrolled it has more than {NODES_MOST} operators")
        if domain == "":
            try:
                self._types.update(self._inferred(proto, inputs, outputs))
            except Exception:  # onnx raises several types; who needs the type will say so
                self._types.update(self._of_integers(proto, inputs, outputs))

    def _of_integers(self, proto: NodeProto, inputs: list[str], outputs: list[str]) -> dict[str, TypeProto]:
        """Types of an operator that ONNX has for floats only, as Conv, and TVM for int32 too."""
        from onnx import TensorProto

        of = {i: self._type(i) for i in inputs if i}
        if {t.tensor_type.elem_type for t in of.values()} != {TensorProto.INT32}:
            return {}
        try:
            found = self._inferred(proto, inputs, outputs, TensorProto.FLOAT)
        except Exception:  # as above
            return {}
        for made in found.values():
            made.tensor_type.elem_type = TensorProto.INT32
        return found

    def _inferred(
        self, proto: NodeProto, inputs: list[str], outputs: list[str], element: int | None = None
    ) -> dict[str, TypeProto]:
        """Types by ONNX's inference; with `element` as if the inputs had that element type."""
        import onnx

        schema = _schema(proto.op_type, self.opset)
        if schema is None:
            return {}
        node = onnx.NodeProto()
        node.CopyFrom(proto)
        node.input[:], node.output[:] = inputs, outputs
        data = {
            i: onnx.numpy_helper.from_array(self._values[i], i)
            for i in inputs
            if i in self._values and self._values[i].size <= 4096
        }
        types = {i: self._type(i) for i in inputs if i}
        if element is not None:
            data = {}
            for name, of in types.items():
                types[name] = onnx.TypeProto()
                types[name].CopyFrom(of)
                types[name].tensor_type.elem_type = element
        return onnx.shape_inference.infer_node_outputs(
            schema,
            node,
            types,
            data,
            opset_imports=[onnx.helper.make_opsetid("", self.opset)],
        )

    def _type(self, name: str) -> Any:
        from onnx import TypeProto, helper

        if (value := self._values.get(name)) is not None:
            return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        return self._types.get(name) or TypeProto()

    def _resolved(self, name: str) -> str:
        while name in self._alias:
            name = self._alias[name]
        return name

    def _fresh(self, hint: str) -> str:
        return f"{hint}/{next(self._count)}"


@dataclass(frozen=True)
class _Body:
    """A loop's step: its graph, what it reads of the graph around it, the names of what it gives, and which series it
    reads."""

    graph: GraphProto
    free: list[str]
    after: list[str]
    outputs: list[str]
    own: list[str]
    read: list[int]


_FIX = "give it a value with --fix NAME=VALUE"


def _alive(nodes: list[NodeProto], outputs: Sequence[str]) -> list[NodeProto]:
    """The nodes that some output needs."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted & set(node.output):
            kept.append(node)
            wanted |= set(_mentioned(node))
    return kept[::-1]


def _mentioned(node: NodeProto) -> list[str]:
    return [i for i in node.input if i]


def _tensor(dtype: np.dtype, shape: Sequence[int]) -> TypeProto:
    from onnx import helper

    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(dtype), list(shape))


def _attribute(a: AttributeProto) -> Any:
    from onnx import helper, numpy_helper

    value = helper.get_attribute_value(a)
    return numpy_helper.to_array(value) if a.HasField("t") else value


def _as_attribute(name: str, value: Any) -> AttributeProto:
    from onnx import helper, numpy_helper

    return helper.make_attribute(name, numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value)


def _graph_type() -> type:
    from onnx import GraphProto

    return GraphProto


def _schema(op: str, opset: int) -> Any:
    import onnx

    try:
        return onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None


def _evaluated(
    proto: NodeProto, inputs: list[str], outputs: list[str], values: Mapping[str, np.ndarray], opset: int
) -> list[Any]:
    """The outputs of a node by ONNX's reference implementation."""
    from onnx import TensorProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    if proto.op_type == "Constant":
        (a,) = proto.attribute
        if a.HasField("t"):
            return [numpy_helper.to_array(a.t)]
    node = type(proto)()
    node.CopyFrom(proto)
    node.input[:], node.output[:], node.domain = inputs, [o or "" for o in outputs], ""
    names = list(dict.fromkeys(i for i in inputs if i))
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(values[n].dtype), values[n].shape)
            for n in names
        ],
        [helper.make_tensor_value_info(o, TensorProto.UNDEFINED, None) for o in outputs if o],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    found = iter(ReferenceEvaluator(model).run(None, {n: values[n] for n in names}))
    with np.errstate(all="ignore"):
        return [next(found) if o else None for o in outputs if o]
