"""The server's desk: jobs, the processes that think for them, and the broker, under one lock and on disk.

Everything here is quick and none of it is thinking. Calls come from HTTP handlers' threads and from the threads that
read what a job's process says. What the desk does lies in `tt_service.dispatch` (agents), `tt_service.thinkers` (jobs
and their processes) and `tt_service.ledger` (the disk).
"""

from __future__ import annotations

import os
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from tt_spec import Plugins, Task, WallClock
from tt_spec.errors import StoreError
from tt_spec.roles import Recalls, Remembers, Store

from tt_service import wire
from tt_service.broker import LEASE_S, Agent, Broker
from tt_service.database import path_of
from tt_service.dispatch import Dispatch, Waiter
from tt_service.histories import Histories
from tt_service.jobs import Job, Unknown, find
from tt_service.journal import JobRecord, Journal
from tt_service.judging import Judging, Refused, Verdict, job_of
from tt_service.ledger import Ledger
from tt_service.thinkers import Places, Thinkers

__all__ = ["Desk"]

CLOSE_S = 4.0
"""How long a second call to close waits for the first."""


class Desk:
    """All jobs of a server.

    Args:
        history: The shared history; the service's own tables lie beside it.
        places: Where jobs think.
        clock: Never steps: leases go by it.
        lease_s: How long a lease lasts without a heartbeat.
    """

    def __init__(
        self,
        history: str | os.PathLike[str],
        places: Places | None = None,
        clock: Callable[[], float] = time.monotonic,
        lease_s: float = LEASE_S,
    ) -> None:
        path = os.path.abspath(history)  # whatever folder anybody works in later
        self.places, self.clock = places or Places(), clock
        self.lock = threading.RLock()
        self.plugins, self.wall = Plugins(), WallClock()
        self.jobs: dict[str, Job] = {}
        self.journal, self.histories = Journal(path_of(path)), Histories(path, self.plugins)
        self.broker = Broker(self.journal.past, lease_s=lease_s)
        self.judging = Judging(self.broker)
        self.ledger = Ledger(self.journal, self.histories, self.broker, self.jobs, self.wall)
        self.dispatch = Dispatch(self.broker, self.ledger, self.judging, self.jobs, clock)
        self.thinkers = Thinkers(self.places, self.jobs, self.dispatch, self.histories, self.lock, clock)
        self.closing, self.closed = False, threading.Event()
        self.load()

    # -- start and end ------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Rebuild everything from the journal: results first that the history may lack, then jobs, rows, leases."""
        self.store(None)
        self.ledger.deliver()
        for record in self.journal.jobs():
            spec = wire.JobIn.model_validate_json(record.spec)
            job = self.jobs[record.id] = Job(record, spec)
            job.events = self.journal.last_event(record.id)
            if record.evaluator:
                job.evaluator = wire.PieceWire.model_validate_json(record.evaluator)
            if not job.ended:
                self.thinkers.open(job)
                if record.state == "paused":
                    self.broker.stop(record.id)
        rows, batches = self.journal.pending()
        self.broker.restore(rows, batches, self.clock())
        self.ledger.flush()
        self.thinkers.begin()
        owners = {job.private_to for job in self.jobs.values()}
        threading.Thread(target=self._recall, args=(owners,), daemon=True, name="recall").start()

    def _recall(self, owners: set[str | None]) -> None:
        """The jobs' best of earlier, read beside: it takes as long as the history has rows."""
        for owner in owners:
            try:
                found = self.histories.bests(owner)
            except StoreError as e:  # jobs go on without
                warnings.warn(str(e), stacklevel=2)
                continue
            with self.lock:
                self.ledger.recall(found)

    def close(self) -> None:
        """Everything is on disk already; end processes and let nobody wait. A second call waits for the first."""
        with self.lock:
            first, self.closing = not self.closing, True
        if first:
            try:
                self._close()
            finally:
                self.closed.set()
        self.closed.wait(CLOSE_S)

    def _close(self) -> None:
        with self.lock:
            self.dispatch.close()
            self.judging.close()
            self.ledger.silence()
            runners = self.thinkers.close()
        for runner in runners:
            runner.end()
        with self.lock:
            self.journal.close()
            self.histories.close()

    def store(self, owner: str | None) -> Store:
        """The shared history, or the one of a user's private rows."""
        return self.histories.of(owner)

    def writable(self) -> None:
        """Raises `StoreError` if the history or the journal cannot be written."""
        with self.lock:
            self.store(None)
            self.histories.try_to_write(None)
            with self.journal.writing():
                pass

    def tick(self) -> None:
        """Now and then: leases end, processes are looked at, results are tried again that the history refused."""
        with self.lock:
            if self.closing:
                return
            self.ledger.retry()
            self.broker.expire(self.clock())
            self.dispatch.settle()
            self.thinkers.tick()

    # -- jobs ---------------------------------------------------------------------------------------------------

    def foresee(self) -> None:
        """A client is about to begin a job."""
        with self.lock:
            self.thinkers.foresee()

    def add(self, spec: wire.JobIn, owner: str) -> Job:
        """Begin a job. Raises `Refused` where its tasks are none; whether its recipe can be used is known when `ready`
        is set."""
        if spec.trials is None and spec.minutes is None:
            raise Refused("a job needs a budget: trials, minutes, or both")
        job = Job(JobRecord(uuid.uuid4().hex, owner, "", created=self.wall.now()), spec)
        try:
            tasks = [t.thing() for t in spec.tasks]
        except ValueError as e:
            raise Refused(str(e)) from e
        if len({t.key for t in tasks}) < len(tasks):
            raise Refused("the tasks of a job have keys of their own")
        job.record.spec = spec.model_dump_json()
        with self.lock:
            if self.closing:
                raise Refused("the server is ending")
            store = self.store(job.private_to)
        _check_keys(store, tasks)
        if isinstance(store, Remembers):
            store.remember(tasks)
        about = {"model": spec.name, "target": tasks[0].target, "device": spec.device, "seed": spec.seed}
        options = {"trials": spec.trials, "minutes": spec.minutes, "server": True}
        told = {**about, "versions": dict(spec.versions), "options": options, "key": owner}
        job.record.run_id = store.begin_run({**told, "recipe": {"name": spec.recipe}})
        job.tasks = {t.key: t for t in tasks}
        with self.lock:
            self.jobs[job.record.id] = job
            self.ledger.save(job)
            self.thinkers.open(job)
            self.thinkers.begin()
        return job

    def job(self, job_id: str, owner: str | None) -> Job:
        """A job by its id, or by the beginning of it. Raises `Unknown` for another user's; None may see all."""
        with self.lock:
            return find(self.jobs, job_id, owner)

    def listed(self, owner: str | None) -> list[Job]:
        """A user's jobs, oldest first; None for all."""
        with self.lock:
            return [j for j in self.jobs.values() if owner is None or j.record.owner == owner]

    def told(self, job: Job) -> wire.JobOut:
        """A job as the protocol has it."""
        with self.lock:
            r, now = job.record, self.clock()
            waiting = self.broker.lacking(r.id, now) if r.state == "running" else ""
            if r.state == "running" and job.runner is None and not waiting:
                before = job.record.id in self.broker.pending
                waiting = "rows asked for before" if before else f"one of {self.places.most} places to think"
            held = {b.agent for b in self.broker.batches.values() if b.job == r.id}
            return wire.JobOut(
                id=r.id,
                name=job.spec.name,
                owner=r.owner,
                state=r.state,  # pyright: ignore[reportArgumentType]
                reason=r.reason,
                recipe=job.spec.recipe,
                device=job.spec.device,
                trials=r.trials,
                best_s={t.key: job.best_s.get(t.key) for t in job.spec.tasks},
                tasks=[t.key for t in job.spec.tasks],
                created=r.created,
                ended=r.ended,
                waiting=waiting,
                agents=sorted(held),
                events=job.events,
            )

    def pause(self, job: Job, reason: str = "paused") -> None:
        """Stop thinking and hand out nothing; rows that are out count when they are told."""
        with self.lock:
            self.thinkers.pause(job, reason)

    def resume(self, job: Job) -> None:
        """Go on from what the history and the journal hold."""
        with self.lock:
            self.thinkers.resume(job)

    def cancel(self, job: Job) -> None:
        """End a job; its rows stay in the history."""
        with self.lock:
            self.thinkers.end(job, "cancelled", "cancelled")

    def events(self, job: Job, after: int) -> tuple[list[str], Future[None] | None]:
        """Events after a number; with none, what is done when there is one: give it back to `unheard` in the end."""
        with self.lock:
            return self.ledger.events(job, after)

    def unheard(self, job: Job, future: Future[None], after: int) -> list[str]:
        """Nobody waits for this any more; the events after a number."""
        with self.lock:
            return self.ledger.unheard(job, future, after)

    def judge(self, job: Job, asked: wire.JudgeIn) -> tuple[Verdict, Future[None]]:
        """Have an agent race or check finalists of a job; what comes of it, and what is done when it has come. Raises
        `Refused` for what is none of the job's."""
        with self.lock:
            found = self.judging.ask(job.record.id, job.spec, job.evaluator.piece, job.private_to, asked)
            self.dispatch.settle()
            return found, found.wait()

    def judged(self, verdict: Verdict) -> wire.JudgeOut:
        """What came of it so far."""
        with self.lock:
            return self.judging.told(verdict, self.clock())

    # -- agents -------------------------------------------------------------------------------------------------

    def meet(self, agent: Agent) -> None:
        """An agent introduces itself."""
        with self.lock:
            self.broker.meet(agent, self.clock())
            self.dispatch.settle()

    def agents(self) -> list[wire.AgentSeen]:
        """Every agent since the server started, the latest seen first."""
        with self.lock:
            now = self.clock()
            return [
                wire.AgentSeen(id=a.id, device=a.device, targets=list(a.targets), seen_s=max(0.0, now - a.seen))
                for a in sorted(self.broker.agents.values(), key=lambda a: -a.seen)
            ]

    def task(self, job_id: str, key: str, owner: str) -> wire.TaskWire:
        """A task of a job for an agent. Raises `Unknown` where the job is another user's private one."""
        with self.lock:
            job = self.jobs.get(job_of(job_id))
            found = job.spec.by_key.get(key) if job is not None else None
            if job is None or job.private_to not in (None, owner) or found is None:
                raise Unknown("there is no such task")
            return found

    def stores(self, owner: str) -> list[Store]:
        """The shared history and, where there is one, that of the user's private rows."""
        with self.lock:
            return [self.store(None), *([self.store(owner)] if self.histories.has(owner) else [])]

    def known(self, key: str, owner: str) -> list[Task]:
        """The tasks that these know by a key; of one without a payload nothing can be compared but its shapes."""
        recalled = [s.task(key) for s in self.stores(owner) if isinstance(s, Recalls)]
        return [t for t in recalled if t is not None]

    def ask(self, agent_id: str, rows: int) -> Waiter:
        """Work for an agent, at once or as soon as there is some: the answer's future."""
        with self.lock:
            return self.dispatch.ask(agent_id, rows)

    def leave(self, waiter: Waiter) -> None:
        """The agent waits no more."""
        with self.lock:
            self.dispatch.leave(waiter)

    def tell(self, agent_id: str, told: wire.Tell) -> wire.Counted:
        """Results of an agent: on disk before the answer. Raises `Refused` for what contradicts itself or the batch."""
        with self.lock:
            counted = self.dispatch.tell(agent_id, told)
            self.thinkers.begin()
            return counted

    def heartbeat(self, agent_id: str, batches: Sequence[str]) -> list[str]:
        """Renew leases; the batches that are the agent's no more."""
        with self.lock:
            return self.dispatch.heartbeat(agent_id, batches)

    def release(self, agent_id: str, batch: str, unable: str | None) -> None:
        """An agent gives work back."""
        with self.lock:
            self.dispatch.release(agent_id, batch, unable)


def _check_keys(store: Store, tasks: Sequence[Task]) -> None:
    """Raises `Refused` where a key is another operator's in the history, by its target or shapes: what a program
    computes only a client's compiler sees, which asks for `Desk.known`."""
    for task in tasks:
        known = store.task(task.key) if isinstance(store, Recalls) else None
        if known is not None and known.payload and (known.target, known.shapes) != (task.target, task.shapes):
            raise Refused(
                f"task {task.key} of {task.shapes or 'no shapes'} has the key of another operator in the server's"
                f" history, of {known.shapes or 'no shapes'}: its client should have given it another key"
            )
