"""Random faults against a tuning service, and a look at what is left: the history must hold what the agents' logs hold.

    hatch run python tools/service_chaos.py [--kills 20] [--agents 8] [--seed 0] [--rounds 1]

A server, agents, and between them a proxy that cuts, delays, repeats, truncates and hands on copies late: all real
processes over real HTTP; run times are drawn by a formula (`tt_spec.pieces.synthetic`). While a job runs, the server is
killed, agents are killed or stopped for longer than their leases, the server's disk is full for some seconds, and the
wall clocks of all of them jump by days, to and fro. Root has a disk of its own that really fills (tmpfs); for others
the server may write no longer files meanwhile. Afterwards

- the job has had its trials, and no more;
- every result is delivered, and the history equals what the agents' own logs hold, row by row;
- the job's events tell of each of them once, whoever followed it.

Exit code 1 if something of it does not hold; the round's seed is told.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from tt_history import SqliteStore
from tt_service import wire
from tt_service.broker import LOST
from tt_service.database import path_of
from tt_service.http import Http
from tt_service.keys import Keys
from tt_spec import Measurement
from tt_spec.pieces.synthetic import synthetic_task

__all__ = ["LEASE_S", "Proxy", "Yard", "ride", "yard"]

LEASE_S = 3.0

DISK_BYTES = 16 << 20
"""Of the disk that fills."""

CLOCK = """
import os, sys, time
real, jump = time.time, sys.argv.pop()
def jumping():
    try:
        return real() + float(open(jump).read() or 0)
    except OSError:
        return real()
time.time = jumping
"""
"""Makes a process's wall clock jump by the seconds in a file, its last argument."""

SERVER = """
import sys
from pathlib import Path
from tt_service.listening import Listening
from tt_service.server import Options, make
history, port, lease_s = sys.argv[1:]
options = Options(Path(history), Listening(port=int(port)), lease_s=float(lease_s))
make(options, lambda port: print("ready", flush=True)).run()
"""

AGENT = """
import sys, time
from tt_service.agent import Agent
from tt_service.http import Http
from tt_service.outbox import Outbox
from tt_spec.pieces.synthetic import SyntheticMeasurer

class Slow(SyntheticMeasurer):
    def measure(self, task, codes, bar):
        for trial in super().measure(task, codes, bar):
            time.sleep(0.01)
            yield trial

class Bench:
    device, targets, evaluators, versions = "toy", ["*"], ["fixed"], {}
    def measurer(self, evaluator, options):
        return Slow()

url, key, log, name = sys.argv[1:]
Agent(Http(url, key), Outbox(log, url), Bench(), name=name, rows=8, wait_s=2.0).run()
"""

Result = tuple[tuple[int, ...], tuple[float, ...]]


