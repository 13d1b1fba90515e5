"""Measuring a model's candidates once, so that every tuner can be compared on them later."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import Bar, Measurement, Plugins, StoreError, Task, Trial, draw, rng_for, token

from tt_bench.errors import BenchError
from tt_bench.files import FORMAT, StatementTable, read_history, write_t4
from tt_bench.recording import Pace, Recording
from tt_bench.series import Series
from tt_bench.subspace import Keep, importance, restrict, thin, widen

__all__ = ["Plan", "Recorder", "record", "stamped"]

BATCH = 32
PILOT = 64
FASTEST = 32
"""Rows that get a long series whatever their rank: the fastest of hundreds is the luckiest, and best known is what
everybody is judged by."""


@dataclass(frozen=True)
class Plan:
    """The rows to record of one task.

    Args:
        task: With the space that is measured.
        keep: The enumerated sub-space, or None where `rows` are a sample.
        rows: `(n, d)` rows of `task.space`.
    """

    task: Task
    keep: Keep | None
    rows: np.ndarray


def record(
    host: Any,
    model: str,
    out: Path,
    *,
    space: str = "template",
    candidates: int | None = None,
    most: int = 2000,
    target: str = "native",
    tasks: str = "*",
    runs: int = 20,
    long: tuple[int, int] = (50, 500),
    seed: int = 0,
    halt: Callable[[], str | None] = lambda: None,
    say: Callable[[str], None] = lambda text: None,
) -> Recording:
    """Record into the history `out`.db and, at the end, into the T4 file `out`.json.gz.

    Everything measured is in the history at once: the same call again goes on where the last one stopped. Raises
    `BenchError`; KeyboardInterrupt if `halt` spoke before it was known what to record.

    Args:
        host: `tt_core.host.Host`.
        candidates: Random rows of each task; None enumerates a sub-space of at most `most` rows and records it all.
        runs: Single timings per candidate.
        long: How many candidates of each task, beside the fastest, get a contiguous series, and of how many timings.
        halt: Asked after every measurement; a text stops the recording there.
    """
    history = out.with_name(out.name + ".db")
    ready = host.prepare(model, target=target, tasks=tasks, space=space)
    store = Plugins().build("store", "sqlite", path=str(history))
    try:
        with closing(store):
            recorder = Recorder(host, store, history, model, space, host.device(ready.target), halt, say)
            recorder.record(ready.tasks, candidates, most, runs, long, seed)
            if halt() and not any("task" in r["info"] for r in store.runs()):
                raise KeyboardInterrupt
            found = read_history(history, store)
    except StoreError as e:
        raise BenchError(str(e)) from e
    if not halt():
        write_t4(found, out.with_name(out.name + ".json.gz"))
    return found


class Recorder:
    """One session of recording into a store."""

    def __init__(
        self,
        host: Any,
        store: Any,
        history: Path,
        model: str,
        space: str,
        device: str,
        halt: Callable[[], str | None],
        say: Callable[[str], None],
    ) -> None:
        self.host, self.store, self.history = host, store, history
        self.model, self.space, self.device, self.halt, self.say = model, space, device, halt, say
        self.versions = host.versions()
        self.statements = StatementTable(history)

    def record(
        self,
        tasks: Sequence[Task],
        candidates: int | None,
        most: int,
        runs: int,
        long: tuple[int, int],
        seed: int,
    ) -> None:
        """All tasks' rows first, then their long series."""
        known = self._plans(tasks)
        plans: list[Plan] = []
        with closing(self.host.measurer(evaluator=Series(runs))) as pool:
            began = time.monotonic()
            for task in tasks:
                plan = known.get(task.key) or self._plan(task, candidates, most, seed, pool, runs)
                if plan is None:
                    return
                plans.append(plan)
                if plan.task.key not in known:
                    self._begin(plan, candidates, most, runs, long, seed)
                self._measure(pool, plan, plan.rows, runs, "record")
                self._statements(pool, plan)
                if self.halt():
                    return
            rows = sum(len(p.rows) for p in plans)
            self.say(
                f"{rows} candidates of {len(plans)} tasks in {time.monotonic() - began:.0f} s; now the long series"
            )
        with closing(self.host.measurer(evaluator=Series(long[1]))) as pool:
            for plan in plans:
                if not self.halt():
                    self._measure(pool, plan, self._spread(plan, long[0]), long[1], "series")

    # -- what to measure ----------------------------------------------------------------------------------------

    def _plans(self, tasks: Sequence[Task]) -> dict[str, Plan]:
        """Plans of an earlier session. Refuses a history that holds another recording."""
        runs = [r["info"] for r in self.store.runs()]
        if any("recording" not in i for i in runs):
            raise BenchError(f"{self.history} is a history of tuning runs: choose another --out")
        found = {}
        for info in runs:
            if "task" not in info:
                continue
            if (info["model"], info["space"]) != (self.model, self.space):
                raise BenchError(
                    f"{self.history} is the recording of {info['model']} with --space {info['space']},"
                    f" not of {self.model} with {self.space}: choose another --out"
                )
            if info["device"] != self.device:
                raise BenchError(
                    f"{self.history} was begun on {info['device']}, this is {self.device}: choose another --out"
                )
            task, keep = info["task"], info["keep"]
            found[task.key] = Plan(task, None if keep is None else tuple(map(tuple, keep)), info["rows"])
        for task in tasks:
            if task.key in found and found[task.key].task.space.key != task.space.key:
                raise BenchError(
                    f"{self.history}: the space of task {task.name} has changed since: choose another --out"
                )
        return found

    def _plan(self, task: Task, candidates: int | None, most: int, seed: int, pool: Any, runs: int) -> Plan | None:
        """The rows to measure; None if the recording was stopped in the pilot: half a pilot must not decide."""
        rng = rng_for(seed, task.key, "record", 0)
        if candidates is not None:
            return Plan(task, None, self._sample(pool, task, candidates, rng))
        keep: Keep = tuple(tuple(range(n)) for n in task.space.shape)
        if task.space.size > most:
            pilot = self._sample(pool, task, PILOT, rng)
            self._measure(pool, Plan(task, None, pilot), pilot, runs, "pilot")
            if self.halt():
                return None
            valid = {m.config: m.latency_s for m in self.store.query(task.key, task.space.key) if m.seconds}
            codes = np.array([r for r in map(tuple, pilot.tolist()) if r in valid], dtype=np.int64)
            if not len(codes):
                raise BenchError(f"task {task.name}: no pilot candidate works; record a sample with --candidates 500")
            seconds = np.array([valid[tuple(r)] for r in codes.tolist()])
            weight = importance(np.where(task.space.active(codes), codes, -1), seconds)
            keep = thin(task.space, most, codes[seconds.argmin()], weight)
        sub = restrict(task.space, keep)
        rows = np.stack(list(sub.enumerate()))
        return Plan(task, keep, widen(task.space, keep, rows))

    @staticmethod
    def _sample(pool: Any, task: Task, n: int, rng: np.random.Generator) -> np.ndarray:
        """Up to `n` distinct canonical rows, with a program or refused, as they were drawn."""
        found: dict[bytes, np.ndarray] = {}
        for _ in range(8):
            if len(found) >= min(n, task.space.size):
                break
            asked = draw(task.space, set(found), n - len(found), rng)
            if not len(asked):
                break
            real = pool.realise(task, asked)
            for row in real.codes:
                found[token(row)] = row
        return np.stack(list(found.values())[:n])

    def _spread(self, plan: Plan, n: int) -> np.ndarray:
        """`n` valid rows from the fastest to the slowest, by their first measurement, and the `FASTEST` fastest: the
        same in every session; no rows if `n` is 0."""
        known = self.store.query(plan.task.key, plan.task.space.key)
        seconds = {m.config: m.latency_s for m in known if m.seconds and m.origin != "series"}
        rows = sorted((r for r in map(tuple, plan.rows.tolist()) if r in seconds), key=lambda r: (seconds[r], r))
        place = np.linspace(0, len(rows) - 1, min(n, len(rows))).round().astype(int) if rows else np.empty(0, dtype=int)
        place = np.union1d(place, np.arange(min(FASTEST, len(rows)) if n else 0))
        return np.array([rows[i] for i in place], dtype=np.int64).reshape(-1, plan.rows.shape[1])

    # -- measuring ----------------------------------------------------------------------------------------------

    def _begin(
        self, plan: Plan, candidates: int | None, most: int, runs: int, long: tuple[int, int], seed: int
    ) -> None:
        self.store.remember([plan.task])
        self.store.begin_run(
            {
                **self._about(),
                "task": plan.task,
                "space_key": plan.task.space.key,
                "keep": None if plan.keep is None else [list(k) for k in plan.keep],
                "rows": plan.rows,
                "options": {"candidates": candidates, "most": most, "runs": runs, "long": list(long), "seed": seed},
            }
        )

    def _about(self) -> dict[str, Any]:
        return {
            "recording": FORMAT,
            "model": self.model,
            "space": self.space,
            "device": self.device,
            "versions": self.versions,
        }

    def _measure(self, pool: Any, plan: Plan, rows: np.ndarray, runs: int, origin: str) -> None:
        """Measure the rows that the store lacks; each result is stored before the next is awaited."""
        task = plan.task
        have = {m.config for m in self.store.query(task.key, task.space.key) if m.error or len(m.seconds) >= runs}
        left = [r for r in rows.tolist() if tuple(r) not in have]
        began, done, realise_s = time.monotonic(), 0, []
        for start in range(0, len(left), BATCH):
            codes = np.array(left[start : start + BATCH], dtype=np.int64)
            realised = time.monotonic()
            real = pool.realise(task, codes)
            realise_s.append((time.monotonic() - realised) / len(codes))
            good = np.array([w is None for w in real.why])
            refused = [
                Trial(tuple(r), error="invalid", why=why or "")
                for r, why in zip(codes[~good].tolist(), [w for w in real.why if w is not None], strict=True)
            ]
            self.store.append([self._stamped(m, task, origin) for m in refused])
            with closing(pool.measure(task, codes[good], Bar(flops=task.flops))) as stream:
                for trial in stream:
                    self.store.append([self._stamped(trial, task, origin)])
                    if self.halt():
                        return
            done += len(codes)
            each = (time.monotonic() - began) / done
            self.say(
                f"{task.name} [{self.space}], {origin}: {done} of {len(left)} measured,"
                f" {each:.2f} s each, about {each * (len(left) - done) / 60:.1f} min left"
            )
        if origin == "record" and realise_s:
            self._pace(task, workers=self.host.cores(), realise_s=float(np.median(realise_s)))

    def _stamped(self, trial: Trial, task: Task, origin: str) -> Measurement:
        return stamped(trial, task, origin, self.device, self.versions)

    def _statements(self, pool: Any, plan: Plan) -> None:
        task = plan.task
        have = self.statements.read(task.key, task.space.key)
        valid = [m for m in self.store.query(task.key, task.space.key) if m.error != "invalid" and m.config not in have]
        each: list[float] = []
        for start in range(0, len(valid), BATCH):
            if self.halt():
                return
            part = valid[start : start + BATCH]
            began = time.monotonic()
            found, ok = pool.features(task, np.array([m.config for m in part], dtype=np.int64))
            each.append((time.monotonic() - began) / len(part))
            values = [found.values[found.offsets[i] : found.offsets[i + 1]] for i in range(len(found))]
            self.statements.append([m for m, k in zip(part, ok, strict=True) if k], values)
        if each:
            self._pace(task, features_s=float(np.median(each)))

    def _pace(self, task: Task, **seen: float) -> None:
        """Keep how fast the machine worked, beside what is known of that."""
        of = [task.key, task.space.key]
        known = [r["info"]["pace"] for r in self.store.runs() if r["info"].get("of") == of]
        pace = Pace(**{**(known[-1] if known else {}), **seen})
        run = self.store.begin_run({**self._about(), "of": of, "pace": dataclasses.asdict(pace)})
        self.store.end_run(run, "how fast the machine worked")


def stamped(trial: Trial, task: Task, origin: str, device: str, versions: dict[str, str]) -> Measurement:
    """A trial as recordings keep it, measured now."""
    return Measurement.of(
        dataclasses.replace(trial, cost={k: round(v, 6) for k, v in trial.cost.items()}),
        task,
        origin=origin,
        device=device,
        versions=versions,
        at=round(time.time(), 3),
    )
