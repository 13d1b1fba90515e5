"""Workers whose every word a test says: the process only sleeps, the test holds its end of the connection."""

import multiprocessing.connection
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest
from tt_measure import process
from tt_measure.process import Job, Process
from tt_measure.team import Team


class Scripted:
    """Makes processes; `ends[p]` is the worker's end of `p`'s connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, script: str = "exec sleep 60") -> None:
        self.script, self.fresh = script, []
        self.ends: dict[Process, Connection] = {}
        self.numbers = iter(range(1, 1000))
        pipe = multiprocessing.connection.Pipe

        def kept(duplex: bool):
            ours, theirs = pipe(duplex)
            self.fresh.append(Connection(os.dup(theirs.fileno())))
            return ours, theirs

        monkeypatch.setattr(process, "Pipe", kept)
        monkeypatch.setattr("tt_measure.process.child.command", lambda *_: ["sh", "-c", self.script, "sh"])

    def make(self, started: bool = True, **options: Any) -> Process:
        """A process, which has started unless told otherwise."""
        p = Process(next(self.numbers), {"limit_s": 60.0}, 1, **options)
        self.ends[p] = self.fresh.pop()
        if started:
            self.says(p, "done", (time.monotonic(), None))
        return p

    def adopt(self, processes: list[Process]) -> None:
        """Know the ends of processes that others made, in their order."""
        for p in processes:
            if p not in self.ends:
                self.ends[p] = self.fresh.pop(0)

    def says(self, p: Process, verdict: str, value: Any, number: int | None = None) -> None:
        """One message, which the parent takes."""
        number = p.job.number if number is None and p.job is not None else number
        self.ends[p].send_bytes(pickle.dumps((number, verdict, value)))
        p.receive()

    def hears(self, p: Process) -> list[tuple[int, str, Any]]:
        """All that the parent has said since."""
        said = []
        while self.ends[p].poll():
            number, kind, blob = pickle.loads(self.ends[p].recv_bytes())
            said.append((number, kind, pickle.loads(blob)))
        return said

    def job(self, p: Process, kind: str = "build", **about: Any) -> Job:
        return p.send(Job(next(self.numbers), kind, **about), "argument")

    def hang_up(self, p: Process) -> None:
        self.ends.pop(p).close()

    def close(self) -> None:
        for p, end in self.ends.items():
            end.close()
            p.close(0.0)


NEVER = "never", None
"""A worker's answer that does not come."""


class Crew:
    """Workers that answer as `plays` says, in a thread of their own.

    Args:
        plays: Of a job's kind and its arguments: the stage that the worker announces, and its answer or the
            signal that it dies of.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, plays: Callable[..., Any], size: int = 1) -> None:
        self.scripted, self.plays = Scripted(monkeypatch, "exec sleep 300"), plays
        self.jobs: list[tuple] = []
        self.dropped: list[int] = []
        self.team = Team(size, 1, 1e9, {"limit_s": 60.0, "backend": "b:B"}, 60.0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        ends = []
        while not self._over.is_set():
            ends += [self.scripted.fresh.pop(0) for _ in range(len(self.scripted.fresh))]
            for end in list(ends):
                if end.poll(0.002) and not self._answers(end):
                    ends.remove(end)
        for end in ends:
            end.close()

    def _answers(self, end: Connection) -> bool:
        try:
            number, kind, blob = pickle.loads(end.recv_bytes())
        except (EOFError, OSError):
            end.close()
            return False
        said = pickle.loads(blob)
        if number == 0:
            self.dropped += said if kind == "drop" else []
            return True
        self.jobs.append((kind, *said))
        stage, answer = ("", ("done", None)) if kind == "start" else self.plays(kind, *said)
        if stage:
            end.send_bytes(pickle.dumps((number, "stage", (stage, 60.0))))
        if isinstance(answer, signal.Signals):
            dying = next(p.popen for p in self.team.processes if p.job is not None and p.job.number == number)
            dying.send_signal(answer)
            end.close()
            return False
        verdict, value = answer
        if answer == NEVER:
            return True
        end.send_bytes(pickle.dumps((number, verdict, (time.monotonic(), value))))
        return True

    def kinds(self) -> str:
        """First letters of the jobs, without starts."""
        return "".join(kind[0] for kind, *_ in self.jobs if kind != "start")

    def end(self) -> None:
        self.team.end()
        self._over.set()
        self._thread.join(10)
