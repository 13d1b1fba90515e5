"""A server in a thread, agents in threads, and a measurer whose times are a formula: real HTTP, no compiler."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tt_service import wire
from tt_service.agent import Agent
from tt_service.database import path_of
from tt_service.http import Http
from tt_service.keys import Keys
from tt_service.listening import Listening
from tt_service.outbox import Outbox
from tt_service.server import Options, make
from tt_spec import Task
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task

__all__ = ["Bench", "House", "Judge", "house", "job_of"]


class Judge(SyntheticMeasurer):
    """One that builds what it expects, times again, races and checks."""

    def __init__(self) -> None:
        super().__init__()
        self.expected = 0

    def expect(self, task: Task, codes: np.ndarray) -> None:
        self.expected += len(codes)

    def retime(self, task: Task, codes: np.ndarray) -> Iterator[Any]:
        for trial in self.measure(task, codes, None):  # pyright: ignore[reportArgumentType]
            if trial.error is None:
                yield trial

    def race(
        self,
        task: Task,
        codes: np.ndarray,
        rounds: int = 10,
        min_ms: float = 10.0,
        untuned: bool = False,
        cold: int = 0,
    ):
        times = [[float(s)] * rounds for s in self.seconds(task, codes)]
        return [*times, [1.0]] if untuned else times

    def check(self, task: Task, row: np.ndarray) -> str | None:
        return None


@dataclass
class Bench:
    """A bench of a formula."""

    device: str = "toy"
    targets: Sequence[str] = ("*",)
    evaluators: Sequence[str] = ("fixed", "once")
    versions: dict[str, str] = field(default_factory=lambda: {"toy": "1"})
    made: Any = field(default_factory=Judge)

    def measurer(self, evaluator: str, options: dict[str, Any]) -> Any:
        return self.made


def job_of(*tasks: Task, **more: Any) -> wire.JobIn:
    """A small job of the plainest recipe."""
    tasks = tasks or (synthetic_task(),)
    asked = {"name": "toy", "recipe": "random", "device": "toy", "trials": 24, "sets": ["batch=8"], **more}
    return wire.JobIn(tasks=[wire.TaskWire.of(t) for t in tasks], **asked)


class House:
    """A running server with what a test needs to talk to it."""

    def __init__(self, server: Any, folder: Path) -> None:
        self.server, self.folder = server, folder
        keys = Keys(path_of(folder / "shared.db"))
        self.key = keys.add("me", ("jobs", "agent"))
        keys.close()
        self.http = Http(self.url, self.key)
        self.agents: list[Agent] = []
        self._over: list[str | None] = [None]
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def agent(self, name: str = "a", bench: Any = None, **more: Any) -> Agent:
        """An agent that works in a thread until the house ends."""
        more = {"wait_s": 2.0, "halt": lambda: self._over[0], **more}
        outbox = Outbox(self.folder / f"{name}.db", self.url)
        agent = Agent(Http(self.url, self.key), outbox, bench or Bench(), name=name, **more)
        self.agents.append(agent)
        self._threads.append(threading.Thread(target=agent.run, daemon=True))
        self._threads[-1].start()
        return agent

    def ended(self, job: wire.JobOut, states: tuple[str, ...] = ("done", "failed", "cancelled")) -> list[wire.EventOut]:
        """All events until the job is in one of the states."""
        found: list[wire.EventOut] = []
        for _ in range(1000):
            after = found[-1].number if found else 0
            page = self.http.get(f"/v1/jobs/{job.id}/events", wire.Events, wait_s=5, after=after)
            found += page.events
            if not page.events and page.job.state in states:
                break
        return found

    def end(self) -> None:
        self._over[0] = "the test is over"
        for thread in self._threads:
            thread.join(10)
        self.http.close()


@contextmanager
def house(folder: Path, **options: Any) -> Iterator[House]:
    """A server over a history in the folder; the same folder again is the same server, started again."""
    ready = threading.Event()

    def on(port: int) -> None:
        server.port = port  # pyright: ignore[reportAttributeAccessIssue]
        ready.set()

    server = make(Options(folder / "shared.db", **{"listening": Listening(port=0), **options}), on)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert ready.wait(30), "the server did not start"
    found = House(server, folder)
    try:
        yield found
    finally:
        found.end()
        server.should_exit = True
        thread.join(15)
        assert not thread.is_alive(), "the server did not end"
