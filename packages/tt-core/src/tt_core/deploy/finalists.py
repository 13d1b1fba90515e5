"""Which program of each operator ships: the finalists race, and the winner is verified."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from tt_spec import Measurement, Pipeline, Task
from tt_spec.errors import ProgramError
from tt_spec.roles import Judges, Prepares
from tt_spec.shares import heavy, shares

if TYPE_CHECKING:
    from tt_core.compiler.lower import Lowered

__all__ = ["Network", "Winners", "beats", "leaders", "race", "sound"]

ROUNDS, ROUND_MS, LIGHT_MS = 10, 5.0, 2.0
"""Rounds of a race, and how long a program is timed in each: in those of light tasks less."""

KEEP, WITHIN = 4, 1.1
"""Finalists of a heavy task at most, and how many times the best's seconds one may have taken."""

TOGETHER = 4
"""Tasks whose finalists are built at once, as far as no worker holds them. With more, time might be up before they
race."""

FALLEN = 8
"""Finalists of a task that may fail before it ships untuned."""

COLD, COLD_KEEP, COLD_WITHIN = 8 << 20, 3, 1.3
"""Bytes of constants from which on a model does not find them in the cache again; finalists of a heavy task then, and
how many times the least of all the best program of each other form may be expected to take to be one, too."""

READ = 3.2e10
"""Bytes of weights that two cores read from memory in a second, about. Forms of 2.4, 1 and 0.6 MB that took 33, 41 and
65 us with weights in the cache took 95, 73 and 84 without (Zen 5)."""

AGAIN = 0.5
"""How much of the first reading a second thread's reading of the same bytes costs: it finds some of them in the cache
that both share. Programs that share weights of 1 and 2.4 MB out lost 28 and 54 us by cold ones, those that read them
twice 43 and 82 (Zen 5)."""


@dataclass(frozen=True)
class Winners:
    """The program of each task that ships, by task key.

    Args:
        rows: `(d,)` each; a task is missing and stays untuned that has no valid program, or is faster so.
        seconds: Latencies of what ships, re-timed; inf for a task without a valid program.
    """

    rows: dict[str, np.ndarray]
    seconds: dict[str, float]

    def merged(self, other: Winners) -> Winners:
        """These and the other tasks' programs."""
        return Winners({**self.rows, **other.rows}, {**self.seconds, **other.seconds})

    def untuned(self, tasks: Sequence[Task]) -> tuple[str, ...]:
        """Names of the tasks whose untuned program won."""
        return tuple(t.name for t in tasks if t.key not in self.rows and np.isfinite(self.seconds[t.key]))


@dataclass(frozen=True)
class Network:
    """What the race of an operator's finalists knows of the model around it.

    Alone, an operator finds its weights in the cache, in a network seldom. Programs that take them in the same form
    lose about the same by that, others do not: Winograd's transformed weights are 1.8 to 4 times as long, and by strips
    each thread reads them all.

    Args:
        constants: Bytes of all weights.
        form: The form in which a row's program takes its weights, if it changes it.
        extra: Bytes by which that form is longer.
        again: Bytes of it that a second thread reads, too.
    """

    constants: int
    form: Callable[[Task, np.ndarray], Hashable]
    extra: Callable[[Task, np.ndarray], int] = lambda task, row: 0
    again: Callable[[Task, np.ndarray], int] = lambda task, row: 0

    @classmethod
    def of(cls, lowered: Lowered, constants: int) -> Network:
        """The network of a lowered model, as far as its operators' spaces are open."""

        def repacked(task: Task, row: np.ndarray) -> Any:
            programs = lowered.opened.get(task.key)
            return None if programs is None else programs.repack(row)

        def form(task: Task, row: np.ndarray) -> Hashable:
            how = repacked(task, row)
            return None if how is None else (task.space.decode(row).get("space"), how.form)

        def length(of: Callable[[Any], int]) -> Callable[[Task, np.ndarray], int]:
            return lambda task, row: 0 if (how := repacked(task, row)) is None else of(how)

        return cls(constants, form, length(lambda how: how.extra), length(lambda how: how.again))

    def with_best(self, pipelines: Sequence[Pipeline]) -> Network:
        """The network with each task's best program: its weights are what passes through the cache between two
        executions of an operator. A YOLOv8's 12 MB are 31 MB so."""
        best = [(p.task, self.ranked(p)) for p in pipelines]
        longer = sum(task.weight * self.extra(task, ranked[0][0]) for task, ranked in best if ranked)
        return replace(self, constants=self.constants + int(longer))

    @property
    def cold(self) -> bool:
        """Whether its weights are more than the cache keeps until they are read again."""
        return self.constants >= COLD

    def surcharge_s(self, task: Task, row: np.ndarray) -> float:
        """Seconds that a row's program takes longer in the network, as it reads longer weights from memory, or reads
        them twice."""
        return (self.extra(task, row) + AGAIN * self.again(task, row)) / READ if self.cold else 0.0

    def ranked(self, p: Pipeline) -> list[tuple[np.ndarray, float, float]]:
        """A task's valid rows with their seconds alone and those that are expected here, the least of these first."""
        rows = [(row, s, s + self.surcharge_s(p.task, row)) for row, s in p.top(len(p.rows))]
        return sorted(rows, key=lambda r: r[2])

    def changed(self, task: Task, rows: Sequence[np.ndarray]) -> bool:
        """Whether a program of these rows changes the form of its weights; else all lose about as much by cold ones."""
        return any(self.form(task, row) is not None for row in rows)

    def several(self, task: Task) -> bool:
        """Whether programs of the task take its weights in several forms, as far as a few random ones tell."""
        rows = task.space.sample(16, np.random.default_rng(0))
        return len({self.form(task, row) for row in rows}) > 1


