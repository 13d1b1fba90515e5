"""The tuning service as real processes over real HTTP: killed, stopped and started again, nothing is lost or double."""

from __future__ import annotations

import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import pytest
from tt_history import SqliteStore
from tt_service import wire
from tt_service.database import path_of
from tt_service.http import Http
from tt_service.keys import Keys
from tt_spec.pieces.synthetic import synthetic_task

LEASE_S = 3.0

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


class Yard:
    """A server and its agents, each a process that may be killed at any time."""

    def __init__(self, folder):
        self.folder, self.history = folder, folder / "shared.db"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        keys = Keys(path_of(self.history))
        self.key = keys.add("me", ("jobs", "agent"))
        keys.close()
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = Http(self.url, self.key)
        self.agents = {}
        self.server = None

    def serve(self):
        command = [sys.executable, "-c", SERVER, str(self.history), str(self.port), str(LEASE_S)]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.server.stdout.readline() == "ready\n"

    def kill_server(self):
        self.server.kill()
        self.server.wait()
        self.server.stdout.close()

    def agent(self, name):
        command = [sys.executable, "-c", AGENT, self.url, self.key, str(self.folder / f"{name}.db"), name]
        self.agents[name] = subprocess.Popen(command)

    def job(self, **more):
        asked = {"name": "toy", "recipe": "random", "device": "toy", "trials": 400, "sets": ["batch=32"], **more}
        spec = wire.JobIn(tasks=[wire.TaskWire.of(synthetic_task())], **asked)
        return self.http.post("/v1/jobs", spec, wire.JobOut, wait_s=60)

    def told(self, job):
        return self.http.get(f"/v1/jobs/{job.id}", wire.JobOut)

    def ended(self, job, seconds=120):
        until = time.monotonic() + seconds
        while (found := self.told(job)).state == "running":
            assert time.monotonic() < until, f"{found} goes on"
            time.sleep(0.2)
        return found

    def rows(self):
        """What the history has, but for rows that were timed again."""
        store = SqliteStore(self.history)
        found = [m for m in store.query() if m.origin != "again"]
        store.close()
        return found

    def logs(self):
        """What the agents' own logs hold: results, and how many of them were not sent."""
        found, unsent = [], 0
        for name in {p.name for p in self.folder.glob("*.db")} - {"shared.db"}:
            db = sqlite3.connect(self.folder / name)
            for trial, sent in db.execute("SELECT trial, sent FROM results"):
                t = wire.TrialWire.model_validate_json(trial).thing()
                found.append((t.config, t.seconds))
                unsent += not sent
            db.close()
        return found, unsent

    def end(self):
        for process in [*self.agents.values(), *([self.server] if self.server else [])]:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        if self.server is not None:
            self.server.stdout.close()


@contextmanager
def yard(folder):
    found = Yard(folder)
    try:
        yield found
    finally:
        found.end()


@pytest.mark.slow
def test_whatever_is_killed_the_history_holds_what_the_agents_logs_hold(tmp_path):
    rng = random.Random(3)
    with yard(tmp_path) as here:
        here.serve()
        for name in ("a", "b", "c"):
            here.agent(name)
        job = here.job()
        acts = ["server", "stop", "a", "server", "b", "server"]
        rng.shuffle(acts)
        for n, act in enumerate(acts, 1):
            while here.told(job).trials < 40 * n:
                time.sleep(0.05)
            time.sleep(rng.uniform(0.0, 0.2))
            if act == "server":
                here.kill_server()
                here.serve()
            elif act == "stop":  # longer than its lease, then it goes on as if nothing had been
                here.agents["c"].send_signal(signal.SIGSTOP)
                time.sleep(LEASE_S + 1)
                here.agents["c"].send_signal(signal.SIGCONT)
            else:
                here.agents[act].kill()
                here.agents[act].wait()
                here.agent(act)
        last = here.ended(job)
        assert last.state == "done", last
        for _ in range(50):
            if not here.logs()[1]:
                break
            time.sleep(0.2)
        rows, (logged, unsent) = here.rows(), here.logs()
        assert unsent == 0, "everything was delivered"
        assert sorted((m.config, m.seconds) for m in rows) == sorted(logged), "the history is what the logs hold"
        assert len({m.config for m in rows}) == 400


def test_sigterm_ends_a_server_in_five_seconds_with_long_polls_open(tmp_path):
    with yard(tmp_path) as here:
        here.serve()
        here.agent("a")
        job = here.job(trials=64)
        here.ended(job)
        began = time.monotonic()
        here.server.send_signal(signal.SIGTERM)
        assert here.server.wait(10) in (0, -signal.SIGTERM)
        assert time.monotonic() - began < 5.0, "its agent waits in a long poll"


def test_an_agent_delivers_after_days_offline(tmp_path):
    with yard(tmp_path) as here:
        here.serve()
        here.agent("a")
        job = here.job(trials=10**6)
        while here.told(job).trials < 20:
            time.sleep(0.05)
        here.kill_server()
        time.sleep(1.0)
        here.agents["a"].kill()
        here.agents["a"].wait()
        here.serve()
        here.http.post(f"/v1/jobs/{job.id}/cancel", None, wire.JobOut)
        here.agent("a")
        for _ in range(100):
            if not here.logs()[1]:
                break
            time.sleep(0.1)
        logged, unsent = here.logs()
        assert unsent == 0 and sorted((m.config, m.seconds) for m in here.rows()) == sorted(logged)
