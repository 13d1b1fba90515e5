"""PyTorch exported programs: `torch.export.save(torch.export.export(model, (example,)), "model.pt2")`.

Reading one unpickles it, as `torch.export.load` does: a `.pt2` file is as trusted as a program.
"""

from __future__ import annotations

import functools
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from tt_spec import Plugins

from tt_core.errors import ModelError, summary
from tt_core.models.model import FLOAT16_NOTE, Input, Model, Peer
from tt_core.models.sources import shapes as shape_options

if TYPE_CHECKING:
    import tvm
    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.fx import Node

__all__ = ["ExportedProgramFormat", "convert"]

Shapes = Mapping[str, tuple[int, ...]]

_ADVICE = "; replace it in the model, or export to ONNX (torch.onnx.export) and give that file"


class ExportedProgramFormat:
    """PyTorch exported programs, `.pt2`."""

    def read(self, path: Path, shapes: Mapping[str, tuple[int, ...]], plugins: Plugins | None = None) -> Model:
        """The model of a `.pt2` file."""
        torch = _torch()
        try:
            with _silent():
                program = torch.export.load(str(path))
        except Exception as e:  # zipfile, pickle, torch and the operating system each raise their own types
            raise ModelError(
                f"{path} is not a usable PyTorch exported program: {summary(e)}; one is written by"
                " torch.export.save(torch.export.export(model, (example,)), 'model.pt2')"
            ) from e
        return convert(program, path.stem, shapes, str(path))


def convert(program: ExportedProgram, name: str, shapes: Shapes, source: str | None = None) -> Model:
    """The model of a `torch.export.ExportedProgram`; `source` is what errors call it."""
    source = source or name
    torch = _torch()
    inputs, outputs = _names(torch, program, source)
    notes: tuple[str, ...] = ()
    with _silent():
        try:
            if _holds_half(torch, program):
                program, shapes = _in_float32(torch, program, inputs, shapes, source), {}
                notes = (FLOAT16_NOTE.format(source),)
            program = program.run_decompositions()
        except ModelError:
            raise
        except Exception as e:
            raise ModelError(f"PyTorch cannot decompose {source}: {summary(e)}") from e
        mod = _to_relax(torch, program, source)
    from tt_core.models.sources import tvm_module

    found = tvm_module.convert(mod, name, shapes)
    if tvm_module.output_count(found.mod["main"]) != len(outputs):
        outputs = list(found.outputs)
    peer = Peer("PyTorch", functools.partial(_run, program, inputs))
    named = tuple(Input(n, i.shape, i.dtype, i.below) for n, i in zip(inputs, found.inputs, strict=True))
    return Model(name, found.mod, named, tuple(outputs), peer, notes)


def _names(torch: ModuleType, program: ExportedProgram, source: str) -> tuple[list[str], list[str]]:
    """Names of inputs and outputs; every input must be a tensor."""
    tensor = torch.export.graph_signature.TensorArgument
    signature = program.graph_signature
    kinds = torch.export.graph_signature
    inputs = [s for s in signature.input_specs if s.kind is kinds.InputKind.USER_INPUT]
    for s in inputs:
        if not isinstance(s.arg, tensor):
            raise ModelError(f"input {s.arg.name!r} of {source} is no tensor: export the model with its value fixed")
    outputs = [s for s in signature.output_specs if s.kind is kinds.OutputKind.USER_OUTPUT]
    names = [s.arg.name for s in outputs if isinstance(s.arg, tensor)]
    return [s.arg.name for s in inputs], [n if names.count(n) == 1 else f"{n}_{i}" for i, n in enumerate(names)]


def _to_relax(torch: ModuleType, program: ExportedProgram, source: str) -> tvm.IRModule:
    from tvm.relax.frontend.torch import from_exported_program

    try:
        return from_exported_program(program, unwrap_unit_return_tuple=True, run_ep_decomposition=False)
    except Exception as e:
        missing = re.findall(r"'([^']+)'", str(e)) if str(e).startswith("Unsupported function types") else []
        nodes = list(program.graph.nodes)
        if missing:
            first = {k: next(n for n in nodes if getattr(n.target, "__name__", "") == k) for k in sorted(missing)}
            places = "; ".join(f"{kind} at {_place(node, nodes)}" for kind, node in first.items())
            kinds = "operators" if len(first) > 1 else "operator"
            raise ModelError(f"TVM has no import for the {kinds} of {source}: {places}{_ADVICE}") from e
        node = _node_in_hand(torch, e)
        where = "" if node is None else f" at {_place(node, nodes)}"
        raise ModelError(f"TVM cannot import {source}{where}: {summary(e)}{'' if node is None else _ADVICE}") from e


