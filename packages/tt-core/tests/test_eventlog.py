"""The event log: strict JSON, whole after a kill, quiet on a full disk, and enough to retell the run."""

from __future__ import annotations

import io
import json
import math
import os
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tt_core.cli.history import retold
from tt_core.cli.progress import PlainLines
from tt_core.events import log as eventlog
from tt_core.events import retell
from tt_core.events.log import EventLog, JsonLines, strict
from tt_spec import Listener, Loop, Pipeline, Proposal, RunInfo, VirtualClock
from tt_spec.errors import FileError
from tt_spec.pieces.memory_store import MemoryStore
from tt_spec.pieces.null_surrogate import NullSurrogate
from tt_spec.pieces.random_searcher import RandomSearcher
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.pieces.top_sampler import TopSampler
from tt_spec.pieces.trials_stopper import TrialsStopper
from tt_spec.types import Slot

INFO = {"epsilon": np.float32(0.25), "nan": math.nan, "inf": np.float64("-inf"), "rows": np.arange(3), "who": {1}}


class Talkative(RandomSearcher):
    """A searcher whose remarks are hard to write down."""

    def propose(self, ctx, n):
        p = super().propose(ctx, n)
        return Proposal(p.codes, p.scores, p.random_share, {**INFO, "temperature": len(ctx.rows)})


class Turns:
    """Eight rows for each task in turn."""

    def __init__(self):
        self.slots = 0

    def next(self, states, clock):
        self.slots += 1
        going = [i for i, s in enumerate(states) if s.finished is None]
        return Slot(going[self.slots % len(going)], trials=8, gain_s=0.5) if going else None


class Enough:
    """Finishes the second task after 16 rows."""

    scope = "task"

    def stop(self, state, clock):
        return "enough" if state.task.name == "softmax" and state.trials >= 16 else None


class Timed(SyntheticMeasurer):
    """Takes 1.5 s a row, by a virtual clock."""

    def __init__(self, clock):
        super().__init__(fail=0.3)
        self.clock = clock

    def measure(self, task, codes, bar):
        for m in super().measure(task, codes, bar):
            self.clock.advance(1.5)
            yield m


class Recorder(Listener):
    """Every event, with what a listener may look at."""

    def __init__(self):
        self.events, self.curve = [], []

    def tt_run_started(self, run):
        self.events.append(("started", run.run_id, [(t.name, t.key, t.op, t.flops, t.weight) for t in run.tasks]))

    def tt_batch_measured(self, run, state, batch, results):
        rows = [(m.config, m.seconds, m.runs, m.error, m.why, m.cost, m.origin, m.at, m.run_id) for m in results]
        predicted = [None if math.isnan(p) else p for p in batch.predicted]
        self.events.append(
            ("batch", *seen(state), batch.id, batch.codes.tolist(), batch.origin, predicted, strict(batch.info), rows)
        )
        self.curve.append((state.curve[-1][1], sum(s.weight * s.best_s for s in run.states)))

    def tt_task_finished(self, run, state):
        self.events.append(("finished", *seen(state)))

    def tt_run_stopped(self, run, states, reason):
        self.events.append(("stopped", [seen(s) for s in states], reason))


def seen(s):
    finite = s.best_s if math.isfinite(s.best_s) else None
    return s.task.name, s.trials, s.restored, s.batches, dict(s.errors), finite, s.last_gain_trial, list(s.curve)


def tune(listeners, clock=None, trials=40, store=None):
    """A run of two tasks; its outcome."""
    clock, store = clock or VirtualClock(100.0), store or MemoryStore()
    tasks = (synthetic_task("conv2d_relu"), synthetic_task("softmax", choices=6))
    about = {"options": {"minutes": 2.0, "trials": trials}, "device": "here", "versions": {}}
    pipelines = [Pipeline(t, NullSurrogate(), Talkative(), TopSampler(), clock=clock) for t in tasks]
    for p in pipelines:
        p.restore(store.query(task_key=p.task.key))
    return Loop(
        pipelines,
        Timed(clock),
        store,
        Turns(),
        [Enough(), TrialsStopper(trials)],
        clock,
        info=RunInfo("r1", tasks, {**about, "stages": {"at": clock.now()}}),
        listeners=listeners,
    ).run()


@pytest.fixture
def logged(tmp_path):
    """The log of a run, its outcome, its plain lines and what a listener heard."""
    clock, heard, shown = VirtualClock(100.0), Recorder(), io.StringIO()
    log = EventLog(tmp_path / "tt.runs" / "r1.jsonl", clock)
    outcome = tune([log, PlainLines(shown, 2.0, 40, clock), heard], clock)
    log.close()
    return log.path, outcome, shown.getvalue(), heard


