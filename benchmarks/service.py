"""The tuning service under load: what asks, tells and heartbeats take while recipes propose, and what a start takes.

    hatch run python benchmarks/service.py [--minutes 10] [--agents 64] [--rate 2000] [--recipe autotvm]
    hatch run python benchmarks/service.py --only starts [--rows 1000000] [--jobs 200]
    hatch run python benchmarks/service.py --only rate
    hatch run python benchmarks/service.py --only agents [--trials 96]
    hatch run python benchmarks/service.py --only local [--model op:matmul:512,512,512] [--trials 96]
    hatch run python benchmarks/service.py --only idle [--model resnet18] [--trials 300]

The server is the command `tt-server serve` on a free port of 127.0.0.1; the agents are simulated in processes of their
own, run times are drawn at random, and all share this machine. Every agent asks at its own even pace, without waiting:
that is timed. Where there was no work it asks again and waits, which is not. `agents` replays a recording in the time
that it took, with one agent and with two; `local` runs `tt tune` here and through a server in turns; `idle` looks at
the workers of a real agent. Ends by itself: `--minutes` bounds the load, `MOST` the requests of a process. A table with
the targets; exit code 1 if rows were lost or doubled. Latencies hold for a machine that does nothing else; CPU
milliseconds a request hold on a busy one too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from tt_bench.files import load
from tt_bench.replay import Replay
from tt_core.host import Host
from tt_history import SqliteStore
from tt_service import wire
from tt_service.agent import Agent
from tt_service.broker import Batch, Row, Taken
from tt_service.database import path_of
from tt_service.http import Http
from tt_service.journal import Event, JobRecord, Journal
from tt_service.keys import Keys
from tt_service.outbox import Outbox
from tt_service.workbench import HostBench
from tt_spec import Measurement, Plugins, Task, Trial, VirtualClock
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.spent import PART_OF

RECORDINGS = Path(__file__).parents[1] / "recordings"
"""Its templates are replayed: the operators of one job."""

MOST = 2_000_000
"""Requests of one process of agents, whatever was asked for."""

ASK_S, STEP_S, STEPS = 250e-3, 20.0, 12
"""The p95 at which a rate is too high, seconds of each rate that is tried, and how many are."""


def tasks_of(n: int) -> list[Task]:
    """Tasks of a billion rows each."""
    return [synthetic_task(f"service-{i}", knobs=10, choices=8) for i in range(n)]


# -- the server --------------------------------------------------------------------------------------------------------


class Served:
    """`tt-server serve` in a process, watched.

    Args:
        ready_s: Seconds from its start to its first answer.
        ready_cpu_s: CPU seconds of it until then.
    """

    def __init__(self, history: Path) -> None:
        command = [sys.executable, "-m", "tt_service.cli", "serve", "--history", str(history), "--port", "0"]
        began = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r":(\d+)$", self.process.stdout.readline().strip())
        if found is None:
            raise SystemExit("the server did not start")
        self.port = int(found[1])
        self.about = psutil.Process(self.process.pid)
        self.ready_s, self.ready_cpu_s = time.monotonic() - began, self.cpu_s()
        self.most_bytes, self.thinking_bytes = 0, 0
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def cpu_s(self) -> float:
        """CPU seconds of the server so far, those that think apart."""
        times = self.about.cpu_times()
        return times.user + times.system

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            with suppress(psutil.Error):
                self.most_bytes = max(self.most_bytes, self.about.memory_info().rss)
                each = [p.memory_info().rss for p in self.about.children()]
                self.thinking_bytes = max(self.thinking_bytes, sum(each))

    def end(self) -> None:
        """SIGTERM, and the wait for it."""
        self._over.set()
        self.process.terminate()
        self.process.wait(30)


@contextmanager
def served(folder: Path) -> Iterator[tuple[Served, Http, str]]:
    """A server over the folder's history, a client of it, and the key."""
    keys = Keys(path_of(folder / "shared.db"))
    key = keys.add("bench", ("jobs", "agent"))
    keys.close()
    server = Served(folder / "shared.db")
    http = Http(f"http://127.0.0.1:{server.port}", key)
    try:
        yield server, http, key
    finally:
        http.close()
        server.end()


