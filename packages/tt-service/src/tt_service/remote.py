"""A measurer whose rows are measured elsewhere, by agents."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

import numpy as np
from tt_spec.errors import ProgramError
from tt_spec.roles import Realised
from tt_spec.types import Bar, Statements, Task, Trial, concat_statements

__all__ = ["Door", "Halted", "RemoteMeasurer"]

Config = tuple[int, ...]

REALISE_ROWS, FEATURES_ROWS = 512, 64
"""Rows of one call."""


class Halted(Exception):
    """The job is to pause or end; what is out counts when it is told."""


class Door(Protocol):
    """The way to the agents: messages out, messages in."""

    def send(self, what: str, **fields: Any) -> None: ...

    def receive(self) -> dict[str, Any]: ...


class RemoteMeasurer:
    """Rows out to agents, trials in as they come.

    Statements of `tt_spec.roles` about one machine hold for each agent: while one of them times, it does nothing else.
    Use it from one thread.

    Args:
        door: The broker's side.
        origin: Who proposed a row, by task and row.
        halted: Told when a message asks the job to halt, with the reason.
    """

    def __init__(
        self,
        door: Door,
        origin: Callable[[str, Config], str] = lambda task, config: "search",
        halted: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.door, self.origin, self.halted = door, origin, halted
        self._early: dict[tuple[str, Config], Trial] = {}
        self._answers: dict[int, dict[str, Any]] = {}
        self._calls = 0
        self._agents: dict[tuple[str, Config], str] = {}

    def measure(self, task: Task, codes: np.ndarray, bar: Bar) -> Generator[Trial]:
        """Trials in the order in which agents tell them. Closing it takes back what no agent has yet."""
        rows = _configs(codes)
        found = deque(t for r in rows if (t := self._early.pop((task.key, r), None)) is not None)
        left = set(rows) - {t.config for t in found}
        asked = [r for r in rows if r in left]
        if asked:
            origins = [self.origin(task.key, r) for r in asked]
            self.door.send("measure", task=task.key, rows=asked, origins=origins, bar=bar)
        try:
            while found or left:
                if found:
                    yield found.popleft()
                    continue
                message = self._next()
                if message["what"] == "trial" and message["task"] == task.key:
                    trial = message["trial"]
                    if trial.config in left:
                        left.discard(trial.config)
                        found.append(self._early.pop((task.key, trial.config)))
        finally:
            if left:
                self.door.send("unwant", task=task.key, rows=sorted(left))

    def begin(self, task: Task, codes: np.ndarray, bar: Bar) -> None:
        """Let agents measure these rows from now on, if there are several to share them; a single one builds meanwhile
        what it expects."""
        rows = _configs(codes)
        if rows:
            origins = [self.origin(task.key, r) for r in rows]
            self.door.send("begin", task=task.key, rows=rows, origins=origins, bar=bar)

    def expect(self, task: Task, codes: np.ndarray) -> None:
        """Let agents build these rows ahead; where there are several, each is told a part, which it then gets first."""
        if len(codes):
            self.door.send("expect", task=task.key, rows=_configs(codes))

    def retime(self, task: Task, codes: np.ndarray) -> Generator[Trial]:
        """Rows timed again where an agent still holds their programs."""
        if len(codes):
            answer = self._call("retime", task, codes)
            self._note(task, [t.config for t in answer["trials"]], answer)
            yield from answer["trials"]

    def realise(self, task: Task, codes: np.ndarray) -> Realised:
        codes = np.asarray(codes, dtype=np.int64)
        answers = self._parts("realise", task, codes, REALISE_ROWS)
        if not answers:
            return Realised(codes, ())
        for a in answers:
            rows, why = a["value"]
            self._note(task, _configs(rows[[w is not None for w in why]]), a)
        found = [a["value"] for a in answers]
        return Realised(np.concatenate([rows for rows, _ in found]), tuple(w for _, why in found for w in why))

    def features(self, task: Task, codes: np.ndarray) -> tuple[Statements, np.ndarray]:
        found = [a["value"] for a in self._parts("features", task, np.asarray(codes), FEATURES_ROWS)]
        oks = [np.asarray(ok, dtype=bool) for _, ok in found]
        return concat_statements([s for s, _ in found]), np.concatenate([np.zeros(0, dtype=bool), *oks])

    def made_by(self, task: str, row: Sequence[int]) -> str | None:
        """The agent that said of a task's row that it has no program, or timed it again; None is unknown."""
        return self._agents.get((task, tuple(int(c) for c in row)))

    def race(
        self,
        task: Task,
        codes: np.ndarray,
        rounds: int = 10,
        min_ms: float = 10.0,
        untuned: bool = False,
        cold: int = 0,
    ) -> list[list[float]]:
        """Finalists in turns, on one agent: see `tt_spec.roles.Races`."""
        terms = {"rounds": int(rounds), "min_ms": float(min_ms), "untuned": bool(untuned), "cold": int(cold)}
        return self._call("race", task, codes, terms)["value"]

    def check(self, task: Task, row: np.ndarray) -> str | None:
        """A row's outputs compared on an agent: see `tt_spec.roles.Checks`."""
        return self._call("check", task, np.asarray(row)[None])["value"]

    def close(self) -> None:
        """Holds nothing of its own."""

    # -- inside -------------------------------------------------------------------------------------------------

    def _parts(self, kind: str, task: Task, codes: np.ndarray, most: int) -> list[dict[str, Any]]:
        """Answers for all rows, `most` of them a call: agents share them, and a message stays small."""
        parts = [codes[i : i + most] for i in range(0, len(codes), most)]
        return [self._answer(number) for number in [self._send(kind, task, part) for part in parts]]

    def _call(self, kind: str, task: Task, codes: np.ndarray, body: Any = None) -> dict[str, Any]:
        return self._answer(self._send(kind, task, codes, body))

    def _send(self, kind: str, task: Task, codes: np.ndarray, body: Any = None) -> int:
        self._calls += 1
        self.door.send("call", number=self._calls, kind=kind, task=task.key, rows=_configs(codes), body=body)
        return self._calls

    def _answer(self, number: int) -> dict[str, Any]:
        while number not in self._answers:
            self._next()
        answer = self._answers.pop(number)
        if (failed := answer.get("failed")) is not None:
            raise ProgramError(failed["why"], failed["error"])
        return answer

    def _note(self, task: Task, rows: Sequence[Config], answer: dict[str, Any]) -> None:
        self._agents.update({(task.key, row): answer["agent"] for row in rows if answer.get("agent")})

    def _next(self) -> dict[str, Any]:
        """The next message; answers and trials that nobody waits for now are kept."""
        message = self.door.receive()
        if message["what"] == "halt":
            self.halted(message["reason"])
            raise Halted(message["reason"])
        if message["what"] == "answer":
            self._answers[message["number"]] = message
        elif message["what"] == "trial":
            self._early[message["task"], message["trial"].config] = message["trial"]
        return message


def _configs(codes: np.ndarray | Sequence[Sequence[int]]) -> list[Config]:
    return [tuple(int(c) for c in row) for row in np.asarray(codes)]
