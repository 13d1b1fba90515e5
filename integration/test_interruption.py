"""Interruptions that are survived: Ctrl-C, and kill -9 of the main process."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import time

import psutil
import pytest
from tt_core.compiler.runtime import sidecar_path
from tt_core.interrupt import LEAVE_S, interruptible, unheard
from tt_core.stages import Stages
from tt_measure import WorkerPool
from tt_spec.pieces.random_searcher import RandomSearcher

from .conftest import events

OP = "op:conv2d:1,32,28,32,3,1,1"
ONE = ("--set", "measurer.workers=1")
"""Where nothing depends on how many there are."""


def _start(folder, *more):
    command = [sys.executable, "-m", "tt_core", "tune", OP, "--minutes", "5", "--json", "--tasks", "conv2d"]
    command += ["--recipe", "random", "--set", "batch=4", *more]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup, under which tests may run, ignores it
    )


def _wait_for_batch(process, batches=1):
    seen = []
    for line in process.stdout:
        event = json.loads(line)
        seen.append(event)
        if sum(e["event"] == "batch_measured" for e in seen) == batches:
            return seen
    raise AssertionError(f"the run ended early: {process.stderr.read()[-2000:]}")


def test_ctrl_c_keeps_everything_and_writes_the_best_so_far(tmp_path):
    process = _start(tmp_path, "--out", "c.so", *ONE)
    _wait_for_batch(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err[-2000:]
    result = events(out)[-1]
    assert result["reason"] == "interrupted"
    kept = sqlite3.connect(tmp_path / "tt.db").execute(
        "select count(*) from measurements where error is not 'invalid' and origin != 'again'"
    )
    assert kept.fetchone()[0] == result["trials"]
    assert (tmp_path / "c.so").exists()
    assert result["verified"]


@pytest.mark.slow
def test_kill_9_loses_nothing_reported_and_leaves_no_worker(tmp_path, here):
    process = _start(tmp_path)
    seen = _wait_for_batch(process, batches=2)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert workers
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    reported = sum(e["measured"] for e in seen if e["event"] == "batch_measured")
    _gone, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive, f"workers still alive: {alive}"
    with sqlite3.connect(tmp_path / "tt.db") as db:
        assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
        rows = db.execute(
            "select config from measurements where error is not 'invalid' and origin != 'again'"
        ).fetchall()
    assert len(rows) >= reported

    *batches, end = here("history", "replay").stdout.splitlines()
    assert len(batches) >= 2 and "the run was killed" in end
    assert reported <= int(end.rsplit(" ", 2)[1]) <= len(rows)

    command = ["tune", OP, "--trials", "8", "--recipe", "random", "--json", "--tasks", "conv2d"]
    result = events(here(*command).stdout)[-1]
    assert result["restored"] == len(rows)
    with sqlite3.connect(tmp_path / "tt.db") as db:
        after = db.execute(
            "select config from measurements where error is not 'invalid' and origin != 'again'"
        ).fetchall()
    assert len(after) == len(rows) + 8
    assert len(set(after)) == len(after)


def test_a_signal_while_the_model_is_read_ends_the_run_and_leaves_nothing(tmp_path):
    """Sent at several moments before anything is measured, and twice: no workers, no temporary files stay."""
    (tmp_path / "tmp").mkdir()
    for wait_s, times in ((1.0, 1), (2.5, 2), (4.0, 1)):
        environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
        command = [sys.executable, "-m", "tt_core", "tune", OP, "--minutes", "5", "--out", "d.so"]
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        time.sleep(wait_s)
        below = psutil.Process(process.pid).children(recursive=True)
        for _ in range(times):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        _, err = process.communicate(timeout=300)
        # before anything is set up the system ends it
        assert process.returncode in (130, -signal.SIGTERM), err[-2000:]
        assert b"Traceback" not in err
        assert not psutil.wait_procs(below, timeout=60)[1]
        assert not list((tmp_path / "tmp").glob("tt-*")) and not list(tmp_path.glob(".tt-*"))


def test_nohup_is_heeded(tmp_path):
    command = [sys.executable, "-m", "tt_core", "tune", OP, "--trials", "4", "--recipe", "random", "--tasks", "conv2d"]
    process = subprocess.Popen(["nohup", *command, *ONE], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(3)
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-2000:]


def test_a_reader_that_goes_away_ends_the_run(tmp_path):
    process = _start(tmp_path, *ONE)
    _wait_for_batch(process)
    process.stdout.close()
    assert process.wait(timeout=300) == 141
    with sqlite3.connect(tmp_path / "tt.db") as db:
        assert db.execute("select reason from runs").fetchall() == [("nobody reads its output",)]


LOADS = ["reading", "untuned", "opening"]
SEARCH = ["asking", "measuring"]
ENDS = ["re-timing", "compiling", "composing", "timing", "verifying", "writing"]


@pytest.fixture
def signalled(tmp_path, tt_in, monkeypatch):
    """A small run that gets so many signals where a phase begins; its folder, in which nothing else is left."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tt_core.deploy.composing.NEAR", math.inf)  # there are rivals, whatever they take

    def run(phase, number, times, code):
        folder = tmp_path / phase
        folder.mkdir()
        sent = itertools.count()

        def send(*_, **__):
            if next(sent) == 0:
                for _ in range(times):
                    signal.raise_signal(number)

        with monkeypatch.context() as patch:
            if phase == "asking":
                patch.setattr(RandomSearcher, "propose", _first(send, RandomSearcher.propose))
            elif phase == "measuring":
                patch.setattr(WorkerPool, "measure", _first(send, WorkerPool.measure))
            else:
                stage = Stages.stage
                patch.setattr(
                    Stages, "stage", lambda self, name, *a: _entered(stage(self, name, *a), send, name == phase)
                )
            command = ["tune", "op:matmul:8,16,16", "--recipe", "random", "--trials", "8", "--out", "m.so", "--json"]
            done = tt_in(folder, *command, "--set", "batch=4", code=code)
        assert next(sent), "the phase came"
        assert not list((tmp_path / "tmp").iterdir())
        assert not list(folder.glob(".tt-*"))
        assert (folder / "m.so").exists() == sidecar_path(folder / "m.so").exists()
        if (folder / "tt.db").exists():
            with sqlite3.connect(folder / "tt.db", timeout=1) as db:
                db.execute("begin immediate")
        return folder, done

    ignored = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, under which tests may run, ignores it
    yield run
    signal.signal(signal.SIGHUP, ignored)