def begin(http: Http, n: int, recipe: str) -> list[str]:
    """Jobs of one task each that have no end of their own; what reads statements reads knobs here."""
    found = []
    sets = (
        ["surrogate.inputs=knobs", "draft=none", "stopper=none", "scheduler.trials=1_000_000_000"]
        if recipe == "autotvm"
        else []
    )
    for task in tasks_of(n):
        about = {"name": task.name, "recipe": recipe, "sets": sets, "device": "toy", "trials": 10**8}
        job = wire.JobIn(tasks=[wire.TaskWire.of(task)], **about)
        found.append(http.post("/v1/jobs", job, wire.JobOut, wait_s=60).id)
    return found


# -- agents ------------------------------------------------------------------------------------------------------------


@dataclass
class Load:
    """What one process of agents is to do.

    Args:
        names: Of its agents.
        period_s: Seconds between two asks of one agent.
        seconds: How long.
        rows: Asked for at once.
        tasks: Number of tasks of `tasks_of` that it may meet.
    """

    port: int
    key: str
    names: list[str]
    period_s: float
    seconds: float
    rows: int
    tasks: int


@dataclass
class Seen:
    """What agents saw: seconds of each call by its kind, results sent, and answers that are none."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    sent: list[tuple[str, tuple[int, ...], tuple[float, ...]]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    missed: int = 0

    def add(self, other: Seen) -> None:
        """Take what others saw."""
        for kind, seconds in other.seconds.items():
            self.seconds.setdefault(kind, []).extend(seconds)
        self.sent += other.sent
        self.refused += other.refused
        self.missed += other.missed

    def ms(self, kind: str, share: float) -> float:
        """A quantile, milliseconds."""
        return 1e3 * float(np.quantile(self.seconds.get(kind, [np.nan]), share))

    @property
    def requests(self) -> int:
        return sum(map(len, self.seconds.values()))


class Wire:
    """One connection that is kept: plain HTTP/1.1, as little of it as costs least."""

    def __init__(self, load: Load, seen: Seen) -> None:
        self.load, self.seen = load, seen
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def post(self, kind: str, path: str, body: Any) -> Any:
        """The answer's JSON, None for 204; its time counts under `kind`."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.load.key}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.load.port)
        assert self.reader is not None
        began = time.monotonic()
        self.writer.write(head.encode() + data)
        top = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = re.search(r"content-length: (\d+)", top)
        text = await self.reader.readexactly(int(length[1])) if length else b""
        self.seen.seconds.setdefault(kind, []).append(time.monotonic() - began)
        status = int(top.split(" ", 2)[1])
        if status >= 300:
            self.seen.refused.append(f"{kind}: {status} {text.decode()[:200]}")
        return json.loads(text) if text and status < 300 else None

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class SimulatedAgent:
    """Asks at an even pace, measures by a formula, tells a batch in one call, and beats beside it."""

    def __init__(self, load: Load, seen: Seen, name: str, tasks: dict[str, Task]) -> None:
        self.load, self.seen, self.name, self.tasks = load, seen, name, tasks
        self.path, self.hand = f"/v1/agents/{name}", []
        self.rng = random.Random(name)

    async def run(self, begins: float) -> None:
        """Until the load's seconds are over."""
        line, ends = Wire(self.load, self.seen), begins + self.load.seconds
        me = {"name": self.name, "device": "toy", "targets": ["*"], "evaluators": ["fixed"]}
        await line.post("meet", "/v1/agents", me)
        beating = asyncio.create_task(self._beat())
        at = begins + self.rng.uniform(0, self.load.period_s)
        while at < ends and self.seen.requests < MOST:
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            work = await line.post("ask", f"{self.path}/ask", {"rows": self.load.rows, "wait_s": 0})
            if work is None:
                left = min(20.0, max(0.0, ends - time.monotonic()))
                work = await line.post("wait", f"{self.path}/ask", {"rows": self.load.rows, "wait_s": left})
            if work is not None:
                await self._work(line, work)
            at += self.load.period_s
            while at < time.monotonic():
                at, self.seen.missed = at + self.load.period_s, self.seen.missed + 1
        beating.cancel()
        line.close()

    async def _work(self, line: Wire, work: dict[str, Any]) -> None:
        self.hand = [work["batch"]]
        rows, kind = work["rows"], work["kind"]
        tell: dict[str, Any] = {"batch": work["batch"], "done": True}
        if kind == "measure":
            tell["trials"] = [{"at": i, "trial": self._trial(row)} for i, row in enumerate(rows)]
            self.seen.sent += [
                (work["task"], tuple(a["trial"]["config"]), tuple(a["trial"]["seconds"])) for a in tell["trials"]
            ]
        elif kind == "realise":
            tell["realised"] = {"rows": rows, "why": [None] * len(rows)}
        elif kind == "features":
            found = SyntheticMeasurer().features(self.tasks[work["task"]], np.array(rows))
            tell["features"] = wire.FeaturesWire.of(*found).model_dump()
        await line.post("tell", f"{self.path}/tell", tell)
        self.hand = []

    def _trial(self, row: list[int]) -> dict[str, Any]:
        seconds = [1e-3 * self.rng.uniform(1.0, 2.0) * (1 + abs(sum(row) - 30)) for _ in range(3)]
        return {"config": row, "seconds": seconds, "runs": 3, "cost": {"apply": 0.01, "build": 0.3, "run": 0.1}}

    async def _beat(self) -> None:
        line = Wire(self.load, self.seen)
        try:
            await asyncio.sleep(self.rng.uniform(0, 10))
            while True:
                await line.post("heartbeat", f"{self.path}/heartbeat", {"batches": self.hand})
                await asyncio.sleep(10)
        finally:
            line.close()


