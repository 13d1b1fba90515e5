"""An ONNX graph written again, node by node, under fixed shapes.

One pass in the file's order: what is known is computed, what has a rewriting is replaced, all else is copied. What a
rewriting emits goes through the same pass, so rewritings may build on each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tt_core.models.rewrites import definitions
from tt_core.models.rewrites.facts import Facts, tensor
from tt_core.models.rewrites.loops import DOMAIN, LOOP, WHOLE, Step, alive, mentioned, step_of
from tt_core.models.rewrites.node import Node, Rewrite, RewriteError, as_attribute, attribute

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

__all__ = ["Graph"]

Operand = str | np.ndarray | np.generic | float | None
"""An operator's input: a value's name, a constant, or none."""

NODES_MOST = 200_000
"""Nodes after which unrolling is given up."""


class Graph(Facts):
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
        super().__init__(next((int(o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")), 1))
        self.loops_allowed = loops_allowed
        self.used: set[str] = set()
        """Operators that were rewritten, as they stand in messages."""
        self.remarks: list[str] = []
        """Notes for the user, a line each."""
        self.loops = 0
        """Loops that stayed loops."""
        self.own = False
        """Whether an operator of `DOMAIN` was emitted."""
        self._inside = False
        self._model, self._rewrites, self._importable = model, dict(rewrites), frozenset(known)
        self._functions = {(f.domain, f.name): f for f in model.functions}
        self._nodes: list[NodeProto] = []
        self._lists: dict[str, list[str]] = {}
        self._makers: dict[str, Node] = {}
        self._count = itertools.count()

    # -- what a rewriting asks, beside the facts ------------------------------------------------------------------

    def maker(self, name: str) -> Node | None:
        """The node that computes a value, also if the value is known by now."""
        return self._makers.get(self.resolved(name))

    def items(self, name: str) -> list[str] | None:
        """The tensors of a sequence whose length is known, else None."""
        found = self._lists.get(self.resolved(name))
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
        self._lists[name] = [self.resolved(i) for i in items]
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
        return [self.resolved(m) for m in made]

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
        self._types[name] = tensor(np.dtype(dtype), self.shape(x))
        self._nodes.append(
            helper.make_node(WHOLE, [self.resolved(x)], [name], name=name, domain=DOMAIN, dtype=np.dtype(dtype).name)
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
        return [self.resolved(scope.get(o.name, o.name)) for o in graph.output]

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
            self._types[name] = tensor(self.dtype(value), self.shape(value)[0 if i < len(states) else 1 :])
        try:
            after, outputs = (list(map(self.resolved, v)) for v in step(names[: len(states)], names[len(states) :]))
            one = step_of(self, self._nodes, names, states, after, outputs)
        finally:
            self._nodes, self._inside = outer, False
        return self._repeated(one, trips, states, series, backwards)

    def _repeated(
        self, step: Step, trips: int, states: Sequence[str], series: Sequence[str], backwards: bool
    ) -> tuple[list[str], list[str]]:
        stacked = step.stacked
        names = [self._fresh(LOOP) for _ in (*step.after, *stacked)]
        for i, (name, inner) in enumerate(zip(names, [*step.after, *stacked], strict=True)):
            self._types[name] = tensor(self.dtype(inner), (*([trips] if i >= len(states) else []), *self.shape(inner)))
        inputs = [self.resolved(n) for n in (*states, *(series[i] for i in step.read), *step.free)]
        self._nodes.append(step.node(trips, inputs, names, backwards))
        self.loops += 1
        self.own = True
        of = dict(zip(stacked, names[len(states) :], strict=True))
        return names[: len(states)], [of[o] for o in step.outputs]

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
            if self.resolved(name) != name or name in self._values:
                self._nodes.append(helper.make_node("Identity", [self.resolved(name)], [name], name=f"{name}_is"))
        nodes = alive(self._nodes, outputs)
        needed = dict.fromkeys(i for n in nodes for i in mentioned(n) if i in self._values)
        weights = [numpy_helper.from_array(self._values[n], n) for n in needed]
        taken = set(self._values)
        graph = helper.make_graph(
            nodes, source.name or "model", [i for i in source.input if i.name not in taken], source.output, weights
        )
        for value in graph.output:  # as inferred: a file may say less
            of = self._types.get(self.resolved(value.name))
            if of is not None and of.HasField("tensor_type"):
                value.type.CopyFrom(of)
        domains = sorted({n.domain for n in nodes} - {"", "ai.onnx"})
        imports = [helper.make_opsetid("", self.opset)]
        imports += [o for o in self._model.opset_import if o.domain in domains]
        imports += [helper.make_opsetid(DOMAIN, 1)] if self.own else []
        return helper.make_model(graph, opset_imports=imports, ir_version=self._model.ir_version)

    def _visit(self, proto: NodeProto, scope: dict[str, str], prefix: str = "") -> None:
        outputs = [prefix + o if o else "" for o in proto.output]
        inputs = [self.resolved(scope.get(i, i)) if i else "" for i in proto.input]
        scope.update((o, n) for o, n in zip(proto.output, outputs, strict=True) if o and prefix)
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        attributes = {a.name: attribute(a) for a in proto.attribute}
        node = Node(proto.op_type, domain, tuple(inputs), tuple(outputs), attributes, proto.name, scope)
        self._makers.update((o, node) for o in outputs if o)
        if self._is_known(proto, node):
            return
        results = self._rewritten(node)
        if results is not None:
            for name, result in zip(outputs, results, strict=False):
                if name:
                    self._alias[name] = self.resolved(result)
            return
        if any(a.HasField("g") for a in proto.attribute):
            raise RewriteError("it has a body, and nothing here takes it out")
        self._emit(proto, domain, inputs, outputs)

    def _rewritten(self, node: Node) -> Sequence[str] | None:
        if (function := self._functions.get((node.domain, node.op))) is not None:
            return self._inlined(function, node)
        rewrite = self._rewrites.get((node.domain, node.op))
        if rewrite is not None and (results := rewrite(node, self)) is not None:
            self.used.add(f"{node.domain}.{node.op}".lstrip("."))
            return results
        if node.domain == "" and node.op not in self._importable and (body := self._definition(node)) is not None:
            self.used.add(node.op)
            return self._inlined(body, node)
        return None

    def _inlined(self, function: FunctionProto, node: Node) -> list[str]:
        """A function's nodes with the node's inputs and attributes in place of its own."""
        prefix = f"{next(self._count)}/"
        defaults = {a.name: attribute(a) for a in function.attribute_proto}
        if node.domain == "":
            defaults |= definitions.defaults(node.op, self.opset)
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
                    inner.attribute.append(as_attribute(a.name, given[a.ref_attr_name]))
            inner.input[:] = [i if scope.get(i, i) else "" for i in inner.input]
            self._visit(inner, scope, prefix)
        return [self.resolved(scope.get(o, o)) for o in function.output]

    def _definition(self, node: Node) -> FunctionProto | None:
        return definitions.body(node, [self.type_of(i) if i else None for i in node.inputs], self.opset)

    def _is_known(self, proto: NodeProto, node: Node) -> bool:
        """Whether the node's outputs are known now, or stand for others."""
        if node.domain or not node.outputs or ("", node.op) in self._functions:
            return False
        if node.op == "Identity" and node.outputs[0] and node.inputs[0] not in self._lists:
            self._alias[node.outputs[0]] = node.inputs[0]
            return True
        return self.fold(proto, node.inputs, node.outputs)

    def _emit(self, proto: NodeProto, domain: str, inputs: list[str], outputs: list[str]) -> None:
        node = type(proto)()
        node.CopyFrom(proto)
        node.input[:], node.output[:], node.domain = inputs, outputs, domain
        self._nodes.append(node)
        if len(self._nodes) > NODES_MOST:
            raise RewriteError(f"unrolled it has more than {NODES_MOST} operators")
        if domain == "":
            self.infer(proto, inputs, outputs)

    def _fresh(self, hint: str) -> str:
        return f"{hint}/{next(self._count)}"