def test_a_retold_run_is_the_run(logged):
    path, outcome, text, heard = logged
    again, shown = Recorder(), io.StringIO()
    told = retell.retell(retell.read(path), [again])
    assert again.events == heard.events
    assert told.curve == heard.curve
    assert told.reason == outcome.reason == "40 trials are spent"
    assert [seen(s) for s in told.states] == [seen(s) for s in outcome.states]
    assert [s.finished for s in told.states] == [s.finished for s in outcome.states] == [None, "enough"]
    errors = sum((Counter(s.errors) for s in told.states), Counter())
    assert errors["build"] > 3 and sum(s.trials for s in told.states) == outcome.trials == 40
    retold(path, shown)
    assert shown.getvalue() == text
    assert text.count("\n") == 7 and "0:48 left, 32 trials left" not in text and "1:48 left, 32 trials left" in text
    assert text.splitlines()[-1].startswith("1:00 of search (building "), "at last, where the clock went"


def test_who_hears_of_the_run_late_shows_it_as_the_log_has_it(tmp_path):
    class Slow(Listener):
        def tt_run_started(self, run):
            clock.advance(7.0)

    clock, shown, told = VirtualClock(100.0), io.StringIO(), io.StringIO()
    log = EventLog(tmp_path / "log.jsonl", clock)
    tune([log, Slow(), PlainLines(shown, 2.0, 40, clock)], clock)
    retold(log.path, told)
    assert told.getvalue() == shown.getvalue() and "1:07 of search" in shown.getvalue()


def test_a_continued_run_starts_from_what_is_known(tmp_path):
    store, lines = MemoryStore(), []
    tune([], store=store)
    for name in ("live", "retold"):
        shown = io.StringIO()
        if name == "live":
            clock = VirtualClock()
            log = EventLog(tmp_path / "log.jsonl", clock)
            outcome = tune([log, PlainLines(shown, 2.0, 8, clock)], clock, trials=8, store=store)
        else:
            told = retold(log.path, shown)
        lines.append(shown.getvalue())
    assert lines[0] == lines[1]
    assert lines[0].count("\n") == 2 and "not yet measured" not in lines[0]
    assert [s.restored for s in told.states] == [s.restored for s in outcome.states] == [24, 16]
    assert told.curve[0][1] < math.inf


def test_every_remark_of_the_pieces_is_there_in_strict_json(logged):
    def refuse(what):
        raise AssertionError(f"{what} is not JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in logged[0].read_text().splitlines()]
    first = next(e for e in lines if e["event"] == "batch_measured")
    assert first["info"] == {
        "slot": {"number": 1, "gain_s": 0.5, "decided_s": 0.0, "asked_s": 0.0}
    }  # before there is a model nothing is searched
    later = [e["info"] for e in lines if e["event"] == "batch_measured" and "temperature" in e["info"]]
    assert len(later) >= 3
    for info in later:
        assert {"slot", "proposed", "selected", "random_share"} <= set(info)
        assert info["epsilon"] == 0.25 and info["nan"] is None and info["inf"] is None
        assert info["rows"] == [0, 1, 2] and info["who"] == [1]


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters()),
    st.binary(),
    st.floats(width=32).map(np.float32),
    st.floats().map(np.longdouble),
    st.complex_numbers().map(np.complex128),
    st.complex_numbers().map(np.clongdouble),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.booleans().map(np.bool_),
    st.lists(st.floats(), max_size=4).map(np.array),
    st.just(object),
    st.just(np.datetime64("2024-01-01")),
)
remarks = st.recursive(
    scalars,
    lambda x: st.one_of(
        st.lists(x, max_size=3),
        st.tuples(x, x),
        st.dictionaries(st.one_of(st.text(), st.integers(), st.tuples(st.integers())), x, max_size=3),
    ),
    max_leaves=8,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(remarks)
def test_any_remark_becomes_json_that_reads_back(remark):
    plain = strict(remark)
    line = json.dumps(plain, allow_nan=False)
    assert "\n" not in line and line.isascii()
    assert json.loads(line) == plain


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_keep_every_digit(x):
    assert json.loads(json.dumps(strict([x, np.float64(x), np.array([x])]))) == [x, x, [x]]


def test_a_torn_last_line_costs_only_itself(logged):
    path = logged[0]
    whole = path.read_bytes()
    events = retell.read(path)
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last, len(whole) - 1, 7):
        path.write_bytes(whole[:cut])
        assert retell.read(path) == events[:-1]
    path.write_bytes(whole[:-1])
    assert retell.read(path) == events
    path.write_bytes(whole[:last])
    told = retell.retell(retell.read(path))
    assert told.reason is None and sum(s.trials for s in told.states) == 40


