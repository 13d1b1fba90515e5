"""MetaSchedule's design space as rows of integers.

Source: Zheng et al. (2020), Ansor, OSDI; Shao et al. (2022), Tensor program optimization with probabilistic
programs, NeurIPS, whose space generator is used as it is.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import tvm
from tt_spec import Knob, Space
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace

from tt_space.intrinsics import import_intrinsics
from tt_space.nests.blocks import Block, read_blocks
from tt_space.nests.index import Uninterpreted
from tt_space.nests.interpreter import Interpreter
from tt_space.nests.sketches import SketchStructure, steps_of
from tt_space.programs import Features, InvalidRow, first_line

__all__ = ["VERSION", "Sketch", "SketchPrograms"]

VERSION = f"1/tvm-{tvm.__version__}"
"""Of every space of sketches: TVM derives them."""

_SAMPLING = {
    "SamplePerfectTile": "tile",
    "SampleCategorical": "choice",
    "SampleComputeLocation": "location",
}


class Sketch:
    """The sketches of `PostOrderApply`: the sketch is the first knob, its sampling instructions are the others.

    Works for any operator. Sampling instructions of different sketches share a knob where they decide the same kind
    of thing among the same choices, so that what was learned on one sketch tells something about the next.
    """

    def legalizers(self, target: tvm.target.Target) -> dict[str, Any]:
        """No operators: sketches work on what TVM's own legalisation gives."""
        return {}

    def open(self, mod: tvm.IRModule, target: tvm.target.Target) -> SketchPrograms:
        """The space of one workload, with the programs behind its rows.

        Args:
            mod: One PrimFunc named "main".
            target: With `num-cores` set.
        """
        return SketchPrograms(mod, target)


