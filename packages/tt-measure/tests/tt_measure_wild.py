"""A backend whose rows decide how it misbehaves: `(behaviour, milliseconds, id)`. Logs what it does, with times."""

import ctypes
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
from tt_spec import Knob, Realised, Space, Statements, Task, Timing

BEHAVIOURS = (
    "ok",
    "build-abort",
    "build-hang",
    "build-hang-native",
    "build-memory",
    "build-raise",
    "build-exit",
    "build-die",
    "build-slow",
    "run-segv",
    "run-hang",
    "run-memory",
    "run-raise",
    "run-exit",
    "run-nan",
    "wrong",
    "check-segv",
    "noisy",
    "leak",
    "child",
    "build-stop",
    "run-stop",
    "check-stop",
    "build-deaf",
    "build-killed",
    "run-killed",
    "oom",
    "daemon",
    "daemon-hang",
)


def task(log: object = "", name: str = "wild") -> Task:
    knobs = (Knob("behaviour", "choice", BEHAVIOURS), Knob("ms", "choice", tuple(range(100))))
    space = Space((*knobs, Knob("id", "choice", tuple(range(1000)))), name="wild")
    return Task(f"{name}-{log}", name, "wild", "none", (space,), 1e6, payload=str(log).encode())


def row(behaviour: str, ms: int, number: int) -> list[int]:
    return [BEHAVIOURS.index(behaviour), ms, number]