def simulate(load: Load) -> Seen:
    """One process of agents."""
    seen, tasks = Seen(), {t.key: t for t in tasks_of(load.tasks)}

    async def all_of_them() -> None:
        agents = [SimulatedAgent(load, seen, name, tasks) for name in load.names]
        begins = time.monotonic() + 0.5
        await asyncio.gather(*(a.run(begins) for a in agents))

    asyncio.run(all_of_them())
    return seen


def loaded(server: Served, key: str, options: argparse.Namespace, rate: float, seconds: float) -> Seen:
    """So many asks and tells a minute, from two processes."""
    names = [f"{uuid.uuid4().hex[:6]}-{i}" for i in range(options.agents)]
    period_s = 60.0 * options.agents / rate
    parts = [Load(server.port, key, names[i::2], period_s, seconds, options.ask_rows, options.tasks) for i in (0, 1)]
    seen = Seen()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for part in pool.map(simulate, parts):
            seen.add(part)
    return seen


# -- what is measured --------------------------------------------------------------------------------------------------


def under_load(options: argparse.Namespace) -> bool:
    """The issue's load; whether every row that was sent is stored once."""
    with tempfile.TemporaryDirectory(prefix="tt-service-") as folder:
        history = Path(folder, "shared.db")
        with served(Path(folder)) as (server, http, key):
            time.sleep(2)
            idle_mb = server.about.memory_info().rss / 1e6
            row("seconds until ready", server.ready_s, 2.0, "s", f"{server.ready_cpu_s:.2f} s of CPU")
            row("memory, idle", idle_mb, 150, "MB")
            jobs = begin(http, options.tasks, options.recipe)
            cpu_s, began = server.cpu_s(), time.monotonic()
            seen = loaded(server, key, options, options.rate, 60 * options.minutes)
            cpu_s, wall_s = server.cpu_s() - cpu_s, time.monotonic() - began
            for job in jobs:
                http.post(f"/v1/jobs/{job}/cancel", None, wire.JobOut)
        report(options, seen, server, cpu_s, wall_s)
        store = SqliteStore(history)
        kept = sorted((m.task_key, m.config, m.seconds) for m in store.query() if m.origin != "again")
        store.close()
    whole = kept == sorted(seen.sent)
    twice = len(kept) - len({(t, c) for t, c, _ in kept})
    verdict = "equal" if whole else "LOST OR DOUBLED"
    print(f"  rows sent {len(seen.sent):,}, stored {len(kept):,}, of a row twice {twice}: {verdict}")
    return whole and not twice


