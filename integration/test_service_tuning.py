"""`tt tune --server`: this machine lowers, measures and ships, a server without a compiler searches."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
from tt_bench.files import load
from tt_bench.replay import Replay
from tt_core.host import Host
from tt_history import SqliteStore
from tt_service import wire
from tt_service.agent import Agent
from tt_service.database import path_of
from tt_service.http import Http
from tt_service.keys import Keys
from tt_service.outbox import Outbox
from tt_service.workbench import HostBench
from tt_spec import Plugins, RunInfo, VirtualClock, WallClock
from tt_spec.assembly import assemble
from tt_spec.pieces.memory_store import MemoryStore
from tt_spec.recipe import resolve

from .conftest import events

STRANGER = Path(__file__).parent / "third_party"
RECORDINGS = Path(__file__).parents[1] / "recordings"

NO_TVM = """
import sys
sys.modules["tvm"] = None
from tt_service.cli import main
main()
"""


class Place:
    """A server in a process in which `import tvm` fails, with a stranger's pieces that nobody else has, and clients in
    one folder."""

    def __init__(self, folder):
        self.folder = folder
        keys = Keys(path_of(folder / "shared.db"))
        self.key, self.eve = keys.add("me", ("jobs", "agent")), keys.add("eve", ("jobs", "agent"))
        keys.close()
        pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-build-isolation", "--no-deps", "--quiet"]
        subprocess.run([*pip, "--target", str(folder / "acme"), str(STRANGER)], check=True)
        command = [sys.executable, "-c", NO_TVM, "serve", "--history", str(folder / "shared.db"), "--port", "0"]
        path = os.pathsep.join([str(folder / "acme"), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "PYTHONPATH": path}
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        self.url = self.server.stdout.readline().split()[-1]
        self.http = Http(self.url, self.key)

    def start(self, *args, key=None):
        few = ["--set", "measurer.workers=1"] if args[0] == "tune" else []
        command = [sys.executable, "-m", "tt_core", *args, *few]
        env = {**os.environ, "TT_KEY": key or self.key}
        return subprocess.Popen(
            command, cwd=self.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *args, code=0, key=None):
        process = self.start(*args, key=key)
        out, err = process.communicate(timeout=300)
        assert process.returncode == code, f"exit {process.returncode}\n{out[-3000:]}\n{err[-3000:]}"
        return out, err

    def end(self):
        self.server.terminate()
        self.server.wait(10)
        self.server.stdout.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    found = Place(tmp_path_factory.mktemp("service"))
    yield found
    found.end()


@pytest.fixture
def client(place, tt_in, monkeypatch):
    """Run `tt` as a client, in this process."""

    def run(*args, code=0):
        monkeypatch.setenv("TT_KEY", place.key)  # a command takes it away
        return tt_in(place.folder, *args, code=code)

    return run


def test_a_run_is_searched_by_the_server_and_ships_here(place, client):
    options = ["--trials", "16", "--set", "batch=8", "--set", "searcher=random", "--out", "m.so"]
    done = client("tune", "op:matmul:32,32,32", "--recipe", "random", "--server", place.url, *options)
    assert "verified against the untuned program" in done.stdout
    assert re.search(r"job [0-9a-f]{8} of", done.stdout + done.stderr)
    sidecar = json.loads((place.folder / "m.so.json").read_text())
    assert sidecar["recipe"]["name"] == "random"
    here = sqlite3.connect(place.folder / "tt.db")
    mine, key = here.execute(
        "SELECT count(*), min(task_key) FROM measurements WHERE origin IN ('random', 'search')"
    ).fetchone()
    here.close()
    store = SqliteStore(place.folder / "shared.db")
    shared = [m for m in store.query(key) if m.origin in ("random", "search") and m.error != "invalid"]
    store.close()
    assert len(shared) == 16 and mine >= 16
    assert all(m.versions["agent"].startswith("me/") and m.versions["tvm"] for m in shared)


def test_a_piece_that_the_server_alone_has_searches_for_an_unchanged_client_and_agent(place):
    missing = subprocess.run([sys.executable, "-c", "import acme_tt"], capture_output=True, text=True)
    assert "No module named 'acme_tt'" in missing.stderr
    out, _ = place.run("recipes", "--server", place.url)
    assert re.search(r"^acme: hill climbing by the nearest rows\n .*surrogate knn, searcher hillclimb", out, re.M), out
    tune = ["tune", "op:matmul:24,24,24", "--recipe", "acme", "--trials", "16", "--json", "--history", "acme.db"]
    out, _ = place.run(*tune, "--server", place.url)
    told = [json.loads(line) for line in out.splitlines()]
    assert told[-1]["trials"] == 16
    last = [e for e in told if e["event"] == "batch_measured"][-1]
    assert last["info"]["climbed"] > 0, "its searcher was asked"
    _, err = place.run(*tune, code=2)
    assert "no recipe" in err and "'acme'" in err and err.count("\n") == 1


def test_private_rows_of_ones_own_agent_are_nobody_elses(place, tmp_path):
    bench = HostBench(Host())
    tune = ["tune", "op:matmul:28,28,28", "--recipe", "random", "--set", "batch=8", "--server", place.url, "--json"]
    options = ["--private", "--no-agent", "--trials", "8", "--history", "mine.db", "--out", "mine.so"]
    try:
        with working(place, tmp_path / "eve.db", bench, key=place.eve, name="eves"):
            with working(place, tmp_path / "mine.agent", bench, name="own"):
                out, _ = place.run(*tune, *options)
            result = json.loads(out.splitlines()[-1])
            assert result["trials"] == 8 and "the untuned program" in result["verified"]
    finally:
        bench.close()
    mine, shared = SqliteStore(place.folder / "mine.db"), SqliteStore(place.folder / "shared.db")
    task = {m.task_key for m in mine.query()}.pop()
    assert {m.versions["agent"] for m in mine.query() if "agent" in m.versions} == {"me/own"}
    assert list(shared.query(task_key=task)) == []
    mine.close()
    shared.close()
    history = f"/v1/history/{task}"
    assert len(place.http.get_list(history, wire.Historic)) >= 8
    assert Http(place.url, place.eve).get_list(history, wire.Historic) == []


def test_another_user_of_the_device_begins_with_what_the_server_knows(place, client):
    tune = ["tune", "op:matmul:36,36,36", "--recipe", "random", "--server", place.url, "--trials", "8", "--json"]
    for history in ("one.db", "another.db"):
        done = client(*tune, "--set", "batch=8", "--history", history)
        result = events(done.stdout)[-1]
        assert result["event"] == "result" and result["trials"] == 8
    rows = sqlite3.connect(place.folder / "another.db")
    (known,) = rows.execute("SELECT count(*) FROM measurements").fetchone()
    rows.close()
    assert known > 8, "the best rows of the first run came along"


@pytest.mark.slow
def test_ctrl_c_writes_the_best_so_far_and_pauses_the_job_and_attach_goes_on(place, client):
    options = ["--trials", "24", "--set", "batch=8", "--out", "c.so", "--history", "c.db"]
    process = place.start("tune", "op:matmul:48,48,48", "--recipe", "random", "--server", place.url, *options)
    job = None
    for _ in range(1200):
        jobs = [j for j in place.http.get_list("/v1/jobs", wire.JobOut) if j.name == "matmul-48-48-48"]
        if jobs and jobs[0].trials >= 8:
            job = jobs[0]
            break
        time.sleep(0.05)
    assert job is not None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 130 and (place.folder / "c.so").exists(), out + err
    shown = place.http.get(f"/v1/jobs/{job.id}", wire.JobOut)
    assert shown.state == "paused" and shown.trials < 24
    done = client("jobs", "attach", job.id[:8], "--server", place.url, "--history", "c.db")
    assert "trials are spent" in done.stdout
    assert place.http.get(f"/v1/jobs/{job.id}", wire.JobOut).state == "done"


def test_mistakes_are_one_line_with_exit_code_9(place, client):
    tune = ["tune", "op:matmul:8,8,8", "--server"]
    for url, said in (("http://127.0.0.1:9", "no server answers at"), (place.url, "no recipe called 'unheard'")):
        code = 9 if "answers" in said else 2
        err = client(*tune, url, "--recipe", "unheard", code=code).stderr
        assert said in err and err.count("\n") == 1, err


class Elsewhere(HostBench):
    """This machine, which says that it is another; of its first two checks one says that a finalist is wrong."""

    def __init__(self, target):
        super().__init__(Host())
        self.targets, self.device, self.checked = (target,), "a large machine", 0

    def measurer(self, evaluator, options):
        made: Any = super().measurer(evaluator, options)
        if not isinstance(made.check, partial):
            made.check = partial(self.check, made.check)
        return made

    def check(self, sound, task, row):
        self.checked += 1
        return "it computes something else" if self.checked == 1 else sound(task, row)


@contextmanager
def working(place, log, bench, key=None, **more):
    """An agent in a thread of this process."""
    outbox, over = Outbox(log, place.url), threading.Event()
    halt = {"halt": lambda: "over" if over.is_set() else None}
    thread = threading.Thread(
        target=Agent(Http(place.url, key or place.key), outbox, bench, wait_s=1.0, **halt, **more).run, daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(20)


def test_what_this_machine_cannot_run_is_raced_and_verified_by_an_agent(place, tmp_path):
    cores = (os.cpu_count() or 1) + 1
    text = json.dumps({**json.loads(Host().place().target), "num-cores": cores})
    target = Host().prepare("op:matmul:40,40,40", target=text).tasks[0].target
    options = ["--target", text, "--server", place.url, "--recipe", "random", "--trials", "8", "--set", "batch=8"]
    tune = ["tune", "op:matmul:40,40,40", *options, "--no-agent", "--history", "away.db", "--out", "away.so"]
    _, err = place.run(*tune, code=9)
    assert f"no agent of {place.url} runs the target" in err and "--wait waits for one" in err and err.count("\n") == 1
    process = place.start(*tune, "--wait")
    for line in process.stdout or ():
        if "waiting for an agent that runs the target" in line:
            break
    bench = Elsewhere(target)
    try:
        with working(place, tmp_path / "agent.db", bench, name="large"):
            out, err = process.communicate(timeout=200)
    finally:
        bench.close()
    assert process.returncode == 0, out + err
    assert "a finalist failed (wrong-result: it computes something else)" in out + err
    assert "1 tuned operators alone, on a large machine; the whole model was not run" in out, out
    sidecar = json.loads((place.folder / "away.so.json").read_text())
    assert sidecar["device"] == "a large machine" and sidecar["threads"] == cores
    assert sidecar["latency_after_s"] is None and sidecar["tasks"][0]["latency_s"] > 0
    store = SqliteStore(place.folder / "away.db")
    rows = {m.config: m for m in store.query()}
    (wrong,) = [m for m in rows.values() if m.error == "wrong-result"]
    store.close()
    shipped = sidecar["tasks"][0]["knobs"]
    assert json.loads(json.dumps(wrong.knobs, default=list)) != shipped and bench.checked >= 2
    assert {m.device for m in rows.values()} == {"a large machine"}


class Recorded:
    """A bench of a recording."""

    device, targets, evaluators, versions = "recorded", ["*"], ["fixed"], {}

    def __init__(self, parts):
        self.parts, self.made = parts, None

    def measurer(self, evaluator, options):
        if self.made is None:
            piece = Plugins().build("evaluator", evaluator, **options)
            self.made = Replay(self.parts, piece, VirtualClock(), seed=1, unrecorded="nearest")
        return self.made


def test_with_one_agent_and_one_seed_the_rows_are_those_of_a_local_run(place, tmp_path):
    parts = load(RECORDINGS / "encoder-up-template.json.gz").parts
    wired = [wire.TaskWire.of(p.task) for p in parts]  # the recording's own space draws from its recorded rows alone
    tasks, sets = [t.thing() for t in wired], ["batch=24"]
    plugins, store, clock = Plugins(), MemoryStore(), WallClock()
    recipe = resolve("autotvm", sets, plugins)
    budget = [plugins.build("stopper", "trials", trials=72)]
    measurer = Recorded(parts).measurer("fixed", {})
    made = assemble(recipe, tasks, measurer, clock=clock, seed=5, budget=budget)
    made.loop(measurer, store, clock, info=RunInfo("r", tuple(tasks))).run()

    with working(place, tmp_path / "agent.db", Recorded(parts), name="recorded"):
        asked = {"recipe": "autotvm", "sets": sets, "seed": 5, "trials": 72, "device": "recorded"}
        spec = wire.JobIn(name="recorded", tasks=wired, **asked)
        job = place.http.post("/v1/jobs", spec, wire.JobOut, wait_s=90)
        while (last := place.http.get(f"/v1/jobs/{job.id}", wire.JobOut)).state == "running":
            time.sleep(0.1)
    assert last.state == "done", last.reason
    remote = SqliteStore(place.folder / "shared.db")
    rows = [(m.task_key, m.config, m.origin, m.seconds) for m in remote.query(device="recorded")]
    remote.close()
    assert rows == [(m.task_key, m.config, m.origin, m.seconds) for m in store.query()]
    assert {m[2] for m in rows} >= {"random", "search"}


def test_an_operator_never_gets_the_rows_that_the_server_has_of_another_with_its_key(place, client, monkeypatch):
    """Two clients, each with a history of its own, and two operators whose hashes are forged to collide."""
    monkeypatch.setattr("tt_core.compiler.lower._workload", lambda mod: "all the same, on a server")
    options = ["--trials", "4", "--set", "batch=4", "--json", "--recipe", "random", "--server", place.url]

    def keys(model: str, history: str) -> tuple[str, int]:
        done = client("tune", model, *options, "--history", history)
        started = next(e for e in events(done.stdout) if e["event"] == "run_started")
        with closing(SqliteStore(place.folder / history)) as store:
            return started["tasks"][0]["key"], len(list(store.query()))

    first, _ = keys(_reduction(place.folder, "ReduceMax"), "first.db")
    second, known = keys(_reduction(place.folder, "ReduceMin"), "second.db")
    assert second != first and known < 8, "nothing of the other's came along"
    assert keys("ReduceMax.onnx", "third.db")[0] == first
    with closing(SqliteStore(place.folder / "shared.db")) as store:
        assert all(store.task(key) is not None for key in (first, second))


def _reduction(folder: Path, operator: str) -> str:
    """The name of a model in the folder."""
    sides = onnx.helper.make_tensor_value_info("x", 1, [64, 256]), onnx.helper.make_tensor_value_info("y", 1, [64, 1])
    node = onnx.helper.make_node(operator, ["x"], ["y"], axes=[1])
    graph = onnx.helper.make_graph([node], "reduction", sides[:1], sides[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, folder / f"{operator}.onnx")
    return f"{operator}.onnx"
