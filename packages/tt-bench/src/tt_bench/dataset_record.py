"""Recording a data set: a few hundred short timings of each operator of a list."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import Bar, Measurement, Plugins, Space, StoreError, Task, Trial, UserError, draw, rng_for, token, tokens
from tt_spec.errors import PieceError

from tt_bench.dataset_add import Added, add
from tt_bench.errors import BenchError
from tt_bench.held_out import held_out
from tt_bench.record import stamped

__all__ = ["LIST", "Plan", "Recorder", "read_list", "record"]

LIST = Path(__file__).with_name("dataset.txt")
"""The list that ships; `tools/dataset_list.py` writes it."""

STORE = "record.db"
FORMAT = 1
BATCH = 32
SMALL = 16
"""Rows of a space below which an operator teaches nothing."""

AGAIN, LATER_S = 16, 180.0
"""Rows of an operator that are timed again, and seconds after its last row at least, while there is other work."""

RENEW = 8
"""Operators after which the workers start anew: they keep the operands and schedules of every task."""

CAP_S = 0.5
"""Of one candidate's timing, seconds; a run that takes longer is made once."""


@dataclass(frozen=True)
class Plan:
    """The amount to record.

    Args:
        rows: Of each operator; half of them sketches where there are templates, half of either mutants.
        runs: Timings of 5 ms of a row, of which the median counts; one far slower than the best is run twice.
        minutes: Of this session; None is until the list is done.
    """

    rows: int = 400
    runs: int = 3
    minutes: float | None = None
    target: str = "native"
    seed: int = 0


