"""The parent's end of one worker process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Pipe
from typing import Any, Literal

import psutil
from tt_spec.errors import PieceError

__all__ = ["Job", "Ending", "Process", "WorkerError"]

LOG_BYTES = 16 << 20


class WorkerError(PieceError):
    """A worker cannot do its work, and no candidate is to blame."""


@dataclass(frozen=True)
class Ending:
    """The end of a job.

    Args:
        verdict: "done", "raised" by the backend, "unopened" (the task could not be opened), "undecided" (the
            evaluator failed), or "lost": the process died or was stopped.
        stage: What the worker did last; "" if it had not begun the job.
        text: Message of everything but "done".
        reason: Of "lost": "time", "memory", or "" for a crash.
    """

    verdict: Literal["done", "raised", "unopened", "undecided", "lost"]
    value: Any = None
    stage: str = ""
    text: str = ""
    reason: str = ""


class Job:
    """A request in a worker's hands; `ending` is None until it is over."""

    def __init__(self, number: int, kind: str) -> None:
        self.number, self.kind = number, kind
        self.stage = ""
        self.began = self.since = time.monotonic()
        self.ended = self.began
        self.ending: Ending | None = None

    @property
    def seconds(self) -> float:
        """Wall clock from the last change of stage to the end."""
        return self.ended - self.since


