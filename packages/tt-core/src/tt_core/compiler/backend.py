"""TVM behind the `Backend` role: lives in a worker process of the measuring engine."""

from __future__ import annotations

import math
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle, islice, repeat
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

import numpy as np
import tvm
from tt_spec import Plugins, Realised, Statements, Task, concat_statements, operator_features, token
from tt_spec.roles import Assures, Interprets, Prestarts, Reopens, Workload
from tt_spec.windows import Windows, state

from tt_core.compiler.denormals import flushed, wanted
from tt_core.compiler.lower import unpack
from tt_core.compiler.peak import probe
from tt_core.compiler.primfunc import same
from tt_core.compiler.quick import quick
from tt_core.compiler.reference import Draw, Recent, Reference, drawn
from tt_core.compiler.runtime import Runner
from tt_core.compiler.seat import Seat
from tt_core.compiler.target import options, unhurried

if TYPE_CHECKING:
    from tvm.target import Target

__all__ = ["Repacked", "TvmBackend"]


class Repacked(Protocol):
    """A constant argument that a program takes in another form; see `tt_space.Repacked`."""

    position: int

    def make(self, array: np.ndarray) -> np.ndarray: ...


DEFAULT = "both"
"""The space that most recipes search."""

HOPELESS = 3.0
"""Factor behind the fastest at which the untuned program or model leaves a race."""

COLD_S = 1.0
"""Up to so many seconds an execution may be long because it is the first, in which the library's pages are read."""

_UNASKED = {"tirx.disable_assert": True}
"""A candidate is called with arguments of our own making: nothing looks at their shapes and types, which would be a
quarter of its machine code's making."""

STATE_S = 5.0
"""How long a look at the machine's states, which takes 0.1 s, serves the races after it."""

LEAST_ROUNDS = 4
"""Rounds of a race of models that is late."""

EXCESS, FEW_OPERATIONS = 32.0, 2e8
"""How many times the operator's arithmetic a program may do, and how much it may do whatever the operator is: a
millisecond's worth. A sketch may compute a row's sum again for each of its elements, and take 20 s instead of 1 ms."""

SCHEDULES = 4096
"""Schedules that a process keeps, those made last; one takes 60 kB."""

MOST_COLD = 128 << 20
"""Bytes of copies of a constant that a program in a race may have: more than a core's share of most caches."""

ENOUGH = 200
"""Executions of a model after which a round of a race knows its median."""