def read_list(path: Path = LIST) -> list[tuple[str, str]]:
    """Models and patterns of their tasks, one a line: `MODEL` or `MODEL tasks=PATTERN`; `#` begins a comment.

    Raises `BenchError`.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as e:
        raise BenchError(f"{path}: no list of models ({e}); give a text file with a model a line") from e
    found = []
    for line in lines:
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        parts = re.fullmatch(r"(.*?)(?:\s+tasks=(\S+))?", text)
        if text and parts:
            found.append((parts[1], parts[2] or "*"))
    if not found:
        raise BenchError(f"{path}: a list without models: write one a line, e.g. op:matmul:128,256,512")
    return found


def record(
    host: Any,
    lines: Sequence[tuple[str, str]],
    folder: Path,
    plan: Plan = Plan(),
    halt: Callable[[], str | None] = lambda: None,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Added, list[str]]:
    """Record into the history `folder`/record.db, and take what it holds into the data set of the folder at the end.

    Everything measured is in the history at once: the same call again goes on where the last one stopped. Operators
    that are held out are never measured. Raises `BenchError`.

    Args:
        host: `tt_core.host.Host`.
        lines: As `read_list` gives them.
        halt: Asked after every measurement; a text stops the recording there.

    Returns:
        What became of the data set, and a line for each model or operator that cannot be recorded.
    """
    history = folder / STORE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with closing(Plugins().build("store", "sqlite", path=str(history))) as store:
            recorder = Recorder(host, store, plan, halt, say)
            recorder.check(str(history))
            recorder.record(lines)
    except OSError as e:
        raise BenchError(f"{folder}: {e.strerror or e}; choose another --out") from e
    except StoreError as e:
        raise BenchError(str(e)) from e
    done = add([history], folder)
    done.held_out = recorder.held_out
    return done, recorder.failed


class Recorder:
    """One session of recording into a store.

    Attributes:
        held_out: Names of the operators met that no data set holds.
        failed: A line for each model or operator that cannot be recorded.
    """

    def __init__(
        self,
        host: Any,
        store: Any,
        plan: Plan,
        halt: Callable[[], str | None],
        say: Callable[[str], None],
    ) -> None:
        self.host, self.store, self.plan, self._halt, self.say = host, store, plan, halt, say
        self.versions, self.device = host.versions(), ""
        self.held_out: list[str] = []
        self.failed: list[str] = []
        self.began = time.monotonic()
        self._pool: Any = None
        self._opened: set[str] = set()
        self._worked: set[int] = set()

    def check(self, name: str) -> None:
        """Refuse a history that holds something else, or rows of another version of TVM."""
        for info in (r["info"] for r in self.store.runs()):
            if info.get("dataset") != FORMAT:
                raise BenchError(f"{name} holds other runs: choose another --out")
            if info["versions"].get("tvm") != self.versions.get("tvm"):
                told = f"begun with TVM {info['versions'].get('tvm')}, this is {self.versions.get('tvm')}"
                raise BenchError(f"{name} was {told}: choose another --out")

    def halt(self) -> bool:
        """Whether the session is over."""
        minutes = self.plan.minutes
        return bool(self._halt()) or (minutes is not None and time.monotonic() - self.began >= 60 * minutes)

    def record(self, lines: Sequence[tuple[str, str]]) -> None:
        """All lines' operators, and minutes after each one some of its rows again."""
        waiting: list[tuple[float, Task]] = []
        seen: set[str] = set()
        try:
            for i, (model, pattern) in enumerate(lines):
                for task in self._tasks(model, pattern):
                    if task.key in seen:
                        continue
                    seen.add(task.key)
                    if self._guarded(task, lambda t, i=i: self._operator(t, i, len(lines))):
                        waiting.append((time.monotonic(), task))
                    while waiting and time.monotonic() - waiting[0][0] >= LATER_S and not self.halt():
                        self._guarded(waiting.pop(0)[1], self._again)
                    if self.halt():
                        return
            for _, task in waiting:
                if not self.halt():
                    self._guarded(task, self._again)
        finally:
            self._close()

    def _guarded(self, task: Task, work: Callable[[Task], None]) -> bool:
        """Whether it could be done: an operator that no worker can open costs the others nothing."""
        try:
            work(task)
        except StoreError:
            raise
        except PieceError as e:
            self.failed.append(f"{task.name} ({task.shapes}): {e}")
            self.say(f"left out: {self.failed[-1]}")
            self._close()
            return False
        return True

    # -- what to measure ------------------------------------------------------------------------------------------

    def _tasks(self, model: str, pattern: str) -> list[Task]:
        """A line's operators that are to be recorded; from the store where an earlier session met the line."""
        if self.halt():
            return []
        for info in (r["info"] for r in self.store.runs()):
            if info["line"] == [model, pattern, self.plan.target]:
                self._same(info["device"])
                self.held_out += info["held_out"]
                return [t for key in info["tasks"] if (t := self._known(key, info["spaces"])) is not None]
        try:
            ready = self.host.prepare(model, target=self.plan.target, tasks=pattern, space="both")
        except UserError as e:
            self.failed.append(f"{model}: {e}")
            self.say(f"left out: {model}: {e}")
            return []
        self._same(self.host.device(ready.target))
        out = [t.name for t in ready.tasks if held_out(t)]
        tasks = [t for t in ready.tasks if not held_out(t) and t.space.size >= SMALL]
        self.store.remember(tasks)
        line = {"line": [model, pattern, self.plan.target], "held_out": out, "device": self.device}
        keys = {"tasks": [t.key for t in tasks], "spaces": [t.space.key for t in tasks]}
        run = self.store.begin_run({"dataset": FORMAT, "versions": self.versions, **line, **keys})
        self.store.end_run(run, "its operators are known")
        self.held_out += out
        return tasks

    def _same(self, device: str) -> None:
        if self.device not in ("", device):
            raise BenchError(f"the recording was begun on {self.device}, this is {device}: choose another --out")
        self.device = device

    def _known(self, key: str, spaces: Sequence[str]) -> Task | None:
        task: Task | None = self.store.task(key)
        if task is None:
            return None
        space = next((s for s in task.spaces if s.key in spaces), None)
        return None if space is None else dataclasses.replace(task, spaces=(space,))

    def _operator(self, task: Task, line: int, lines: int) -> None:
        """Measure the rows of one operator that the store lacks."""
        rows = Rows(task, self.store.query(task.key, task.space.key), self.plan)
        before = rows.valid
        while not self.halt() and (asked := rows.next(rows.batch)) is not None:
            origin, codes = asked
            rows.take(self._measure(task, codes, rows, origin))
        if rows.valid > before:
            self._worked.add(line)
            each = (time.monotonic() - self.began) / len(self._worked)
            best = f", best {rows.best_s * 1e6:.1f} us" if np.isfinite(rows.best_s) else ""
            failed = rows.tried - rows.valid
            self.say(
                f"{line + 1} of {lines}, {task.name} ({task.shapes}): {rows.tried} rows, {failed} failed{best};"
                f" about {each * (lines - line - 1) / 60:.0f} min left"
            )

    # -- measuring ------------------------------------------------------------------------------------------------

    def _measure(self, task: Task, codes: np.ndarray, rows: Rows, origin: str) -> list[Measurement]:
        """Measure rows that nobody did; each result is stored before the next is awaited. Rows that TVM reads back as
        others are measured as those."""
        pool, found = self._ready(task), []
        real = pool.realise(task, codes)
        good: dict[bytes, np.ndarray] = {}
        for row, code, why in zip(codes, real.codes, real.why, strict=True):
            if why is not None:
                found.append(self._keep(Trial(tuple(map(int, row)), error="invalid", why=why), task, origin))
            elif token(code) not in rows.seen:
                good[token(code)] = code
        rows.seen.update(tokens(codes))
        if not good:
            return found
        bar = Bar(incumbent_s=rows.best_s, flops=task.flops, cap_s=CAP_S)
        with closing(pool.measure(task, np.stack(list(good.values())), bar)) as stream:
            for trial in stream:
                found.append(self._keep(trial, task, origin))
                if self.halt():
                    break
        return found

    def _again(self, task: Task) -> None:
        """Time rows from the fastest to the slowest a second time, once."""
        seconds: dict[tuple[int, ...], float] = {}
        for m in self.store.query(task.key, task.space.key):
            if m.origin == "again":
                return
            if m.seconds:
                seconds[m.config] = m.latency_s
        ranked = sorted(seconds, key=lambda row: (seconds[row], row))
        if len(ranked) < 2:
            return
        chosen = np.unique(np.linspace(0, len(ranked) - 1, AGAIN).round().astype(int))
        codes = np.array([ranked[i] for i in chosen], dtype=np.int64)
        bar = Bar(incumbent_s=seconds[ranked[0]], flops=task.flops, cap_s=CAP_S)
        with closing(self._ready(task).measure(task, codes, bar)) as stream:
            timed = list(stream)
        self.store.append([stamped(t, task, "again", self.device, self.versions) for t in timed if t.seconds])

    def _keep(self, trial: Trial, task: Task, origin: str) -> Measurement:
        m = stamped(trial, task, origin, self.device, self.versions)
        self.store.append([m])
        return m

    def _ready(self, task: Task) -> Any:
        """Workers that have few tasks open."""
        if task.key not in self._opened and len(self._opened) >= RENEW:
            self._close()
        if self._pool is None:
            evaluator = Plugins().build("evaluator", "fixed", repeat=self.plan.runs)
            self._pool = self.host.measurer(evaluator=evaluator)
        self._opened.add(task.key)
        return self._pool

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = None
        self._opened.clear()