def test_a_damaged_log_is_one_line_that_names_the_place(logged, tmp_path):
    path = logged[0]
    lines = path.read_bytes().splitlines(keepends=True)
    for middle in (b"\x00\xff\n", b"[1, 2]\n", b'{"event": 3}\n', b"\n"):
        path.write_bytes(b"".join([*lines[:2], middle, *lines[2:]]))
        with pytest.raises(FileError, match=r"r1\.jsonl, line 3: not an event of tt"):
            retell.read(path)
    path.write_bytes(lines[0].replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(FileError, match="its format is 2, this tt reads 1; pip install --upgrade tt-core"):
        retell.read(path)
    path.write_bytes(b"")
    with pytest.raises(FileError, match="ended before it began to measure"):
        retell.read(path)
    with pytest.raises(FileError, match="none"):
        retell.read(tmp_path / "none.jsonl")
    path.write_bytes(lines[0] + b'{"event": "batch_measured", "task": "conv2d_relu"}\n')
    with pytest.raises(FileError, match="an event is incomplete or damaged"), retell.whole(path):
        retold(path, io.StringIO())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_ends_the_log_with_one_warning_and_not_the_run(tmp_path):
    said = []
    log = EventLog(tmp_path / "log.jsonl", warn=said.append)

    class Fills(Listener):
        def tt_batch_measured(self, run, state, batch, results):
            if state.trials == 16 and not said:
                full = os.open("/dev/full", os.O_WRONLY)
                os.dup2(full, log._file.fileno())
                os.close(full)

    outcome = tune([log, Fills()])
    log.close()
    assert outcome.failure is None and outcome.trials == 40
    assert len(said) == 1
    assert said[0] == f"the event log {log.path} ends here (No space left on device); the run goes on without it"
    told = retell.retell(retell.read(log.path))
    assert told.reason is None and 16 <= sum(s.trials for s in told.states) < 40


def test_a_folder_that_cannot_be_made_ends_the_log_with_one_warning(tmp_path):
    (tmp_path / "tt.runs").write_text("a file")
    said = []
    outcome = tune([EventLog(tmp_path / "tt.runs" / "r.jsonl", warn=said.append)])
    assert outcome.failure is None and outcome.trials == 40
    assert len(said) == 1 and "tt.runs" in said[0]


def test_each_line_is_written_before_the_run_goes_on(tmp_path):
    log, sizes = EventLog(tmp_path / "log.jsonl"), []

    class Looks(Listener):
        def tt_batch_measured(self, run, state, batch, results):
            sizes.append(len(retell.retell(retell.read(log.path)).curve))

    tune([log, Looks()])
    log.close()
    assert sizes == [1, 2, 3, 4, 5]


def test_what_a_program_reads_is_what_is_kept(tmp_path):
    out = io.StringIO()
    clock = VirtualClock()
    log = EventLog(tmp_path / "log.jsonl", clock)
    tune([log, JsonLines(out, clock)], clock)
    log.close()
    assert log.path.read_text() == out.getvalue()


@pytest.mark.parametrize(
    ("history", "where"),
    [("tt.db", "tt.runs"), ("a/b.sqlite", "a/b.runs"), ("plain", "plain.runs"), ("v1.2.db", "v1.2.runs")],
)
def test_logs_lie_beside_the_history(history, where):
    assert str(eventlog.folder(history)) == where


@pytest.mark.parametrize("history", [None, ":memory:", "file:tt.db?mode=ro", "postgresql://host/db", ""])
def test_a_history_that_is_no_file_has_no_logs(history):
    assert eventlog.folder(history) is None


def test_a_run_is_found_by_file_by_the_beginning_of_its_id_and_as_the_newest(tmp_path):
    history, runs = tmp_path / "tt.db", tmp_path / "tt.runs"
    with pytest.raises(FileError, match=r"no event logs in .*tt tune"):
        retell.find("", history)
    runs.mkdir()
    paths = [runs / f"{name}.jsonl" for name in ("ab12", "ab34", "c*d")]
    for i, path in enumerate(paths):
        path.write_text("")
        os.utime(path, (1000 + (7 * i) % 10, 1000 + (7 * i) % 10))
    assert retell.find("", history) == paths[1]
    assert retell.find("ab1", history) == paths[0]
    assert retell.find("c", history) == paths[2]
    assert retell.find(str(paths[2]), history) == paths[2]
    with pytest.raises(FileError, match="'ab': 2 event logs begin"):
        retell.find("ab", history)
    with pytest.raises(FileError, match=r"'zz'.*no event log.*tt history show"):
        retell.find("zz", history)