def report(options: argparse.Namespace, seen: Seen, server: Served, cpu_s: float, wall_s: float) -> None:
    """The table of a load."""
    for kind, most in (("ask", (100, 300)), ("tell", (100, 300)), ("heartbeat", (None, 100))):
        n = len(seen.seconds.get(kind, ()))
        print(f"  {kind}s: {n:,}, {60 * n / wall_s:,.0f} a minute, p50 {seen.ms(kind, 0.5):.1f} ms")
        for share, target in zip((0.95, 0.99), most, strict=True):
            row(f"  p{100 * share:.0f} of {kind}s", seen.ms(kind, share), target, "ms")
    thinking = f"{options.tasks} processes that think: {server.thinking_bytes / 1e6:,.0f} MB"
    row("memory under load", server.most_bytes / 1e6, 500, "MB", thinking)
    print(f"  the server took {spent(seen, cpu_s, wall_s)}")
    print(f"  asks that waited for work {len(seen.seconds.get('wait', ())):,}; paces missed {seen.missed:,}")
    for line in sorted(set(seen.refused))[:5]:
        print(f"  REFUSED {line}")


def rates(options: argparse.Namespace) -> bool:
    """Higher and higher rates over jobs of the plainest recipe, until p95 passes `ASK_S` or no more is done."""
    with tempfile.TemporaryDirectory(prefix="tt-service-") as folder, served(Path(folder)) as (server, http, key):
        begin(http, options.tasks, "random")
        rate, done, worst = options.rate, 0.0, 0.0
        for _ in range(STEPS):
            cpu_s, began = server.cpu_s(), time.monotonic()
            seen = loaded(server, key, options, rate, STEP_S)
            cpu_s, wall_s = server.cpu_s() - cpu_s, time.monotonic() - began
            worst = max(seen.ms("ask", 0.95), seen.ms("tell", 0.95))
            done = 60 * len(seen.seconds["tell"]) / STEP_S
            about = f"p95 {worst:.1f} ms, {spent(seen, cpu_s, wall_s)}"
            print(f"  {rate:,.0f} a minute asked for, {done:,.0f} tells a minute done: {about}", flush=True)
            if worst > 1e3 * ASK_S or done < rate / 2:
                break
            rate *= 1.5
    passed = f"passes {1e3 * ASK_S:.0f} ms at" if worst > 1e3 * ASK_S else f"stays below {1e3 * ASK_S:.0f} ms up to"
    print(f"  p95 {passed} {done:,.0f} tells a minute")
    return True


class Paced(VirtualClock):
    """A clock of a replay on which time passes."""

    def advance(self, seconds: float) -> None:
        """Wait so long."""
        super().advance(seconds)
        time.sleep(seconds)


class Bench:
    """What a replaying agent measures with: a recording in the time that it took.

    Args:
        busy_s: Seconds that it took part in, so far.
    """

    device = "recorded"
    targets: Sequence[str] = ("*",)
    evaluators: Sequence[str] = ("fixed",)

    def __init__(self, parts: Sequence[Any]) -> None:
        self.versions: dict[str, str] = {}
        self.parts, self.clock = parts, Paced()
        self.made: Replay | None = None

    @property
    def busy_s(self) -> float:
        return self.clock.now()

    def measurer(self, evaluator: str, options: dict[str, Any]) -> Replay:
        if self.made is None:
            piece = Plugins().build("evaluator", evaluator, **options)
            self.made = Replay(self.parts, piece, self.clock, unrecorded="nearest")
        return self.made


def replayed(folder: Path, agents: int, trials: int, recipe: str) -> tuple[float, float]:
    """Seconds that a job takes with so many replaying agents, and the share of them in which an agent idles."""
    parts = [p for file in sorted(RECORDINGS.glob("*-template.json.gz"))[:4] for p in load(file).parts]
    tasks = [wire.TaskWire.of(p.task) for p in parts]
    with served(folder) as (_, http, key), ThreadPoolExecutor(agents) as threads:
        over, benches = threading.Event(), [Bench(parts) for _ in range(agents)]

        def halt() -> str | None:
            return "over" if over.is_set() else None

        for i, bench in enumerate(benches):
            outbox = Outbox(folder / f"{i}.db", http.url)
            agent = Agent(Http(http.url, key), outbox, bench, name=f"a{i}", wait_s=1.0, halt=halt)
            threads.submit(agent.run)
        sets = ["batch=24", "scheduler=gradient"]  # which thinks of another operator while one is measured
        asked = wire.JobIn(name="recorded", device="recorded", recipe=recipe, tasks=tasks, trials=trials, sets=sets)
        job = http.post("/v1/jobs", asked, wire.JobOut, wait_s=90)
        while not any(b.busy_s for b in benches):  # the job's process starts
            time.sleep(0.01)
        began = time.monotonic()
        while (last := http.get(f"/v1/jobs/{job.id}", wire.JobOut)).state == "running":
            time.sleep(0.2)
        wall_s = time.monotonic() - began
        over.set()
    if last.state != "done":
        raise SystemExit(f"the job is {last.state}: {last.reason}")
    return wall_s, max(0.0, 1 - sum(b.busy_s for b in benches) / (agents * wall_s))


