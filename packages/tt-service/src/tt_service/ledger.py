"""What is on disk before anybody is answered: results, events, what the broker noted, and the state of jobs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from tt_spec import Measurement, WallClock
from tt_spec.errors import StoreError
from tt_spec.serial import from_json, to_json

from tt_service import wire
from tt_service.broker import Broker, Counts, Taken
from tt_service.histories import Histories
from tt_service.jobs import Job, settle
from tt_service.journal import Event, Journal

__all__ = ["Ledger"]


class Ledger:
    """Journal and histories of a server, and whoever listens for the events of its jobs.

    Not thread-safe: whoever owns it has the lock.

    Args:
        jobs: All of them, by id.
        wall: Says when a result came.
    """

    def __init__(
        self, journal: Journal, histories: Histories, broker: Broker, jobs: Mapping[str, Job], wall: WallClock
    ) -> None:
        self.journal, self.histories, self.broker, self.jobs, self.wall = journal, histories, broker, jobs, wall
        self.closed = False
        self._listeners: dict[str, list[Future[None]]] = {}
        self._fresh: list[tuple[Job, Taken, Measurement]] = []
        self._unkept = False

    # -- results ------------------------------------------------------------------------------------------------

    def keep(self, agent_id: str, counts: Counts) -> None:
        """Results into the journal, then into the history, then to the job."""
        for taken in counts.taken:
            job = self.jobs[taken.batch.job]
            self._fresh.append((job, taken, self._measured(job, agent_id, taken)))
        self.flush()

    def flush(self) -> None:
        """Put on disk what happened since the last time. What a full disk refuses stays in memory, nobody is answered,
        and the next call tries again. A history that refuses rows which the journal has gets them later."""
        changes, fresh = self.broker.changes, self._fresh
        texts = [(t, to_json([job.private_to, m])) for job, t, m in fresh]
        by_job: dict[str, list[tuple[Taken, Measurement]]] = {}
        for job, taken, m in fresh:
            by_job.setdefault(job.record.id, []).append((taken, m))
        self.journal.write(changes, texts, [self._news(self.jobs[job_id], some) for job_id, some in by_job.items()])
        self.broker.changes, self._fresh = [], []
        for job_id, some in by_job.items():
            job = self.jobs[job_id]
            try:
                self.histories.of(job.private_to).append([m for _, m in some])
                self.journal.kept([(t.batch.id, t.at) for t, _ in some])
            except StoreError as e:
                self._unkept = True
                where = self.journal.path
                warnings.warn(f"the history does not take rows now, they wait in {where}: {e}", stacklevel=2)
            self._hear(job, some)

    @property
    def delivered(self) -> bool:
        """Whether the histories have all results."""
        return not self._unkept

    def retry(self) -> None:
        """Try again what a history refused."""
        if self._unkept:
            self.deliver()

    def deliver(self) -> None:
        """Results that were journalled while the server died: into the history, unless it has them."""
        found = [(batch, at, *from_json(body)) for batch, at, body in self.journal.unkept()]
        for owner in {o for _, _, o, _ in found}:
            mine = [(batch, at, m) for batch, at, o, m in found if o == owner]
            store = self.histories.of(owner)
            there = {
                (m.run_id, m.config, m.at) for t in {m.task_key for *_, m in mine} for m in store.query(task_key=t)
            }
            store.append([m for *_, m in mine if (m.run_id, m.config, m.at) not in there])
            self.journal.kept([(batch, at) for batch, at, _ in mine])
        self._unkept = False

    def _news(self, job: Job, some: Sequence[tuple[Taken, Measurement]]) -> Event:
        """The event of new rows, in one transaction with them: whoever follows the job misses none."""
        trials = job.record.trials + _counting(some)
        results = [wire.Historic.of(m).model_dump() for _, m in some]
        body = _body(job, "rows", task=some[0][1].task_key, results=results)
        return Event(job.record.id, job.events + 1, body, trials)

    def _measured(self, job: Job, agent_id: str, taken: Taken) -> Measurement:
        agent = self.broker.agents.get(agent_id)
        about = {"device": job.spec.device, "versions": dict(job.spec.versions)}
        if agent is not None:
            about = {"device": agent.device, "versions": {**agent.versions, "agent": agent_id}}
        task = job.tasks[taken.batch.task]
        at, run_id = self.wall.now(), job.record.run_id
        return Measurement.of(taken.result, task, origin=taken.origin, at=at, run_id=run_id, **about)

    def _hear(self, job: Job, some: Sequence[tuple[Taken, Measurement]]) -> None:
        """A job has new rows, which are on disk: count them, tell its process and its listeners."""
        job.record.trials += _counting(some)
        for taken, m in some:
            if m.error is None:
                job.best_s[m.task_key] = min(m.latency_s, job.best_s.get(m.task_key, float("inf")))
            if taken.first and job.runner is not None:
                job.runner.send("trial", task=m.task_key, trial=taken.result)
        self._announce(job)

    # -- jobs and their events ----------------------------------------------------------------------------------

    def save(self, job: Job) -> None:
        """Keep a job as it is now."""
        self.journal.save(job.record)

    def event(self, job: Job, what: str, **fields: Any) -> None:
        """Keep an event of a job, and wake its listeners."""
        self.journal.write((), (), [Event(job.record.id, job.events + 1, _body(job, what, **fields))])
        self._announce(job)

    def events(self, job: Job, after: int) -> tuple[list[str], Future[None] | None]:
        """Events after a number; with none, what is done when there is one: give it back to `unheard` in the end."""
        found = self.journal.events(job.record.id, after)
        if found or self.closed or job.ended:
            return found, None
        future: Future[None] = Future()
        self._listeners.setdefault(job.record.id, []).append(future)
        return [], future

    def recall(self, bests: Mapping[tuple[str, str], float]) -> None:
        """What the jobs' runs had measured before the server was started again: seconds by run and task."""
        runs = {job.record.run_id: job for job in self.jobs.values()}
        for (run, task), seconds in bests.items():
            if (job := runs.get(run)) is not None:
                job.best_s[task] = min(seconds, job.best_s.get(task, float("inf")))

    def unheard(self, job: Job, future: Future[None], after: int) -> list[str]:
        """Nobody waits for this any more; the events after a number."""
        left = [f for f in self._listeners.pop(job.record.id, []) if f is not future]
        if left:
            self._listeners[job.record.id] = left
        return self.journal.events(job.record.id, after)

    def silence(self) -> None:
        """Nobody is to listen any more."""
        self.closed = True
        for futures in self._listeners.values():
            for future in futures:
                settle(future, None)
        self._listeners = {}

    def _announce(self, job: Job) -> None:
        """The job has an event more."""
        job.events += 1
        for future in self._listeners.pop(job.record.id, []):
            settle(future, None)


def _body(job: Job, what: str, **fields: Any) -> str:
    """The job's next event as JSON."""
    return json.dumps({"number": job.events + 1, "what": what, **fields})


def _counting(some: Sequence[tuple[Taken, Measurement]]) -> int:
    """Results that count as trials of their job."""
    return sum(t.first and m.error != "invalid" for t, m in some)