def _first(act, function):
    def both(*args, **kwargs):
        act()
        return function(*args, **kwargs)

    return both


@contextlib.contextmanager
def _entered(stage, act, now):
    with stage:
        if now:
            act()
        yield


def test_two_signals_in_any_phase_end_the_run_at_once_and_leave_nothing(signalled):
    numbers = itertools.cycle([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    for phase, number in zip([*LOADS, *SEARCH, *ENDS], numbers, strict=False):
        folder, _ = signalled(phase, number, 2, 130)
        assert not (folder / "m.so").exists()


def test_one_signal_in_the_search_or_after_it_writes_the_best_so_far(signalled):
    for phase, number in (("asking", signal.SIGTERM), ("measuring", signal.SIGHUP), ("verifying", signal.SIGINT)):
        folder, done = signalled(phase, number, 1, 130 if phase in SEARCH else 0)
        assert (folder / "m.so").exists()
        assert events(done.stdout)[-1]["event"] == "result"


def test_signals_that_follow_the_second_are_ignored_while_the_run_is_left(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("tt_core.interrupt.time.monotonic", lambda: now[0])
    with interruptible() as halt:
        assert halt() is None
        signal.raise_signal(signal.SIGINT)
        assert halt() == "interrupted"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        now[0] = LEAVE_S + 1
        with pytest.raises(KeyboardInterrupt):  # what it waits for hangs
            signal.raise_signal(signal.SIGINT)


def test_a_linker_does_not_hear_ctrl_c(tmp_path):
    """A terminal sends it to every process of the command."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with unheard():
        linker = subprocess.Popen(["sleep", "0.3"])
        linker.send_signal(signal.SIGINT)
        linker.send_signal(signal.SIGTERM)
        assert linker.wait() == 0
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_a_signal_before_and_after_the_command_ends_it_as_documented(tmp_path):
    """While modules are loaded, and in the moments between its last word and its exit."""
    program = "import signal, sys, types\nfrom tt_core.__main__ import main\n"
    early = "class Slow:\n def __getattr__(self, name): name == 'main' and signal.raise_signal(signal.SIGTERM)\n"
    early += "sys.modules['tt_core.cli.app'] = Slow()\n"
    late = "app = types.ModuleType('app'); app.main = lambda: 4; sys.modules['tt_core.cli.app'] = app\n"
    late += "import atexit; atexit.register(signal.raise_signal, signal.SIGINT)\n"
    amid = "app = types.ModuleType('app'); sys.modules['tt_core.cli.app'] = app\n"
    amid += "app.main = lambda: exec('import signal; signal.raise_signal(signal.SIGINT)')\n"
    last = late + "class Last:\n def __del__(self): os.kill(os.getpid(), signal.SIGTERM)\n"
    last += "import os; sys.modules['last'] = Last()\n"  # freed with the modules
    for before, code in ((early, 130), (amid, 130), (late, 4), (last, 4)):
        done = subprocess.run([sys.executable, "-c", f"{program}{before}main()"], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (code, "")
