"""The server's desk: jobs, the processes that think for them, and the broker, under one lock and on disk.

Everything here is quick and none of it is thinking. Calls come from HTTP handlers' threads and from the threads that
read what a job's process says.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tt_spec import Measurement, Plugins, Task, Trial, WallClock
from tt_spec.errors import StoreError
from tt_spec.roles import Remembers, Store
from tt_spec.serial import from_json, to_json
from tt_spec.types import Bar

from tt_service import wire
from tt_service.broker import LOST, Agent, Batch, Broker, Call, Counts, Needs, Row, Taken
from tt_service.database import path_of, told
from tt_service.journal import Event, JobRecord, Journal
from tt_service.judging import Judging, Refused, Verdict, job_of
from tt_service.plain import plain
from tt_service.runner import Bounds, Runner

__all__ = ["Desk", "Job", "Refused", "Stranger", "Unknown"]

ENDED = ("done", "failed", "cancelled")
CLOSE_S = 4.0
"""How long a second call to close waits for the first."""


class Unknown(Exception):
    """There is no such thing, or not for this user."""


class Stranger(Exception):
    """An agent that has not introduced itself since the server started."""


@dataclass
class Waiter:
    """An agent that waits for work."""

    agent: str
    rows: int
    future: Future[wire.Asked | None] = field(default_factory=Future)


@dataclass
class Job:
    """A job on the desk.

    Args:
        calls: The process's number of each call, by the broker's id.
        bars: The bar of each task as it was last asked.
        began: When its process began, by the clock that never steps.
        ready: Done once the process has said whether the job can be run.
    """

    record: JobRecord
    spec: wire.JobIn
    runner: Runner | None = None
    tasks: dict[str, Task] = field(default_factory=dict)
    evaluator: wire.PieceWire = field(default_factory=lambda: wire.PieceWire(piece="fixed"))
    calls: dict[str, int] = field(default_factory=dict)
    bars: dict[str, Bar] = field(default_factory=dict)
    best_s: dict[str, float] = field(default_factory=dict)
    events: int = 0
    began: float = 0.0
    halting: str | None = None
    ready: Future[None] = field(default_factory=Future)
    refused: str | None = None

    @property
    def private_to(self) -> str | None:
        """The only user who sees its rows; None for all."""
        return self.record.owner if self.spec.private else None


class Desk:
    """All jobs of a server.

    Args:
        history: The shared history; the service's own tables lie beside it.
        bounds: Of a job's process.
        thinkers: Processes that may think at once; further jobs wait.
        clock: Never steps: leases go by it.
    """

    def __init__(
        self,
        history: str | os.PathLike[str],
        bounds: Bounds | None = None,
        thinkers: int = 8,
        clock: Callable[[], float] = time.monotonic,
        lease_s: float = 30.0,
    ) -> None:
        self.history = os.path.abspath(history)  # whatever folder anybody works in later
        self.bounds, self.thinkers, self.clock = bounds or Bounds(), thinkers, clock
        self.lock = threading.RLock()
        self.plugins, self.wall = Plugins(), WallClock()
        self.journal = Journal(path_of(self.history))
        self.broker = Broker(self.journal.past, lease_s=lease_s)
        self.judging = Judging(self.broker)
        self.jobs: dict[str, Job] = {}
        self.waiters: list[Waiter] = []
        self.listeners: dict[str, list[Future[None]]] = {}
        self._stores: dict[str, Store] = {}
        self._fresh: list[tuple[Job, Taken, Measurement]] = []
        self._unkept = False
        self._later: list[tuple[Job, dict[str, Any]]] = []
        self.closing, self.closed = False, threading.Event()
        self.load()

    # -- start and end ------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Rebuild everything from the journal: results first that the history may lack, then jobs, rows, leases."""
        self.store(None)
        self._deliver_unkept()
        for record in self.journal.jobs():
            spec = wire.JobIn.model_validate_json(record.spec)
            job = self.jobs[record.id] = Job(record, spec)
            job.events = self.journal.last_event(record.id)
            if record.state not in ENDED:
                self._open(job)
                if record.state == "paused":
                    self.broker.stop(record.id)
        rows, batches = self.journal.pending()
        self.broker.restore(rows, batches, self.clock())
        self._flush()
        self._start_waiting()

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
            for waiter in self.waiters:
                _settle(waiter.future, None)
            self.waiters = []
            self.judging.close()
            for futures in self.listeners.values():
                for future in futures:
                    _settle(future, None)
            self.listeners = {}
            runners = [j.runner for j in self.jobs.values() if j.runner is not None]
            for job in self.jobs.values():
                if job.runner is not None and job.record.state == "running":
                    job.record.spent_s += self.clock() - job.began
                    self._save(job)
        for runner in runners:
            runner.end()
        with self.lock:
            self.journal.close()
            for store in self._stores.values():
                store.close()

    def store(self, owner: str | None) -> Store:
        """The shared history, or the one of a user's private rows."""
        path = self._path(owner)
        if path not in self._stores:
            if owner is not None and not os.path.exists(path):
                with told(path):
                    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._stores[path] = self.plugins.build("store", "sqlite", path=path, wait_s=2.0)
            store = self._stores[path]
            if isinstance(store, Remembers):
                store.remember([])
        return self._stores[path]

    def _path(self, owner: str | None) -> str:
        return self.history if owner is None else f"{self.history}.private-{owner.encode().hex()}"

    def writable(self) -> None:
        """Raises `StoreError` if the history or the journal cannot be written."""
        with self.lock:
            store = self.store(None)
            if isinstance(store, Remembers):
                store.remember([])
            with self.journal.writing():
                pass

    # -- jobs ---------------------------------------------------------------------------------------------------

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
        if isinstance(store, Remembers):
            store.remember(tasks)
        about = {"model": spec.name, "target": tasks[0].target, "device": spec.device, "seed": spec.seed}
        options = {"trials": spec.trials, "minutes": spec.minutes, "server": True}
        told = {**about, "versions": dict(spec.versions), "options": options, "key": owner}
        job.record.run_id = store.begin_run({**told, "recipe": {"name": spec.recipe}})
        job.tasks = {t.key: t for t in tasks}
        with self.lock:
            self.jobs[job.record.id] = job
            self._save(job)
            self._open(job)
            self._start_waiting()
        return job

    def forget(self, job: Job) -> None:
        """A job that was refused before it began leaves no trace but its run's end."""
        with self.lock:
            self._end(job, "failed", job.refused or "refused")

    def job(self, job_id: str, owner: str | None) -> Job:
        """A job by its id, or by the beginning of it. Raises `Unknown` for another user's; None may see all."""
        with self.lock:
            found = [j for i, j in self.jobs.items() if i == job_id or (len(job_id) >= 6 and i.startswith(job_id))]
            mine = [j for j in found if owner is None or j.record.owner == owner]
            if len(mine) != 1:
                raise Unknown(f"there is no job {job_id!r}")
            return mine[0]

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
                waiting = f"one of {self.thinkers} places to think"
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
            if job.record.state == "running":
                self._halt(job, "paused", reason)

    def resume(self, job: Job) -> None:
        """Go on from what the history and the journal hold."""
        with self.lock:
            if job.record.state == "paused":
                self._state(job, "running", "")
                self._open(job)
                self._start_waiting()

    def cancel(self, job: Job) -> None:
        """End a job; its rows stay in the history."""
        with self.lock:
            if job.record.state not in ENDED:
                self._end(job, "cancelled", "cancelled")

    def events(self, job: Job, after: int) -> tuple[list[str], Future[None] | None]:
        """Events after a number; with none, what is done when there is one: give it back to `unheard` in the end."""
        with self.lock:
            found = self.journal.events(job.record.id, after)
            if found or self.closing or job.record.state in ENDED:
                return found, None
            future: Future[None] = Future()
            self.listeners.setdefault(job.record.id, []).append(future)
            return [], future

    def unheard(self, job: Job, future: Future[None], after: int) -> list[str]:
        """Nobody waits for this any more; the events after a number."""
        with self.lock:
            left = [f for f in self.listeners.pop(job.record.id, []) if f is not future]
            if left:
                self.listeners[job.record.id] = left
            return self.journal.events(job.record.id, after)

    def judge(self, job: Job, asked: wire.JudgeIn) -> tuple[Verdict, Future[None]]:
        """Have an agent race or check finalists of a job; what comes of it, and what is done when it has come. Raises
        `Refused` for what is none of the job's."""
        with self.lock:
            found = self.judging.ask(job.record.id, job.spec, job.evaluator.piece, job.private_to, asked)
            self._after()
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
            self._after()

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

    def has_private(self, owner: str) -> bool:
        """Whether a user has private rows."""
        return os.path.exists(self._path(owner))

    def ask(self, agent_id: str, rows: int) -> Waiter:
        """Work for an agent, at once or as soon as there is some: the answer's future."""
        with self.lock:
            self._heard_of(agent_id)
            for other in [w for w in self.waiters if w.agent == agent_id]:  # it asks again: the connection broke
                self.leave(other)
            waiter = Waiter(agent_id, rows)
            if self.closing:
                waiter.future.set_result(None)
                return waiter
            self.waiters.append(waiter)
            self._after()
            return waiter

    def leave(self, waiter: Waiter) -> None:
        """The agent waits no more."""
        with self.lock:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
            _settle(waiter.future, None)

    def _heard_of(self, agent_id: str) -> None:
        """The agent lives. Raises `Stranger`."""
        if agent_id not in self.broker.agents:
            raise Stranger(agent_id)
        self.broker.agents[agent_id].seen = self.clock()

    def _asked(self, batch: Batch) -> wire.Asked:
        """A batch as the protocol has it."""
        job = self.jobs[job_of(batch.job)]
        task = job.spec.by_key[batch.task]
        call = self.broker.calls.get(batch.call or "")
        race = wire.RaceIn(**call.body) if call is not None and batch.kind == "race" else None
        return wire.Asked(
            batch=batch.id,
            kind=batch.kind,  # pyright: ignore[reportArgumentType]
            job=batch.job,
            task=batch.task,
            space=task.spaces[0].key,
            evaluator=job.evaluator,
            rows=[list(r) for r in batch.rows],
            bar=wire.BarWire.of(job.bars.get(batch.task, Bar(flops=task.flops))),
            race=race,
            lease_s=self.broker.lease_s,
            done=sorted(batch.told),
        )

    def tell(self, agent_id: str, told: wire.Tell) -> wire.Counted:
        """Results of an agent: on disk before the answer. Raises `Refused` for what contradicts itself or the batch."""
        with self.lock:
            self._heard_of(agent_id)
            now = self.clock()
            batch = self.broker.batches.get(told.batch) or self.journal.past(told.batch)
            if batch is not None and batch.kind != "measure":
                return self._answer(agent_id, batch, told, now)
            results = _results(batch, told)
            counts = self.broker.tell(agent_id, told.batch, results, now)
            self._keep(agent_id, counts)
            self._after()
            return wire.Counted(new=len(counts.taken), before=counts.before, unknown=counts.unknown)

    def heartbeat(self, agent_id: str, batches: Sequence[str]) -> list[str]:
        """Renew leases; the batches that are the agent's no more."""
        with self.lock:
            self._heard_of(agent_id)
            lost = self.broker.heartbeat(agent_id, batches, self.clock())
            self._after()
            return lost

    def release(self, agent_id: str, batch: str, unable: str | None) -> None:
        """An agent gives work back."""
        with self.lock:
            self._heard_of(agent_id)
            self.broker.release(agent_id, batch, self.clock(), unable)
            self._after()

    def tick(self) -> None:
        """Now and then: leases end, processes are looked at, results are tried again that the history refused."""
        with self.lock:
            if self.closing:
                return
            if self._unkept:
                self._deliver_unkept()
            self.broker.expire(self.clock())
            self._after()
            later, self._later = self._later, []
            for job, message in later:
                self._heard(job, message)
            for job in list(self.jobs.values()):
                if job.runner is not None and (why := job.runner.exceeded(self.clock())) is not None:
                    self._end(job, "failed", why)

    # -- inside: agents -----------------------------------------------------------------------------------------

    def _after(self) -> None:
        """What every change may call for: dead rows are told, journal written, agents served that wait."""
        self._bury()
        self._flush()
        self._serve()

    def _serve(self) -> None:
        now, idle = self.clock(), self.broker.idle()
        for waiter in list(self.waiters):
            if waiter.future.done():  # it gave up
                self.waiters.remove(waiter)
                continue
            if idle and waiter.agent not in self.broker.held:
                continue
            batch = self.broker.ask(waiter.agent, waiter.rows, now)
            if batch is not None:
                self._flush()
                self.waiters.remove(waiter)
                _settle(waiter.future, self._asked(batch))
        self._bury()
        self._flush()

    def _bury(self) -> None:
        """Rows and calls on which two agents died."""
        dead, self.broker.dead = self.broker.dead, []
        for one in dead:
            if isinstance(one, Row):
                batch = Batch(f"dead-{uuid.uuid4().hex}", "", one.job, one.task, "measure", (one.config,))
                trial = Trial(one.config, error="run", why=LOST)
                self._keep("", Counts((Taken(batch, 0, trial, one.origin, True),)))
            else:
                self._reply(one, failed={"error": "run", "why": LOST})

    def _answer(self, agent_id: str, batch: Batch, told: wire.Tell, now: float) -> wire.Counted:
        """What a call asked for."""
        value: Any = None
        job = self.jobs.get(job_of(batch.job))
        if batch.agent != agent_id or job is None or told.batch not in self.broker.batches:
            return wire.Counted(new=0, before=1, unknown=0)
        if told.failed is None:
            task = job.spec.by_key[batch.task]
            try:
                value = _value(batch, told, len(task.spaces[0].knobs))
            except ValueError as e:
                raise Refused(str(e)) from e
        call = self.broker.answer(agent_id, batch.id, now)
        if call is not None:
            failed = None if told.failed is None else {"error": told.failed.error, "why": told.failed.why}
            self._reply(call, value=value, failed=failed, agent=agent_id)
        self._after()
        return wire.Counted(new=1 if call is not None else 0, before=0 if call is not None else 1, unknown=0)

    def _reply(self, call: Call, value: Any = None, failed: dict[str, str] | None = None, agent: str = "") -> None:
        found = self.broker.agents.get(agent)
        if self.judging.answered(call, value, failed, agent, {} if found is None else dict(found.versions)):
            return
        job = self.jobs.get(call.job)
        number = None if job is None else job.calls.pop(call.id, None)
        if job is None or number is None or job.runner is None:
            return
        if failed is not None and call.kind in ("realise", "features", "retime"):
            failed = {**failed, "why": f"{call.kind}: {failed['why']}"}
        trials = value if call.kind == "retime" and failed is None else []
        job.runner.send("answer", number=number, value=value, trials=trials, failed=failed, agent=agent)

    def _keep(self, agent_id: str, counts: Counts) -> None:
        """Results into the journal, then into the history, then to the job."""
        for taken in counts.taken:
            job = self.jobs[taken.batch.job]
            self._fresh.append((job, taken, self._measured(job, agent_id, taken)))
        self._flush()

    def _flush(self) -> None:
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
                self.store(job.private_to).append([m for _, m in some])
                self.journal.kept([(t.batch.id, t.at) for t, _ in some])
            except StoreError as e:
                self._unkept = True
                where = self.journal.path
                warnings.warn(f"the history does not take rows now, they wait in {where}: {e}", stacklevel=2)
            self._hear(job, some)

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
        self._told_of(job)

    def _deliver_unkept(self) -> None:
        """Results that were journalled while the server died: into the history, unless it has them."""
        found = [(batch, at, *from_json(body)) for batch, at, body in self.journal.unkept()]
        for owner in {o for _, _, o, _ in found}:
            mine = [(batch, at, m) for batch, at, o, m in found if o == owner]
            store = self.store(owner)
            there = {
                (m.run_id, m.config, m.at) for t in {m.task_key for *_, m in mine} for m in store.query(task_key=t)
            }
            store.append([m for *_, m in mine if (m.run_id, m.config, m.at) not in there])
            self.journal.kept([(batch, at) for batch, at, _ in mine])
        self._unkept = False

    # -- inside: jobs -------------------------------------------------------------------------------------------

    def _open(self, job: Job) -> None:
        job.tasks = job.tasks or {t.key: t.thing() for t in job.spec.tasks}
        self.broker.open(job.record.id, self._needs(job), job.private_to)

    def _needs(self, job: Job) -> dict[str, Needs]:
        return {t.key: Needs(job.spec.device, t.target, t.space.key, job.evaluator.piece) for t in job.tasks.values()}

    def _start_waiting(self) -> None:
        """Start the oldest jobs that have no process, as many as may think."""
        room = self.thinkers - sum(j.runner is not None for j in self.jobs.values())
        for job in self.jobs.values():
            if room > 0 and job.record.state == "running" and job.runner is None and not self.closing:
                self._start(job)
                room -= 1

    def _start(self, job: Job) -> None:
        pending = {
            key: [r.config for r in rows] for key in job.tasks if (rows := self.broker.pending(job.record.id, key))
        }
        job.began, job.halting = self.clock(), None
        runner = Runner(self.bounds, lambda message, job=job: self._heard(job, message), self.clock)
        job.runner = runner
        runner.start()
        runner.send(
            "start",
            job=job.record.spec,
            history=self.history,
            private=self._path(job.private_to) if job.private_to is not None else None,
            run_id=job.record.run_id,
            spent_s=job.record.spent_s,
            pending=pending,
        )

    def _heard(self, job: Job, message: dict[str, Any] | None) -> None:
        """What a job's process says; None when it is gone."""
        with self.lock:
            if self.closing or job.runner is None:
                return
            if message is None:
                message = {"what": "gone"}
            try:
                _HEARD[message["what"]](self, job, message)
            except (KeyError, ValueError, TypeError) as e:
                self._end(job, "failed", f"its process said what cannot be understood ({type(e).__name__}: {e})")
            except StoreError:  # a full disk, say: the same message again, later
                self._later.append((job, message))
            with suppress(StoreError):  # tried again with the next change, or tick
                self._after()

    def _heard_gone(self, job: Job, message: dict[str, Any]) -> None:
        runner = job.runner
        why = "its process ended" if runner is None else runner.post_mortem()
        if job.halting is not None and job.record.state == "paused":
            self._stopped(job)
        else:
            self._end(job, "failed", why)

    def _heard_ready(self, job: Job, message: dict[str, Any]) -> None:
        job.evaluator = wire.PieceWire(piece=message["evaluator"], options=plain(message["options"]))
        self.broker.open(job.record.id, self._needs(job), job.private_to)
        if job.record.state == "paused":
            self.broker.stop(job.record.id)
        _settle(job.ready, None)

    def _heard_refused(self, job: Job, message: dict[str, Any]) -> None:
        job.refused = str(message["why"])
        self._end(job, "failed", job.refused)

    def _heard_measure(self, job: Job, message: dict[str, Any]) -> None:
        task = message["task"]
        job.bars[task] = message["bar"]
        self.broker.want(job.record.id, task, zip(message["rows"], message["origins"], strict=True))

    def _heard_unwant(self, job: Job, message: dict[str, Any]) -> None:
        if job.record.state == "running":
            self.broker.unwant(job.record.id, message["task"], message["rows"])

    def _heard_expect(self, job: Job, message: dict[str, Any]) -> None:
        if self.broker.able(job.record.id, message["task"], self.clock()) == 1:
            self.broker.call(job.record.id, message["task"], "expect", message["rows"])

    def _heard_call(self, job: Job, message: dict[str, Any]) -> None:
        call = self.broker.call(job.record.id, message["task"], message["kind"], message["rows"], message["body"])
        job.calls[call] = message["number"]

    def _heard_batch(self, job: Job, message: dict[str, Any]) -> None:
        refused = [wire.Historic.of(m).model_dump() for m in message["refused"]]
        self._event(job, "batch", task=message["task"], batch=plain(message["about"]), results=refused)

    def _heard_finished(self, job: Job, message: dict[str, Any]) -> None:
        self._event(job, "note", task=message["task"], text=str(message["reason"]))

    def _heard_over(self, job: Job, message: dict[str, Any]) -> None:
        if message["halted"] is not None and job.record.state == "paused":
            self._stopped(job)
        elif message["failed"] is not None:
            self._end(job, "failed", str(message["reason"]))
        else:
            self._end(job, "done", str(message["reason"]))

    def _halt(self, job: Job, state: str, reason: str) -> None:
        self.broker.stop(job.record.id)
        job.halting = reason
        if job.runner is not None:
            job.runner.send("halt", reason=reason)
        self._state(job, state, reason)
        self._after()

    def _stopped(self, job: Job) -> None:
        """The process of a paused job has ended."""
        self._leave_process(job)
        self._flush()
        self._start_waiting()

    def _leave_process(self, job: Job) -> None:
        if (runner := job.runner) is not None:
            job.record.spent_s += self.clock() - job.began
            job.runner = None
            runner.end()
        self.broker.forget_calls(job.record.id)
        job.calls = {}
        self._save(job)

    def _end(self, job: Job, state: str, reason: str) -> None:
        if job.record.state in ENDED:
            return
        self._leave_process(job)
        self.broker.drop(job.record.id)
        self._flush()
        job.record.ended = self.wall.now()
        self._state(job, state, reason)
        try:
            self.store(job.private_to).end_run(job.record.run_id, reason)
        except StoreError as e:
            warnings.warn(str(e), stacklevel=2)
        _settle(job.ready, None)
        for waiter in list(self.waiters):  # agents of this job alone wait in vain
            only = self.broker.agents[waiter.agent].jobs
            if only and all(j not in self.jobs or self.jobs[j].record.state in ENDED for j in only):
                self.waiters.remove(waiter)
                _settle(waiter.future, None)
        self._start_waiting()

    def _state(self, job: Job, state: str, reason: str) -> None:
        job.record.state, job.record.reason = state, reason
        self._save(job)
        self._event(job, "state", text=state if not reason else f"{state}: {reason}")

    def _save(self, job: Job) -> None:
        self.journal.save(job.record)

    def _event(self, job: Job, what: str, **fields: Any) -> None:
        self.journal.write((), (), [Event(job.record.id, job.events + 1, _body(job, what, **fields))])
        self._told_of(job)

    def _told_of(self, job: Job) -> None:
        """The job has an event more."""
        job.events += 1
        for future in self.listeners.pop(job.record.id, []):
            _settle(future, None)


