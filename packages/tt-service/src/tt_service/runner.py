"""A job's process from the server's side: started, fed, bounded, and ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tt_spec import child

from tt_service.channel import Channel, Closed

__all__ = ["Bounds", "Runner"]

LAST_WORDS = 2000
"""Bytes of the process's stderr that are told."""


@dataclass(frozen=True)
class Bounds:
    """Of the process that thinks for a job.

    Args:
        cpu_s: CPU seconds in all.
        memory_bytes: Of private memory.
        silent_s: How long it may think without asking or saying anything.
    """

    cpu_s: int = 24 * 3600
    memory_bytes: int = 8 * 2**30
    silent_s: float = 900.0


class Runner:
    """The process of one job. It says nothing before `send("start")`.

    Args:
        clock: Never steps.
    """

    def __init__(self, bounds: Bounds, clock: Callable[[], float] = time.monotonic) -> None:
        self.bounds, self.clock = bounds, clock
        self.process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._said = clock()
        self._asking = False
        self._gone, self._changing = False, threading.Lock()
        self._hear: Callable[[dict[str, Any] | None], None] = lambda message: None
        self._errors: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self, spare: bool = False) -> None:
        """Start it, in an empty folder of its own; returns at once. One that is spare loads meanwhile what most jobs
        need."""
        ours, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, closed by `end`
        command = child.command("tt_service.thinking")
        arguments = [str(int(x)) for x in (theirs.fileno(), self.bounds.cpu_s, self.bounds.memory_bytes, spare)]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment = {k: v for k, v in os.environ.items() if k != "TT_KEY"}
        if found := environment.get("PYTHONPATH"):
            environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(p) for p in found.split(os.pathsep) if p)
        self._folder = tempfile.TemporaryDirectory(prefix="tt-job-", ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [*command, *arguments],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env={**threads, **environment},
            cwd=self._folder.name,
            start_new_session=True,
        )
        theirs.close()
        self._channel = Channel(ours)
        threading.Thread(target=self._read, daemon=True, name="job").start()

    def listen(self, hear: Callable[[dict[str, Any] | None], None]) -> bool:
        """Tell somebody of each message, then of None when it is gone; from a thread. False if it is gone already, also
        where its channel has not told yet."""
        with self._changing:
            if self._gone or (self.process is not None and self.process.poll() is not None):
                return False
            self._hear = hear
            return True

    def send(self, what: str, **fields: Any) -> None:
        """A message to the process; an answer lets it think on."""
        if self._channel is not None:
            self._channel.send(what, **fields)
            if what in ("answer", "trial", "start"):
                self._said, self._asking = self.clock(), False

    def exceeded(self, now: float) -> str | None:
        """Which bound the process has broken by being silent; None while it is well. CPU and memory end it by
        themselves."""
        if not self._asking and now - self._said > self.bounds.silent_s:
            return f"its pieces thought for more than {self.bounds.silent_s:g} s and said nothing"
        return None

    def post_mortem(self) -> str:
        """Why the process is gone, in one line."""
        code = None if self.process is None else _code(self.process)
        if code == -signal.SIGXCPU or (code == -signal.SIGKILL and not self._asking):
            return f"its pieces used more than {self.bounds.cpu_s} s of CPU, or were killed"
        words = self._last_words()
        if "MemoryError" in words or "bad_alloc" in words or "Unable to allocate" in words:
            return f"its pieces wanted more than {self.bounds.memory_bytes / 2**20:.0f} MiB of memory"
        return f"its process ended by itself (exit {code}{': ' + words if words else ''})"

    def end(self) -> None:
        """Kill it, if it still lives; may be called twice."""
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self._channel is not None:
            self._channel.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _last_words(self) -> str:
        if self._errors is None:
            return ""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - LAST_WORDS))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""

    def _read(self) -> None:
        channel = self._channel
        assert channel is not None
        try:
            while True:
                message = channel.receive()
                self._said, self._asking = self.clock(), message["what"] in ("call", "measure")
                self._hear(message)
        except (Closed, ValueError):
            with self._changing:
                self._gone, hear = True, self._hear
            hear(None)


def _code(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(5)
    except subprocess.TimeoutExpired:
        return None