def _place(node: Node, nodes: Sequence[Node]) -> str:
    """`node 17 (aten.svd.default) -> svd, line 12 of model.py`."""
    number = next((str(i) for i, n in enumerate(nodes) if n.name == node.name), "?")
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    written = f", line {lines[-1][1]} of {Path(lines[-1][0]).name}" if lines else ""
    return f"node {number} ({node.target}) -> {node.name}{written}"


def _node_in_hand(torch: ModuleType, e: BaseException) -> Node | None:
    """The node that TVM's importer was at when it raised: a local variable of its loop over the nodes."""
    trace, found = e.__traceback__, None
    while trace is not None:
        node = trace.tb_frame.f_locals.get("node")
        if isinstance(node, torch.fx.Node):
            found = node
        trace = trace.tb_next
    return found


def _holds_half(torch: ModuleType, program: ExportedProgram) -> bool:
    tensors = [*program.state_dict.values(), *program.constants.values()]
    if any(getattr(t, "dtype", None) is torch.float16 for t in tensors):
        return True
    return any(getattr(n.meta.get("val"), "dtype", None) is torch.float16 for n in program.graph.nodes)


def _in_float32(
    torch: ModuleType, program: ExportedProgram, inputs: list[str], shapes: Shapes, source: str
) -> ExportedProgram:
    """The program exported again, in float32 but for its inputs and outputs, under fixed shapes."""
    shape_options.known(shapes, inputs)
    values = {n.name: n.meta["val"] for n in program.graph.nodes if n.op == "placeholder" and "val" in n.meta}
    examples = []
    for name in inputs:
        dims = [d if isinstance(d, int) else str(d) for d in values[name].shape]
        examples.append(torch.zeros(shape_options.fix(name, dims, shapes), dtype=values[name].dtype))
    inner = program.module().float()
    for node in inner.graph.nodes:
        node.args, node.kwargs = (
            torch.fx.node.map_aggregate(a, lambda x: torch.float32 if x is torch.float16 else x)
            for a in (node.args, node.kwargs)
        )
    inner.recompile()
    for owner in inner.modules():
        for name, value in list(vars(owner).items()):
            if isinstance(value, torch.Tensor) and value.dtype is torch.float16:
                setattr(owner, name, value.float())
    flat, spec = torch.utils._pytree.tree_flatten, program.call_spec.in_spec

    class Float32(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
            wide = [t.float() if t.dtype is torch.float16 else t for t in tensors]
            args, kwargs = torch.utils._pytree.tree_unflatten(wide, spec)
            return tuple(
                t.to(torch.float16) if t.dtype is torch.float32 and half else t
                for t, half in zip(flat(self.inner(*args, **kwargs))[0], halves, strict=True)
            )

    halves = [
        getattr(n.meta.get("val"), "dtype", None) is torch.float16
        for n in flat(program.graph.output_node().args[0])[0]
        if isinstance(n, torch.fx.Node)
    ]
    try:
        return torch.export.export(Float32(), tuple(examples))
    except Exception as e:
        raise ModelError(f"PyTorch cannot export {source} in float32: {summary(e)}") from e


def _run(program: ExportedProgram, names: list[str], inputs: dict[str, np.ndarray]) -> list[list[np.ndarray]]:
    torch = _torch()
    with _silent(), torch.no_grad():
        tensors = [torch.from_numpy(np.ascontiguousarray(inputs[n])) for n in names]
        args, kwargs = torch.utils._pytree.tree_unflatten(tensors, program.call_spec.in_spec)
        out = program.module()(*args, **kwargs)
    leaves = torch.utils._pytree.tree_leaves(out)
    return [[t.detach().numpy() for t in leaves if isinstance(t, torch.Tensor)]]


@contextmanager
def _silent() -> Iterator[None]:
    """PyTorch reports a damaged file by tracebacks in its log, and its own future by warnings."""
    log = logging.getLogger("torch")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def _torch() -> ModuleType:
    try:
        import torch
        import torch.export
        import torch.utils._pytree
    except ModuleNotFoundError as e:
        if e.name is not None and not e.name.startswith("torch"):
            raise
        raise ModelError("PyTorch exported programs need PyTorch: pip install 'tt-core[torch]'") from e
    return torch
