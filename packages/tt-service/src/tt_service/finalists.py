"""What ships from a machine that cannot run it: agents race the finalists and compare them with the untuned program."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping

import numpy as np
from tt_spec import Task
from tt_spec.errors import ProgramError

from tt_service import wire
from tt_service.errors import ServiceError
from tt_service.http import Http

__all__ = ["Finalists"]

WAIT_S = 20.0
"""How long one question may wait for its answer."""

ALONE_S, SILENT_S = 30.0, 120.0
"""How long nobody may be there who could answer, and how long the server may be away."""


class Finalists:
    """Agents of a server as the judges of a job's programs; see `tt_spec.roles.Judges`.

    Args:
        compiler: Versions of the compiler that makes the file here: a program of another was not judged.
        wait: Whether to wait for agents for as long as it takes.
        clock: Never steps.
    """

    def __init__(
        self,
        http: Http,
        job: str,
        compiler: Mapping[str, str],
        wait: bool = False,
        say: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.http, self.job, self.compiler, self.wait, self.say, self.clock = http, job, compiler, wait, say, clock

    def race(
        self,
        task: Task,
        codes: np.ndarray,
        rounds: int = 10,
        min_ms: float = 10.0,
        untuned: bool = False,
        cold: int = 0,
    ) -> list[list[float]]:
        """See `tt_spec.roles.Races`. Raises `ServiceError` where nobody is left to do it."""
        terms = wire.RaceIn(rounds=rounds, min_ms=min_ms, untuned=untuned, cold=cold)
        found = self._asked("race", task, codes, terms).race
        if found is None or len(found) != len(codes) + untuned or not all(found):
            raise ServiceError(f"{self.http.url}: the race of {task.name} has not the times that were asked for")
        return found

    def check(self, task: Task, row: np.ndarray) -> str | None:
        """See `tt_spec.roles.Checks`. Raises `ServiceError` where nobody is left to do it."""
        found = self._asked("check", task, np.asarray(row)[None], wire.RaceIn()).check
        if found is None:
            raise ServiceError(f"{self.http.url}: the check of {task.name} has no answer")
        return found.fault

    def _asked(self, kind: str, task: Task, codes: np.ndarray, race: wire.RaceIn) -> wire.JudgeOut:
        rows = [[int(c) for c in row] for row in np.asarray(codes)]
        asked = {"id": uuid.uuid4().hex, "task": task.key, "kind": kind, "rows": rows, "race": race, "wait_s": WAIT_S}
        question, alone, said = wire.JudgeIn.model_validate(asked), None, ""
        while True:
            until = self.clock() + SILENT_S
            self.http.stop = lambda until=until: self.clock() > until
            found = self.http.post(f"/v1/jobs/{self.job}/judge", question, wire.JudgeOut, wait_s=WAIT_S)
            if found.done:
                return self._judged(task, found)
            now = self.clock()
            alone = (now if alone is None else alone) if found.waiting else None
            if found.waiting and found.waiting != said:
                self.say(f"the finalists wait: {found.waiting}")
            said = found.waiting
            if alone is not None and not self.wait and now - alone >= ALONE_S:
                raise ServiceError(
                    f"nobody is left to race and verify the finalists, and this machine cannot: {found.waiting};"
                    " start an agent and run the same command again (--wait waits for one)"
                )

    def _judged(self, task: Task, found: wire.JudgeOut) -> wire.JudgeOut:
        """The answer, if it is about the programs that this machine would ship."""
        if found.failed is not None:
            raise ProgramError(found.failed.why, found.failed.error)
        for name, version in self.compiler.items():
            if found.versions.get(name) != version:
                theirs = found.versions.get(name, "unknown")
                raise ServiceError(
                    f"agent {found.agent} judges programs made by {name} {theirs}, the file would be made by"
                    f" {name} {version} here: install the same version on both"
                )
        return found