class Process:
    """One worker process, started afresh with its own connection, session and log.

    Args:
        number: Of its first job, the start.
        hello: What `Worker.do_start` needs.
        threads: What TVM and OpenMP may use in it; set before anything is imported.
        place: Its number among the pool's workers, told by the environment variable `TT_WORKER`: a backend may
            choose a processor by it.
    """

    def __init__(self, number: int, hello: dict[str, Any], threads: int, place: int = 0) -> None:
        self.place = place
        self.conn, theirs = Pipe(duplex=True)
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        fcntl.fcntl(self.log, fcntl.F_SETFL, fcntl.fcntl(self.log, fcntl.F_GETFL) | os.O_APPEND)
        # the kernel ties a child to the thread that started it; a thread may end long before its process
        tied = threading.current_thread() is threading.main_thread()
        safe = ["-P"] if sys.version_info >= (3, 11) else []
        command = [sys.executable, "-u", *safe, "-m", "tt_measure.worker", str(theirs.fileno()), str(os.getpid())]
        counts = {"TVM_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        env = {**os.environ, **counts, "TT_WORKER": str(place)}
        self.popen = subprocess.Popen(
            [*command, str(int(tied))],
            env=env,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        theirs.close()
        self.owner = os.getpid()
        self.lost = False
        self.known: set[str] = set()
        self.tokens: set[int] = set()
        self.kept: dict[str, dict[bytes, int]] = {}
        self._excess = ""
        self._log_at = 0
        self.job: Job | None = None
        with contextlib.suppress(psutil.Error):
            self._ps = psutil.Process(self.popen.pid)
        self.send(number, "start", hello)

    def send(self, number: int, kind: str, *args: Any) -> Job:
        """Hand over a job; the worker must have none. The job of a worker that is lost is over at once."""
        self.job = job = Job(number, kind)
        if not self.lost:
            self._log_at = os.fstat(self.log.fileno()).st_size
        self._write(number, kind, pickle.dumps(args))
        return job

    def keep(self, task_key: str, row: bytes, name: int, names: tuple[int, ...]) -> None:
        """Take down which programs of a task the worker holds, `name` that of `row`."""
        known = self.kept.setdefault(task_key, {})
        known[row] = name
        self.kept[task_key] = {r: n for r, n in known.items() if n in names}

    def tell(self, kind: str, payload: Any) -> None:
        """Send what needs no answer."""
        self._write(0, kind, pickle.dumps(payload))

    def _write(self, number: int, kind: str, blob: bytes) -> None:
        if self.lost:
            self.end(Ending("lost", text="the worker had ended before"))
            return
        try:
            self.conn.send_bytes(pickle.dumps((number, kind, blob)))
        except OSError:
            self.bury()
        except BaseException:  # an interrupt in mid-message: nothing more can be said on this connection
            self.kill()
            raise

    def receive(self) -> None:
        """Take one message; call when the connection is readable."""
        try:
            blob = self.conn.recv_bytes()
            number, verdict, value = pickle.loads(blob)
        except (EOFError, OSError):
            self.bury()
            return
        except Exception as e:
            self.end(Ending("raised", text=f"its result cannot be read here: {type(e).__name__}: {e}"))
            return
        except BaseException:
            self.kill()
            raise
        job = self.job
        if job is None or job.number != number:
            return
        if verdict == "stage":
            job.stage, job.since = value, time.monotonic()
        elif verdict == "done":
            self.end(Ending("done", value, job.stage))
        else:
            self.end(Ending(verdict, stage=job.stage, text=brief(value)))

    def end(self, ending: Ending) -> None:
        """The job in hand is over."""
        if self.job is not None:
            self.job.ended = time.monotonic()
            self.job.ending, self.job = ending, None

    def watch(self, memory_bytes: float) -> None:
        """Stop the worker if it uses more memory than it may; keep its log small."""
        used = self.memory()
        if used > memory_bytes and not self._excess:
            self._excess = f"used {used / 1e9:.2f} GB of memory, more than the {memory_bytes / 1e9:.2f} GB allowed"
            self.kill()
        if os.fstat(self.log.fileno()).st_size > LOG_BYTES:
            os.ftruncate(self.log.fileno(), 0)
            self._log_at = 0

    def memory(self) -> int:
        """Resident bytes."""
        try:
            return self._ps.memory_info().rss
        except (psutil.Error, AttributeError):
            return 0

    def bury(self) -> None:
        """The process is gone, or cannot be talked to: end it and say why it ended."""
        if self.lost:
            return
        self.lost = True
        self.kill()
        code = self.popen.wait()
        self.conn.close()
        stage = self.job.stage if self.job else ""
        if self._excess:
            text, reason = self._excess, "memory"
        elif code == -signal.SIGALRM:
            text, reason = "took too long", "time"
        else:
            text, reason = _fate(code), ""
        tail = self._tail()
        self.log.close()
        self.end(Ending("lost", stage=stage, text=f"{text}; last output: {tail}" if tail else text, reason=reason))

    def kill(self) -> None:
        """Kill the worker and what it started."""
        if self.popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)

    def leave(self) -> None:
        """Let an idle worker end by itself; `close` then makes sure."""
        if self.job is None:
            self.conn.close()

    def close(self, grace_s: float = 1.0) -> None:
        """End the worker: an idle one may leave by itself, a busy one is killed."""
        if self.lost or os.getpid() != self.owner:  # a fork must not end its parent's workers
            return
        if self.job is None:
            self.leave()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(grace_s)
        self.lost = True
        self.kill()
        self.popen.wait()
        self.conn.close()
        self.log.close()
        self.end(Ending("lost", text="the pool was closed"))

    def _tail(self, lines: int = 5, chars: int = 600) -> str:
        size = os.fstat(self.log.fileno()).st_size
        start = max(self._log_at if self._log_at <= size else 0, size - 4 * chars)
        text = os.pread(self.log.fileno(), size - start, start).decode(errors="replace").replace("\0", "")
        return " | ".join(text.strip().splitlines()[-lines:])[-chars:]


def brief(text: str, head: int = 400, tail: int = 800) -> str:
    """Both ends of a long message; a compiler's last line says most."""
    return text if len(text) <= head + tail else f"{text[:head]} […] {text[-tail:]}"


def _fate(code: int) -> str:
    if code >= 0:
        return f"the worker exited with status {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    more = " (the kernel does this when memory runs out)" if code == -signal.SIGKILL else ""
    return f"the worker was killed by {name} ({signal.strsignal(-code) or 'unknown'}){more}"