class Backend:
    def __init__(self) -> None:
        self.opened: list[str] = []
        self.leaked: list[bytes] = []

    def open(self, task: Task) -> None:
        if task.name == "unopenable":
            raise RuntimeError("no such workload")
        if task.name == "open-crash":
            os.abort()
        if task.name == "open-stop":
            once(task.payload.decode(), stop)
        self.opened.append(task.key)

    def build(self, task: Task, row: np.ndarray) -> "Candidate":
        kind, ms = BEHAVIOURS[row[0]], int(row[1])
        c = Candidate(task, kind, ms, row)
        began = time.monotonic()
        c.log("build-begin", began, began)
        if kind == "build-abort":
            sys.stderr.write("terminate called: tile does not divide\n")
            os.abort()
        if kind in ("build-hang", "build-hang-native"):
            while True:
                if kind == "build-hang-native":
                    ctypes.PyDLL(None).pause()  # holds the interpreter's lock: no Python thread could end this
        if kind == "build-memory":
            hog()
        if kind == "build-raise":
            raise RuntimeError("stack " * 2000 + "InternalError: the last line")
        if kind == "build-exit":
            sys.exit(3)
        if kind == "build-die":
            os._exit(7)
        if kind == "child":
            p = subprocess.Popen(["sleep", "1000"])
            c.log("child", p.pid, p.pid)
            os.abort()
        if kind == "build-stop":
            stop()
        if kind == "build-deaf":
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            while True:
                time.sleep(1000)
        if kind == "build-killed":
            once(f"{c.path}.{c.id}", killed)
        if kind == "oom":
            killed()
        if kind in ("daemon", "daemon-hang"):
            c.log("daemon", (pid := daemon()), pid)
            time.sleep(1000) if kind == "daemon-hang" else os.abort()
        if kind == "leak":
            self.leaked.append(b"x" * (40 << 20))
        time.sleep(0.5 if kind == "build-slow" else 0.02)
        c.log("build", began, time.monotonic())
        return c

    def realise(self, task: Task, codes: np.ndarray) -> Realised:
        why = []
        for r in codes:
            kind = BEHAVIOURS[r[0]]
            if kind == "run-segv":
                os.kill(os.getpid(), signal.SIGSEGV)
            if kind == "build-raise":
                raise ValueError("replay refused")
            if kind == "build-hang":
                time.sleep(1000)
            if kind == "build-stop":
                stop()
            if kind == "build-killed":
                once(f"{task.payload.decode()}.{r[2]}", killed)
            why.append("not allowed" if kind == "wrong" else None)
        return Realised(np.stack([codes[:, 0], codes[:, 1], codes[:, 2] // 2 * 2], axis=1), tuple(why))

    def features(self, task: Task, codes: np.ndarray) -> tuple[Statements, np.ndarray]:
        ok = self.realise(task, codes).why
        good = np.array([w is None for w in ok])
        counts = codes[good, 1] % 3 + 1
        values = np.zeros((counts.sum(), 164))
        values[:, 0] = np.repeat(codes[good, 2], counts)
        return Statements(values, np.concatenate([[0], np.cumsum(counts)]), np.zeros((good.sum(), 10))), good

    def environment(self) -> dict[str, object]:
        names = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "TVM_THREAD_POOL_SPIN_COUNT")
        return {**{n: os.environ.get(n) for n in names}, "pid": os.getpid(), "sid": os.getsid(0)}

    def count(self, task: Task, n: int) -> int:
        began = time.monotonic()
        time.sleep(0.1)
        Candidate(task, "ok", 0, np.zeros(3, int)).log("run", began, time.monotonic())
        return n + 1

    def opened_tasks(self) -> list[str]:
        return self.opened

    def alive(self) -> int:
        return sum(isinstance(o, Candidate) for o in gc.get_objects())

    def threads(self) -> int:
        return int(os.environ["TVM_NUM_THREADS"])

    def check(self, task: Task, row: np.ndarray) -> str:
        return str(os.getpid())

    def place(self) -> int:
        return int(os.environ["TT_WORKER"])

    def lambda_(self) -> object:
        return lambda: 0

    def die(self) -> None:
        os.abort()

    def stop(self) -> None:
        stop()

    def killed_once(self, flag: str) -> int:
        once(flag, killed)
        return 42

    def size(self, blob: bytes) -> int:
        return len(blob)

    def imported(self, module: str) -> str:
        return str(importlib.import_module(module).__file__)

    def hold(self, megabytes: int) -> int:
        return len(b"x" * (megabytes << 20))


class Threaded(Backend):
    def threads(self) -> int:
        return 17


class Candidate:
    apply_s = 0.005

    def __init__(self, task: Task, kind: str, ms: int, row: np.ndarray) -> None:
        self.path, self.kind, self.ms, self.id = task.payload.decode(), kind, ms, int(row[2])

    def log(self, event: str, began: float, ended: float) -> None:
        if self.path:
            line = json.dumps({"event": event, "id": self.id, "began": began, "ended": ended, "pid": os.getpid()})
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(fd, (line + "\n").encode())
            os.close(fd)

    def run(self, n: int) -> float:
        began = time.monotonic()
        if self.kind == "run-segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.kind == "run-hang":
            while True:
                pass
        if self.kind == "run-memory":
            hog()
        if self.kind == "run-stop":
            stop()
        if self.kind == "run-killed":
            once(f"{self.path}.{self.id}", killed)
        if self.kind == "run-raise":
            raise RuntimeError("illegal address")
        if self.kind == "run-exit":
            sys.exit("bye")
        if self.kind == "run-nan":
            return float("nan")
        if self.kind == "noisy":
            print("garbage on stdout")
            os.write(1, os.urandom(1000))
            os.write(2, b"garbage on stderr\n")
        time.sleep(n * self.ms * 1e-3)
        self.log("run", began, time.monotonic())
        return max(self.ms, 1) * 1e-3

    def check(self) -> str | None:
        self.log("check", 0, 0)
        if self.kind == "check-segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.kind == "check-stop":
            stop()
        return "off by 0.5 at [0, 0]" if self.kind == "wrong" else None


class Draw:
    """An evaluator that says what its generator gave, and what it had to beat."""

    def evaluate(self, run, bar, rng) -> Timing:
        return Timing((run(1),), 1, f"{rng.random()} {bar.incumbent_s}")


class Tires:
    """An evaluator that works twice."""

    done = 0

    def evaluate(self, run, bar, rng) -> Timing:
        mean = run(1)
        self.done += 1
        if self.done > 2:
            raise ArithmeticError("tired")
        return Timing((mean,), 1)


def hog() -> None:
    kept = []
    while True:
        kept.append(b"x" * (24 << 20))
        time.sleep(0.005)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def once(flag: str, what) -> None:
    """Do it unless it was done before."""
    if not os.path.exists(f"{flag}.done"):
        open(f"{flag}.done", "w").close()
        what()


def daemon() -> int:
    """A grandchild in a session of its own, without its family's environment, that holds all its files open."""
    r, w = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if (pid := os.fork()) == 0:
            time.sleep(1000)
        os.write(w, str(pid).encode())
        os._exit(0)
    return int(os.read(r, 20))


class StopsOnce(Backend):
    """Its first worker is stopped while it starts."""

    def __init__(self) -> None:
        super().__init__()
        once(os.environ["TT_TEST_FLAG"], stop)


class Gauged(Backend):
    """A machine that takes twice as long for everything while the file `slow` beside the log exists."""

    def gauge(self, task: Task) -> float | None:
        return None if task.name == "elsewhere" else 1e-4 * slowness(task)

    def build(self, task: Task, row: np.ndarray) -> "Candidate":
        return Slowed(task, BEHAVIOURS[row[0]], int(row[1]), row)


class Crashing(Backend):
    """Looking at the machine's states kills the worker."""

    def gauge(self, task: Task) -> float | None:
        os.abort()


class Slowed(Candidate):
    def __init__(self, task: Task, kind: str, ms: int, row: np.ndarray) -> None:
        super().__init__(task, kind, ms, row)
        self.task = task

    def run(self, n: int) -> float:
        return super().run(n) * slowness(self.task)


def slowness(task: Task) -> float:
    return 2.0 if os.path.exists(task.payload.decode() + ".slow") else 1.0