class Proxy:
    """Between agents and server: hands each request on, and its answer back, or not.

    Args:
        port: The server's.
        share: Of requests to which something happens.
    """

    FAULTS = ("cut before", "cut after", "delay", "delay long", "repeat", "truncate", "late copy")

    def __init__(self, port: int, share: float, seed: int) -> None:
        self.port, self.share, self.rng = port, share, random.Random(seed)
        self.did: Counter[str] = Counter()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """No more requests."""
        self._door.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, EOFError):
            while True:
                request = _message(client)
                fault = self.rng.choice(self.FAULTS) if self.rng.random() < self.share else ""
                self.did[fault] += 1
                if not self._hand_on(client, request, fault):
                    return

    def _hand_on(self, client: socket.socket, request: bytes, fault: str) -> bool:
        """Whether the connection goes on."""
        if fault == "cut before":
            return False
        if fault.startswith("delay"):
            time.sleep(LEASE_S + 1 if fault == "delay long" else self.rng.uniform(0.05, 1.0))
        if fault == "late copy":  # the client is sure that nothing arrived, and tells again meanwhile
            threading.Timer(self.rng.uniform(0.2, 2.0), self._ask, (request,)).start()
            return False
        answer = self._ask(request)
        if fault == "repeat":
            answer = self._ask(request)
        if answer is None or fault == "cut after":
            return False
        if fault == "truncate":
            client.sendall(answer[: self.rng.randrange(len(answer))])
            return False
        client.sendall(answer)
        return True

    def _ask(self, request: bytes) -> bytes | None:
        """The server's answer, None if there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=70) as server:
                server.sendall(request)
                return _message(server)
        except (OSError, EOFError):
            return None


def _message(end: socket.socket) -> bytes:
    """One request or answer, whole. Raises `EOFError`."""
    found = b""
    while b"\r\n\r\n" not in found:
        found += _more(end)
    head, _, body = found.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)^content-length: *(\d+)", head, re.MULTILINE)
    while len(body) < (int(length[1]) if length else 0):
        body += _more(end)
    return head + b"\r\n\r\n" + body


def _more(end: socket.socket) -> bytes:
    part = end.recv(65536)
    if not part:
        raise EOFError
    return part


class Yard:
    """A server and its agents, each a process that may be killed at any time.

    Args:
        share: Of the agents' requests that the proxy does something to; 0 is no proxy.
    """

    def __init__(self, folder: Path, share: float = 0.0, seed: int = 0) -> None:
        self.folder, self.disk, self.jump = folder, folder / "disk", folder / "jump"
        self.history = self.disk / "shared.db"
        self.disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "chaos", str(self.disk)]
        self.own_disk = os.getuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        keys = Keys(path_of(self.history))
        self.key = keys.add("me", ("jobs", "agent"))
        keys.close()
        self.proxy = Proxy(self.port, share, seed) if share else None
        self.http = Http(f"http://127.0.0.1:{self.port}", self.key)
        self.agents: dict[str, subprocess.Popen[Any]] = {}
        self.server: subprocess.Popen[str] | None = None

    def serve(self) -> None:
        """Start the server, and wait until it is ready."""
        arguments = [str(self.history), str(self.port), str(LEASE_S), str(self.jump)]
        self.server = subprocess.Popen([sys.executable, "-c", CLOCK + SERVER, *arguments], stdout=-1, text=True)
        assert self.server.stdout is not None and self.server.stdout.readline() == "ready\n"

    def kill_server(self) -> None:
        """As `kill -9`."""
        assert self.server is not None and self.server.stdout is not None
        self.server.kill()
        self.server.wait()
        self.server.stdout.close()

    def fill_disk(self, seconds: float) -> None:
        """No room for what the server writes, for a while."""
        assert self.server is not None
        if self.own_disk:
            ballast = self.disk / "ballast"
            with suppress(OSError), ballast.open("wb", buffering=0) as f:
                while True:
                    f.write(bytes(4096))
            time.sleep(seconds)
            ballast.unlink()
        else:
            server, size = psutil.Process(self.server.pid), self.history.stat().st_size
            server.rlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            time.sleep(seconds)
            server.rlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def agent(self, name: str) -> None:
        """Start an agent; one of that name has its log already."""
        url = self.proxy.url if self.proxy else self.http.url
        arguments = [url, self.key, str(self.folder / f"{name}.db"), name, str(self.jump)]
        self.agents[name] = subprocess.Popen([sys.executable, "-c", CLOCK + AGENT, *arguments])

    def job(self, operators: int = 1, **more: Any) -> wire.JobOut:
        """Begin a job; of several operators one is thought of while another one is measured."""
        sets = ["batch=32", "scheduler=gradient"]
        asked = {"name": "toy", "recipe": "random", "device": "toy", "trials": 400, "sets": sets, **more}
        tasks = [dataclasses.replace(synthetic_task(knobs=6), key=f"toy{i}", name=f"toy{i}") for i in range(operators)]
        spec = wire.JobIn(tasks=[wire.TaskWire.of(t) for t in tasks], **asked)
        return self.http.post("/v1/jobs", spec, wire.JobOut, wait_s=60)

    def told(self, job: wire.JobOut) -> wire.JobOut:
        """The job now."""
        return self.http.get(f"/v1/jobs/{job.id}", wire.JobOut)

    def reaches(self, job: wire.JobOut, trials: int, seconds: float = 120.0) -> wire.JobOut:
        """Wait until the job has had so many trials, or is over."""
        until = time.monotonic() + seconds
        while (found := self.told(job)).state == "running" and found.trials < trials:
            if time.monotonic() > until:
                raise TimeoutError(f"the job does not reach {trials} trials: {found}")
            time.sleep(0.1)
        return found

    def rows(self) -> list[Measurement]:
        """What the history has of agents: no rows that were timed again, none that were given up."""
        store = SqliteStore(self.history)
        found = [m for m in store.query() if m.origin != "again" and m.why != LOST]
        store.close()
        return found

    def logs(self) -> tuple[list[Result], int]:
        """What the agents' own logs hold: results, and how many of them were not sent."""
        found, unsent = [], 0
        for path in self.folder.glob("*.db"):
            db = sqlite3.connect(path)
            for trial, sent in db.execute("SELECT trial, sent FROM results"):
                t = wire.TrialWire.model_validate_json(trial).thing()
                found.append((t.config, t.seconds))
                unsent += not sent
            db.close()
        return found, unsent

    def delivered(self, seconds: float = 60.0) -> bool:
        """Wait until the agents have sent all that they have."""
        until = time.monotonic() + seconds
        while self.logs()[1] and time.monotonic() < until:
            time.sleep(0.2)
        return not self.logs()[1]

    def events(self, job: wire.JobOut) -> list[Result]:
        """The results of which the job's events tell, but for those that were given up."""
        found: list[wire.EventOut] = []
        while page := self.http.get(
            f"/v1/jobs/{job.id}/events", wire.Events, wait_s=0, after=found[-1].number if found else 0
        ).events:
            found += page
        rows = [m for e in found if e.what == "rows" for m in e.results if m.why != LOST]
        return [(tuple(m.config), tuple(m.seconds)) for m in rows]

    def end(self) -> None:
        """Kill everything."""
        for process in [*self.agents.values(), *([self.server] if self.server else [])]:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        if self.server is not None and self.server.stdout is not None:
            self.server.stdout.close()
        if self.proxy is not None:
            self.proxy.close()
        if self.own_disk:
            subprocess.run(["umount", "-l", str(self.disk)], check=False)


