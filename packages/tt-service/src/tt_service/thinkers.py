"""The processes that think for jobs: begun in turn, heard, halted and ended, and with them the states of jobs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tt_spec import WallClock
from tt_spec.errors import StoreError

from tt_service import wire
from tt_service.broker import Broker, Needs
from tt_service.dispatch import Dispatch
from tt_service.histories import Histories
from tt_service.jobs import Job, settle
from tt_service.ledger import Ledger
from tt_service.plain import plain
from tt_service.runner import Bounds, Runner

__all__ = ["Places", "Thinkers"]

SPARE_S = 120.0
"""How long a process waits for the job that a client will probably begin."""


@dataclass(frozen=True)
class Places:
    """Where jobs may think.

    Args:
        most: Processes at once; further jobs wait.
        bounds: Of each.
    """

    most: int = 8
    bounds: Bounds = field(default_factory=Bounds)


class Thinkers:
    """Processes of jobs.

    Not thread-safe but for `heard`, which takes the lock: whoever owns it has it for the rest.

    Args:
        jobs: All of them, by id, oldest first.
        clock: Never steps.
    """

    def __init__(
        self,
        places: Places,
        jobs: Mapping[str, Job],
        dispatch: Dispatch,
        histories: Histories,
        lock: AbstractContextManager[Any],
        clock: Callable[[], float],
    ) -> None:
        self.places, self.jobs, self.dispatch, self.histories = places, jobs, dispatch, histories
        self.lock, self.clock, self.wall = lock, clock, WallClock()
        self.closed = False
        self._later: list[tuple[Job, dict[str, Any]]] = []
        self._spare: Runner | None = None
        self._spare_until = 0.0

    @property
    def broker(self) -> Broker:
        return self.dispatch.broker

    @property
    def ledger(self) -> Ledger:
        return self.dispatch.ledger

    # -- states of jobs -----------------------------------------------------------------------------------------

    def open(self, job: Job) -> None:
        """Let agents work for a job."""
        job.tasks = job.tasks or {t.key: t.thing() for t in job.spec.tasks}
        self.broker.open(job.record.id, self._needs(job), job.private_to)

    def foresee(self) -> None:
        """A client is about to begin a job: start its process meanwhile, if there is room."""
        if self.closed or self._room() < 1:
            return
        self._spare_until = self.clock() + SPARE_S
        if self._spare is None:
            self._spare = self._process(None)

    def begin(self) -> None:
        """Start the oldest jobs that have no process, as many as may think. None before what an earlier process asked
        for is told, and the histories have it: the new one would ask for it again, or measure beyond the budget."""
        if not self.ledger.delivered:
            return
        room, pending = self._room(), self.broker.pending
        for job in self.jobs.values():
            free = job.record.state == "running" and job.runner is None and not self.closed
            if room > 0 and free and job.record.id not in pending:
                self._start(job)
                room -= 1

    def pause(self, job: Job, reason: str) -> None:
        """Stop thinking and hand out nothing; rows that are out count when they are told."""
        if job.record.state != "running":
            return
        self.broker.stop(job.record.id)
        job.halting = reason
        if job.runner is not None:
            job.runner.send("halt", reason=reason)
        self._state(job, "paused", reason)
        self.dispatch.settle()

    def resume(self, job: Job) -> None:
        """Go on from what the history and the journal hold."""
        if job.record.state == "paused":
            self._state(job, "running", "")
            self.open(job)
            self.dispatch.settle()
            self.begin()

    def end(self, job: Job, state: str, reason: str) -> None:
        """End a job for good; its rows stay in the history."""
        if job.ended:
            return
        self._leave(job)
        self.broker.drop(job.record.id)
        self.ledger.flush()
        job.record.ended = self.wall.now()
        self._state(job, state, reason)
        try:
            self.histories.of(job.private_to).end_run(job.record.run_id, reason)
        except StoreError as e:
            warnings.warn(str(e), stacklevel=2)
        settle(job.ready, None)
        self.dispatch.dismiss()
        self.begin()

    def tick(self) -> None:
        """What could not be kept is heard again, and whoever thinks beyond its bounds, or waits in vain, is ended."""
        if self._spare is not None and self.clock() > self._spare_until:
            self._spare.end()
            self._spare = None
        self.begin()
        later, self._later = self._later, []
        for job, message in later:
            self.heard(job, message)
        for job in list(self.jobs.values()):
            if job.runner is not None and (why := job.runner.exceeded(self.clock())) is not None:
                self.end(job, "failed", why)

    def close(self) -> list[Runner]:
        """Begin and hear nothing any more; the processes, which are to be ended without the lock."""
        self.closed = True
        for job in self.jobs.values():
            if job.runner is not None and job.record.state == "running":
                job.record.spent_s += self.clock() - job.began
                self.ledger.save(job)
        spare = [self._spare] if self._spare is not None else []
        return [*spare, *(j.runner for j in self.jobs.values() if j.runner is not None)]

    def _room(self) -> int:
        return self.places.most - sum(j.runner is not None for j in self.jobs.values())

    def _state(self, job: Job, state: str, reason: str) -> None:
        job.record.state, job.record.reason = state, reason
        self.ledger.save(job)
        self.ledger.event(job, "state", text=state if not reason else f"{state}: {reason}")

    def _needs(self, job: Job) -> dict[str, Needs]:
        return {t.key: Needs(job.spec.device, t.target, t.space.key, job.evaluator.piece) for t in job.tasks.values()}

    # -- processes ----------------------------------------------------------------------------------------------

    def _start(self, job: Job) -> None:
        job.began, job.halting = self.clock(), None
        job.runner = self._process(job)
        job.runner.send(
            "start",
            job=job.record.spec,
            history=self.histories.path,
            private=self.histories.path_of(job.private_to) if job.private_to is not None else None,
            run_id=job.record.run_id,
            spent_s=job.record.spent_s,
        )

    def _process(self, job: Job | None) -> Runner:
        """The process that waits, or a new one; heard for a job, or to wait."""
        spare, self._spare = self._spare, None
        if spare is not None:
            if job is None or spare.listen(partial(self._said, job, spare)):
                return spare
            spare.end()
        made = Runner(self.places.bounds, self.clock)
        if job is not None:
            made.listen(partial(self._said, job, made))
        made.start(spare=job is None)
        return made

    def _said(self, job: Job, runner: Runner, message: dict[str, Any] | None) -> None:
        """What a process says; the end of an earlier one of the job is none of its own."""
        with self.lock:
            if job.runner is runner:
                self.heard(job, message)

    def heard(self, job: Job, message: dict[str, Any] | None) -> None:
        """What a job's process says; None when it is gone."""
        with self.lock:
            if self.closed or job.runner is None:
                return
            if message is None:
                message = {"what": "gone"}
            try:
                _HEARD[message["what"]](self, job, message)
            except (KeyError, ValueError, TypeError) as e:
                self.end(job, "failed", f"its process said what cannot be understood ({type(e).__name__}: {e})")
            except StoreError:  # a full disk, say: the same message again, later
                self._later.append((job, message))
            with suppress(StoreError):  # tried again with the next change, or tick
                self.dispatch.settle()

    def _stopped(self, job: Job) -> None:
        """The process of a job that was paused has ended; it may have been resumed meanwhile."""
        self._leave(job)
        self.ledger.flush()
        self.begin()

    def _leave(self, job: Job) -> None:
        """The job has no process from now on."""
        if (runner := job.runner) is not None:
            job.record.spent_s += self.clock() - job.began
            job.runner = None
            runner.end()
        self.broker.forget_calls(job.record.id)
        job.calls, job.begun = {}, {}
        self.ledger.save(job)

    # -- what they say ------------------------------------------------------------------------------------------

    def _gone(self, job: Job, message: dict[str, Any]) -> None:
        runner = job.runner
        why = "its process ended" if runner is None else runner.post_mortem()
        if job.halting is not None:
            self._stopped(job)
        else:
            self.end(job, "failed", why)

    def _ready(self, job: Job, message: dict[str, Any]) -> None:
        job.evaluator = wire.PieceWire(piece=message["evaluator"], options=plain(message["options"]))
        job.record.evaluator = job.evaluator.model_dump_json()
        self.ledger.save(job)
        self.broker.open(job.record.id, self._needs(job), job.private_to)
        if job.record.state == "paused":
            self.broker.stop(job.record.id)
        settle(job.ready, None)

    def _refused(self, job: Job, message: dict[str, Any]) -> None:
        job.refused = str(message["why"])
        self.end(job, "failed", job.refused)

    def _measure(self, job: Job, message: dict[str, Any]) -> None:
        begun = job.begun.setdefault(message["task"], set())
        self._want(job, message, begun)
        begun.difference_update(message["rows"])

    def _begin(self, job: Job, message: dict[str, Any]) -> None:
        """What is measured while the process thinks. One agent alone would time beside it, if it is on this machine,
        and have no time for its questions."""
        task = message["task"]
        if job.record.state == "running" and self.broker.able(job.record.id, task, self.clock()) > 1:
            begun = job.begun.setdefault(task, set())
            self._want(job, message, begun)
            begun.update(message["rows"])

    def _want(self, job: Job, message: dict[str, Any], begun: Collection[tuple[int, ...]]) -> None:
        """Rows for the agents, but for those that they have or have told already."""
        job.bars[message["task"]] = message["bar"]
        rows = zip(message["rows"], message["origins"], strict=True)
        self.broker.want(job.record.id, message["task"], [(r, origin) for r, origin in rows if r not in begun])

    def _unwant(self, job: Job, message: dict[str, Any]) -> None:
        if job.record.state == "running":
            self.broker.unwant(job.record.id, message["task"], message["rows"])

    def _expect(self, job: Job, message: dict[str, Any]) -> None:
        self.broker.expect(job.record.id, message["task"], message["rows"], self.clock())

    def _call(self, job: Job, message: dict[str, Any]) -> None:
        call = self.broker.call(job.record.id, message["task"], message["kind"], message["rows"], message["body"])
        job.calls[call] = message["number"]

    def _batch(self, job: Job, message: dict[str, Any]) -> None:
        refused = [wire.Historic.of(m).model_dump() for m in message["refused"]]
        self.ledger.event(job, "batch", task=message["task"], batch=plain(message["about"]), results=refused)

    def _finished(self, job: Job, message: dict[str, Any]) -> None:
        self.ledger.event(job, "note", task=message["task"], text=str(message["reason"]))

    def _over(self, job: Job, message: dict[str, Any]) -> None:
        if message["halted"] is not None:
            self._stopped(job)
        elif message["failed"] is not None:
            self.end(job, "failed", str(message["reason"]))
        else:
            self.end(job, "done", str(message["reason"]))


_HEARD = {
    "gone": Thinkers._gone,
    "ready": Thinkers._ready,
    "refused": Thinkers._refused,
    "measure": Thinkers._measure,
    "begin": Thinkers._begin,
    "unwant": Thinkers._unwant,
    "expect": Thinkers._expect,
    "call": Thinkers._call,
    "batch": Thinkers._batch,
    "finished": Thinkers._finished,
    "over": Thinkers._over,
}
