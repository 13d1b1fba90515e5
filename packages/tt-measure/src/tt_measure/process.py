"""The parent's end of one worker process."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import pickle
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Pipe
from typing import Any, Literal

import psutil
from tt_spec import child
from tt_spec.errors import PieceError, ProgramError

from tt_measure import family

__all__ = ["BEAT_S", "CallError", "Job", "Ending", "GRACE_S", "Process", "WorkerError"]

LOG_BYTES = 16 << 20

BEAT_S = 1.0
"""How often a worker that waits for the timing lock says that it lives."""

GRACE_S = 10.0
"""How long a worker may stay silent beyond what it announced."""

SPINS = "1000"
"""How often an idle thread of TVM's pool looks for work before it sleeps, unless the user's environment says: some 0.2
to 0.7 ms. TVM's own 300,000 are 0.1 to 0.2 s, for which another worker's programs share a processor with it."""

LOOK_S = 0.2
"""How long a worker is silent before the system is asked for its state, and how often from then on."""

DYING_S = 1.0
"""How long a worker whose connection has ended may take to die of what it dies of."""

REAP_S = 5.0
"""How long the kernel may take to end a killed worker; one in an uninterruptible sleep is left behind then."""


class WorkerError(PieceError):
    """A worker cannot do its work, and no candidate is to blame."""


class CallError(WorkerError, ProgramError):
    """A method of the backend crashed, hung or raised."""


@dataclass(frozen=True)
class Ending:
    """The end of a job.

    Args:
        verdict: "done", "raised" by the backend, "unopened" (the task could not be opened), "undecided" (the
            evaluator failed), or "lost": the process died or was stopped.
        stage: What the worker did last; "" if it had not begun the job.
        text: Message of everything but "done".
        reason: Of "lost": "time" (it kept to its limit), "silent" (it did not answer), "memory", "killed" (by SIGKILL
            from outside, the kernel's OOM killer for one), or "" for a crash.
    """

    verdict: Literal["done", "raised", "unopened", "undecided", "lost"]
    value: Any = None
    stage: str = ""
    text: str = ""
    reason: str = ""

    @property
    def from_outside(self) -> bool:
        """Whether the worker was stopped or killed by somebody else."""
        return self.verdict == "lost" and self.reason in ("silent", "killed")

    @property
    def unbegun(self) -> bool:
        """Whether the worker was lost from outside before it was at work on the job itself."""
        return self.from_outside and self.stage in ("", "open")


class Job:
    """A request in a worker's hands; `ending` is None until it is over.

    Args:
        memory_bytes: What its worker may use meanwhile.

    Attributes:
        waits: When others had the timing lock, and for how many seconds.
    """

    def __init__(self, number: int, kind: str, memory_bytes: float = math.inf) -> None:
        self.number, self.kind, self.memory_bytes = number, kind, memory_bytes
        self.stage = ""
        self.began = self.since = time.monotonic()
        self.ended = self.began
        self.over: float | None = None
        self.waits: list[tuple[float, float]] = []
        self.ending: Ending | None = None

    @property
    def worked_until(self) -> float:
        """When the worker was done with it, by the machine's clock; it may be told of that later."""
        return self.ended if self.over is None else self.over

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
        grace_s: How long it may stay silent beyond what it announced; then it is killed.
    """

    def __init__(
        self, number: int, hello: dict[str, Any], threads: int, place: int = 0, grace_s: float = GRACE_S
    ) -> None:
        self.place, self.grace_s = place, grace_s
        self.heard, self.deadline, self.waits = time.monotonic(), math.inf, ""
        self.conn, theirs = Pipe(duplex=True)
        _bound(self.conn.fileno(), grace_s)
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        fcntl.fcntl(self.log, fcntl.F_SETFL, fcntl.fcntl(self.log, fcntl.F_GETFL) | os.O_APPEND)
        # the kernel ties a child to the thread that started it; a thread may end long before its process
        tied = threading.current_thread() is threading.main_thread()
        command = [*child.command("tt_measure.worker", "-u"), str(theirs.fileno()), str(os.getpid())]
        counts = {"TVM_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        self.mark = family.fresh_mark()
        env = {"TVM_THREAD_POOL_SPIN_COUNT": SPINS, **os.environ, **counts}
        env |= {"TT_WORKER": str(place), family.MARK: self.mark}
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
        self._silence = ""
        self._killed = False
        self._stopped_at = math.inf
        self._looked = 0.0
        self._log_at = 0
        self.job: Job | None = None
        self.queue: deque[Job] = deque()
        with contextlib.suppress(psutil.Error):
            self._ps = psutil.Process(self.popen.pid)
        self.send(Job(number, "start"), hello)
        self._expect(hello["limit_s"])

    def send(self, job: Job, *args: Any) -> Job:
        """Hand over a job; a worker that has one does it afterwards. The job of a worker that is lost is over at
        once."""
        if self.job is None:
            self._begin(job)
        else:
            self.queue.append(job)
        self._write(job.number, job.kind, pickle.dumps(args))
        return job

    def _begin(self, job: Job) -> None:
        self.job, self.waiting_s = job, 0.0
        job.began = job.since = time.monotonic()
        if not self.lost:
            self._log_at = os.fstat(self.log.fileno()).st_size
        self._expect(0.0)

    @property
    def load(self) -> int:
        """Jobs in hand."""
        return (self.job is not None) + len(self.queue)

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
        except BlockingIOError:
            self._silence = self._unanswered()
            self.bury()
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
        except (EOFError, OSError) as e:
            if isinstance(e, BlockingIOError):  # it was stopped in the middle of a message
                self._silence = self._unanswered()
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
        self._expect(0.0)
        if verdict == "stage":
            (job.stage, within_s), job.since = value, time.monotonic()
            self._expect(within_s)
        elif verdict == "waited":
            job.waits.append(value)
        elif verdict == "waiting":
            self.waits, self.waiting_s = value, self.waiting_s + BEAT_S
        else:
            over, value = value
            job.over = max(job.began, min(over, time.monotonic()))
            done = verdict == "done"
            self.end(Ending("done", value, job.stage) if done else Ending(verdict, stage=job.stage, text=brief(value)))

    def end(self, ending: Ending) -> None:
        """The job in hand is over; the next one begins, or if the worker is lost, is over too."""
        if self.job is None:
            return
        self.job.ended = time.monotonic()
        self.job.ending, self.job = ending, None
        if ending.verdict == "lost":
            for job in self.queue:
                job.ending = Ending("lost", text=ending.text)
            self.queue.clear()
        elif self.queue:
            self._begin(self.queue.popleft())

    def watch(self) -> None:
        """Stop the worker if it uses more memory than its job may or has been silent for too long; keep its log
        small."""
        used, allowed = self.memory(), math.inf if self.job is None else self.job.memory_bytes
        if used > allowed and not self._excess:
            self._excess = f"used {used / 1e9:.2f} GB of memory, more than the {allowed / 1e9:.2f} GB allowed"
            self.kill()
        if os.fstat(self.log.fileno()).st_size > LOG_BYTES:
            os.ftruncate(self.log.fileno(), 0)
            self._log_at = 0
        now = time.monotonic()
        if now < max(self.heard, self._looked) + LOOK_S:
            return
        self._looked, status = now, self._status()
        dead = status in (None, psutil.STATUS_ZOMBIE)
        if status != psutil.STATUS_STOPPED:
            self._stopped_at = math.inf
        self._stopped_at = min(self._stopped_at, now)
        # limits of opening and of calls are minutes, for which a stopped one would keep the timing lock from everybody
        late = now > min(
            self.deadline, self._stopped_at + self.grace_s if status == psutil.STATUS_STOPPED else math.inf
        )
        if (late or dead) and not self.conn.poll():
            # of a dead one the connection may be open yet: in a process that its candidate forked
            self._silence = "" if dead else self._unanswered()
            self.bury()

    def _expect(self, within_s: float) -> None:
        """It is to be heard of within so long, and the grace."""
        self.heard, self.waits = time.monotonic(), ""
        self.deadline = self.heard + within_s + self.grace_s

    def _unanswered(self) -> str:
        """In words how long nothing was heard, and what it does instead where the system says so."""
        with contextlib.suppress(psutil.Error, AttributeError):
            states = {psutil.STATUS_STOPPED: ", it was stopped", psutil.STATUS_DISK_SLEEP: ", it slept in the kernel"}
            about = states.get(self._ps.status(), "")
            return f"the worker did not answer for {time.monotonic() - self.heard:.0f} s{about}"
        return "the worker did not answer"

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
        until = time.monotonic() + (0.0 if self._silence else DYING_S)
        while not self._dead() and time.monotonic() < until:
            time.sleep(1e-3)
        self.kill()
        code = self._reaped()
        family.end([self.mark])
        self.conn.close()
        stage = self.job.stage if self.job else ""
        text, reason = self._cause(code)
        tail = self._tail()
        self.log.close()
        self.end(Ending("lost", stage=stage, text=f"{text}; last output: {tail}" if tail else text, reason=reason))

    def _cause(self, code: int | None) -> tuple[str, Literal["time", "silent", "memory", "killed", ""]]:
        """Why it ended: a text and an `Ending`'s reason."""
        if self._excess:
            return self._excess, "memory"
        if self._silence or code is None:
            return self._silence or "the worker did not answer, and the kernel does not end it", "silent"
        if code == -signal.SIGALRM:
            return "took too long", "time"
        return _fate(code), "killed" if code == -signal.SIGKILL and not self._killed else ""

    def _status(self) -> str | None:
        """In psutil's words; None once it is gone."""
        with contextlib.suppress(psutil.Error, AttributeError):
            return self._ps.status()
        return None

    def _dead(self) -> bool:
        return self._status() in (None, psutil.STATUS_ZOMBIE)

    def _reaped(self) -> int | None:
        """The exit status; None if the kernel does not end the process."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.popen.wait(REAP_S)
        return None

    def kill(self) -> None:
        """Kill the worker and what it started."""
        if self.popen.returncode is None:
            below = family.descendants(self.popen.pid)
            self._killed = self._killed or not self._dead()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)
            if below:
                family.end([self.mark], below)

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
        self._reaped()
        self.conn.close()
        self.log.close()
        self.end(Ending("lost", text="the pool was closed"))

    def _tail(self, lines: int = 5, chars: int = 600) -> str:
        size = os.fstat(self.log.fileno()).st_size
        start = max(self._log_at if self._log_at <= size else 0, size - 4 * chars)
        text = os.pread(self.log.fileno(), size - start, start).decode(errors="replace").replace("\0", "")
        return " | ".join(text.strip().splitlines()[-lines:])[-chars:]


def _bound(fd: int, seconds: float) -> None:
    """Let reading from and writing to a worker fail that takes longer than so long: it may be stopped in the middle of
    a message."""
    with socket.socket(fileno=os.dup(fd)) as s:
        for which in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            s.setsockopt(socket.SOL_SOCKET, which, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))


def brief(text: str, head: int = 400, tail: int = 800) -> str:
    """Both ends of a long message; a compiler's last line says most."""
    return text if len(text) <= head + tail else f"{text[:head]} […] {text[-tail:]}"


def _fate(code: int) -> str:
    if code >= 0:
        return f"the worker exited with status {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    more = " (the kernel does this when memory runs out)" if code == -signal.SIGKILL else ""
    return f"the worker was killed by {name} ({signal.strsignal(-code) or 'unknown'}){more}"
