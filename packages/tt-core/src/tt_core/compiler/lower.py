"""From a model to tasks: fold, choose layouts, fuse; and the functions that tuned programs replace."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm
import tvm_ffi
from tt_spec import Plugins, Task
from tt_spec.errors import whose
from tt_spec.roles import SpaceBuilder, missing
from tvm import relax

from tt_core.compiler import elementary
from tt_core.compiler.fold import fold_constants
from tt_core.compiler.primfunc import as_module, outputs
from tt_core.errors import ModelError, OptionError, TargetError, summary

if TYPE_CHECKING:
    from tvm.target import Target

__all__ = ["Lowered", "lower", "payload", "unpack"]

_KINDS = (  # the first that a function's name contains
    "conv2d_transpose",
    "conv2d",
    "conv1d",
    "conv3d",
    "matmul",
    "max_pool2d",
    "avg_pool2d",
    "softmax",
    "mean",
    "layer_norm",
)


@dataclass
class Lowered:
    """A model as fused functions.

    Args:
        mod: Relax module whose "main" calls PrimFuncs.
        tasks: What can be tuned, heaviest first.
        functions: Names of the functions in `mod` that each task stands for, by task key.
    """

    mod: tvm.IRModule
    target: Target
    tasks: list[Task]
    functions: dict[str, list[str]]


def lower(mod: tvm.IRModule, target: Target, plugins: Plugins | None = None, space: str = "both") -> Lowered:
    """Fold batch norm and constants, fuse elementwise operators into the heavy ones, and extract the tasks.

    On CPUs convolutions are laid out as NHWC, in which a vector holds output channels; inputs and outputs of the model
    keep their layout. A space says how its operators are to be written: its builder's
    `legalizers(target)` are functions for `relax.transform.LegalizeOps`, by operator.
    """
    builder = (plugins or Plugins()).build("space", space)
    if lacking := missing(builder, SpaceBuilder):
        raise OptionError(f"{whose('space', builder)} lacks {', '.join(lacking)}: see tt_spec.roles.SpaceBuilder")
    legalizers = elementary.legalizers(target) | builder.legalizers(target)
    with target, tvm.transform.PassContext(opt_level=3):
        try:
            mod = tvm.transform.Sequential(_passes(target, legalizers))(mod)
        except Exception as e:  # TVM raises several types
            raise ModelError(f"TVM cannot lower the model: {summary(e)}") from e
    text = str(target)
    calls = _calls(mod)
    functions: dict[str, list[str]] = {}
    modules: dict[str, tvm.IRModule] = {}
    names: dict[str, str] = {}
    for var, func in mod.functions.items():
        if not isinstance(func, tvm.tirx.PrimFunc) or not calls[var.name_hint] or not outputs(func):
            continue
        single = as_module(func)
        key = _key(single, text)
        functions.setdefault(key, []).append(var.name_hint)
        modules.setdefault(key, single)
        names.setdefault(key, _task_name(var.name_hint))
    taken: Counter[str] = Counter()
    tasks = []
    for key, single in modules.items():
        name = names[key]
        taken[name] += 1
        if taken[name] > 1:
            name = f"{name}_{taken[name]}"
        try:
            space_of = builder.open(single, target).space
        except Exception as e:  # TVM raises several types
            raise TargetError(f"operator {name} has no space on the target {target.kind.name}: {summary(e)}") from e
        tasks.append(
            Task(
                key,
                name,
                _kind(names[key], single),
                text,
                (space_of,),
                _flops(single),
                float(sum(calls[f] for f in functions[key])),
                payload(single, text, space),
                _shapes(single),
                _hash(_workload(single)),
            )
        )
    tasks.sort(key=lambda t: (-t.flops * t.weight, t.name))
    return Lowered(mod, target, tasks, functions)


def payload(mod: tvm.IRModule, target: str, space: str) -> bytes:
    """Bytes from which any process rebuilds the workload."""
    return zlib.compress(json.dumps({"mod": tvm.ir.save_json(mod), "target": target, "space": space}).encode())


def unpack(data: bytes) -> tuple[tvm.IRModule, Target, str]:
    """Module, target and name of the space behind a task's payload."""
    content = json.loads(zlib.decompress(data))
    return tvm.ir.load_json(content["mod"]), tvm.target.Target(json.loads(content["target"])), content["space"]