def with_agents(options: argparse.Namespace) -> bool:
    """The work of one replaying agent, and of two."""
    seconds = {}
    for agents in (1, 2):
        with tempfile.TemporaryDirectory(prefix="tt-service-") as folder:
            seconds[agents], idle = replayed(Path(folder), agents, options.trials, options.recipe)
        row(f"{options.trials} trials, {agents} agent{'s' * (agents > 1)}", seconds[agents], None, "s")
        row("  an agent idles", 100 * idle, 10.0 if agents == 1 else None, "%")
    row("work of two, of one's", seconds[1] / seconds[2], 1.8, "x", least=True)
    return True


def beside_local(options: argparse.Namespace) -> bool:
    """`tt tune` on this machine and through a server on it, in turns."""
    taken: dict[str, list[float]] = {"here": [], "through the server": []}
    with tempfile.TemporaryDirectory(prefix="tt-service-") as folder, served(Path(folder)) as (_, http, key):
        for turn in range(options.turns):
            for how, seconds in sorted(taken.items(), reverse=bool(turn % 2)):
                own = Path(folder, f"{how.split()[0]}-{turn}")
                own.mkdir()
                command = [sys.executable, "-m", "tt_core", "tune", options.model, "--trials", str(options.trials)]
                command += ["--recipe", options.recipe, "--seed", str(turn), "--out", "out.so"]
                command += ["--server", http.url, "--private"] if how != "here" else []
                began = time.monotonic()
                done = subprocess.run(
                    command, cwd=own, env={**os.environ, "TT_KEY": key}, capture_output=True, text=True
                )
                seconds.append(time.monotonic() - began)
                if done.returncode:
                    raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
                row(f"tt tune {how}", seconds[-1], None, "s", f"turn {turn + 1}")
    here, there = (sum(taken[how]) for how in ("here", "through the server"))
    row("through a server, of local", there / here, 1.10, "x")
    return True


class Watched(HostBench):
    """This machine's measurer, whose trace is read in the end."""

    last: Any = None

    def measurer(self, evaluator: str, options: dict[str, Any]) -> Any:
        self.last = super().measurer(evaluator, options)
        return self.last


def idles(options: argparse.Namespace) -> bool:
    """An agent of this machine, between its first work and its last: the share in which none of its workers works."""
    over = threading.Event()
    with tempfile.TemporaryDirectory(prefix="tt-service-") as folder, served(Path(folder)) as (_, http, key):
        bench, outbox = Watched(Host()), Outbox(Path(folder, "agent.db"), http.url)
        halt: Callable[[], str | None] = lambda: "over" if over.is_set() else None  # noqa: E731
        agent = Agent(Http(http.url, key), outbox, bench, name="a", wait_s=1.0, halt=halt)
        thread = threading.Thread(target=agent.run, daemon=True)
        thread.start()
        command = [sys.executable, "-m", "tt_core", "tune", options.model, "--trials", str(options.trials), "--wait"]
        command += ["--recipe", options.recipe, "--server", http.url, "--no-agent"]
        env = {**os.environ, "TT_KEY": key}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        over.set()
        thread.join()
        found = [w for w in bench.last.trace() if w.what in PART_OF]
        bench.close()
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    spans = sorted((-w.ago_s, w.seconds - w.ago_s) for w in found)
    busy_s, until = 0.0, spans[0][0]
    for began, ended in spans:
        busy_s += max(0.0, ended - max(began, until))
        until = max(until, ended)
    wall_s = until - spans[0][0]
    row(f"an agent idles, {options.trials} trials in {wall_s:.1f} s", 100 * (1 - busy_s / wall_s), 10.0, "%")
    return True


def spent(seen: Seen, cpu_s: float, wall_s: float) -> str:
    """What a load cost the server."""
    return f"{1e3 * cpu_s / max(1, seen.requests):.2f} ms of CPU a request, {100 * cpu_s / wall_s:.0f} % of a processor"


