"""Who measures what: rows and calls that wait, the leases under which agents hold them, and what was told.

Pure: no HTTP, no threads, no clock. Every method is given the time, seconds by a clock that never steps, and notes in
`changes` what must be on disk before anybody is answered (`tt_service.journal`).

Source: leases after Gray and Cheriton (1989), Leases: an efficient fault-tolerant mechanism for distributed file cache
consistency; an agent that comes back gets its own work again, as in Golovin et al. (2017), Google Vizier.
"""

from __future__ import annotations

import math
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Agent", "Batch", "Broker", "Call", "Change", "Config", "Counts", "Needs", "Row", "Taken"]

LEASE_S, HEARTBEAT_S = 30.0, 10.0
"""How long a lease lasts without a heartbeat, and how often one is due."""

DEATHS = 2
"""Agents that may die on a row before it counts as one that kills them."""

RETURNS = 2
"""How often an agent may come back to one lease; the next time it is taken from it."""

LOST = "two agents died or fell silent while they measured it"

Config = tuple[int, ...]
Change = tuple[Any, ...]
"""What must be kept: ("row", Row), ("gone", job, task, config), ("batch", Batch), ("closed", id), ("job gone", job)."""


@dataclass(frozen=True)
class Needs:
    """What an agent must have to work on a task.

    Args:
        device: Fingerprint of the machine; "" is any.
    """

    device: str
    target: str
    space: str
    evaluator: str


@dataclass
class Row:
    """A row to be measured: once in its job.

    Args:
        deaths: Leases on it that ended without a result.
        batch: The batch that holds it; None while it waits.
    """

    job: str
    task: str
    config: Config
    origin: str = "search"
    deaths: int = 0
    batch: str | None = None

    @property
    def key(self) -> tuple[str, str, Config]:
        return self.job, self.task, self.config


@dataclass
class Call:
    """Something else to be done for a job, e.g. reading rows back; it lives as long as the job's process waits.

    Args:
        body: Its arguments, rows apart.
        only: The one agent that it is for; None is whoever can.
    """

    id: str
    job: str
    task: str
    kind: str
    rows: tuple[Config, ...]
    body: Any = None
    deaths: int = 0
    batch: str | None = None
    only: str | None = None


@dataclass
class Batch:
    """Work that an agent holds under a lease.

    Args:
        until: End of the lease, by the server's clock that never steps.
        told: Places of the rows that were told.
        call: The call's id, where it is one.
        returns: How often the agent came back to it from a new process.
    """

    id: str
    agent: str
    job: str
    task: str
    kind: str
    rows: tuple[Config, ...]
    until: float = math.inf
    told: set[int] = field(default_factory=set)
    call: str | None = None
    returns: int = 0


@dataclass
class Agent:
    """An agent as it last introduced itself.

    Args:
        jobs: The only jobs that it works for; empty is any.
        unable: Why it cannot work in a space, by the space's key.
    """

    id: str
    device: str = ""
    targets: tuple[str, ...] = ("*",)
    evaluators: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    jobs: tuple[str, ...] = ()
    owner: str = ""
    seen: float = -math.inf
    unable: dict[str, str] = field(default_factory=dict)

    def lacks(self, needs: Needs) -> str | None:
        """Why the agent cannot do such work; None if it can."""
        if needs.device and needs.device != self.device:
            return f"its device is {self.device}"
        if needs.target not in self.targets and "*" not in self.targets:
            return f"it cannot run target {needs.target}"
        if needs.evaluator not in self.evaluators:
            return f"it has no evaluator {needs.evaluator!r}"
        return self.unable.get(needs.space)


@dataclass(frozen=True)
class Taken:
    """A result that counts.

    Args:
        first: Whether it is the row's first: a row that went to two agents has two results, its job hears of one.
    """

    batch: Batch
    at: int
    result: Any
    origin: str
    first: bool


@dataclass(frozen=True)
class Counts:
    """What became of a tell: `taken` counts now, `before` had counted already, `unknown` belongs to no batch of this
    agent."""

    taken: tuple[Taken, ...] = ()
    before: int = 0
    unknown: int = 0


