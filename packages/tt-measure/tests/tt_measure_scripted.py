"""Workers whose every word a test says: the process only sleeps, the test holds its end of the connection."""

import multiprocessing.connection
import os
import pickle
import time
from multiprocessing.connection import Connection
from typing import Any

import pytest
from tt_measure import process
from tt_measure.process import Job, Process


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