def _passes(target: Target, legalizers: Mapping[str, Callable[..., relax.Expr]]) -> list[tvm.transform.Pass]:
    t = relax.transform
    layout = []
    if target.kind.name in ("llvm", "c"):
        weights = "OIHW" if "relax.nn.conv2d" in legalizers else "HWIO"
        wanted = {"relax.nn.conv2d": ["NHWC", weights], "relax.nn.conv2d_transpose": ["NCHW", "IOHW"]}
        layout = [t.ConvertLayout(wanted), t.Normalize(), fold_constants]
    return [
        t.FoldBatchnormToConv2D(),
        fold_constants,
        t.FoldConstant(),
        _clips_to_operators,
        t.DecomposeOpsForInference(),
        t.CanonicalizeBindings(),
        t.FoldConstant(),
        *layout,
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        t.LegalizeOps(legalizers),
        t.AnnotateTIROpPattern(),
        t.FoldConstant(),
        t.FuseOps(),
        t.FuseTIR(),
        t.DeadCodeElimination(),
    ]


@tvm.transform.module_pass(opt_level=0, name="ClipsToOperators")
def _clips_to_operators(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Bounds of ONNX's Clip as Relax operators: they are imported as opaque functions, at which layouts stop."""
    rewriter = _Clips(mod)
    for var, func in mod.functions.items():
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(var, rewriter.visit_expr(func))
    return relax.transform.DeadCodeElimination()(rewriter.builder_.get())


@relax.expr_functor.mutator
class _Clips(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if not isinstance(call, relax.Call) or call.op != tvm.ir.Op.get("relax.call_tir"):
            return call
        name = re.sub(r"\d+$", "", call.args[0].name_hint)
        operands = list(call.args[1])
        if name not in ("maximum", "minimum") or len(operands) != 2:
            return call
        return getattr(relax.op, name)(*operands)


def _calls(mod: tvm.IRModule) -> Counter[str]:
    """Number of calls of each function in the model."""
    found: Counter[str] = Counter()
    op = tvm.ir.Op.get("relax.call_tir")

    def visit(e: relax.Expr) -> None:
        if isinstance(e, relax.Call) and e.op == op:
            found[e.args[0].name_hint] += 1

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return found


def _key(mod: tvm.IRModule, target: str) -> str:
    return _hash(f"{_workload(mod)}/{target}")


def _workload(mod: tvm.IRModule) -> str:
    return str(tvm_ffi.structural_hash(mod, map_free_vars=True))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _task_name(function: str) -> str:
    """`fused_conv2d4_add3_tir_tanh2` -> `conv2d_add_tanh`: TVM's running numbers and prefixes say nothing."""
    words = re.sub(r"(?<=[a-z_])\d+(?=_|$)", "", re.sub(r"(conv|pool)([123])d", r"\1<\2>d", function))
    words = re.sub(r"(?<![a-z])tir_", "", re.sub(r"<(\d)>", r"\1", words).removeprefix("fused_"))
    return words.strip("_") or function


def _kind(name: str, mod: tvm.IRModule) -> str:
    """The operator that similar tasks share: the heavy one of the fused, depthwise apart from dense convolutions."""
    kind = next((k for k in _KINDS if k in name), name.split("_")[0] or name)
    return f"dw{kind}" if kind.startswith("conv") and ("depthwise" in name or _depthwise(mod)) else kind


def _depthwise(mod: tvm.IRModule) -> bool:
    """Whether the function has a grouped convolution whose filters see one channel each."""
    if getattr(getattr(mod["main"].body, "block", None), "name_hint", "") != "root":
        return False
    schedule = tvm.s_tir.Schedule(mod)
    channels = []
    for rv in schedule.get_child_blocks(schedule.get_sblock("root")):
        block = schedule.get(rv)
        if block.name_hint.startswith("depthwise"):
            return True
        if block.name_hint.startswith("group_conv"):
            weight = [int(d) for d in block.reads[1].source.shape]
            channels.append(weight[-2] if re.search(r"n[dhw]*wc", block.name_hint) else weight[1])
    return 1 in channels


def _flops(mod: tvm.IRModule) -> float:
    return float(tvm.s_tir.analysis.estimate_tir_flops(mod))


def _shapes(mod: tvm.IRModule) -> str:
    shapes = ["x".join(str(int(d)) for d in p.shape) or "scalar" for p in mod["main"].params]
    first = len(shapes) - outputs(mod["main"])
    return f"{', '.join(shapes[:first])} -> {', '.join(shapes[first:])}"
