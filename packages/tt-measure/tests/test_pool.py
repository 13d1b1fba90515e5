"""Real worker processes, with a backend that misbehaves on demand."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tt_measure import WorkerError, WorkerPool
from tt_measure.kept import Kept
from tt_measure.process import CallError
from tt_measure.team import Team
from tt_spec import Bar, PieceFailure, Plugins
from tt_spec.pieces.once_evaluator import OnceEvaluator
from tt_spec.roles import Evaluator, Measurer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import tt_measure_wild as wild  # noqa: E402


def make(tmp_path, backend="Backend", **options: Any):
    defaults = {"workers": 2, "threads": 1, "evaluator": OnceEvaluator(), "lock": tmp_path / "lock", "path": [HERE]}
    defaults |= {"build_timeout_s": 10.0, "run_timeout_s": 10.0, "memory_bytes": 300e6}
    return WorkerPool(f"tt_measure_wild:{backend}", **(defaults | options))


@pytest.fixture
def pool(tmp_path):
    with make(tmp_path) as pool:
        yield pool


def oks(n, ms=1, first=0):
    return [wild.row("ok", ms, first + i) for i in range(n)]


def events(log):
    return [json.loads(line) for line in Path(log).read_text().splitlines()]


def overlaps(log):
    """Pairs of a timed run and anything else that went on in another process meanwhile."""
    done = [e for e in events(log) if e["event"] in ("run", "build")]
    runs = [e for e in done if e["event"] == "run"]
    pairs = [(a, b) for a in runs for b in done if a["pid"] != b["pid"]]
    return [(a, b) for a, b in pairs if a["began"] < b["ended"] and b["began"] < a["ended"]]


def workers_of(pool):
    return [p.popen.pid for p in pool._team.processes]


def built(log, n, seconds=60.0):
    """Wait until so many builds are over; the worker that did each."""
    end, found = time.monotonic() + seconds, []
    while time.monotonic() < end:
        found = [e["pid"] for e in events(log) if e["event"] == "build"] if log.exists() else []
        if len(found) >= n:
            return found
        time.sleep(0.02)
    raise TimeoutError(f"{len(found)} builds after {seconds} s")


def gone(pids, seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE for p in pids):
            return True
        time.sleep(0.02)
    return False


EXPECTED = {
    "build-abort": ("build", ["SIGABRT", "while building", "tile does not divide"]),
    "build-hang": ("build-timeout", ["building took longer than 2 s"]),
    "build-hang-native": ("build-timeout", ["building took longer than 2 s"]),
    "build-memory": ("build", ["GB of memory", "0.30 GB allowed"]),
    "build-raise": ("build", ["RuntimeError", "InternalError: the last line"]),
    "build-exit": ("build", ["SystemExit: 3"]),
    "build-die": ("build", ["exited with status 7"]),
    "run-segv": ("run", ["SIGSEGV", "while running"]),
    "run-hang": ("run-timeout", ["running took longer than 2 s"]),
    "run-memory": ("run", ["GB of memory"]),
    "run-raise": ("run", ["RuntimeError: illegal address"]),
    "run-exit": ("run", ["SystemExit: bye"]),
    "run-nan": ("run", ["positive number of seconds", "nan"]),
    "wrong": ("wrong-result", ["off by 0.5"]),
    "check-segv": ("run", ["SIGSEGV", "while checking"]),
}


@pytest.fixture
def patient(tmp_path):
    """A pool for what takes memory without bound: a busy machine hands it out slowly."""
    with make(tmp_path, build_timeout_s=2.0, run_timeout_s=2.0) as pool:
        yield pool


@pytest.mark.slow
def test_each_misbehaviour_is_its_rows_error_and_nobody_elses(patient, tmp_path):
    pool, log = patient, tmp_path / "log"
    task = wild.task(log)
    bad = {500 + i: kind for i, kind in enumerate(EXPECTED)}
    codes = oks(24, ms=9) + [wild.row(kind, 1, i) for i, kind in bad.items()] + [wild.row("noisy", 9, 900)]
    codes = np.random.default_rng(1).permutation(np.array(codes))
    results = list(pool.measure(task, codes, Bar()))
    assert sorted(m.config for m in results) == sorted(map(tuple, codes.tolist()))
    for m in results:
        if (kind := bad.get(m.config[2])) is None:
            assert m.error is None and m.seconds == pytest.approx((0.009,)) and m.runs == 2, m
            assert m.cost["apply"] == 0.005 and m.cost["build"] > 0.01 and m.cost["run"] > 0.015
        else:
            error, texts = EXPECTED[kind]
            assert m.error == error, m
            assert all(t in m.why for t in texts), m
            assert len(m.why) < 2000
            assert m.cost.keys() == {"apply", "build", "run"} and min(m.cost.values()) >= 0
    runs = Counter(e["id"] for e in events(log) if e["event"] == "run")
    assert all(runs[i] == 2 for i in [*range(24), 900])  # warm-up and one that counts, never again
    assert not overlaps(log)
    assert len(list(pool.measure(task, np.array(oks(4, first=100)), Bar()))) == 4


@pytest.mark.slow
def test_no_timing_while_a_hung_build_lives(tmp_path):
    log = tmp_path / "log"
    codes = np.array([wild.row("build-hang", 1, 99), *oks(60)])
    with make(tmp_path, build_timeout_s=2.0) as pool:
        results = list(pool.measure(wild.task(log), codes, Bar()))
    assert len(results) == 61
    hung = next(e["began"] for e in events(log) if e["id"] == 99)
    assert not [e for e in events(log) if e["event"] == "run" and hung < e["began"] < hung + 1.99]
    others = [e for e in events(log) if e["event"] == "build-begin" and hung < e["began"] < hung + 1.99]
    assert len(others) > 20  # nor do the others wait idly


def test_builds_run_in_parallel_and_results_stream(pool, tmp_path):
    log = tmp_path / "log"
    list(pool.measure(wild.task(log), np.array(oks(2)), Bar()))
    stream = pool.measure(wild.task(log), np.array(oks(40, first=10)), Bar())
    next(stream)
    assert sum(e["event"] == "build" for e in events(log)) <= 2 + 16
    stream.close()
    builds = [e for e in events(log) if e["event"] == "build" and e["id"] >= 10]
    assert any(a["pid"] != b["pid"] and a["began"] < b["began"] < a["ended"] for a in builds for b in builds)


def test_closing_abandons_quickly_and_leaves_no_stale_result(pool, tmp_path):
    task = wild.task(tmp_path / "log")
    list(pool.measure(task, np.array(oks(4, first=50)), Bar()))  # so that both workers have a build in hand below
    codes = np.array([wild.row("build-raise", 1, 0), *[wild.row("build-slow", 1, i) for i in range(1, 20)]])
    stream = pool.measure(task, codes, Bar())
    assert next(stream).error == "build"
    stream.close()
    assert pool._team.busy(), "it waits for no build"
    again = np.array(oks(12, first=100))
    assert sorted(m.config for m in pool.measure(task, again, Bar())) == sorted(map(tuple, again.tolist()))
    assert not any(p.tokens for p in pool._team.processes)
    jobs = [pool._team.submit(p, "call", None, "alive", (), False, 10.0) for p in pool._team.idle()]
    while pool._team.busy():
        pool._team.pump()
    kept = [sum(map(len, p.kept.values())) for p in pool._team.processes]
    assert [job.ending.value for job in jobs] == kept, "those to be timed again, and no other"
    assert max(kept) <= Kept().most
    assert not overlaps(tmp_path / "log")


def test_an_interrupt_while_waiting_leaves_the_pool_usable(pool, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    task = wild.task(tmp_path / "log")
    list(pool.measure(task, np.array(oks(2)), Bar()))
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        for after_s in (0.01, 0.055, 0.11):
            signal.setitimer(signal.ITIMER_REAL, after_s)
            with pytest.raises(KeyboardInterrupt):
                list(pool.measure(task, np.array(oks(60, ms=2)), Bar()))
            assert len(list(pool.measure(task, np.array(oks(3, first=500)), Bar()))) == 3
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_only_what_beats_the_best_is_checked(tmp_path):
    log = tmp_path / "log"
    with make(tmp_path, workers=1, evaluator=wild.Draw()) as pool:
        codes = np.array([wild.row("wrong", 1, 0), *[wild.row("ok", ms, 1 + ms) for ms in (8, 9, 6, 7)]])
        results = {m.config[2]: m for m in pool.measure(wild.task(log), codes, Bar(incumbent_s=0.0085))}
        checked = sorted(e["id"] for e in events(log) if e["event"] == "check")
        assert checked == [0, 7, 9]  # a wrong result sets no bar, 9 ms and 7 ms beat nothing
        assert results[10].error is None and results[0].error == "wrong-result"
        assert [float(results[i].why.split()[1]) for i in (9, 10, 7, 8)] == [0.0085, 0.008, 0.008, 0.006]
    with make(tmp_path, verify=False) as pool:
        assert next(iter(pool.measure(wild.task(), codes[:1], Bar()))).error is None


def test_an_evaluator_that_fails_is_blamed_and_no_candidate(tmp_path):
    found = []
    codes = np.array([wild.row("run-raise", 1, 500), *oks(6)])
    with (
        make(tmp_path, workers=1, evaluator=wild.Tires()) as pool,
        pytest.raises(PieceFailure, match=r"evaluator \S*Tires failed: ArithmeticError: tired"),
    ):
        found.extend(pool.measure(wild.task(), codes, Bar()))
    with make(tmp_path, workers=1, evaluator=wild.Tires()) as pool:
        stream = pool.measure(wild.task(), codes, Bar())
        assert sorted(m.error or "" for m in (next(stream) for _ in range(3))) == ["", "", "run"]


def test_evaluators_draw_the_same_for_a_row_whatever_came_before(tmp_path):
    draws = []
    for codes in (oks(6), oks(6)[::-1]):
        with make(tmp_path, evaluator=wild.Draw()) as pool:
            draws.append({m.config: m.why.split()[0] for m in pool.measure(wild.task(), np.array(codes), Bar())})
    assert draws[0] == draws[1] and len(set(draws[0].values())) == 6


@pytest.mark.slow
def test_realise_and_features_single_out_offending_rows(tmp_path):
    with make(tmp_path, realise_timeout_s=1.0) as pool:
        kinds = {5: "run-segv", 17: "build-raise", 30: "build-hang", 41: "wrong"}
        codes = np.array([wild.row(kinds.get(i, "ok"), i % 7, i) for i in range(60)])
        real = pool.realise(wild.task(), codes)
        assert {i for i, w in enumerate(real.why) if w is not None} == set(kinds)
        texts = {5: "SIGSEGV", 17: "replay refused", 30: "longer than 1 s", 41: "not allowed"}
        assert all(text in (real.why[i] or "") for i, text in texts.items())
        good = [i for i in range(60) if i not in kinds]
        assert (real.codes[good, 2] == np.array(good) // 2 * 2).all() and real.codes.shape == codes.shape
        found, ok = pool.features(wild.task(), codes)
        assert np.flatnonzero(ok).tolist() == good and len(found) == len(good)
        assert [int(found[j : j + 1].values[0, 0]) for j in range(len(good))] == good
        assert pool.realise(wild.task(), codes[:0]).why == () and len(pool.features(wild.task(), codes[:0])[0]) == 0
        assert list(pool.measure(wild.task(), codes[:0], Bar())) == []


def test_workers_environment_session_and_threads(pool):
    env = pool.call("environment", None)
    assert env["TVM_NUM_THREADS"] == env["OMP_NUM_THREADS"] == "1"
    assert env["sid"] == env["pid"] != os.getsid(0)  # Ctrl-C in the terminal does not reach it
    assert pool.threads() == 1


@pytest.mark.parametrize("said, count", [(None, "1000"), ("7", "7")])
def test_idle_threads_of_a_worker_sleep_soon_unless_the_user_says_otherwise(tmp_path, monkeypatch, said, count):
    name = "TVM_THREAD_POOL_SPIN_COUNT"
    monkeypatch.delenv(name, raising=False) if said is None else monkeypatch.setenv(name, said)
    with make(tmp_path) as pool:
        assert pool.call("environment", None)[name] == count


def test_the_backend_may_say_how_many_threads(tmp_path):
    with make(tmp_path, "Threaded") as pool:
        assert pool.threads() == 17


def test_workers_know_their_number_and_a_successor_takes_it(pool):
    def numbers():
        pool._ready().revive()
        while pool._team.busy():
            pool._team.pump()
        jobs = [pool._team.submit(p, "call", None, "place", (), False, 10.0) for p in pool._team.processes]
        while pool._team.busy():
            pool._team.pump()
        return sorted(job.ending.value for job in jobs)

    assert numbers() == [0, 1]
    os.kill(workers_of(pool)[0], signal.SIGKILL)
    assert gone(workers_of(pool)[:1])
    pool._team.processes[0].bury()
    assert numbers() == [0, 1]


def test_call(pool, tmp_path):
    log = tmp_path / "log"
    stream = pool.measure(wild.task(log), np.array([wild.row("build-raise", 1, 0), *oks(20, first=1)]), Bar())
    next(stream)  # builds go on in the background
    assert pool.call("count", wild.task(log), 4, exclusive=True) == 5
    assert len(list(stream)) == 20 and not overlaps(log)
    assert pool.call("opened_tasks", None) == [wild.task(log).key]  # sent and opened once
    for method, text in (("nothing", "no attribute 'nothing'"), ("lambda_", "pickle"), ("die", "SIGABRT")):
        with pytest.raises(WorkerError, match=f"backend method '{method}' failed: .*{text}"):
            pool.call(method, None)
    with pytest.raises(WorkerError, match=r"took longer than 0\.05 s"):
        pool.call("count", wild.task(), 1, timeout_s=0.05)


def test_a_worker_killed_from_outside_costs_no_row(pool, tmp_path):
    task = wild.task(tmp_path / "log")
    list(pool.measure(task, np.array(oks(2)), Bar()))
    os.kill(workers_of(pool)[0], signal.SIGKILL)
    assert all(m.error is None for m in pool.measure(task, np.array(oks(6, first=10)), Bar()))
    stream = pool.measure(task, np.array(oks(16, first=20)), Bar())
    first = next(stream)
    for pid in workers_of(pool):
        os.kill(pid, signal.SIGKILL)
    rest = list(stream)
    assert len({m.config for m in [first, *rest]}) == 16 and all(m.error is None for m in rest)


def test_a_worker_that_grows_is_replaced_between_batches(tmp_path):
    with make(tmp_path, workers=1) as pool:
        before = pool.threads() and workers_of(pool)
        for i in range(6):
            codes = np.array([wild.row("leak", 1, i)])
            assert [m.error for m in pool.measure(wild.task(), codes, Bar())] == [None]
        assert workers_of(pool) != before


def test_memory_that_others_hold_is_not_a_rows_fault(tmp_path):
    with make(tmp_path, workers=1) as pool:
        codes = np.array([wild.row("leak", 1, i) for i in range(12)])  # 40 MB each, in one chunk more than allowed
        assert [m.error for m in pool.measure(wild.task(), codes, Bar())] == [None] * 12


def test_two_batches_at_once_disturb_each_other_no_more_than_one(pool, tmp_path):
    log = tmp_path / "log"
    a = pool.measure(wild.task(log), np.array(oks(16, ms=5)), Bar())
    next(a)
    refused = [wild.row("build-raise", 1, 300), *oks(20, ms=5, first=100)]
    b = pool.measure(wild.task(log, "other"), np.array(refused), Bar())
    assert next(b).error == "build"  # and its other builds go on
    assert len(list(a)) == 15 and len(list(b)) == 20
    assert not overlaps(log)


def test_processes_that_a_candidate_started_end_with_its_worker(pool, tmp_path):
    log = tmp_path / "log"
    (m,) = pool.measure(wild.task(log), np.array([wild.row("child", 1, 0)]), Bar())
    assert m.error == "build"
    assert gone([int(e["began"]) for e in events(log) if e["event"] == "child"])


def test_failing_starts_say_why(tmp_path):
    codes = np.array(oks(2))
    for backend, text in (("nowhere:B", "No module named 'nowhere'"), ("tt_measure_wild:Nobody", "Nobody")):
        with pytest.raises(WorkerError, match=f"{backend}.*{text}"), make(tmp_path) as pool:
            pool.backend = backend
            list(pool.measure(wild.task(), codes, Bar()))
    with pytest.raises(ValueError, match="module:attribute"):
        WorkerPool("tt_core").prestart()
    with pytest.raises(ValueError, match="picklable"):
        WorkerPool(evaluator=lambda: 0).prestart()  # type: ignore[arg-type]
    for name in ("unopenable", "open-crash"):
        with pytest.raises(WorkerError, match=f"cannot open task '{name}'"), make(tmp_path) as pool:
            list(pool.measure(wild.task(name=name), codes, Bar()))
        with pytest.raises(WorkerError, match=f"cannot open task '{name}'"), make(tmp_path) as pool:
            pool.realise(wild.task(name=name), codes)
        with pytest.raises(WorkerError, match="backend method 'count' failed") as caught, make(tmp_path) as pool:
            pool.call("count", wild.task(name=name), 1)
        assert not isinstance(caught.value, CallError), "no program is to blame"
    for wrong in ("workers", "threads", "chunk"):
        with pytest.raises(ValueError, match="workers, threads and chunk must be at least 1"):
            make(tmp_path, "Backend", **{wrong: 0}).prestart()


def test_close_ends_every_worker_and_is_final(tmp_path):
    pool = make(tmp_path)
    pool.close()
    pool = make(tmp_path)
    pool.prestart()
    pids = workers_of(pool)
    pool.close()
    pool.close()
    assert gone(pids)
    with pytest.raises(WorkerError, match="closed"):
        pool.threads()


def test_a_forgotten_pool_leaves_no_worker(tmp_path):
    pool = make(tmp_path)
    pool.threads()
    pids = workers_of(pool)
    del pool
    assert gone(pids)


def test_workers_outlive_the_thread_that_started_them(tmp_path):
    pool = make(tmp_path)
    thread = threading.Thread(target=lambda: list(pool.measure(wild.task(), np.array(oks(8)), Bar())))
    thread.start()
    thread.join()
    pids = workers_of(pool)
    time.sleep(0.3)
    assert len(pids) == 2 and not gone(pids[:1], 0.1) and not gone(pids[1:], 0.1)
    assert pool.threads() == 1 and workers_of(pool) == pids
    pool.close()


CHILD = """
import sys
sys.path.insert(0, {here!r})
import numpy as np, tt_measure_wild as wild
from tt_measure import WorkerPool
from tt_spec import Bar
from tt_spec.pieces.once_evaluator import OnceEvaluator
pool = WorkerPool("tt_measure_wild:Backend", workers=2, threads=1, evaluator=OnceEvaluator(), lock={lock!r})
pool.threads()
print(*[p.popen.pid for p in pool._team.processes], flush=True)
sys.stdin.readline()
for m in pool.measure(wild.task({log!r}), np.array({codes!r}), Bar()):
    assert m.error is None, m
