"""Agents at the desk: who waits for work gets it, and what is told is checked, kept and passed on."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tt_spec import Trial
from tt_spec.types import Bar

from tt_service import wire
from tt_service.broker import LOST, Batch, Broker, Call, Counts, Row, Taken
from tt_service.jobs import Job, settle
from tt_service.judging import Judging, Refused, job_of
from tt_service.ledger import Ledger

__all__ = ["Dispatch", "Stranger", "Waiter"]


class Stranger(Exception):
    """An agent that has not introduced itself since the server started."""


@dataclass
class Waiter:
    """An agent that waits for work."""

    agent: str
    rows: int
    future: Future[wire.Asked | None] = field(default_factory=Future)


class Dispatch:
    """Hands the broker's work to agents and takes what they tell.

    Not thread-safe: whoever owns it has the lock.

    Args:
        jobs: All of them, by id.
        clock: Never steps.
    """

    def __init__(
        self, broker: Broker, ledger: Ledger, judging: Judging, jobs: Mapping[str, Job], clock: Callable[[], float]
    ) -> None:
        self.broker, self.ledger, self.judging, self.jobs, self.clock = broker, ledger, judging, jobs, clock
        self.closed = False
        self._waiters: list[Waiter] = []

    # -- calls of agents ----------------------------------------------------------------------------------------

    def ask(self, agent_id: str, rows: int) -> Waiter:
        """Work for an agent, at once or as soon as there is some: the answer's future."""
        self._heard_of(agent_id)
        for other in [w for w in self._waiters if w.agent == agent_id]:  # it asks again: the connection broke
            self.leave(other)
        waiter = Waiter(agent_id, rows)
        if self.closed:
            waiter.future.set_result(None)
            return waiter
        self._waiters.append(waiter)
        self.settle()
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """The agent waits no more."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        settle(waiter.future, None)

    def tell(self, agent_id: str, told: wire.Tell) -> wire.Counted:
        """Results of an agent: on disk before the answer. Raises `Refused` for what contradicts itself or the batch."""
        self._heard_of(agent_id)
        self.ledger.flush()  # what a full disk refused: until it is there, the journal says that it was never told
        now = self.clock()
        batch = self.broker.batches.get(told.batch) or self.ledger.journal.past(told.batch)
        if batch is not None and batch.kind != "measure":
            return self._answer(agent_id, batch, told, now)
        results = _results(batch, told)
        counts = self.broker.tell(agent_id, told.batch, results, now)
        self.ledger.keep(agent_id, counts)
        self.settle()
        return wire.Counted(new=len(counts.taken), before=counts.before, unknown=counts.unknown)

    def heartbeat(self, agent_id: str, batches: Sequence[str]) -> list[str]:
        """Renew leases; the batches that are the agent's no more."""
        self._heard_of(agent_id)
        lost = self.broker.heartbeat(agent_id, batches, self.clock())
        self.settle()
        return lost

    def release(self, agent_id: str, batch: str, unable: str | None) -> None:
        """An agent gives work back."""
        self._heard_of(agent_id)
        self.broker.release(agent_id, batch, self.clock(), unable)
        self.settle()

    def _heard_of(self, agent_id: str) -> None:
        """The agent lives. Raises `Stranger`."""
        if agent_id not in self.broker.agents:
            raise Stranger(agent_id)
        self.broker.agents[agent_id].seen = self.clock()

    # -- what follows -------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """What every change may call for: dead rows are told, the journal is written, agents that wait are served."""
        self._bury()
        self.ledger.flush()
        self._serve()

    def dismiss(self) -> None:
        """Agents of jobs that are over wait in vain."""
        for waiter in list(self._waiters):
            only = self.broker.agents[waiter.agent].jobs
            if only and all(j not in self.jobs or self.jobs[j].ended for j in only):
                self.leave(waiter)

    def close(self) -> None:
        """Nobody is to wait any more."""
        self.closed = True
        for waiter in self._waiters:
            settle(waiter.future, None)
        self._waiters = []

    def _serve(self) -> None:
        now, idle = self.clock(), self.broker.idle()
        for waiter in list(self._waiters):
            if waiter.future.done():  # it gave up
                self._waiters.remove(waiter)
                continue
            if idle and waiter.agent not in self.broker.held:
                continue
            batch = self.broker.ask(waiter.agent, waiter.rows, now)
            if batch is not None:
                self.ledger.flush()
                self._waiters.remove(waiter)
                settle(waiter.future, self._asked(batch))
        self._bury()
        self.ledger.flush()

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

    def _bury(self) -> None:
        """Rows and calls on which two agents died."""
        dead, self.broker.dead = self.broker.dead, []
        for one in dead:
            if isinstance(one, Row):
                batch = Batch(f"dead-{uuid.uuid4().hex}", "", one.job, one.task, "measure", (one.config,))
                trial = Trial(one.config, error="run", why=LOST)
                self.ledger.keep("", Counts((Taken(batch, 0, trial, one.origin, True),)))
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
        self.settle()
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
