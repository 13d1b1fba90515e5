"""From a model to tasks: fold, choose layouts, fuse; and the functions that tuned programs replace."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import psutil
import tvm
import tvm_ffi
from tt_spec import Plugins, Space, Task
from tt_spec.errors import OptionError, whose
from tt_spec.roles import SpaceBuilder, Workload, missing
from tvm import relax

from tt_core.compiler import apart, elementary, series
from tt_core.compiler.convolutions import as_conv2d
from tt_core.compiler.fold import fold_constants
from tt_core.compiler.permutation import one_permutation
from tt_core.compiler.plain import plain_operators
from tt_core.compiler.primfunc import as_module, outputs, same
from tt_core.compiler.quantization import as_arithmetic, numbers_as_operands, present
from tt_core.compiler.reshapes import elementwise_first
from tt_core.compiler.steps import PassesFor, Steps
from tt_core.errors import ModelError, TargetError, summary

if TYPE_CHECKING:
    from tvm.target import Target

__all__ = ["Lowered", "Recall", "lower", "lowered", "payload", "task_of", "tasks_of", "unpack"]

Legalizers = Mapping[str, Callable[..., relax.Expr]]
Recall = Callable[[str], Iterable[Task]]

MOST_PAYLOAD = 64 << 20
"""Bytes that a payload may unpack to: it may come from a file that somebody else wrote."""

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
        notes: What was left out because TVM cannot do it, a line each.
        opened: The space of each task with its programs, by task key: opening one again costs as much as building it.
    """

    mod: tvm.IRModule
    target: Target
    tasks: list[Task]
    functions: dict[str, list[str]]
    notes: tuple[str, ...] = ()
    opened: dict[str, Workload] = field(default_factory=dict)


def lower(
    mod: tvm.IRModule,
    target: Target,
    plugins: Plugins | None = None,
    space: str = "both",
    recall: Recall = lambda key: (),
) -> Lowered:
    """Fold batch norm and constants, fuse elementwise operators into the heavy ones, and extract the tasks.

    On CPUs convolutions are laid out as NHWC, in which a vector holds output channels; inputs and outputs of the model
    keep their layout. A space says how its operators are to be written: its builder's
    `legalizers(target)` are functions for `relax.transform.LegalizeOps`, by operator.

    `recall` gives the tasks that histories know by a key: where one is another operator, this one gets another key.
    """
    plugins = plugins or Plugins()
    return tasks_of(*lowered(mod, target, plugins, space), target, plugins, space, recall)


def lowered(mod: tvm.IRModule, target: Target, plugins: Plugins | None, space: str) -> tuple[tvm.IRModule, list[str]]:
    """The first half: the module as fused functions, and what was left out, a line each."""
    builder = _builder(plugins or Plugins(), space)
    legalizers = elementary.legalizers(target) | builder.legalizers(target)
    _check_sizes(mod)
    steps = Steps(mod)
    with target, tvm.transform.PassContext(opt_level=3):
        try:
            _run_passes(steps, target, legalizers)
        except Exception as e:  # TVM raises several types
            raise ModelError(f"TVM cannot lower the model: {summary(e)}") from e
    return steps.mod, steps.notes


def tasks_of(
    mod: tvm.IRModule, notes: Sequence[str], target: Target, plugins: Plugins, space: str, recall: Recall
) -> Lowered:
    """The second half: the tasks of fused functions."""
    builder, notes, text = _builder(plugins, space), list(notes), str(target)
    calls = _calls(mod) + series.called(mod)
    functions: dict[str, list[str]] = {}
    modules: dict[str, tvm.IRModule] = {}
    names: dict[str, str] = {}
    for var, func in mod.functions.items():
        if not isinstance(func, tvm.tirx.PrimFunc) or not calls[var.name_hint] or not outputs(func):
            continue
        single = as_module(func)
        key = _unmistakable(_key(single, text), single, modules, recall)
        functions.setdefault(key, []).append(var.name_hint)
        modules.setdefault(key, single)
        names.setdefault(key, _task_name(var.name_hint))
    found = _Found(modules, names, {key: float(sum(calls[f] for f in functions[key])) for key in modules})
    tasks = found.tasks(builder, target, space, notes)
    return Lowered(mod, target, tasks, functions, tuple(dict.fromkeys(notes)), found.opened)


