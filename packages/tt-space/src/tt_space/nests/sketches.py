"""How the rows of a sketch's space are scheduled, for many rows at once: its trace, and what TVM does after it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tt_spec import Space

from tt_space.nests.blocks import Block
from tt_space.nests.features import features_of
from tt_space.nests.index import Lane, Loop, Uninterpreted, uniform
from tt_space.nests.interpreter import fresh
from tt_space.nests.lower import lowered
from tt_space.nests.parallel import annotated
from tt_space.nests.schedule import NestSchedule

__all__ = ["SketchStructure", "Step", "steps_of"]

_IGNORED = ("meta_schedule.tiling_structure",)


@dataclass(frozen=True)
class Step:
    """One instruction of a trace: its variables are numbers; a constant input is kept as it is.

    Args:
        knob: Index of the row's knob that decides it; None where nothing is decided.
    """

    kind: str
    inputs: tuple[Any, ...]
    outputs: tuple[int, ...]
    attrs: tuple[Any, ...]
    knob: int | None


@dataclass(frozen=True)
class Variable:
    """A variable of a trace by its number."""

    number: int


def steps_of(trace: Any, knobs: list[int], samples: tuple[str, ...]) -> list[Step]:
    """A trace's instructions.

    Args:
        knobs: The knob of each sampling instruction, in order.
        samples: Kinds of the sampling instructions.
    """
    made: list[Any] = []
    decided = iter(knobs)

    def read(x: Any) -> Any:
        for number, v in enumerate(made):
            if hasattr(x, "same_as") and x.same_as(v):
                return Variable(number)
        return [read(y) for y in x] if isinstance(x, list | tuple) else x

    steps = []
    for inst in trace.insts:
        inputs = tuple(read(x) for x in inst.inputs)
        first = len(made)
        made.extend(inst.outputs)
        kind = inst.kind.name
        knob = next(decided) if kind in samples else None
        steps.append(Step(kind, inputs, tuple(range(first, len(made))), tuple(inst.attrs), knob))
    return steps


class SketchStructure:
    """The sketches of a workload. The sketch and the compute locations decide the structure.

    Args:
        sketches: The instructions of each.
        blocks: The workload's blocks for a sketch, with some of them inlined besides those that the trace inlines.
    """

    def __init__(
        self, space: Space, sketches: list[list[Step]], blocks: Callable[[int, tuple[str, ...]], list[Block]]
    ) -> None:
        self.space, self.sketches, self._blocks = space, sketches, blocks
        self._locations = [k for k, knob in enumerate(space.knobs) if knob.kind == "location"]

    def groups(self, codes: np.ndarray) -> list[tuple[Hashable, np.ndarray]]:
        apart = [0, *self._locations]
        kinds, which = np.unique(codes[:, apart], axis=0, return_inverse=True)
        which = which.reshape(-1)
        return [(tuple(map(int, kind)), np.flatnonzero(which == i)) for i, kind in enumerate(kinds)]

    def features(self, shared: Any, codes: np.ndarray) -> np.ndarray:
        return features_of(lowered(self.scheduled(shared, codes)), len(codes))

    def scheduled(self, shared: Any, codes: np.ndarray) -> NestSchedule:
        steps = self.sketches[shared[0]]
        return _Replay(self.space, steps, lambda also: self._blocks(shared[0], also), codes).run()


class _Replay:
    """A trace on many programs."""

    def __init__(
        self, space: Space, steps: list[Step], blocks: Callable[[tuple[str, ...]], list[Block]], codes: np.ndarray
    ) -> None:
        self.space, self.steps, self.codes = space, steps, codes
        inlined, where = [], {}
        for step in steps:
            if step.kind == "GetSBlock":
                where[step.outputs[0]] = str(step.attrs[0])
            if step.kind == "SampleComputeLocation" and self._location(step) == -2:
                block = step.inputs[0].number
                if block not in where:
                    raise Uninterpreted("a block that the trace makes would be inlined")
                inlined.append(where[block])
        self.s = fresh(blocks(tuple(inlined)))
        self.values: dict[int, Any] = {}
        self.root: dict[str, Lane] = {}

    def run(self) -> NestSchedule:
        for step in self.steps:
            do = getattr(self, f"_{step.kind}", None)
            if do is None:
                raise Uninterpreted(f"the trace has a {step.kind}")
            done = do(step, [self._value(x) for x in step.inputs])
            outputs = done if isinstance(done, list | tuple) else [done]
            if len(step.outputs) != (0 if done is None and not step.outputs else len(outputs)):
                raise Uninterpreted(f"{step.kind} made {len(outputs)} values, not {len(step.outputs)}")
            self.values.update(zip(step.outputs, outputs, strict=False))
        annotated(self.s, self.root, len(self.codes))
        return self.s

    def _value(self, x: Any) -> Any:
        if isinstance(x, Variable):
            return self.values[x.number]
        return [self._value(y) for y in x] if isinstance(x, list) else x

    def _location(self, step: Step) -> int:
        knob = self.space.knobs[step.knob if step.knob is not None else 0]
        return int(knob.choices[int(self.codes[0, step.knob])])

    # -- instructions ---------------------------------------------------------------------------------------------

    def _GetSBlock(self, step: Step, _: list[Any]) -> Any:
        name = str(step.attrs[0])
        return "root" if name == "root" else self.s.get_sblock(name)

    def _GetLoops(self, step: Step, inputs: list[Any]) -> Any:
        return self.s.get_loops(inputs[0])

    def _SamplePerfectTile(self, step: Step, _: list[Any]) -> Any:
        knob = self.space.knobs[step.knob if step.knob is not None else 0]
        values = np.asarray(knob.choices, dtype=np.int64)[self.codes[:, step.knob]]
        return list(values.T)

    def _SampleCategorical(self, step: Step, _: list[Any]) -> Any:
        knob = self.space.knobs[step.knob if step.knob is not None else 0]
        return np.asarray(knob.choices, dtype=np.int64)[self.codes[:, step.knob]]

    def _SampleComputeLocation(self, step: Step, inputs: list[Any]) -> Any:
        at, block = self._location(step), inputs[0]
        if at < 0:
            return at
        readers = [b for b in self.s.blocks() if b is not block and any(x.buffer is block.target for x in b.loads)]
        loops = self.s.get_loops(readers[0]) if len(readers) == 1 else []
        if at >= len(loops) or not uniform(_may(self.s, loops, at)):
            raise Uninterpreted("TVM would choose another location")
        return loops[at]

    def _Split(self, step: Step, inputs: list[Any]) -> Any:
        loop, *factors = inputs
        if len(factors) == 1 and isinstance(factors[0], list):
            (factors,) = factors
        return self.s.split(loop, factors)

    def _Reorder(self, step: Step, inputs: list[Any]) -> None:
        self.s.reorder(*(inputs[0] if isinstance(inputs[0], list) else inputs))

    def _CacheWrite(self, step: Step, inputs: list[Any]) -> Any:
        return self.s.cache_write(inputs[0], int(step.attrs[0]), str(step.attrs[1]))

    def _ReverseComputeAt(self, step: Step, inputs: list[Any]) -> None:
        self.s.reverse_compute_at(inputs[0], inputs[1], bool(step.attrs[0]), int(step.attrs[1]))

    def _ComputeAt(self, step: Step, inputs: list[Any]) -> None:
        if isinstance(inputs[1], Loop):
            self.s.compute_at(inputs[0], inputs[1], bool(step.attrs[0]), int(step.attrs[1]))

    def _ComputeInline(self, step: Step, inputs: list[Any]) -> None:
        self.s.compute_inline(inputs[0])

    def _ReverseComputeInline(self, step: Step, inputs: list[Any]) -> None:
        self.s.compute_inline(inputs[0])

    def _Annotate(self, step: Step, inputs: list[Any]) -> None:
        key = str(step.attrs[0])
        if inputs[0] == "root":
            self.root[key] = inputs[1] if isinstance(inputs[1], np.ndarray) else int(inputs[1])
        elif key not in _IGNORED:
            raise Uninterpreted(f"the trace annotates {key}")


def _may(s: NestSchedule, loops: list[Loop], at: int) -> Any:
    """Where TVM computes a block at a loop of its reader: not one of one trip, nor a spatial one inside a reduction."""
    spatial = [s.iterates(loop) == "spatial" for loop in loops]
    last = max((i for i, x in enumerate(spatial) if x), default=-1)
    one = [np.asarray(x.extent) == 1 for x in loops]
    reduced: Any = np.False_
    for i in range(at):
        reduced = reduced | (~one[i] & (not spatial[i]))
    if spatial[at]:
        return ~one[at] & ~reduced
    after: Any = np.False_
    inside: Any = np.False_
    for i in range(at):
        after = after | (inside & ~one[i] & spatial[i])
        inside = inside | (~one[i] & (not spatial[i]))
    return ~one[at] & ~after & (at < last)