def starts(options: argparse.Namespace) -> bool:
    """A server with many rows and jobs starts again."""
    with tempfile.TemporaryDirectory(prefix="tt-service-") as folder:
        began = time.monotonic()
        filled(Path(folder, "shared.db"), options.rows, options.jobs)
        print(f"  {options.rows:,} rows of {options.jobs} running jobs written in {time.monotonic() - began:.0f} s")
        with served(Path(folder)) as (server, http, _):
            began = time.monotonic()
            jobs = http.get_list("/v1/jobs", wire.JobOut)
            row("restart until ready", server.ready_s, 10, "s", f"{server.ready_cpu_s:.2f} s of CPU")
            row("  its first list of jobs", time.monotonic() - began, None, "s", f"{len(jobs)} jobs")
            row("  memory then", server.about.memory_info().rss / 1e6, 500, "MB")
    return len(jobs) == options.jobs


def filled(history: Path, rows: int, jobs: int) -> None:
    """A history and a journal as so many jobs leave them in mid-run: each has rows that are told, and some out."""
    store, journal, rng = SqliteStore(history), Journal(path_of(history)), np.random.default_rng(0)
    each = rows // jobs
    for n, task in enumerate(tasks_of(jobs)):
        store.remember([task])
        job, run = uuid.uuid4().hex, store.begin_run({})
        spec = wire.JobIn(name=task.name, tasks=[wire.TaskWire.of(task)], recipe="autotvm", device="toy", trials=10**8)
        journal.save(JobRecord(job, "bench", spec.model_dump_json(), run_id=run, created=float(n), trials=each))
        codes = np.unique(rng.integers(0, 8, (2 * each, 10)), axis=0)[: each + 64]
        configs = [tuple(int(c) for c in row) for row in codes]
        trials = [Trial(c, (1e-3 * float(rng.uniform(1, 2)),) * 3, 3) for c in configs[:each]]
        store.append(
            [
                Measurement.of(
                    t, task, origin="search", at=float(i), run_id=run, device="toy", versions={"agent": "bench/a"}
                )
                for i, t in enumerate(trials)
            ]
        )
        batches = [
            Batch(uuid.uuid4().hex, "bench/a", job, task.key, "measure", tuple(configs[i : i + 64]))
            for i in range(0, len(configs), 64)
        ]
        told = [(Taken(b, at, None, "search", True), "") for b in batches[:-1] for at in range(len(b.rows))]
        journal.write([("batch", b) for b in batches] + [("closed", b.id) for b in batches[:-1]], told)
        journal.kept([(t.batch.id, t.at) for t, _ in told])
        journal.write([("row", Row(job, task.key, c, batch=batches[-1].id)) for c in batches[-1].rows])
        bodies = [json.dumps({"number": i, "what": "rows", "task": task.key}) for i in range(1, each // 8 + 1)]
        journal.write((), (), [Event(job, i, body, 8 * i) for i, body in enumerate(bodies, 1)])
    journal.close()
    store.close()


def row(what: str, value: float, target: float | None, unit: str, more: str = "", least: bool = False) -> None:
    """A line of the table: a value, and its target, the most or the `least` that it may be."""
    reached = target is not None and (value >= target if least else value <= target)
    share = f"{value / target:.2f} of the target" if target else ""
    verdict = "" if target is None else f"   {share}, {target:g} {unit}: {'reached' if reached else 'MISSED'}"
    print(f"{what:26} {value:9.2f} {unit:2}{verdict}{f'   ({more})' if more else ''}", flush=True)


PARTS = {
    "starts": starts,
    "load": under_load,
    "rate": rates,
    "agents": with_agents,
    "local": beside_local,
    "idle": idles,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(PARTS), help="One part of it")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--rate", type=float, default=2000.0, help="Asks, and tells, a minute")
    parser.add_argument("--ask-rows", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=8, help="Jobs that think at once, of a task each")
    parser.add_argument("--recipe", default="autotvm")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--trials", type=int, default=96, help="Of a replayed job, and of each tt tune")
    parser.add_argument("--turns", type=int, default=2, help="Of tt tune here and through a server")
    parser.add_argument("--model", default="op:matmul:512,512,512", help="For tt tune")
    options = parser.parse_args(arguments)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    well = []
    for name, part in PARTS.items():
        if options.only in (None, name):
            print(f"{name}: {' '.join((part.__doc__ or '').split())}", flush=True)
            well.append(part(options))
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
