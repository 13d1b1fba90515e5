"""Finalists that a client cannot run itself: agents race and check them for it, whatever state the job is in."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tt_spec import UserError

from tt_service import wire
from tt_service.broker import Broker, Call, Needs

__all__ = ["Crowded", "Judging", "Refused", "Verdict", "job_of"]

MOST = 256
"""Questions that wait for an agent at once, and answers that are kept for clients whose connection broke."""

_FINALS = "-finals"
"""What the broker calls a job's finalists: its id and this. The job itself may be paused or over."""


class Refused(UserError):
    """What was asked for or told cannot be taken: a job that cannot be run, a result that contradicts its batch."""


class Crowded(Exception):
    """Too many questions wait: come again."""


@dataclass
class Verdict:
    """A client's question about finalists of a job.

    Args:
        place: The broker's name for them.
        answer: An agent's, once there is one.
    """

    place: str
    answer: wire.JudgeOut | None = None
    _waiting: list[Future[None]] = field(default_factory=list)

    def wait(self) -> Future[None]:
        """Done when there is an answer, or none is to come; whoever waits may cancel it."""
        mine: Future[None] = Future()
        self._waiting = [*(f for f in self._waiting if not f.done()), mine]
        if self.answer is not None:
            self.settle(self.answer)
        return mine

    def settle(self, answer: wire.JudgeOut | None) -> None:
        """Give the answer to all who wait."""
        self.answer = answer
        for future in self._waiting:
            if not future.done():
                future.set_result(None)


class Judging:
    """All such questions of a server. They are not kept on disk: a client asks again.

    Not thread-safe: whoever owns the broker has the lock.
    """

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._verdicts: dict[tuple[str, str], Verdict] = {}
        self._calls: dict[str, Verdict] = {}

    def ask(self, job: str, spec: wire.JobIn, evaluator: str, only: str | None, asked: wire.JudgeIn) -> Verdict:
        """The verdict on a question about a job; the same question twice is one. Raises `Refused` or `Crowded`.

        Args:
            only: The one owner whose agents may answer; None is anybody's.
        """
        if (known := self._verdicts.get((job, asked.id))) is not None:
            return known
        if asked.task not in spec.by_key:
            raise Refused(f"the job has no task {asked.task!r}")
        task = spec.by_key[asked.task].thing()
        rows, knobs = [tuple(r) for r in asked.rows], len(task.space.knobs)
        fit = all(len(r) == knobs for r in rows)
        if not fit or not task.space.in_range(np.array(rows, dtype=np.int64).reshape(-1, knobs)).all():
            raise Refused(f"a row is not of the space of task {task.name}")
        if asked.kind == "check" and len(rows) != 1:
            raise Refused(f"a check is of one row, got {len(rows)}")
        if len(self._calls) >= MOST:
            raise Crowded(f"{MOST} questions about finalists wait for agents now")
        done = [key for key, v in self._verdicts.items() if v.answer is not None]
        for key in done[: max(0, len(done) - MOST + 1)]:
            del self._verdicts[key]
        verdict = self._verdicts[job, asked.id] = Verdict(job + _FINALS)
        self.broker.open(verdict.place, {task.key: Needs(spec.device, task.target, task.space.key, evaluator)}, only)
        body = asked.race.model_dump() if asked.kind == "race" else None
        self._calls[self.broker.call(verdict.place, task.key, asked.kind, rows, body)] = verdict
        return verdict

    def answered(
        self, call: Call, value: Any, failed: dict[str, str] | None, agent: str, versions: dict[str, str]
    ) -> bool:
        """An agent answered a call, or two died on it; whether the call was a client's question."""
        verdict = self._calls.pop(call.id, None)
        if verdict is None:
            return False
        found = wire.JudgeOut(done=True, agent=agent, versions=versions)
        if failed is not None:
            late = failed["error"] == "run-timeout"
            found.failed = wire.FailedWire(error="run-timeout" if late else "run", why=failed["why"])
        elif call.kind == "race":
            found.race = value
        else:
            found.check = wire.FaultWire(fault=value)
        verdict.settle(found)
        if all(v.place != verdict.place for v in self._calls.values()):
            self.broker.drop(verdict.place)
        return True

    def told(self, verdict: Verdict, now: float) -> wire.JudgeOut:
        """The answer, or why there is none yet."""
        return verdict.answer or wire.JudgeOut(done=False, waiting=self.broker.lacking(verdict.place, now))

    def close(self) -> None:
        """Nobody is to wait any more."""
        for verdict in self._calls.values():
            verdict.settle(None)


def job_of(place: str) -> str:
    """The job whose work the broker has under a name."""
    return place.removesuffix(_FINALS)
