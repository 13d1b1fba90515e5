"""A tuning run as a page."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tt_bench import runpage, wallclock
from tt_bench.errors import BenchError
from tt_bench.slots import Given, section_slots
from tt_core.events.log import EventLog
from tt_history import SqliteStore
from tt_spec import Loop, Pipeline, Plugins, RunInfo, VirtualClock
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.spent import Did, Span, Spent, shared


class Slow(SyntheticMeasurer):
    """Each candidate costs 3 s: 2 to build, 1 to run."""

    def __init__(self, clock):
        super().__init__(fail=0.2)
        self.clock = clock

    def measure(self, task, codes, bar):
        import dataclasses

        for m in super().measure(task, codes, bar):
            self.clock.advance(2.0)
            yield dataclasses.replace(m, cost={"apply": 0.0, "build": 1.0, "run": 1.0})


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """A run of two tasks, 24 trials each, with its event log beside the history."""
    folder = tmp_path_factory.mktemp("run")
    clock = VirtualClock(1e9)
    tasks = [synthetic_task("first", 8), synthetic_task("<second>", 8)]
    plugins = Plugins()
    store = SqliteStore(folder / "tt.db", clock=clock)
    store.remember(tasks)
    about = {"model": "toy", "recipe": {"name": "r"}, "seed": 0, "device": "toy/1 cores"}
    about |= {"options": {"precision": "float32"}}
    run_id = store.begin_run(about)
    log = EventLog(folder / "tt.runs" / f"{run_id}.jsonl", clock)
    pipelines = [
        Pipeline(
            t,
            plugins.build("surrogate", "null"),
            plugins.build("searcher", "anneal", chains=8, steps=10),
            plugins.build("sampler", "top"),
            clock=clock,
        )
        for t in tasks
    ]
    scheduler = plugins.build("scheduler", "round-robin", trials=8)
    stoppers = [plugins.build("stopper", "trials", trials=48)]
    out = Loop(
        pipelines,
        Slow(clock),
        store,
        scheduler,
        stoppers,
        clock,
        info=RunInfo(run_id, tuple(tasks), about),
        batch=8,
        listeners=[log],
        stamp={"device": about["device"]},
    ).run()
    assert out.failure is None
    log.close()
    store.close()
    return folder / "tt.db"


@pytest.fixture
def text(history, host, tmp_path):
    runpage.write(runpage.listen(host, "", history), history, tmp_path / "page.html")
    return (tmp_path / "page.html").read_text()


def test_every_section_is_there_and_names_are_escaped(text):
    heads = re.findall(r"<h2>(.*?)</h2>", text)
    assert heads == [
        "Model latency over time",
        "Convergence",
        "Where the time went",
        "Schedule",
        "Slots per operator",
        "Errors",
        "Best configurations",
        "Knob importance",
        "What the pieces remarked",
    ]
    assert "<second>" not in text and "&lt;second&gt;" in text
    assert "stopped: 48 trials are spent" in text


def test_the_page_says_in_what_precision(text):
    assert "seed 0, computed in float32, toy/1 cores" in text


def test_times_add_up(history, host):
    told = runpage.listen(host, "", history)
    parts = told.spent.parts
    assert parts["run"] == pytest.approx(48.0)
    assert told.spent.total_s - parts["run"] == pytest.approx(48.0, abs=2.1), "the first candidate opens the clock"
    assert sum(told.batches.values()) == 6


def test_the_page_says_why_nothing_was_built_or_timed(history, host, tmp_path):
    told = runpage.listen(host, "", history)
    first, last = told.spent.spans[0], told.spent.spans[-1]
    began = first.at - first.seconds
    told.retold.stages = [
        {"name": "reading", "began": began - 7.0, "seconds": 6.0},
        {"name": "tuning", "began": began - 1.0, "seconds": 90.0},
        {"name": "compiling", "began": last.at + 1.0, "seconds": 11.0},
    ]
    for think, wait, cause in ((3.0, 0.0, "thinking before batches, 3.0 s at most"), (1.0, 5.0, "waiting for workers")):
        told.spent.spans = [
            Span(s.at, {"think": think, "build": 2.0, "run": 2.0, "wait": wait}) for s in told.spent.spans
        ]
        runpage.write(told, history, tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text()
        assert "<td>6.0 s</td>" in page and "<td>11.0 s</td>" in page, "stages before and after the search"
        share = (think + wait) / (think + wait + 4.0)
        assert f"Nothing was built or timed for {share:.0%} of the search, most of all because of {cause}" in page
    told.spent.spans = [Span(s.at, {"think": 0.5, "build": 2.0, "run": 2.0, "wait": 0.0}) for s in told.spent.spans]
    runpage.write(told, history, tmp_path / "page.html")
    assert "Nothing was built or timed" not in (tmp_path / "page.html").read_text()


def test_errors_are_counted_with_their_messages(text, history, host):
    told = runpage.listen(host, "", history)
    failed = sum(m.error == "build" for results in told.measured.values() for m in results)
    assert failed > 3
    assert f"<td>build</td><td>{failed}</td><td>{failed}</td><td class=text>simulated failure</td>" in text


def test_the_best_configuration_is_the_history_s(text, history):
    store = SqliteStore(history)
    for t in (synthetic_task("first", 8), synthetic_task("<second>", 8)):
        best = store.best(t.key)
        assert best is not None
        assert ", ".join(f"{k} {v}" for k, v in best.knobs.items()) in text
    store.close()


def test_the_best_of_another_device_is_not_the_run_s(history, host, tmp_path):
    mixed = tmp_path / "tt.db"
    for file in (history, *history.parent.glob("tt.db-*")):
        shutil.copy(file, tmp_path / file.name)
    shutil.copytree(history.parent / "tt.runs", tmp_path / "tt.runs")
    store = SqliteStore(mixed)
    task = synthetic_task("first", 8)
    best = store.best(task.key, "toy/1 cores")
    assert best is not None
    other = {name: f"elsewhere{i}" for i, name in enumerate(best.knobs)}
    store.append([dataclasses.replace(best, knobs=other, seconds=(1e-9,), device="fast/64 cores")])
    store.close()
    runpage.write(runpage.listen(host, "", mixed), mixed, tmp_path / "page.html")
    assert "elsewhere" not in (tmp_path / "page.html").read_text()


def test_curves_are_drawn_by_a_browser(text, browser, tmp_path):
    drawn = browser(tmp_path / "page.html", "[id^=curve-] path")
    assert len(drawn) == 3, "the model's and each operator's"
    assert all(width > 50 and height > 5 for width, height in drawn)


def test_clusters_and_their_losses_are_drawn(history, host, browser, tmp_path):
    (log,) = history.with_suffix(".runs").iterdir()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    for e in events:
        if e["event"] == "batch_measured" and e["task"] == "first" and e["batch"]["id"] > 1:
            e["info"] |= {"k": 6 + e["batch"]["id"], "loss_curve": {"k": [8, 9, 10], "loss": [5.0, 3.0, 2.5]}}
    edited = tmp_path / "clusters.jsonl"
    edited.write_text("".join(json.dumps(e) + "\n" for e in events))
    runpage.write(runpage.listen(host, str(edited), history), history, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "<h2>Clusters</h2>" in text and "<td class=text>8, 9</td>" in text
    assert len(browser(tmp_path / "page.html", "[id^=clusters-]")) == 2, "a dot for each batch"


def test_the_maximum_of_trials_is_drawn_with_its_blocks(history, host, browser, tmp_path, text):
    assert "Trials at most" not in text, "no stopper adapted it"
    (log,) = history.with_suffix(".runs").iterdir()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    for e in events:
        if e["event"] == "batch_measured" and e["task"] == "<second>":
            e["info"]["stopper"] = {"im": 224.0, "blocks": [[None, 0.0, 256.0], [0.5, -32.0, 224.0]]}
    edited = tmp_path / "stops.jsonl"
    edited.write_text("".join(json.dumps(e) + "\n" for e in events))
    runpage.write(runpage.listen(host, str(edited), history), history, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<h2>Trials at most</h2>" in page
    assert "<td>&lt;second&gt;</td><td>1</td><td></td><td>+0</td><td>256</td>" in page
    assert "<td></td><td>2</td><td>0.500</td><td>-32</td><td>224</td>" in page
    assert len(browser(tmp_path / "page.html", "[id^=stop-]")) == 1, "the other operator had no maximum"


def test_a_run_that_was_killed_is_drawn(history, host, tmp_path):
    (log,) = history.with_suffix(".runs").iterdir()
    lines = log.read_text().splitlines(keepends=True)
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(lines[:4]) + lines[4][:50])
    runpage.write(runpage.listen(host, str(cut), history), history, tmp_path / "page.html")
    assert "the run was killed or goes on" in (tmp_path / "page.html").read_text()
    edited = tmp_path / "edited.jsonl"
    edited.write_text(lines[0] + lines[1].replace('"results"', '"result"') + "".join(lines[2:]))
    with pytest.raises(BenchError, match=r"incomplete or damaged \('results'\)"):
        runpage.listen(host, str(edited), Path("tt.db"))


def test_slots_say_who_had_them_and_what_they_brought(history, host, text):
    slots = runpage.listen(host, "", history).slots
    assert [s.number for s in slots] == [1, 2, 3, 4, 5, 6] and {s.trials for s in slots} == {8}
    assert [s.task for s in slots] == ["first", "<second>"] * 3
    assert [s.realised_s is None for s in slots] == [True, True, False, False, False, False]
    told = runpage.listen(host, "", history)
    first = next(m.latency_s for m in told.measured["first"] if m.seconds)
    best = {n: min(m.latency_s for m in told.measured[n]) for n in ("first", "<second>")}
    start = {n: min(m.latency_s for m in told.measured[n][:8]) for n in best}
    gained = sum(s.realised_s or 0.0 for s in slots[2:])
    assert first >= start["first"] and gained == pytest.approx(sum(start[n] - best[n] for n in best))
    assert 'id="slots"' in text and "6 slots; choosing took 0.00 s" in text


def test_expected_and_realised_gains_are_drawn_together():
    slots = [
        Given(
            n, "conv", 16, 10.0 * n, 2e-3, 1e-3, 0.1, "ucb", "least squares: acceptance was 0.05" if n < 3 else "mcmc"
        )
        for n in range(1, 6)
    ]
    page = section_slots([Given(0, "conv", 16, 0.0, 0.0, None, 0.0, "warm-up"), *slots], ["conv"], 50.0)
    assert 'id="gain-expected"' in page and 'id="gain-realised"' in page
    assert "<td>conv</td><td>6</td><td>96</td><td>10</td><td>5</td>" in page
    assert "6 slots (5 ucb, 1 warm-up); choosing took 0.50 s, 1.0% of the run." in page
    assert "2 predictions fell back to the least-squares fit: 2 times acceptance was 0.05" in page


def test_the_page_of_one_run_needs_no_comparison():
    source = "import sys, tt_bench.runpage; print(*(m for m in sys.modules if m.startswith('tt_bench.')))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "tt_bench.markup" in loaded
    assert not loaded & {f"tt_bench.{m}" for m in ("compare", "page", "charts", "stats", "runs", "score")}


WORK = [
    [-1, "ask", 0.0, 4.0],
    [0, "realise", 1.0, 1.0],
    [1, "build", 2.0, 3.0],
    [0, "build", 4.0, 6.0],
    [0, "time", 10.0, 2.0],
]


def traced(work, batches=((0.0, 12.0),)):
    """A wall clock of these batches, all of their work told with the last."""
    spent = Spent(2, [shared([Did(*w) for w in work], a, b, 2) for a, b in batches], batches[-1][1])
    spent.work = [Did(*w) for w in work]
    stages = [
        {"name": "reading", "began": -8.0, "seconds": 6.0, "work": [[0, "start", -7.0, 3.0]]},
        {"name": "tuning", "began": 0.0, "seconds": 12.0, "work": []},
        {"name": "compiling", "began": 12.0, "seconds": 6.0, "work": [[1, "race", 13.0, 2.0]]},
    ]
    return wallclock.Clocked(spent, stages)


def test_workers_are_drawn_over_time(browser, tmp_path):
    text = wallclock.section_time(traced(WORK))
    page = tmp_path / "page.html"
    page.write_text(text)
    for name in ("tt itself", "worker 0", "worker 1", "stages", "compiling"):
        assert f">{name}</text>" in text, f"no lane or stage {name}"
    drawn = browser(page, "[id^=worker-] path")
    assert len(drawn) == 7, "a bar for each piece of work, those of the stages too"
    assert "<td>hidden: thinking beside building or timing</td><td>2.0 s</td>" in text
    assert "<td>building while another worker had nothing to build</td><td>5.0 s</td>" in text
    assert "<td>— of these: compiling</td><td>6.0 s</td>" in text
    assert "Nothing was built or timed for 17% of the search, most of all because of making programs of rows" in text


@pytest.mark.parametrize(
    ("idle", "cause"),
    [
        ([[-1, "ask", 0.0, 4.0]], "thinking before batches (cost models and searching) (100% of that)"),
        ([[0, "start", 0.0, 3.0], [-1, "ask", 0.0, 4.0]], "workers that start (75% of that)"),
        ([[-1, "ask", 0.0, 4.0], [1, "features", 1.0, 2.5]], "extracting features of programs (62% of that)"),
        ([[-1, "decide", 1.0, 2.5]], "the scheduler&#x27;s decisions (62% of that)"),
        ([[0, "lock", 0.0, 4.0]], "other processes of tt that build or time here (the timing lock) (100% of that)"),
        ([], "waiting for the store, or for nothing that the log tells (100% of that)"),
    ],
)
def test_an_idle_share_is_told_with_its_cause(idle, cause):
    text = wallclock.section_time(traced([*idle, [0, "build", 4.0, 8.0]]))
    assert f"Nothing was built or timed for 33% of the search, most of all because of {cause}." in text
    busy = wallclock.section_time(traced([*idle, [0, "build", 0.5, 8.0], [1, "time", 8.5, 3.5]]))
    assert "Nothing was built or timed" not in busy