class SketchPrograms:
    """Rows to schedules and back for one workload.

    A row is canonical when the trace of its schedule reads back as the same row: TVM replaces an illegal compute
    location by the one before it, and `read` shows what became of it.
    """

    def __init__(self, mod: tvm.IRModule, target: tvm.target.Target) -> None:
        import_intrinsics(target)
        self.mod, self.target = mod, target
        self.context: Any = ms.TuneContext(
            mod=mod, target=target, space_generator="post-order-apply", task_name="main", rand_state=1, num_threads=1
        )
        sketches = self.context.generate_design_space()
        self.traces = [s.trace.simplified(remove_postproc=True) for s in sketches]
        self.space, self._knob_of = _space(mod, self.traces)
        self.features = Features(mod, target)
        self.interpret = Interpreter(self.space, self._structure, lambda row: self.features([self.apply(row)])[0])

    def _structure(self) -> SketchStructure:
        sketches = [steps_of(t, k, tuple(_SAMPLING)) for t, k in zip(self.traces, self._knob_of, strict=True)]
        return SketchStructure(self.space, sketches, functools.cache(self._blocks))

    def _blocks(self, sketch: int, also: tuple[str, ...]) -> list[Block]:
        """The blocks of a sketch where what it inlines, and some others, are inlined. Raises `Uninterpreted` where
        TVM cannot inline one of these."""
        schedule = Schedule(self.mod, debug_mask="none", error_render_level="none")
        inline = {"ComputeInline": schedule.compute_inline, "ReverseComputeInline": schedule.reverse_compute_inline}
        got: list[tuple[Any, str]] = []
        for inst in self.traces[sketch].insts:
            if inst.kind.name == "GetSBlock":
                got.append((inst.outputs[0], str(inst.attrs[0])))
            if inst.kind.name in inline:
                name = next(n for rv, n in got if rv.same_as(inst.inputs[0]))
                inline[inst.kind.name](schedule.get_sblock(name))
        try:
            for name in also:
                schedule.compute_inline(schedule.get_sblock(name))
        except ScheduleError as e:
            raise Uninterpreted("a block that cannot be inlined would be") from e
        return read_blocks(schedule.mod)

    def apply(self, row: np.ndarray) -> Schedule:
        """The scheduled program of a row, post-processed and ready to build. Raises `InvalidRow`."""
        row = np.asarray(row, dtype=np.int64)
        if not self.space.in_range(row[None])[0]:
            raise InvalidRow(f"row {row.tolist()} is outside the space's shape {self.space.shape}")
        trace = self.traces[int(row[0])]
        decisions = {}
        for inst, knob in zip(_samples(trace), self._knob_of[int(row[0])], strict=True):
            code = int(row[knob])
            value = self.space.knobs[knob].choices[code]
            # a categorical's decision is the candidate's index, a tile's its factors, a location's the loop
            decisions[inst] = code if inst.kind.name == "SampleCategorical" else value
        schedule = Schedule(self.mod, seed=1, debug_mask="none", error_render_level="none")
        try:
            Trace(trace.insts, decisions).apply_to_schedule(schedule, remove_postproc=True)
            schedule.enter_postproc()  # whoever takes the trace for a start knows where the sketch ends
            for postproc in self.context.space_generator.postprocs:
                if not postproc.apply(schedule):
                    raise InvalidRow(f"TVM's {_name(postproc)} refuses the program")
        except InvalidRow:
            raise
        except Exception as e:  # TVM raises several types; all mean that there is no such program
            raise InvalidRow(f"TVM cannot schedule the row: {first_line(e)}") from e
        return schedule

    def read(self, schedule: Schedule, row: np.ndarray) -> np.ndarray:
        """The canonical row of the schedule that `apply` made of `row`."""
        sketch = int(row[0])
        row = np.zeros(len(self.space.knobs), dtype=np.int64)
        row[0] = sketch
        knobs = self._knob_of[sketch]
        trace: Any = schedule.trace
        made = _samples(trace)[: len(knobs)]
        for inst, knob in zip(made, knobs, strict=True):
            decision = trace.decisions[inst]
            if inst.kind.name == "SampleCategorical":
                row[knob] = int(decision)
                continue
            value: Any = int(decision) if inst.kind.name == "SampleComputeLocation" else tuple(int(f) for f in decision)
            try:
                row[knob] = self.space.knobs[knob].choices.index(value)
            except ValueError:
                raise InvalidRow(
                    f"TVM chose {value} for {self.space.knobs[knob].name}, not one of its choices"
                ) from None
        return row

    def trace_of(self, schedule: Schedule) -> Any:
        """Instructions and decisions of a schedule that `apply` made, as JSON has them."""
        return _plain(schedule.trace)

    def row_of(self, trace: Any) -> np.ndarray:
        """The row of a trace in JSON whose program has that very trace. Raises `InvalidRow`."""
        if not isinstance(trace, list) or len(trace) != 2 or not all(isinstance(part, list) for part in trace):
            raise TypeError("a trace is a list of instructions and one of decisions")
        insts, decisions = trace
        if not all(isinstance(d, list) and len(d) == 2 and isinstance(d[0], int) for d in decisions):
            raise TypeError("a decision is an instruction's place and a value")
        chosen = dict(decisions)
        why = "of no sketch of this version's"
        for sketch, (known, places) in enumerate(self._told):
            if insts[: len(known)] != known:
                continue
            row = self._chosen(sketch, [chosen.get(place) for place in places])
            schedule = self.apply(row)
            if not np.array_equal(self.read(schedule, row), row):
                raise InvalidRow("decisions that TVM replaces by others")
            made = _plain(schedule.trace)
            if _without_marks(made[0]) == _without_marks(insts):
                return row
            why = "of a sketch, with other post-processing"
        raise InvalidRow(why)

    @functools.cached_property
    def _told(self) -> list[tuple[list[Any], list[int]]]:
        """Instructions of each sketch in JSON, and which of them are sampling."""
        found = [_plain(t)[0] for t in self.traces]
        return [(insts, [i for i, inst in enumerate(insts) if inst[0] in _SAMPLING]) for insts in found]

    def _chosen(self, sketch: int, decisions: list[Any]) -> np.ndarray:
        row = np.zeros(len(self.space.knobs), dtype=np.int64)
        row[0] = sketch
        for knob, decision in zip(self._knob_of[sketch], decisions, strict=True):
            choices = self.space.knobs[knob].choices
            if isinstance(decision, int) and self.space.knobs[knob].kind == "choice":
                row[knob] = decision
                continue
            value = tuple(decision) if isinstance(decision, list) else decision
            if value not in choices:
                raise InvalidRow("decisions that no sketch of this version has")
            row[knob] = choices.index(value)
        if not self.space.in_range(row[None])[0]:
            raise InvalidRow("decisions that no sketch of this version has")
        return row

    def repack(self, row: np.ndarray) -> None:
        """None: the programs take the workload's constants as they are."""