"""


def child(tmp_path, codes):
    """A process that begins to measure when it is told a line."""
    code = CHILD.format(here=str(HERE), lock=str(tmp_path / "lock"), log=str(tmp_path / "log"), codes=codes)
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def go(*children):
    """Let them begin together; the workers of each."""
    pids = [[int(p) for p in c.stdout.readline().split()] for c in children]
    for c in children:
        c.stdin.write("go\n")
        c.stdin.flush()
    return pids


@pytest.mark.parametrize("kind", ["build-hang-native", "run-hang", "ok"])
def test_killing_the_parent_leaves_no_worker(tmp_path, kind):
    parent = child(tmp_path, [wild.row(kind, 20, i) for i in range(100)])
    (pids,) = go(parent)
    assert len(pids) == 2
    time.sleep(0.3)
    parent.kill()
    parent.communicate()
    assert gone(pids)


def test_two_processes_never_time_at_once(tmp_path):
    both = [child(tmp_path, oks(20, ms=5, first=100 * i)) for i in range(2)]
    go(*both)
    for p in both:
        p.communicate()
    assert [p.returncode for p in both] == [0, 0]
    log = tmp_path / "log"
    runs = [e for e in events(log) if e["event"] == "run"]
    assert len(runs) == 80 and len({e["pid"] for e in runs}) == 4
    assert not overlaps(log)
    spans = [[e["began"] for e in runs if e["id"] // 100 == i] for i in range(2)]
    assert min(map(max, spans)) > max(map(min, spans))  # they did take turns


def test_timings_say_in_which_state_the_machine_was_and_are_corrected_for_another(tmp_path):
    task = wild.task(tmp_path / "log")
    with make(tmp_path, "Gauged") as pool:
        (first,) = pool.measure(task, np.array(oks(1)), Bar())
        assert first.noise is not None and first.noise.slowdown == pytest.approx(1)
        assert first.noise.discarded == 0 and first.noise.windows >= 1
        Path(f"{tmp_path / 'log'}.slow").touch()
        (second,) = pool.measure(task, np.array(oks(1, first=1)), Bar())
        assert second.noise is not None and second.noise.slowdown == pytest.approx(2)
        assert second.latency_s == pytest.approx(first.latency_s)
        pool.expect(task, np.array(oks(2, first=2)))  # built while others are timed, which waits for them
        again = list(pool.retime(task, np.array(oks(2))))
        assert len(again) == 2 and not overlaps(tmp_path / "log")
        assert all(m.noise is not None and m.noise.slowdown == pytest.approx(2) for m in again)
        assert all(m.latency_s == pytest.approx(first.latency_s) for m in again)


def test_a_task_that_the_probe_tells_nothing_of_is_timed_as_it_comes(tmp_path):
    with make(tmp_path, "Gauged") as pool:
        (found,) = pool.measure(wild.task(tmp_path / "log", "elsewhere"), np.array(oks(1)), Bar())
    assert found.noise is None and found.error is None


def test_a_probe_that_kills_its_worker_costs_no_row_and_is_not_tried_again(tmp_path):
    task, codes = wild.task(tmp_path / "log"), np.array(oks(6))
    with make(tmp_path, "Crashing") as pool:
        workers = []
        for _ in range(2):
            found = list(pool.measure(task, codes, Bar()))
            assert sorted(m.config for m in found) == sorted(map(tuple, codes.tolist()))
            assert all(m.error is None and m.noise is None for m in found)
            workers.append(workers_of(pool))
    assert workers[0] == workers[1]


def test_the_fastest_are_timed_again_without_a_build(tmp_path):
    log = tmp_path / "log"
    task = wild.task(log)
    with make(tmp_path) as pool:
        rows = np.array([*oks(3), wild.row("ok", 30, 9), wild.row("run-raise", 1, 10)])
        measured = {m.config: m for m in pool.measure(task, rows, Bar())}
        built = sum(e["event"] == "build" for e in events(log))
        again = list(pool.retime(task, np.concatenate([rows, oks(1, first=50)])))
        assert sum(e["event"] == "build" for e in events(log)) == built
        configs = [m.config for m in again]
        assert len(set(configs)) == len(configs) and {tuple(r) for r in oks(3)} <= set(configs)
        assert not {(*wild.row("run-raise", 1, 10),), (*oks(1, first=50)[0],)} & set(configs)
        assert all(m.error is None and len(m.seconds) == 5 and m.why == "timed again" for m in again)
        assert all(m.latency_s == pytest.approx(measured[m.config].latency_s) for m in again)
        for pid in workers_of(pool):
            os.kill(pid, signal.SIGKILL)
        assert list(pool.retime(task, rows)) == []  # nobody holds them any more
        assert next(iter(pool.measure(task, rows[:1], Bar()))).error is None


def test_a_check_goes_to_the_worker_that_holds_the_program(pool, tmp_path):
    log = tmp_path / "log"
    rows = np.array(oks(8))
    pool.prestart()
    while pool._team.busy():  # both have their share, however slowly they start
        pool._team.pump()
    assert all(m.error is None for m in pool.measure(wild.task(log), rows, Bar()))
    timed = {e["id"]: e["pid"] for e in events(log) if e["event"] == "run"}
    held = {e for p in pool._team.processes for e in p.kept[wild.task(log).key]}
    for row in rows:
        if row.tobytes() in held:
            assert pool.check(wild.task(log), row) == str(timed[int(row[2])])
    assert len({timed[int(row[2])] for row in rows if row.tobytes() in held}) == 2


def several(tmp_path, n, name="log"):
    """Tasks that share a log, and a row of each."""
    tasks = [wild.task(tmp_path / name, f"task {i}") for i in range(n)]
    return tasks, [np.array(oks(1, first=100 + i)) for i in range(n)]


def test_expected_rows_of_other_tasks_are_built_by_both_workers_before_anything_is_timed(pool, tmp_path):
    tasks, codes = several(tmp_path, 6)
    list(pool.measure(wild.task(tmp_path / "first"), np.array(oks(2)), Bar()))  # so that both workers have started
    for task, rows in zip(tasks, codes, strict=True):
        pool.expect(task, rows)
    for task, rows in zip(tasks, codes, strict=True):
        (found,) = pool.measure(task, rows, Bar())
        assert found.error is None and found.cost["build"] > 0.01 and found.config == tuple(rows[0])
    done = events(tmp_path / "log")
    builds, runs = ([e for e in done if e["event"] == what] for what in ("build", "run"))
    assert len(builds) == 6 and len({e["pid"] for e in builds}) == 2
    assert max(e["ended"] for e in builds) <= min(e["began"] for e in runs)
    assert not overlaps(tmp_path / "log")


def test_finalists_are_built_by_all_workers_each_task_where_it_will_race(pool, tmp_path):
    tasks, _ = several(tmp_path, 4)
    codes = [np.array(oks(2, first=10 * i)) for i in range(4)]
    list(pool.measure(wild.task(tmp_path / "first"), np.array(oks(2)), Bar()))  # so that both workers have started
    pool.prepare(list(zip(tasks, codes, strict=True)))
    builds = [e for e in events(tmp_path / "log") if e["event"] == "build"]
    whose = [{e["pid"] for e in builds if e["id"] // 10 == i} for i in range(4)]
    assert len(builds) == 8 and all(len(pids) == 1 for pids in whose), "a task's programs race in one process"
    assert set.union(*whose) == set(workers_of(pool))
    assert [{int(pool.check(t, c[1]))} for t, c in zip(tasks, codes, strict=True)] == whose
    pool.prepare([(tasks[0], codes[0])])
    assert len(built(tmp_path / "log", 10)) == 10, "what was prepared before is held no more"
    pool.prepare(())
    assert not any(p.tokens for p in pool._team.processes), "they may be replaced"


@pytest.mark.parametrize("slow", [False, True], ids=["at once", "after its worker's end"])
def test_a_finalist_that_cannot_be_built_costs_its_neighbours_nothing(pool, tmp_path, monkeypatch, slow):
    def submitted(team, *args):
        job = submit(team, *args)
        time.sleep(0.3 if slow else 0.0)
        return job

    submit = Team.submit
    monkeypatch.setattr(Team, "submit", submitted)
    tasks, _ = several(tmp_path, 2)
    bad = np.array([wild.row("build-die", 1, 1), wild.row("build-raise", 1, 2), *oks(1, first=3)])
    pool.prepare([(tasks[0], bad), (tasks[1], np.array(oks(2, first=10)))])
    assert {e["id"] for e in events(tmp_path / "log") if e["event"] == "build"} >= {10, 11}
    assert int(pool.check(tasks[0], bad[2])) in workers_of(pool)


def test_workers_go_on_building_while_nobody_looks_after_them(pool, tmp_path):
    task, other = several(tmp_path, 2)[0]
    rows = np.array(oks(4))
    list(pool.measure(wild.task(tmp_path / "first"), np.array(oks(2)), Bar()))  # so that both workers have started
    pool.expect(task, rows)
    pool.expect(task, rows[1:])
    pool.expect(other, rows)
    pool.realise(wild.task(tmp_path / "first"), rows[:1])  # now they have two in hand, or more are built
    assert set(built(tmp_path / "log", 4)) == set(workers_of(pool))
    assert len(list(pool.measure(task, rows, Bar()))) == 4 == len(list(pool.measure(other, rows, Bar())))
    assert len(built(tmp_path / "log", 8)) == 8, "each row is built once"
    assert not overlaps(tmp_path / "log")


@pytest.mark.parametrize("kind", ["build-raise", "build-die", "build-hang"])
def test_a_row_that_was_waiting_in_a_worker_does_not_suffer_from_the_one_before(tmp_path, kind):
    with make(tmp_path, workers=1, build_timeout_s=0.5) as pool:
        task = wild.task(tmp_path / "log")
        rows = np.array([wild.row(kind, 1, 0), wild.row("ok", 1, 1)])
        pool.expect(task, rows)
        found = {m.config: m for m in pool.measure(task, rows, Bar())}
        assert found[tuple(rows[1])].error is None
        assert found[tuple(rows[0])].error == ("build-timeout" if kind == "build-hang" else "build")


def test_rows_are_realised_beside_what_is_built(pool, tmp_path):
    task = wild.task(tmp_path / "log")
    rows = np.array(oks(8))
    pool.expect(task, rows)
    assert pool.realise(wild.task(tmp_path / "other"), rows).why == (None,) * 8
    assert all(m.error is None for m in pool.measure(task, rows, Bar()))
    assert len(built(tmp_path / "log", 8)) == 8


def test_an_expected_row_that_fails_is_told_when_its_turn_comes(pool, tmp_path):
    tasks, _ = several(tmp_path, 3)
    codes = [np.array([wild.row(kind, 1, i)]) for i, kind in enumerate(("build-raise", "build-die", "ok"))]
    for task, rows in zip(tasks, codes, strict=True):
        pool.expect(task, rows)
    found = [next(iter(pool.measure(task, rows, Bar()))) for task, rows in zip(tasks, codes, strict=True)]
    assert [m.error for m in found] == ["build", "build", None]
    assert "the last line" in found[0].why and "exited with status 7" in found[1].why


def test_workers_killed_with_what_was_expected_cost_nothing(pool, tmp_path):
    tasks, codes = several(tmp_path, 4)
    for task, rows in zip(tasks, codes, strict=True):
        pool.expect(task, rows)
    (found,) = pool.measure(tasks[0], codes[0], Bar())
    for pid in workers_of(pool):
        os.kill(pid, signal.SIGKILL)
    rest = [next(iter(pool.measure(task, rows, Bar()))) for task, rows in zip(tasks[1:], codes[1:], strict=True)]
    assert all(m.error is None for m in [found, *rest])


def test_rows_that_never_come_are_dropped_in_time(tmp_path):
    with make(tmp_path, chunk=1) as pool:
        tasks, codes = several(tmp_path, 30)
        for task, rows in zip(tasks, codes, strict=True):
            pool.expect(task, rows)
            (found,) = pool.measure(wild.task(tmp_path / "other"), rows, Bar())
            assert found.error is None
        assert len([e for e in events(tmp_path / "log") if e["event"] == "build"]) < 30
        (last,) = pool.measure(tasks[-1], codes[-1], Bar())
        assert last.error is None


def test_workers_killed_between_two_tasks_cost_nothing(pool, tmp_path):
    assert len(list(pool.measure(wild.task(tmp_path / "log"), np.array(oks(4)), Bar()))) == 4
    killed = workers_of(pool)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert gone(killed)
    fresh = wild.task(tmp_path / "other")  # the workers have not heard of it: telling them is what fails
    found = list(pool.measure(fresh, np.array(oks(4)), Bar()))
    assert len(found) == 4 and all(m.error is None for m in found)


def test_registered_and_free_of_compilers():
    plugins = Plugins()
    assert plugins.find("measurer", "local").distribution == plugins.find("evaluator", "fixed").distribution
    assert isinstance(plugins.build("measurer", "local"), Measurer)
    assert isinstance(plugins.build("evaluator", "fixed"), Evaluator)
    loaded = "import sys, tt_measure; print(any(m.split('.')[0] in ('tvm', 'torch', 'sklearn') for m in sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", loaded], text=True).strip() == "False"