class Broker:
    """Hands out rows and calls, takes results once.

    Args:
        past: A batch by its id that is not open any more, with what was told of it; None for an unknown one.
        make_id: Makes ids of batches and calls.
        lease_s: How long a lease lasts.

    Attributes:
        changes: To be put on disk before anybody is answered.
        dead: Rows and calls given up since the last look: `(row or call)`; whoever owns the broker takes them away.
    """

    def __init__(
        self,
        past: Callable[[str], Batch | None] = lambda batch: None,
        make_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        lease_s: float = LEASE_S,
    ) -> None:
        self.past, self.make_id, self.lease_s = past, make_id, lease_s
        self.changes: list[Change] = []
        self.dead: list[Row | Call] = []
        self.needs: dict[tuple[str, str], Needs] = {}
        self.rows: dict[tuple[str, str, Config], Row] = {}
        self.waiting: dict[str, OrderedDict[tuple[str, Config], Row]] = {}
        self.calls: dict[str, Call] = {}
        self.calling: dict[str, OrderedDict[str, Call]] = {}
        self.batches: dict[str, Batch] = {}
        self.held: dict[str, str] = {}
        self.agents: dict[str, Agent] = {}
        self.stopped: set[str] = set()
        self.owners: dict[str, str | None] = {}
        self.expected: dict[tuple[str, str], dict[Config, str]] = {}
        self._served: OrderedDict[str, None] = OrderedDict()

    # -- jobs ---------------------------------------------------------------------------------------------------

    def open(self, job: str, needs: dict[str, Needs], only: str | None = None) -> None:
        """A job and what its tasks need, by key.

        Args:
            only: The one owner whose agents may work for it; None is anybody's.
        """
        self.owners[job] = only
        for task, what in needs.items():
            self.needs[job, task] = what
        self.waiting.setdefault(job, OrderedDict())
        self.calling.setdefault(job, OrderedDict())
        self._served.setdefault(job, None)
        self.stopped.discard(job)

    def want(self, job: str, task: str, rows: Iterable[tuple[Config, str]]) -> None:
        """Have rows measured, each with its origin; those that are wanted already stay as they are."""
        for config, origin in rows:
            if (job, task, config) not in self.rows:
                row = Row(job, task, config, origin)
                self.rows[row.key] = self.waiting[job][task, config] = row
                self.changes.append(("row", row))

    def unwant(self, job: str, task: str, rows: Iterable[Config]) -> None:
        """Take back rows that no agent has yet; those that are out count when told."""
        for config in rows:
            row = self.rows.get((job, task, config))
            if row is not None and row.batch is None:
                del self.rows[row.key]
                self.waiting[job].pop((task, config), None)
                self.changes.append(("gone", *row.key))

    def expect(self, job: str, task: str, rows: Sequence[Config], now: float) -> None:
        """Have agents build ahead what will probably be wanted: each of those that are there and can is told an equal
        part of the rows, and gets those first when they are wanted."""
        self._forget_expected(job, task)
        able = self._able(job, task, now)
        if not able or not rows:
            return
        each = math.ceil(len(rows) / len(able))
        whose = {c: a for c, a in self.expected.get((job, task), {}).items() if (job, task, c) in self.rows}
        self.expected[job, task] = whose
        for agent, first in zip(able, range(0, len(rows), each), strict=False):
            part = rows[first : first + each]
            whose.update(dict.fromkeys(part, agent))
            self.calls[self.call(job, task, "expect", part)].only = agent

    def able(self, job: str, task: str, now: float) -> int:
        """How many of the agents that are there can work on a task."""
        return len(self._able(job, task, now))

    def call(self, job: str, task: str, kind: str, rows: Sequence[Config], body: Any = None) -> str:
        """Have something else done; returns the call's id."""
        made = Call(self.make_id(), job, task, kind, tuple(rows), body)
        self.calls[made.id] = self.calling[job][made.id] = made
        return made.id

    def forget_calls(self, job: str) -> None:
        """The job's process is gone: nobody waits for what it asked."""
        for call in [c for c in self.calls.values() if c.job == job]:
            self._end_call(call)

    def stop(self, job: str) -> None:
        """Hand out nothing of the job from now on; rows that are out count when told."""
        self.stopped.add(job)

    def drop(self, job: str) -> None:
        """The job has ended: what waits is wanted no more, and what is out is taken from the agents."""
        self.stop(job)
        self.forget_calls(job)
        for key in [k for k in self.rows if k[0] == job]:
            del self.rows[key]
        for batch in [b for b in self.batches.values() if b.job == job]:
            self._close(batch)
        self.waiting.pop(job, None)
        self.calling.pop(job, None)
        self._served.pop(job, None)
        self.owners.pop(job, None)
        for key in [k for k in self.needs if k[0] == job]:
            del self.needs[key]
            self.expected.pop(key, None)
        self.changes.append(("job gone", job))

    @property
    def pending(self) -> set[str]:
        """Jobs of which rows wait or are out."""
        return {job for job, _, _ in self.rows}

    def restore(self, rows: Iterable[Row], batches: Iterable[Batch], now: float) -> None:
        """What the journal kept; every open lease begins anew, for who held it could not renew it meanwhile. Call
        `open` for the jobs first."""
        for batch in batches:
            if batch.kind == "measure" and batch.job in self.waiting:
                batch.until = now + self.lease_s
                self.batches[batch.id] = batch
                self.held[batch.agent] = batch.id
            else:
                self.changes.append(("closed", batch.id))
        for row in rows:
            if row.job not in self.waiting:
                continue
            self.rows[row.key] = row
            if row.batch not in self.batches:
                row.batch = None
                self.waiting[row.job][row.task, row.config] = row

    # -- agents -------------------------------------------------------------------------------------------------

    def meet(self, agent: Agent, now: float) -> None:
        """An agent introduces itself, for the first time or from a new process. Its lease stays its own; one to which
        it comes back again and again kills it, and is taken from it."""
        agent.seen = now
        self.agents[agent.id] = agent
        batch = self.batches.get(self.held.get(agent.id, ""))
        if batch is not None:
            batch.returns += 1
            if batch.returns > RETURNS:
                self._lose(batch)

    def ask(self, agent_id: str, most: int, now: float) -> Batch | None:
        """Work for an agent, at most `most` rows of one task; the work that it holds, if it does. None: wait."""
        agent = self.agents[agent_id]
        agent.seen = now
        self.expire(now)
        mine = self.batches.get(self.held.get(agent_id, ""))
        if mine is not None:
            mine.until = now + self.lease_s
            return mine
        for job in list(self._served):
            if job in self.stopped or not self._may(agent, job):
                continue
            batch = self._of_calls(agent, job) or self._of_rows(agent, job, most, now)
            if batch is not None:
                batch.until = now + self.lease_s
                self.batches[batch.id] = batch
                self.held[agent_id] = batch.id
                self._served.move_to_end(job)
                self.changes.append(("batch", batch))
                return batch
        return None

    def idle(self) -> bool:
        """Whether nothing waits for an agent."""
        return not any(self.waiting.values()) and not any(self.calling.values())

    def tell(self, agent_id: str, batch_id: str, results: Sequence[tuple[int, Any]], now: float) -> Counts:
        """Results of some rows of a batch of rows by their place, however late and however often. Raises `ValueError`
        for a place that the batch does not have, and takes nothing then."""
        batch = self._mine(agent_id, batch_id, now)
        if batch is None or batch.kind != "measure":
            return Counts(unknown=len(results))
        for at, _ in results:
            if not 0 <= at < len(batch.rows):
                raise ValueError(f"batch {batch_id} has {len(batch.rows)} rows, a result is for row {at}")
        taken, before = [], 0
        for at, result in results:
            if at in batch.told:
                before += 1
                continue
            batch.told.add(at)
            row = self.rows.pop((batch.job, batch.task, batch.rows[at]), None)
            if row is not None:
                self.waiting.get(row.job, {}).pop((row.task, row.config), None)
                self.changes.append(("gone", *row.key))
            taken.append(Taken(batch, at, result, row.origin if row else "late", row is not None))
        if len(batch.told) == len(batch.rows):
            self._close(batch)
        return Counts(tuple(taken), before)

    def answer(self, agent_id: str, batch_id: str, now: float) -> Call | None:
        """The call that a batch was for, which is answered now; None where nobody waits for it any more."""
        batch = self._mine(agent_id, batch_id, now)
        if batch is None or batch.call is None or batch.id not in self.batches:
            return None
        call = self.calls.get(batch.call)
        self._close(batch)
        if call is not None:
            self._end_call(call)
        return call

    def heartbeat(self, agent_id: str, batches: Sequence[str], now: float) -> list[str]:
        """Renew leases; returns the batches that are the agent's no more."""
        self.agents[agent_id].seen = now
        self.expire(now)
        lost = []
        for name in batches:
            batch = self.batches.get(name)
            if batch is None or batch.agent != agent_id or batch.job in self.stopped:
                lost.append(name)
            else:
                batch.until = now + self.lease_s
        return lost

    def release(self, agent_id: str, batch_id: str, now: float, unable: str | None = None) -> bool:
        """Take back what is left of a batch; whether there was something. `unable` is why the agent cannot do it."""
        batch = self._mine(agent_id, batch_id, now)
        if batch is None or batch.id not in self.batches:
            return False
        if unable is not None and (needs := self.needs.get((batch.job, batch.task))) is not None:
            self.agents[agent_id].unable[needs.space] = unable
        self._back(batch, died=False)
        return True

    def expire(self, now: float) -> None:
        """Take back what nobody renewed."""
        for batch in [b for b in self.batches.values() if b.until <= now]:
            self._lose(batch)

    def lacking(self, job: str, now: float) -> str:
        """Why nobody works on what waits for a job; "" where somebody can, or nothing waits."""
        tasks = [t for t, _ in self.waiting.get(job, {})] + [c.task for c in self.calling.get(job, {}).values()]
        if not tasks or (needs := self.needs.get((job, tasks[0]))) is None:
            return ""
        here = [a for a in self.agents.values() if self._alive(a, now)]
        if any(self._may(a, job) and a.lacks(needs) is None for a in here):
            return ""
        if not here:
            return "no agent is there"
        why = [f"{a.id}: {a.lacks(needs) or 'it works for others'}" for a in here[:5]]
        return f"no agent of {len(here)} can do it ({'; '.join(why)})"

    # -- inside -------------------------------------------------------------------------------------------------

    def _able(self, job: str, task: str, now: float) -> list[str]:
        needs = self.needs[job, task]
        here = [a for a in self.agents.values() if self._alive(a, now) and self._may(a, job)]
        return [a.id for a in here if a.lacks(needs) is None]

    def _alive(self, agent: Agent, now: float) -> bool:
        return now - agent.seen <= 2 * self.lease_s

    def _may(self, agent: Agent, job: str) -> bool:
        """Whether the agent works for the job at all."""
        only = self.owners.get(job)
        return (not agent.jobs or job in agent.jobs) and (only is None or only == agent.owner)

    def _of_calls(self, agent: Agent, job: str) -> Batch | None:
        for call in self.calling[job].values():
            needs = self.needs[job, call.task]
            if call.only in (None, agent.id) and agent.lacks(needs) is None:
                del self.calling[job][call.id]
                call.batch = self.make_id()
                return Batch(call.batch, agent.id, job, call.task, call.kind, call.rows, call=call.id)
        return None

    def _of_rows(self, agent: Agent, job: str, most: int, now: float) -> Batch | None:
        """A fair part of the rows of the first task of which the agent can measure any. A row on which an agent died
        goes out alone, so that the next death says which one it is."""
        waiting = self.waiting[job]
        task = next((t for t, _ in waiting if agent.lacks(self.needs[job, t]) is None), None)
        if task is None:
            return None
        rows = [r for r in waiting.values() if r.task == task]
        suspects = [r for r in rows if r.deaths]
        rows = [r for r in rows if not r.deaths] or suspects[:1]
        whose = self.expected.get((job, task), {})  # first what it built ahead, last what others did
        rows.sort(key=lambda r: (whose.get(r.config, agent.id) != agent.id, r.config not in whose))
        rows = rows[: min(most, self._share(agent, job, task, len(rows), now))]
        made = self.make_id()
        for row in rows:
            row.batch = made
            del waiting[task, row.config]
            whose.pop(row.config, None)
            self.changes.append(("row", row))
        self._forget_built(job, task)
        return Batch(made, agent.id, job, task, "measure", tuple(r.config for r in rows))

    def _share(self, agent: Agent, job: str, task: str, rows: int, now: float) -> int:
        """How many of the rows an agent gets: all if it is alone; else half of what it would have if those who are
        free shared them, so that all end together and the calls that come meanwhile wait less."""
        others = [a for a in self._able(job, task, now) if a != agent.id]
        free = sum(a not in self.held for a in others)
        return math.ceil(rows / (2 * (free + 1))) if others else rows

    def _mine(self, agent_id: str, batch_id: str, now: float) -> Batch | None:
        """A batch of this agent, open or not; it is heard of."""
        self.agents[agent_id].seen = now
        batch = self.batches.get(batch_id)
        if batch is None:
            batch = self.past(batch_id)
        elif batch.agent == agent_id:
            batch.until = now + self.lease_s
        return batch if batch is not None and batch.agent == agent_id else None

    def _lose(self, batch: Batch) -> None:
        self._back(batch, died=True)

    def _back(self, batch: Batch, died: bool) -> None:
        """What is not told waits again, first in its line; what killed two agents is given up."""
        self._close(batch)
        if batch.call is not None:
            if (call := self.calls.get(batch.call)) is not None:
                call.deaths += died
                call.batch = None
                if call.only is not None:
                    self._end_call(call)
                elif call.deaths >= DEATHS:
                    self._end_call(call)
                    self.dead.append(call)
                elif call.job in self.calling:
                    self.calling[call.job][call.id] = call
                    self.calling[call.job].move_to_end(call.id, last=False)
            return
        for at in reversed(range(len(batch.rows))):
            row = self.rows.get((batch.job, batch.task, batch.rows[at]))
            if at in batch.told or row is None or row.batch != batch.id:
                continue
            row.deaths += died
            row.batch = None
            if row.deaths >= DEATHS:
                del self.rows[row.key]
                self.changes.append(("gone", *row.key))
                self.dead.append(row)
                continue
            self.changes.append(("row", row))
            line = self.waiting[row.job]
            line[row.task, row.config] = row
            line.move_to_end((row.task, row.config), last=False)

    def _close(self, batch: Batch) -> None:
        if self.batches.pop(batch.id, None) is not None:
            self.changes.append(("closed", batch.id))
        if self.held.get(batch.agent) == batch.id:
            del self.held[batch.agent]

    def _forget_expected(self, job: str, task: str) -> None:
        """Nobody needs to build ahead of this any more who has not begun to."""
        for call in self._expecting(job, task):
            self._end_call(call)

    def _forget_built(self, job: str, task: str) -> None:
        """Nobody needs to build ahead what is out already."""
        whose = self.expected.get((job, task), {})
        for call in self._expecting(job, task):
            if not any(c in whose for c in call.rows):
                self._end_call(call)

    def _expecting(self, job: str, task: str) -> list[Call]:
        return [c for c in self.calling[job].values() if c.task == task and c.kind == "expect"]

    def _end_call(self, call: Call) -> None:
        self.calls.pop(call.id, None)
        self.calling.get(call.job, OrderedDict()).pop(call.id, None)