def _plain(trace: Any) -> list[Any]:
    """A trace as JSON has it: instructions and decisions."""
    return json.loads(json.dumps(trace.as_json(), default=lambda number: number.value))


def _without_marks(insts: list[Any]) -> list[Any]:
    return [inst for inst in insts if inst[0] != "EnterPostproc"]


def _samples(trace: Trace) -> list[Any]:
    return [i for i in trace.insts if i.kind.name in _SAMPLING]


def _space(mod: tvm.IRModule, traces: list[Trace]) -> tuple[Space, list[list[int]]]:
    """Knobs of all sketches, and for each sketch the knob of each sampling instruction."""
    found: list[tuple[str, tuple[Any, ...], set[int]]] = []
    knob_of: list[list[int]] = []
    for s, trace in enumerate(traces):
        mine: list[int] = []
        located = any(_SAMPLING[inst.kind.name] == "location" for inst in _samples(trace))
        depths = iter(_depths(mod, trace) if located else ())
        for inst in _samples(trace):
            kind = _SAMPLING[inst.kind.name]
            choices = (-2, -1, *range(next(depths))) if kind == "location" else _choices(trace, inst)
            for j, (k, c, _) in enumerate(found):
                if (k, c) == (kind, choices) and j + 1 not in mine:
                    break
            else:
                j = len(found)
                found.append((kind, choices, set()))
            found[j][2].add(s)
            mine.append(j + 1)
        knob_of.append(mine)
    every = set(range(len(traces)))
    knobs = [Knob("sketch", "choice", tuple(f"sketch {i}" for i in range(len(traces))))]
    for j, (kind, choices, used) in enumerate(found):
        active = None if used == every else (0, tuple(sorted(used)))
        knobs.append(Knob(f"{kind}_{j}", kind, choices, active))  # type: ignore[arg-type]
    return Space(tuple(knobs), version=VERSION, name="sketch"), knob_of


def _choices(trace: Trace, inst: Any) -> tuple[Any, ...]:
    if inst.kind.name == "SampleCategorical":
        return tuple(int(v) for v in inst.attrs[0])
    parts, innermost = (int(a) for a in inst.attrs)
    extent = int(np.prod([int(f) for f in trace.decisions[inst]]))
    limit = innermost if innermost > 0 else extent
    tiles = tuple(t for t in _factorisations(extent, parts) if t[-1] <= limit)
    return tiles or _factorisations(extent, parts)


def _depths(mod: tvm.IRModule, trace: Trace) -> list[int]:
    """The deepest loop nest when each choice of a location is reached, by one replay: no location lies deeper."""
    found: list[int] = []
    schedule = Schedule(mod, seed=1, debug_mask="none", error_render_level="none")

    def look(inst: Any, inputs: Any, attrs: Any, decision: Any) -> Any:
        if _SAMPLING.get(inst.kind.name) == "location":
            found.append(max(1, _loop_depth(schedule.mod["main"].body)))
        return decision

    trace.apply_to_schedule(schedule, remove_postproc=True, decision_provider=look)
    return found


def _loop_depth(body: Any) -> int:
    """The deepest loop nest in a function body."""
    deepest = 0

    def visit(node: Any, depth: int) -> None:
        nonlocal deepest
        deepest = max(deepest, depth)
        for child in _children(node):
            visit(child, depth + isinstance(node, tvm.tirx.For))

    visit(body, 0)
    return deepest


def _children(node: Any) -> list[Any]:
    if isinstance(node, tvm.tirx.SeqStmt):
        return list(node.seq)
    out = []
    for name in ("block", "body", "init", "then_case", "else_case"):
        child = getattr(node, name, None)
        if child is not None:
            out.append(child)
    return out


@functools.lru_cache(maxsize=4096)
def _factorisations(extent: int, parts: int) -> tuple[tuple[int, ...], ...]:
    """All ordered ways to write `extent` as a product of `parts` factors, outermost first."""
    if parts == 1:
        return ((extent,),)
    return tuple(
        (f, *rest) for f in range(1, extent + 1) if extent % f == 0 for rest in _factorisations(extent // f, parts - 1)
    )


def _name(postproc: Any) -> str:
    return type(postproc).__name__