class Rows:
    """The rows of one operator, and which come next: of the algorithms and of random rows and mutants always those of
    which there are fewer, so that any number of them is balanced, and a session goes on as the last one would have.

    Args:
        known: Measured so far.
    """

    def __init__(self, task: Task, known: Any, plan: Plan) -> None:
        self.task, self.plan = task, plan
        self.seen: set[bytes] = set()
        self.counts: dict[tuple[bool, str], int] = {}
        self.seconds: dict[tuple[int, ...], float] = {}
        self.tried = 0
        first = task.space.knobs[0]
        names = first.choices if first.name == "space" else (task.space.name,)
        self.sketches = [i for i, n in enumerate(names) if n == "sketch"]
        self.halves = sorted({i in self.sketches for i in range(len(names))})
        self.joined = len(names) > 1
        self.spent: set[tuple[bool, str]] = set()
        self.take(list(known))

    @property
    def valid(self) -> int:
        """Rows with a time."""
        return len(self.seconds)

    @property
    def batch(self) -> int:
        """Rows to ask for next: all kinds of rows get their turn, however few there are to be."""
        return min(BATCH, max(2, self.plan.rows // 8), self.plan.rows - self.tried)

    @property
    def best_s(self) -> float:
        """Seconds of the fastest."""
        return min(self.seconds.values(), default=float("inf"))

    def take(self, measured: Sequence[Measurement]) -> None:
        """Count results."""
        for m in measured:
            name = token(m.config)
            if m.origin != "again" and m.error != "invalid":
                self.tried += 1
                kind = (self._sketch(m.config), m.origin)
                self.counts[kind] = self.counts.get(kind, 0) + 1
                if m.seconds:
                    self.seconds[m.config] = m.latency_s
            self.seen.add(name)

    def next(self, n: int) -> tuple[str, np.ndarray] | None:
        """Origin and up to `n` fresh rows `(m, d)`; None when there are enough, or none is left."""
        kinds = [(half, origin) for half in self.halves for origin in ("random", "mutant")]
        while n > 0 and (left := [k for k in kinds if k not in self.spent]):
            half = min(
                {h for h, _ in left}, key=lambda h: sum(self.counts.get((h, o), 0) for o in ("random", "mutant"))
            )
            kind = min((k for k in left if k[0] == half), key=lambda k: self.counts.get(k, 0))
            rng = rng_for(self.plan.seed, self.task.key, f"dataset {kind}", len(self.seen))
            rows = self._random(half, n, rng) if kind[1] == "random" else self._mutants(half, n, rng)
            if len(rows):
                return kind[1], rows
            self.spent.add(kind)
        return None

    def _sketch(self, config: tuple[int, ...]) -> bool:
        return (config[0] if self.joined else 0) in self.sketches

    def _random(self, sketch: bool, n: int, rng: np.random.Generator) -> np.ndarray:
        """Fresh rows of sketches or of templates, algorithms in turns."""
        rows = draw(self._half(sketch), self.seen, n, rng)
        return rows[[self._sketch(tuple(r)) == sketch for r in rows.tolist()]] if len(rows) else rows

    def _half(self, sketch: bool) -> Space:
        """The space whose priors leave only sketches, or only the others."""
        space = self.task.space
        if not self.joined:
            return space
        first = space.knobs[0]
        prior = first.prior or (1.0,) * len(first.choices)
        only = tuple(p if (i in self.sketches) == sketch else 1e-12 for i, p in enumerate(prior))
        return dataclasses.replace(space, knobs=(dataclasses.replace(first, prior=only), *space.knobs[1:]))

    def _mutants(self, sketch: bool, n: int, rng: np.random.Generator) -> np.ndarray:
        """Fresh rows one to three moves from one of the better half so far."""
        mine = sorted((s, row) for row, s in self.seconds.items() if self._sketch(row) == sketch)
        better = np.array([row for _, row in mine[: -(-len(mine) // 2)]], dtype=np.int64)
        found: dict[bytes, np.ndarray] = {}
        for _ in range(4 if len(better) else 0):
            rows = better[rng.integers(0, len(better), 4 * n)]
            for moves in (1, 2, 3):
                part = slice(moves - 1, None, 3)
                for _ in range(moves):
                    rows[part] = self.task.space.mutate(rows[part], rng)
            for row in rows:
                if token(row) not in self.seen and self._sketch(tuple(row.tolist())) == sketch and len(found) < n:
                    found[token(row)] = row
        return np.array(list(found.values()), dtype=np.int64).reshape(-1, len(self.task.space.knobs))