_HEARD = {
    "gone": Desk._heard_gone,
    "ready": Desk._heard_ready,
    "refused": Desk._heard_refused,
    "measure": Desk._heard_measure,
    "unwant": Desk._heard_unwant,
    "expect": Desk._heard_expect,
    "call": Desk._heard_call,
    "batch": Desk._heard_batch,
    "finished": Desk._heard_finished,
    "over": Desk._heard_over,
}


def _body(job: Job, what: str, **fields: Any) -> str:
    """The job's next event as JSON."""
    return json.dumps({"number": job.events + 1, "what": what, **fields})


def _counting(some: Sequence[tuple[Taken, Measurement]]) -> int:
    """Results that count as trials of their job."""
    return sum(t.first and m.error != "invalid" for t, m in some)


def _settle(future: Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _results(batch: Batch | None, told: wire.Tell) -> list[tuple[int, Trial]]:
    """Trials that were told, checked against the batch, if there is one. Raises `Refused`."""
    try:
        found = [(a.at, a.trial.thing()) for a in told.trials]
    except ValueError as e:
        raise Refused(str(e)) from e
    if batch is None:
        return found
    for at, trial in found:
        if at >= len(batch.rows):
            raise Refused(f"batch {batch.id} has {len(batch.rows)} rows, a result is for row {at}")
        if trial.config != batch.rows[at]:
            raise Refused(f"row {at} of batch {batch.id} is {list(batch.rows[at])}, told is {list(trial.config)}")
    return found


def _value(batch: Batch, told: wire.Tell, knobs: int) -> Any:
    """What was told of a call, checked against what was asked. Raises `ValueError`."""
    if batch.kind == "realise" and told.realised is not None:
        found = told.realised.thing(knobs)
        if len(found.why) != len(batch.rows):
            raise ValueError(f"{len(batch.rows)} rows were to be realised, {len(found.why)} came")
        return [found.codes, list(found.why)]
    if batch.kind == "features" and told.features is not None:
        statements, ok = told.features.thing()
        if len(ok) != len(batch.rows):
            raise ValueError(f"features of {len(batch.rows)} rows were asked for, {len(ok)} came")
        return [statements, ok]
    if batch.kind == "retime":
        return [t for _, t in _results(batch, told)]
    if batch.kind == "race" and told.race is not None:
        return [list(times) for times in told.race]
    if batch.kind == "check" and told.check is not None:
        return told.check.fault
    if batch.kind == "expect":
        return None
    raise ValueError(f"batch {batch.id} asks for {batch.kind}, and nothing of that was told")
