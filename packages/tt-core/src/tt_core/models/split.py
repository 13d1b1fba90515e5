"""A model cut into parts that can be imported, and what stays outside between them: `tt split`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tt_spec import Plugins
from tt_spec.errors import FileError

from tt_core.errors import ModelError, summary
from tt_core.models import rewrites
from tt_core.models.load import load
from tt_core.models.model import Fixed
from tt_core.models.subgraphs import subgraphs

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

__all__ = ["Split", "split"]

PLAN = "parts.json"
"""The file that says in which order the parts run."""


@dataclass(frozen=True)
class Split:
    """The parts as they were written.

    Args:
        order: The steps: a part has a "file", its "inputs" and "outputs", and where something in it depends on values
            of unknown shape a "note"; what stays outside has "nodes", each with its reason, and a "file" as well, for
            who can run it.
        path: The file that holds this.
    """

    order: list[dict[str, Any]]
    path: Path


def split(
    path: Path,
    folder: Path,
    shapes: Mapping[str, Sequence[int]] | None = None,
    fix: Fixed | None = None,
    plugins: Plugins | None = None,
) -> Split | None:
    """Write an ONNX model's parts to a folder; None if it can be imported whole.

    Args:
        shapes: By name of an input, or of a value inside, behind an operator that ONNX does not know.
    """
    from tt_core.models.sources import onnx_model

    model = onnx_model.read(path)
    given = {n: tuple(int(d) for d in s) for n, s in (shapes or {}).items()}
    inputs = {i.name for i in model.graph.input}
    try:
        load(path, {n: s for n, s in given.items() if n in inputs}, plugins, fix)
        return None
    except ModelError as e:
        if not getattr(e, "nodes", ()):
            raise
    cut = _Cut(onnx_model.bound(model, fix or {}, str(path)), given, plugins or Plugins())
    cut.find()
    return cut.write(path, folder)


@dataclass
class _Cut:
    """A model and the nodes that stay outside.

    Args:
        model: Its given inputs bound.
        shapes: Of inputs and of values inside.
        outside: Reasons, by the node's number.
    """

    model: ModelProto
    shapes: dict[str, tuple[int, ...]]
    plugins: Plugins
    outside: dict[int, str] = field(default_factory=dict)

    def find(self) -> None:
        """Import the parts, taking out what is refused, until all can be imported."""
        self._infer()
        again = True
        while again:
            again = False
            for numbers in [n for inside, n in self.steps() if inside]:
                why = self._refusal(numbers)
                again = again or bool(why)
                self.outside.update(why)

    def steps(self) -> list[tuple[bool, list[int]]]:
        """Nodes that run together, in the order in which they can: whether it is a part, and their numbers."""
        level: dict[str, int] = {}
        found: dict[int, list[int]] = {}
        for i, node in enumerate(self.model.graph.node):
            least = max((level.get(x, 0) for x in _read(node)), default=0)
            mine = least + (least % 2 if i not in self.outside else (least + 1) % 2)
            level.update((o, mine) for o in node.output if o)
            found.setdefault(mine, []).append(i)
        return [(at % 2 == 0, found[at]) for at in sorted(found)]

    def _refusal(self, numbers: Sequence[int]) -> dict[int, str]:
        """Why nodes of a part cannot be imported; all of them where no single one is to blame."""
        part = self.part(numbers, "part")
        if any(_open(v) for v in part.graph.input):
            return {}  # behind an operator whose result has no known shape; its own import will say the rest
        try:
            load(part, plugins=self.plugins)
        except ModelError as e:
            nodes, why = getattr(e, "nodes", ()), getattr(e, "why", str(e))
            owners = [i for i, node in zip(numbers, part.graph.node, strict=True) for _ in _with_inner(node)]
            return {owners[n]: why for n in nodes} or dict.fromkeys(numbers, why)
        return {}

    def _infer(self) -> None:
        """Types of all values that ONNX can tell under the shapes that are known."""
        import onnx

        for value in self.model.graph.input:
            _set_shape(value, self.shapes.get(value.name))
        known = {v.name for v in (*self.model.graph.input, *self.model.graph.value_info, *self.model.graph.output)}
        made = {o for n in self.model.graph.node for o in n.output}
        for name, shape in self.shapes.items():
            if name in made and name not in known:
                self.model.graph.value_info.append(
                    onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
                )
            elif name not in known:
                raise ModelError(f"--shape {name}: the model has no such input or value")
        self.model = onnx.shape_inference.infer_shapes(self.model, data_prop=True)

    def part(self, numbers: Sequence[int], name: str) -> ModelProto:
        """These nodes as a model."""
        from onnx import helper

        graph = self.model.graph
        nodes = [graph.node[i] for i in numbers]
        made = {o for n in nodes for o in n.output if o}
        weights = {w.name: w for w in graph.initializer}
        needed = dict.fromkeys(x for n in nodes for x in _read(n) if x not in made)
        others = {x for i, n in enumerate(graph.node) if i not in set(numbers) for x in _read(n)}
        others |= {o.name for o in graph.output}
        types = {v.name: v for v in (*graph.value_info, *graph.input, *graph.output)}
        part = helper.make_model(
            helper.make_graph(
                nodes,
                name,
                [types.get(x) or _unknown(x) for x in needed if x not in weights],
                [types.get(o) or _unknown(o) for n in nodes for o in n.output if o in made & others],
                [weights[x] for x in needed if x in weights],
            ),
            opset_imports=self.model.opset_import,
            ir_version=self.model.ir_version,
        )
        part.functions.extend(self.model.functions)
        return part

    def write(self, path: Path, folder: Path) -> Split:
        """The parts and the plan."""
        import onnx

        order: list[dict[str, Any]] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for at, (inside, numbers) in enumerate(self.steps()):
                file = f"{path.stem}.{'part' if inside else 'outside'}{at}.onnx"
                part = self.part(numbers, Path(file).stem)
                onnx.save(part, str(folder / file))
                step = {"file": file, "inputs": _listed(part.graph.input), "outputs": _listed(part.graph.output)}
                if not inside:
                    step["nodes"] = [self._node(i) for i in numbers]
                elif lacking := [v.name for v in part.graph.input if _open(v)]:
                    shapes = " ".join(f"--shape {n}=..." for n in lacking)
                    step["note"] = f"not tried: a shape is unknown; give tt split or tt tune {shapes}"
                order.append(step)
            plan = {"model": str(path), "order": order}
            (folder / PLAN).write_text(json.dumps(plan, indent=2) + "\n", encoding="utf-8")
        except (OSError, ValueError) as e:
            raise FileError(f"cannot write to {folder}: {summary(e)}") from e
        return Split(order, folder / PLAN)

    def _node(self, number: int) -> dict[str, Any]:
        node = self.model.graph.node[number]
        return {
            "node": number,
            "operator": f"{node.domain}.{node.op_type}".lstrip("."),
            "name": node.name,
            "inputs": list(node.input),
            "outputs": list(node.output),
            "why": self.outside[number],
        }


def _with_inner(node: NodeProto) -> Iterator[NodeProto]:
    """The node, then those of the graphs inside it: the order in which import errors count them."""
    yield node
    for inner in subgraphs(node):
        yield from rewrites.nodes(inner)


def _read(node: NodeProto) -> Iterator[str]:
    """Names that a node reads, those of the graphs inside it included."""
    yield from (i for i in node.input if i)
    for inner in subgraphs(node):
        own = {i.name for i in inner.input} | {w.name for w in inner.initializer}
        own |= {o for n in inner.node for o in n.output}
        yield from (x for n in inner.node for x in _read(n) if x not in own)
        yield from (o.name for o in inner.output if o.name not in own)


def _open(value: ValueInfoProto) -> bool:
    of = value.type.tensor_type
    return not of.HasField("shape") or any(not d.HasField("dim_value") for d in of.shape.dim)


def _unknown(name: str) -> ValueInfoProto:
    """A value of which ONNX knows nothing: float32 of any shape."""
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def _set_shape(value: ValueInfoProto, shape: Sequence[int] | None) -> None:
    if shape is not None:
        of = value.type.tensor_type.shape
        del of.dim[:]
        for size in shape:
            of.dim.add().dim_value = size


def _listed(values: Sequence[ValueInfoProto]) -> list[dict[str, Any]]:
    from onnx import helper

    return [
        {
            "name": v.name,
            "shape": None if _open(v) else [d.dim_value for d in v.type.tensor_type.shape.dim],
            "dtype": str(helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)),
        }
        for v in values
    ]