class TvmBackend:
    """Builds rows in memory and calls them in this process: no archive, no linker.

    Tasks stay open, with their space, random arguments and the untuned program's outputs. A row whose candidate
    somebody still holds is not built again.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Workload] = {}
        self._plugins: Plugins | None = None
        self._shared = _Shared()
        self._state = -math.inf, math.inf

    def prestart(self) -> None:
        """Load what the first task is likely to need, in a worker that would wait: plug-ins and the default's space.
        What cannot be loaded is told when it is needed."""
        self._plugins = self._plugins or Plugins()
        with suppress(Exception):
            space = self._plugins.build("space", DEFAULT)
            if isinstance(space, Prestarts):
                space.prestart()

    def open(self, task: Task) -> None:
        known = self._open.get(task.key)
        if known is not None and known.payload == task.payload:
            return
        mod, target, space = unpack(task.payload)
        if known is not None:
            if not same(known.mod, mod):
                raise ValueError(f"task {task.name}: another workload is open here under its key, {task.key}")
            return
        self._plugins = self._plugins or Plugins()
        builder = self._plugins.build("space", space)
        reopens = isinstance(builder, Reopens)
        programs = builder.reopen(mod, target, task.space) if reopens else builder.open(mod, target)
        if programs.space.key != task.space.key:
            raise ValueError(
                f"task {task.name}: this process derives space {programs.space.key}, the task was made with"
                f" {task.space.key}; both must run the same version of tt-space and TVM"
            )
        self._open[task.key] = _Workload(mod, target, programs, self._shared)
        self._open[task.key].payload = task.payload

    def realise(self, task: Task, codes: np.ndarray) -> Realised:
        self._shared.seat.build()
        work = self._open[task.key]
        rows, why = np.array(codes, dtype=np.int64), []
        sure = work.assured(rows)
        for i, row in enumerate(codes):
            if sure[i]:
                why.append(None)
                continue
            try:
                schedule = work.schedule(row)
                rows[i] = work.programs.read(schedule, row)
                work.keep(rows[i], schedule)
                why.append(None)
            except ValueError as e:
                why.append(str(e))
        return Realised(rows, tuple(why))

    def features(self, task: Task, codes: np.ndarray) -> tuple[Statements, np.ndarray]:
        self._shared.seat.build()
        work = self._open[task.key]
        found, schedules = work.interpreted(codes), {}
        for i in [i for i, f in enumerate(found) if f is None]:
            try:
                schedules[i] = work.schedule(codes[i])
            except ValueError:
                continue
        if schedules:
            for i, f in zip(schedules, work.programs.features(list(schedules.values())), strict=True):
                found[i] = f
        operator = operator_features(task)[None]
        parts = [Statements(f, np.array([0, len(f)]), operator) for f in found if f is not None]
        return concat_statements(parts), np.array([f is not None for f in found], dtype=bool)

    def build(self, task: Task, row: np.ndarray) -> TvmCandidate:
        self._shared.seat.build()
        work = self._open[task.key]
        if (held := work.candidates.get(token(row))) is not None:
            return held
        work.untuned()  # its check will ask for that program: better now than while nobody else may work
        start = time.perf_counter()
        schedule = work.schedule(row)
        apply_s = time.perf_counter() - start
        library = work.compile(schedule.mod)
        candidate = TvmCandidate(work, library, apply_s, work.programs.repack(np.asarray(row, dtype=np.int64)))
        work.candidates[token(row)] = candidate
        return candidate

    def threads(self) -> int:
        """Threads that TVM's runtime uses in this process."""
        return int(tvm.get_global_func("runtime.NumThreads")())

    def gauge(self, task: Task) -> float | None:
        """Seconds of `tt_core.compiler.peak.probe`, run once now; None for programs that do not run on this CPU."""
        self._shared.seat.run()
        tell = self._probe(task)
        return None if tell is None else tell()

    def _probe(self, task: Task) -> Callable[[], float] | None:
        work = self._open[task.key]
        return probe(work.about) if str(work.target.kind.name) == "llvm" else None

    def loaded(self, module: str) -> bool:
        """Whether a Python module is loaded in this process."""
        return getattr(sys.modules.get(module), "__file__", None) is not None

    def race(
        self,
        task: Task,
        codes: np.ndarray,
        rounds: int = 10,
        min_ms: float = 10.0,
        untuned: bool = False,
        cold: int = 0,
    ) -> list[list[float]]:
        """Time programs interleaved, seconds per execution of each round, one list per row.

        The luckiest measurement of many is not the fastest program; in turns, all meet the same noise.

        Args:
            min_ms: Length of a round's timing of one program, at least.
            untuned: The program that ships without tuning takes part; its list is the last one. If it is `HOPELESS`
                times slower than the fastest, it is not timed again: its list has one entry.
            cold: See `tt_spec.roles.Races`; copies take `MOST_COLD` bytes a program at most.
        """
        candidates = [self.build(task, row) for row in codes]
        if untuned:
            work = self._open[task.key]
            candidates.append(TvmCandidate(work, work.untuned(), 0.0))
        plain = _with_cold(candidates, min(cold, MOST_COLD)) if cold else [c.run for c in candidates]
        runs = self._steady(task, plain, rounds * min_ms / 1e3)
        first = [max(min(run(1), run(1)), 1e-9) for run in (runs[:-1] if untuned else runs)]
        if untuned:
            once = max(plain[-1](1), 1e-9)  # most are hopeless by far, and slow: one run says so
            first.append(once if first and once > 2 * HOPELESS * min(first) else max(min(runs[-1](1), once), 1e-9))
        hopeless = untuned and first[-1] > HOPELESS * min(first)
        repeats = [max(1, int(np.ceil(min_ms / 1e3 / s))) for s in first[: -1 if hopeless else None]]
        seconds: list[list[float]] = [[] for _ in repeats]
        for _ in range(rounds):
            for warm, run, n, mine in zip(plain, runs, repeats, seconds, strict=False):
                warm(1)
                mine.append(run(n))
        return [*seconds, first[-1:]] if hopeless else seconds

    def _steady(
        self, task: Task, runs: list[Callable[[int], float]], seconds: float
    ) -> Sequence[Callable[[int], float]]:
        """These runs in windows that count, each with as much time for windows in vain as the race gives it; the runs
        as they are where nothing tells the machine's state. Where no window counts nothing is corrected: how much these
        programs suffer is not known, and all of them take turns."""
        self._shared.seat.run()
        tell = self._probe(task)
        if tell is None:
            return runs
        at, state_s = self._state
        if time.monotonic() - at > STATE_S:
            state_s = state(tell)
            self._state = time.monotonic(), state_s
        return [Windows(run, tell, state_s, sensitivity=0.0, most_s=seconds) for run in runs]

    def check(self, task: Task, row: np.ndarray) -> str | None:
        """The fault in a row's outputs, or None."""
        return self.build(task, row).check()

    def doubts(self, task: Task, row: np.ndarray) -> list[str]:
        """The draws of inputs on which the untuned program tells nothing; none before anything was checked."""
        return self._open[task.key].doubts()

    def race_models(
        self, paths: list[str], inputs: dict[str, np.ndarray], seconds: float = 6.0, rounds: int = 10
    ) -> list[list[float]]:
        """Time deployed libraries in turns on these inputs: the median execution of each round, a list per library.

        One that is `HOPELESS` times slower than the fastest is not timed again, and its list has one entry; one of up
        to `COLD_S` gets a second chance before. Rounds of models so short that they would hold more than `ENOUGH`
        executions are cut, to a sixth at most; one execution of a model that takes longer than a round needs no other
        to warm up, and is the whole first round. Where `seconds` are long over, e.g. because others use the machine,
        `LEAST_ROUNDS` have to do.
        """
        self._shared.seat.run()
        began = time.perf_counter()
        runners, share = [Runner(path) for path in paths], seconds / rounds / len(paths)
        tell = runners[0].probe()
        state_s = None if tell is None else state(tell)

        def look(runner: Runner) -> float:
            once = runner.time(inputs, 0.0, 1, warm=False, state_s=state_s).seconds[0]
            long = once > share
            return once if long else float(np.median(runner.time(inputs, share, warm=False, state_s=state_s).seconds))

        medians = [[look(r)] for r in runners]
        fastest = min(m[0] for m in medians)
        for runner, mine in zip(runners, medians, strict=True):
            if HOPELESS * fastest < mine[0] <= COLD_S:
                mine[0] = min(mine[0], look(runner))
        share = min(share, max(ENOUGH * fastest, share / 6))
        for done in range(1, rounds):
            if done >= LEAST_ROUNDS and time.perf_counter() - began > 1.5 * seconds:
                break
            turns = list(zip(runners, medians, strict=True))
            for runner, mine in turns if done % 2 else reversed(turns):  # there and back: a drift cancels
                if mine[0] <= HOPELESS * fastest:
                    timed = runner.time(inputs, share, 1, warm=mine[0] < share, state_s=state_s)
                    mine.append(float(np.median(timed.seconds)))
        return medians

    def profile_models(
        self, paths: list[str], inputs: dict[str, np.ndarray], seconds: float = 6.0, rounds: int = 10
    ) -> list[dict[str, list[float]]]:
        """Time the functions of deployed libraries in turns on these inputs: each round's seconds in one execution by
        name, all calls together, a dictionary per library. Where `seconds` are long over, `LEAST_ROUNDS` have to do."""
        self._shared.seat.run()
        began = time.perf_counter()
        runners, share = [Runner(path) for path in paths], seconds / rounds / len(paths)
        found: list[dict[str, list[float]]] = [{} for _ in paths]
        for done in range(rounds):
            if done >= LEAST_ROUNDS and time.perf_counter() - began > 1.5 * seconds:
                break
            turns = list(zip(runners, found, strict=True))
            for runner, mine in turns if done % 2 else reversed(turns):  # there and back: a drift cancels
                for name, s in runner.profile(inputs, share).items():
                    mine.setdefault(name, []).append(s)
        return found

    def run_model(self, path: str, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs of a deployed library, on the worker's own processor: two may run at once."""
        self._shared.seat.build()
        return Runner(path)(inputs)

    def nudge_model(
        self, path: str, inputs: dict[str, np.ndarray], share: float, seeds: Sequence[int]
    ) -> list[list[np.ndarray]]:
        """Its outputs, everything that passes between its operators being nudged; where `run_model` runs."""
        self._shared.seat.build()
        runner = Runner(path)
        return [runner.nudged(inputs, share, seed) for seed in seeds]


def _with_cold(candidates: Sequence[TvmCandidate], size: int) -> list[Callable[[int], float]]:
    """Runs with cold copies of the constant that some of the programs take in another form; as ever where none does."""
    positions = {c.repacked.position for c in candidates if c.repacked is not None}
    if len(positions) != 1:
        return [c.run for c in candidates]
    (position,) = positions
    turns: dict[int, Iterator[tvm.runtime.Tensor]] = {}

    def cold(candidate: TvmCandidate) -> Callable[[int], float]:
        array = candidate.arguments()[position]
        if id(array) not in turns:  # programs that take one form share its copies: what one used last is cold by then
            turns[id(array)] = _copies(array, size)
        return candidate.with_turns(position, turns[id(array)])

    return [cold(c) for c in candidates]


def _copies(array: tvm.runtime.Tensor, size: int) -> Iterator[tvm.runtime.Tensor]:
    """Copies of an array in turn, at least two, together `size` bytes or more."""
    content = array.numpy()
    return cycle([tvm.runtime.tensor(content, array.device) for _ in range(max(2, -(-size // content.nbytes)))])


class TvmCandidate:
    """One compiled program with its arguments."""

    def __init__(
        self, work: _Workload, library: tvm.runtime.Module, apply_s: float, repacked: Repacked | None = None
    ) -> None:
        self._work, self._library, self.apply_s, self._repacked = work, library, apply_s, repacked
        self._call, self._right = library["main"], False

    def run(self, n: int) -> float:
        return self._timed(n, repeat(self.arguments()))

    @property
    def repacked(self) -> Repacked | None:
        """The constant that it takes in another form."""
        return self._repacked

    def arguments(self) -> list[tvm.runtime.Tensor]:
        """What it is called with."""
        return self._work.arguments(self._repacked)

    def with_turns(self, position: int, turns: Iterator[tvm.runtime.Tensor]) -> Callable[[int], float]:
        """`run` with the next of these as the argument of that position each time."""
        args = self.arguments()
        return lambda n: self._timed(n, ([*args[:position], one, *args[position + 1 :]] for one in turns))

    def _timed(self, n: int, turns: Iterator[Sequence[tvm.runtime.Tensor]]) -> float:
        """Seconds of an execution, the arguments of each being the next of these."""
        call, sync = self._call, self._work.sync
        with self._work.zeros():
            start = time.perf_counter()
            for args in islice(turns, n):
                call(*args)
            sync()
            return (time.perf_counter() - start) / n

    def check(self) -> str | None:
        """The fault in its outputs, or None; a program that was found right is not compared again."""
        if self._right:
            return None
        reference = self._work.reference()
        draws = reference.draws()
        self._work.shared.recent.used(reference)
        for draw in draws:
            got = self._work.outputs(self._call, draw, self._repacked)
            if (wrong := reference.fault(draw, got)) is not None:
                return wrong
        self._right = True
        return None


def _operations(mod: tvm.IRModule) -> float:
    """Operations of a program, what is computed again counting again; 0 where TVM cannot count them."""
    with suppress(Exception):  # TVM raises several types
        return float(tvm.s_tir.analysis.estimate_tir_flops(mod))
    return 0.0


@dataclass
class _Shared:
    """What the open tasks of a process share: its seat, and what of them is kept, however many they are."""

    seat: Seat = field(default_factory=Seat)
    recent: Recent = field(default_factory=Recent)
    schedules: OrderedDict[tuple[object, bytes], tvm.s_tir.Schedule] = field(default_factory=OrderedDict)


class _Workload:
    """An open task: its space and what all its candidates share."""

    def __init__(self, mod: tvm.IRModule, target: Target, programs: Workload, shared: _Shared) -> None:
        self.mod, self.target, self.programs, self.shared = mod, target, programs, shared
        self.about, self._zeros, self.payload = str(target), wanted(target), b""
        self.candidates: WeakValueDictionary[bytes, TvmCandidate] = WeakValueDictionary()
        self._arguments: list[tvm.runtime.Tensor] | None = None
        self._mine = object()  # which of the process's schedules are its own
        self._repacked: dict[Repacked, tvm.runtime.Tensor] = {}
        self._untuned: tvm.runtime.Module | None = None
        self._reference: Reference | None = None
        kind = str(target.kind.name)
        self.device = tvm.cpu() if kind in ("llvm", "c") else tvm.device(kind, 0)
        self.sync = (lambda: None) if kind in ("llvm", "c") else self.device.sync

    def zeros(self) -> AbstractContextManager[None]:
        """Denormals are zero meanwhile, as they are in a deployed model, and this thread is where the pool is not."""
        self.shared.seat.run()
        return flushed(self.about) if self._zeros else nullcontext()

    def schedule(self, row: np.ndarray) -> tvm.s_tir.Schedule:
        name = self._mine, token(row)
        if name not in self.shared.schedules:
            made = self.programs.apply(row)
            done = _operations(made.mod)
            if done > max(EXCESS * self.operations, FEW_OPERATIONS) and self.operations:
                times = done / self.operations
                raise ValueError(f"the program does {times:.0f} times the operator's arithmetic")
            self.keep(row, made)
        return self.shared.schedules[name]

    @cached_property
    def operations(self) -> float:
        """Of the operator itself; 0 where TVM cannot count them."""
        return _operations(self.mod)

    def interpreted(self, codes: np.ndarray) -> list[np.ndarray | None]:
        """Features of rows whose programs need not be made for them."""
        if isinstance(self.programs, Interprets):
            return list(self.programs.interpret(codes))
        return [None] * len(codes)

    def assured(self, codes: np.ndarray) -> np.ndarray:
        """Which rows `(n, d)` have programs, `(n,)` bool, as far as that is known without making them."""
        programs = self.programs
        return programs.assured(codes) if isinstance(programs, Assures) else np.zeros(len(codes), dtype=bool)

    def keep(self, row: np.ndarray, schedule: tvm.s_tir.Schedule) -> None:
        self.shared.schedules[self._mine, token(row)] = schedule
        while len(self.shared.schedules) > SCHEDULES:
            self.shared.schedules.popitem(last=False)

    def compile(self, mod: tvm.IRModule, target: Target | None = None) -> tvm.runtime.Module:
        try:
            with tvm.transform.PassContext(config=options(self.target) | _UNASKED):
                made = tvm.tirx.build(mod, target=target or self.target)
                made["main"]  # machine code is made when a function is asked for: not beside a timing, then
                return made
        except Exception as e:
            lines = [re.sub(r"\s+", " ", x).strip() for x in str(e).splitlines() if x.strip()]
            raise RuntimeError(f"TVM cannot build the program: {lines[0][:500] if lines else type(e).__name__}") from e

    def arguments(self, repacked: Repacked | None = None) -> list[tvm.runtime.Tensor]:
        """Random inputs and room for the outputs, the same for all candidates but for a repacked constant."""
        if self._arguments is None:
            main = self.mod["main"]
            made = [tvm.runtime.tensor(a, self.device) for a in drawn(main)]
            shapes = [([int(d) for d in p.shape], str(p.dtype)) for p in list(main.params)[len(made) :]]
            self._room = [tvm.runtime.tensor(np.zeros(*shape), self.device) for shape in shapes]
            self._arguments = [*made, *self._room]
        if repacked is None:
            return self._arguments
        args = list(self._arguments)
        if repacked not in self._repacked:
            self._repacked[repacked] = self._made(repacked, args)
        args[repacked.position] = self._repacked[repacked]
        return args

    def _made(self, repacked: Repacked, inputs: Sequence[tvm.runtime.Tensor]) -> tvm.runtime.Tensor:
        return tvm.runtime.tensor(repacked.make(inputs[repacked.position].numpy()), self.device)

    def outputs(self, call: Callable[..., object], draw: Draw, repacked: Repacked | None) -> list[np.ndarray]:
        """A candidate's outputs for a draw's inputs."""
        base, inputs = self.arguments(), list(draw.inputs)
        if repacked is not None:
            at = repacked.position
            known = inputs[at] is base[at]
            inputs[at] = self.arguments(repacked)[at] if known else self._made(repacked, inputs)
        for room, want in zip(self._room, draw.want, strict=True):
            # what an earlier candidate left in the output must not pass for this one's
            room.copyfrom((want == 0).astype(want.dtype) if want.dtype.kind in "biu" else np.full_like(want, np.nan))
        return self._run(call, inputs)

    def _run(self, call: Callable[..., object], inputs: Sequence[tvm.runtime.Tensor]) -> list[np.ndarray]:
        with self.zeros():
            call(*inputs, *self._room)
            self.sync()
        return [np.array(room.numpy()) for room in self._room]

    def untuned(self) -> tvm.runtime.Module:
        """The program that ships where nothing is tuned, and whose outputs others are compared with."""
        if self._untuned is None:
            self._untuned = self.compile(quick(self.mod, self.target), unhurried(self.target))
        return self._untuned

    def doubts(self) -> list[str]:
        """Of the reference, where there is one yet."""
        return self._reference.doubts if self._reference is not None else []

    def reference(self) -> Reference:
        """The untuned program's outputs, and how far others may be from them."""
        if self._reference is None:
            base = self.arguments()
            base = base[: len(base) - len(self._room)]
            call = self.untuned()["main"]

            def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
                return self._run(call, [tvm.runtime.tensor(a, self.device) for a in arrays])

            self._reference = Reference(self.mod["main"], base, run, lambda a: tvm.runtime.tensor(a, self.device))
        return self._reference