@contextmanager
def yard(folder: Path, share: float = 0.0, seed: int = 0) -> Iterator[Yard]:
    """A yard in a folder; everything in it ends with the block."""
    found = Yard(folder, share, seed)
    try:
        yield found
    finally:
        found.end()


def ride(here: Yard, acts: Sequence[str], agents: int, seed: int, each: int = 40, operators: int = 1) -> list[str]:
    """A job of `each` trials an act and as many more, with an act after each of them; what is wrong in the end.

    Args:
        acts: "server", "agent" (killed and started again), "stop" (an agent, for longer than its lease), "disk" (the
            server's, full for some seconds) or "clock".
    """
    rng = random.Random(seed)
    here.serve()
    for i in range(agents):
        here.agent(f"agent-{i}")
    trials = each * (len(acts) + 1)
    job = here.job(operators, trials=trials)
    for n, act in enumerate(acts, 1):
        here.reaches(job, each * n)
        time.sleep(rng.uniform(0.0, 0.2))
        _act(here, act, f"agent-{rng.randrange(agents)}", rng)
    last = here.reaches(job, trials + 1)
    wrong = [] if last.state == "done" else [f"the job ended as {last.state}: {last.reason}"]
    if not here.delivered():
        wrong.append(f"{here.logs()[1]} results were not delivered")
    rows, (logged, _), told = here.rows(), here.logs(), here.events(job)
    kept = Counter((m.config, m.seconds) for m in rows)
    for what, other in (("the agents' logs hold", Counter(logged)), ("the job's events tell of", Counter(told))):
        if kept != other:
            lacks, has = sum((other - kept).values()), sum((kept - other).values())
            wrong.append(f"{what} {sum(other.values())} results: {lacks} are not in the history, which has {has} more")
    measured = len({(m.task_key, m.config) for m in rows})
    if last.trials != trials or measured > trials:
        wrong.append(f"{last.trials} trials counted, {measured} rows measured, asked for {trials}")
    return wrong


def _act(here: Yard, act: str, name: str, rng: random.Random) -> None:
    agent = here.agents[name]
    if act == "server":
        here.kill_server()
        here.serve()
    elif act == "stop":
        agent.send_signal(signal.SIGSTOP)
        time.sleep(LEASE_S + 1)
        agent.send_signal(signal.SIGCONT)
    elif act == "disk":
        here.fill_disk(rng.uniform(1.0, 4.0))
    elif act == "clock":
        here.jump.write_text(str(rng.uniform(-30, 30) * 86_400))
    else:
        agent.kill()
        agent.wait()
        here.agent(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--operators", type=int, default=3, help="Of the job")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--share", type=float, default=0.1, help="Of requests that the proxy does something to")
    options = parser.parse_args()
    failed = 0
    for seed in range(options.seed, options.seed + options.rounds):
        acts = ["server"] * options.kills + ["agent", "stop", "disk", "clock"] * max(1, options.kills // 5)
        random.Random(seed).shuffle(acts)
        with (
            tempfile.TemporaryDirectory(prefix="tt-service-chaos-") as folder,
            yard(Path(folder), options.share, seed) as here,
        ):
            wrong = ride(here, acts, options.agents, seed, operators=options.operators)
            faults = ", ".join(f"{n} {what or 'untouched'}" for what, n in here.proxy.did.items()) if here.proxy else ""
            print(f"seed {seed}: {Counter(acts)}; {len(here.rows())} rows; requests: {faults}")
        for text in wrong:
            print(f"  WRONG {text}")
        failed += bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