def _check_sizes(mod: tvm.IRModule) -> None:
    """Raise `ModelError` if a value of the model has more elements than this machine has bytes of memory."""
    most: list[int] = []

    def visit(e: relax.Expr) -> None:
        nonlocal most
        shape = e.ty.shape if isinstance(e, relax.Call) and isinstance(e.ty, relax.TensorType) else None
        dims = [int(d) for d in shape.values if isinstance(d, tvm.tirx.IntImm)] if shape is not None else []
        most = max(most, dims, key=math.prod)

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    if math.prod(most) > psutil.virtual_memory().total:
        text = "x".join(map(str, most))
        raise ModelError(f"the model computes a value of {text} elements, more than this machine has memory for")


def _builder(plugins: Plugins, space: str) -> SpaceBuilder:
    builder = plugins.build("space", space)
    if lacking := missing(builder, SpaceBuilder):
        raise OptionError(f"{whose('space', builder)} lacks {', '.join(lacking)}: see tt_spec.roles.SpaceBuilder")
    return builder


@dataclass
class _Found:
    """Distinct functions of a model, by task key.

    Args:
        names: The task's name but for a number.
        weights: How often the model calls it.
        opened: Their spaces, filled by `tasks`.
    """

    modules: dict[str, tvm.IRModule]
    names: dict[str, str]
    weights: dict[str, float]
    opened: dict[str, Workload] = field(default_factory=dict)

    def tasks(self, builder: SpaceBuilder, target: Target, space: str, notes: list[str]) -> list[Task]:
        """Their tasks, heaviest first. One without a space stays untuned, as `notes` is told; an error if all are."""
        taken: Counter[str] = Counter()
        tasks: list[Task] = []
        refused: TargetError | None = None
        for key, single in self.modules.items():
            name = self.names[key]
            taken[name] += 1
            if taken[name] > 1:
                name = f"{name}_{taken[name]}"
            try:
                self.opened[key] = builder.open(single, target)
                space_of = self.opened[key].space
            except Exception as e:  # TVM raises several types
                refused = TargetError(f"operator {name} has no space on the target {target.kind.name}: {summary(e)}")
                notes.append(f"{refused}; it stays untuned")
                continue
            made = task_of(single, target, space_of, space, self.names[key])
            tasks.append(replace(made, key=key, name=name, weight=self.weights[key]))
        if refused is not None and not tasks:
            raise refused
        return sorted(tasks, key=lambda t: (-t.flops * t.weight, t.name))


def task_of(mod: tvm.IRModule, target: Target, opened: Space, space: str, name: str = "") -> Task:
    """The task of one function.

    Args:
        mod: With one PrimFunc "main".
        opened: Its space, of the kind `space`.
        name: Its name, else those of its blocks.
    """
    text = str(target)
    name = name or "_".join(_blocks(mod))[:60] or "main"
    about = payload(mod, text, space), _shapes(mod), _hash(_workload(mod))
    return Task(_key(mod, text), name, _kind(name, mod), text, (opened,), _flops(mod), 1.0, *about)


def _blocks(mod: tvm.IRModule) -> list[str]:
    """Names of the blocks that a function consists of, in order."""
    found: list[str] = []
    tvm_ffi.structural_walk(mod["main"].body, (tvm.s_tir.SBlock, lambda block: found.append(str(block.name_hint))))
    return [name for name in found if name != "root"]


def payload(mod: tvm.IRModule, target: str, space: str) -> bytes:
    """Bytes from which any process rebuilds the workload."""
    return zlib.compress(json.dumps({"mod": tvm.ir.save_json(mod), "target": target, "space": space}).encode())


def unpack(data: bytes) -> tuple[tvm.IRModule, Target, str]:
    """Module, target and name of the space behind a task's payload."""
    reader = zlib.decompressobj()
    text = reader.decompress(data, MOST_PAYLOAD)
    if reader.unconsumed_tail:
        raise ValueError(f"a task's payload must unpack to at most {MOST_PAYLOAD >> 20} MB")
    content = json.loads(text)
    return tvm.ir.load_json(content["mod"]), tvm.target.Target(json.loads(content["target"])), content["space"]