def leaders(pipelines: Sequence[Pipeline]) -> Winners:
    """The best of each task as measured while tuning."""
    found = {p.task.key: p.top(1) for p in pipelines}
    return Winners({k: top[0][0] for k, top in found.items() if top}, {p.task.key: p.best_s for p in pipelines})


def race(
    pipelines: Sequence[Pipeline],
    measurer: Judges,
    failed: Callable[[Measurement], None],
    enough: Callable[[], bool] = lambda: False,
    network: Network | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Winners:
    """Time each task's finalists again, interleaved with its untuned program, and verify the winner.

    The heaviest tasks come first, and only those that hold 95 % of the latency have several finalists: among the others
    nothing is at stake. Where the network's weights do not stay in the cache, the best of each form in which programs
    take them are among the finalists if they may win with weights from memory, as each execution takes them. Elsewhere,
    where the best takes longer than others took in the search, it races with those, too. A finalist that computes
    something else, crashes or hangs loses its time in the pipeline, and the next one takes its place; after `FALLEN` of
    them the task ships untuned.

    Args:
        failed: Told of each such finalist.
        enough: Asked before each task whether time is up; the rest are verified and ship as they were measured.
        network: What stands around the operators; None where they are all there is.
        say: Told where the program that ships is not the fastest alone.
    """
    rows: dict[str, np.ndarray] = {}
    seconds: dict[str, float] = {}
    tasks = [p.task for p in pipelines]
    matters = heavy(shares(tasks, [p.best_s for p in pipelines])) if tasks else []
    order = sorted(zip(pipelines, matters, strict=True), key=lambda pm: -_latency_s(pm[0]))
    network = network.with_best(pipelines) if network is not None and network.cold else None
    for i, (p, many) in enumerate(order):
        if i % TOGETHER == 0 and isinstance(measurer, Prepares):
            measurer.prepare(_wanted(order[i : i + TOGETHER], enough(), network))
        row, seconds[p.task.key] = _winner(p, measurer, failed, many, not enough(), network, say)
        if row is not None:
            rows[p.task.key] = row
    if isinstance(measurer, Prepares):
        measurer.prepare(())
    return Winners(rows, seconds)


def _wanted(
    some: Sequence[tuple[Pipeline, bool]], late: bool, network: Network | None
) -> list[tuple[Task, np.ndarray]]:
    """The rows that tasks' races and checks will ask for; those of checks alone where it is late."""
    found = []
    for p, many in some:
        rivals = _rivals(p, many, network)[: 1 if late else None]
        if rivals:
            found.append((p.task, np.stack([row for row, _ in rivals])))
    return found


def _rivals(p: Pipeline, many: bool, network: Network | None) -> list[tuple[np.ndarray, float]]:
    """A task's finalists with their seconds, the best first, then the best of each other form. Where the fastest alone
    takes the weights as they are, there are no such rivals: no other form has fewer bytes."""
    if network is None:
        return [(row, s) for row, s in p.top(KEEP if many else 1) if s <= WITHIN * p.best_s]
    ranked = network.ranked(p)
    if not ranked:
        return []
    best_s = ranked[0][2]
    near = [(row, s) for row, s, cold_s in ranked[: COLD_KEEP if many else 1] if cold_s <= WITHIN * best_s]
    fastest = min(ranked, key=lambda r: r[1])[0]
    if not many or network.form(p.task, fastest) is None:
        return near
    forms = {network.form(p.task, row) for row, _ in near}
    for row, seconds, cold_s in ranked:
        if cold_s <= COLD_WITHIN * best_s and (form := network.form(p.task, row)) not in forms:
            forms.add(form)
            near.append((row, seconds))
    return near


def _latency_s(p: Pipeline) -> float:
    return p.task.weight * p.best_s if np.isfinite(p.best_s) else 0.0


def _winner(
    p: Pipeline,
    measurer: Judges,
    failed: Callable[[Measurement], None],
    many: bool,
    timed: bool,
    network: Network | None,
    say: Callable[[str], None],
) -> tuple[np.ndarray | None, float]:
    """The row that ships, None for the untuned program, and its seconds.

    Args:
        many: Whether there may be several finalists.
        timed: Whether they race; else the best that computes the right result ships.
    """
    ms = ROUND_MS if many else LIGHT_MS
    fallen = 0
    tell = _fell(p, failed)

    def fell(row: np.ndarray, error: str, why: str) -> None:
        nonlocal fallen
        fallen += 1
        tell(row, error, why)

    while fallen < FALLEN and (rivals := _rivals(p, many, network)):
        rows = [row for row, _ in rivals]
        row, seconds = rivals[0]
        if timed:
            around = network if many and network is not None and network.changed(p.task, rows) else None
            raced = _heat(p.task, rows, (ms, 0 if around is None else around.constants), measurer, fell)
            if not raced:
                continue
            row, times, untuned = _fastest(p.task, raced, around)
            if many and around is None and (others := _disappointed(p, rows, float(np.median(times)))):
                raced = _heat(p.task, [row, *others], (ms, 0), measurer, fell)
                if not raced:
                    continue
                row, times, untuned = min(raced, key=_median)
            seconds = float(np.median(times))
            if beats(untuned, times):
                return None, float(np.median(untuned))
            if around is not None and around.form(p.task, row) != around.form(p.task, rows[0]):
                say(f"{p.task.name}: what ships is not the fastest alone, but with weights from memory")
        if _sound(p.task, row, measurer, fell):
            return row, seconds
    return None, _untuned_s(p.task, measurer) if fallen else p.best_s


_Raced = tuple[np.ndarray, list[float], list[float]]
"""A row, its seconds, and those of the untuned program."""


def _median(raced: _Raced) -> float:
    return float(np.median(raced[1]))


def _fastest(task: Task, raced: list[_Raced], network: Network | None) -> _Raced:
    """In a network the fastest of the form that the first has, or one of another form that beats it: the search knew
    that form as the fastest over minutes, the race sees a moment. The fastest elsewhere."""
    if network is None:
        return min(raced, key=_median)
    form = network.form(task, raced[0][0])
    best = min((r for r in raced if network.form(task, r[0]) == form), key=_median)
    return min((r for r in raced if r is best or beats(r[1], best[1])), key=_median)


def _disappointed(p: Pipeline, raced: list[np.ndarray], best_s: float) -> list[np.ndarray]:
    """Rows that did not race, having taken longer than those that did, and less than the best of those took when they
    raced: timings of one machine in several states are not always comparable, and the fastest may be the luckiest."""
    known = {tuple(row) for row in raced}
    others = [row for row, s in p.top(len(raced) + KEEP) if tuple(row) not in known and s * WITHIN < best_s]
    return others[: KEEP - 1]


_Fell = Callable[[np.ndarray, str, str], None]
"""Told of a row that failed, its kind of error and why."""


def _fell(p: Pipeline, failed: Callable[[Measurement], None]) -> _Fell:
    """Takes a row that failed its time in the pipeline, and tells of it."""

    def fell(row: np.ndarray, error: str, why: str) -> None:
        config, knobs = tuple(map(int, row)), p.task.space.decode(row)
        found = Measurement(p.task.key, p.task.space.key, config, knobs, error=error, why=why, origin="finalist")
        p.restore([found])
        failed(found)

    return fell


def sound(p: Pipeline, row: np.ndarray, measurer: Judges, failed: Callable[[Measurement], None]) -> bool:
    """Whether a row computes the right result; `failed` is told of one that does not, which loses its time."""
    return _sound(p.task, row, measurer, _fell(p, failed))


def _heat(task: Task, rows: list[np.ndarray], how: tuple[float, int], measurer: Judges, fell: _Fell) -> list[_Raced]:
    """Each row that runs with its seconds and the untuned program's. Where the race breaks off, each row is checked
    alone, which says which of them is to blame, and where none is, each races alone.

    Args:
        how: The race's `min_ms` and `cold`.
    """
    try:
        *times, untuned = measurer.race(task, np.stack(rows), ROUNDS, how[0], True, how[1])
        return [(row, mine, untuned) for row, mine in zip(rows, times, strict=True)]
    except ProgramError as e:
        if len(rows) == 1:
            fell(rows[0], e.error, str(e))
            return []
    left = [row for row in rows if _sound(task, row, measurer, fell)]
    together = [left] if len(left) < len(rows) else [[row] for row in left]
    return [one for some in together if some for one in _heat(task, some, how, measurer, fell)]


def _sound(task: Task, row: np.ndarray, measurer: Judges, fell: _Fell) -> bool:
    """Whether a row computes the right result."""
    try:
        why = measurer.check(task, row)
    except ProgramError as e:
        fell(row, e.error, str(e))
        return False
    if why is not None:
        fell(row, "wrong-result", why)
    return why is None


def _untuned_s(task: Task, measurer: Judges) -> float:
    """Seconds of the untuned program; inf if it cannot be timed."""
    nobody = np.zeros((0, len(task.space.shape)), dtype=np.int64)
    try:
        return float(np.median(measurer.race(task, nobody, ROUNDS, ROUND_MS, True)[-1]))
    except ProgramError:
        return float("inf")


def beats(seconds: Sequence[float], other: Sequence[float]) -> bool:
    """Whether the first of two programs that raced is faster beyond noise: in nine of ten rounds, which two equal ones
    do in 1 % of all races."""
    return len(seconds) == len(other) and float(np.mean(np.less(seconds, other))) >= 0.9