def _run_passes(steps: Steps, target: Target, legalizers: Legalizers) -> None:
    t = relax.transform
    norms = apart.calls_apart(apart.batch_norm, t.FoldBatchnormToConv2D())
    steps.may_parts("folding batch norms", apart.counted(apart.batch_norm), norms)
    steps.may_parts("folding constants", *_fold(fold_constants))
    steps.may_parts("folding constants by TVM", *_fold(t.FoldConstant()))
    steps.may("operators in their plain form", plain_operators)
    if quantised := present(steps.mod):
        steps.may("quantisation as arithmetic", as_arithmetic)
    steps.must(t.DecomposeOpsForInference(), t.CanonicalizeBindings())
    steps.may_parts("folding constants by TVM", *_fold(t.FoldConstant()))
    if target.kind.name in ("llvm", "c"):
        steps.may("convolutions of other kinds as two-dimensional ones", as_conv2d, t.CanonicalizeBindings())
        weights = "OIHW" if "relax.nn.conv2d" in legalizers else "HWIO"
        wanted = {"relax.nn.conv2d": ["NHWC", weights], "relax.nn.conv2d_transpose": ["NCHW", "IOHW"]}
        _lay_out(steps, wanted)
    if quantised:
        steps.may("scales as operands", numbers_as_operands)
    steps.may("chains of permutations as one", one_permutation)
    steps.may("elementwise operators before reshapes", elementwise_first, t.EliminateCommonSubexpr())
    steps.must(relax.backend.DispatchSampling(), relax.backend.DispatchSortScan())
    _legalize(steps, legalizers)
    steps.may_parts("patterns of operators", apart.functions, apart.functions_apart(t.AnnotateTIROpPattern()))
    steps.may_parts("folding constants by TVM", *_fold(t.FoldConstant()))
    steps.must(series.steps_as_functions)
    steps.may_parts("fusion", apart.functions, apart.functions_apart(t.FuseOps(), t.FuseTIR()))
    steps.may("reshapes as views", t.RewriteDataflowReshape())
    steps.must(t.DeadCodeElimination())


def _fold(step: tvm.transform.Pass) -> tuple[Callable[[tvm.IRModule], int], PassesFor]:
    """A pass that folds constants, in parts."""
    return apart.counted(apart.foldable), apart.calls_apart(apart.foldable, step)


def _lay_out(steps: Steps, wanted: dict[str, list[str]]) -> None:
    """Convolutions in their layout: all, else those where it works, else all behind operators that hinder it."""
    what, said = "the layout NHWC of convolutions", len(steps.notes)
    if steps.may_each(what, "relax.nn.conv2d", lambda left: _layout(wanted, left)):
        return
    nowhere = steps.notes[said:]
    if nowhere and not steps.may_parts(f"{what} across kinds of operators", apart.kinds, _across(wanted)):
        steps.notes[said:] = nowhere
    elif nowhere:
        steps.notes[said:] = steps.notes[said + len(nowhere) :]


def _across(wanted: dict[str, list[str]]) -> PassesFor:
    return lambda left: apart.kinds_apart(*_layout(wanted, frozenset()))(left)


def _layout(wanted: dict[str, list[str]], left: frozenset[int]) -> list[tvm.transform.Pass]:
    """Convert the convolutions, but for those of these numbers, which keep their layout."""
    count = itertools.count()

    def layouts(call: relax.Call) -> dict[str, list[str]]:
        if call.op.name != "relax.nn.conv2d":
            return wanted
        return wanted if next(count) not in left else {**wanted, "relax.nn.conv2d": ["NCHW", "OIHW"]}

    return [relax.transform.ConvertLayout(wanted, layouts), relax.transform.Normalize(), fold_constants]


def _legalize(steps: Steps, legalizers: Legalizers) -> None:
    """Operators as functions; a space's or tt's own way to write one is left out where it fails."""
    try:
        steps.must(relax.transform.LegalizeOps(legalizers))
    except Exception:  # TVM raises several types; the second attempt tells what is wrong
        own: dict[str, Callable[..., relax.Expr]] = {}
        for name, legalizer in legalizers.items():
            try:
                relax.transform.LegalizeOps({**own, name: legalizer})(steps.mod)
            except Exception as e:  # as above
                steps.notes.append(f"tt's own form of {name} left out: {summary(e)}")
            else:
                own[name] = legalizer
        steps.must(relax.transform.LegalizeOps(own))


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


def _unmistakable(key: str, mod: tvm.IRModule, known: Mapping[str, tvm.IRModule], recall: Recall) -> str:
    """The key, or another where a different function has it, in the model or in a history: TVM's hash has 64 bits and
    is not made against that."""
    while not same(known[key], mod) if key in known else any(_is_another(t, mod) for t in recall(key)):
        key = _hash(f"{key}/another")
    return key


def _is_another(task: Task, mod: tvm.IRModule) -> bool:
    """Whether a remembered task is of another function. Of one whose payload is missing, as histories of version 1 have
    it, the shapes tell; of one that cannot be read the key is all there is."""
    if not task.payload:
        return task.shapes != "" and _dimensions(task.shapes) != _dimensions(_shapes(mod))
    try:
        return not same(unpack(task.payload)[0], mod)
    except Exception:  # TVM raises several types for what somebody wrote into a file
        return False


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


def _dimensions(shapes: str) -> list[str]:
    """Of inputs and outputs; where the outputs begin was said otherwise once, of functions that have several."""
    return shapes.replace(" -> ", ", ").split(", ")
