"""Comparisons: the same bytes for the same seed, and nothing run twice."""

from __future__ import annotations

import itertools
import json
import shutil

import numpy as np
import pytest
from tt_bench import compare, files, page, pictures
from tt_bench.errors import BenchError
from tt_bench.recording import Recording
from tt_bench.runs import tune
from tt_bench.score import expected_index, scores
from tt_bench.thinking import Stopwatch, Thoughts, WatchedModel
from tt_bench_toy import recorded, task
from tt_spec.pieces.null_surrogate import NullSurrogate

RECIPES = ["random", "autotvm"]
OPTIONS = {"seeds": 2, "trials": 20, "jobs": 1, "sets": ["batch=10"]}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A recording in a file."""
    where = tmp_path_factory.mktemp("recordings") / "toy.json.gz"
    files.write_t4(Recording("op:toy", "template", (recorded(task("a", 60)),), "toy", {}), where)
    return where


@pytest.fixture(scope="module")
def done(path, host, tmp_path_factory):
    out = tmp_path_factory.mktemp("bench")
    chosen = compare.units([path], [])
    return compare.compare(host, chosen, ["random", "oracle"], out, seeds=30, trials=100, jobs=1)


def contents(folder):
    return {p.name: p.read_bytes() for p in (folder / "runs").glob("*.json") if ".real" not in p.name}


@pytest.mark.parametrize("recipe", ["random", "autotvm", "tt"])
def test_the_same_seed_tells_the_same_story(host, part, recipe):
    thoughts = Thoughts((0, 30), (0.1, 0.5), (0.2, 0.2))
    sets = ["batch=16"] if recipe == "random" else ["batch=16", "surrogate.threads=1"]
    a, b, c = (tune(host, [part], recipe, sets, seed, 50, thoughts=thoughts) for seed in (1, 1, 2))
    assert (a.t, a.seen_s, a.true_s, a.spent) == (b.t, b.seen_s, b.true_s, b.spent)
    assert a.seen_s != c.seen_s


def test_thinking_is_charged_from_the_table(host, part):
    free = tune(host, [part], "random", [], 0, 50, thoughts=Thoughts())
    dear = tune(host, [part], "random", [], 0, 50, thoughts=Thoughts((0,), (2.0,), (3.0,)))
    asks = len(dear.thought)
    assert dear.spent["model"] == 2.0 * asks and dear.spent["search"] == 3.0 * asks
    assert dear.t[-1] - free.t[-1] == pytest.approx(5.0 * asks)
    assert dear.seen_s == free.seen_s


def test_a_table_is_the_median_and_interpolates():
    table = Thoughts.of([(0, 1.0, 0.0), (0, 3.0, 0.0), (0, 2.0, 0.0), (10, 4.0, 1.0)])
    assert table.at(0) == (2.0, 0.0) and table.at(5) == (3.0, 0.5) and table.at(99) == (4.0, 1.0)
    assert Thoughts.of([]).at(3) == (0.0, 0.0)


def test_a_models_work_is_timed():
    watch = Stopwatch()
    model = WatchedModel(NullSurrogate(), watch)
    assert (model.inputs, model.shared) == ("knobs", False)
    model.fit([(task(), np.zeros((2, 1)), np.array([1.0, 0.5]))], np.random.default_rng(0))
    assert model.predict(task(), np.zeros((3, 1))).mean.tolist() == [0.75] * 3 and watch.seconds > 0


@pytest.mark.slow
def test_what_was_interrupted_goes_on_with_the_same_bytes(path, host, tmp_path):
    chosen = compare.units([path], [])
    whole = compare.compare(host, chosen, RECIPES, tmp_path / "a", **OPTIONS)
    assert len(whole.runs) == 4 and set(whole.thinking) == set(whole.runs)

    class Killed(Exception):
        pass

    said = []

    def kill(text):
        said.append(text)
        if "1 of 4 runs" in text:
            raise Killed

    shutil.copytree(tmp_path / "a" / "thinking", tmp_path / "b" / "thinking")
    with pytest.raises(Killed):
        compare.compare(host, chosen, RECIPES, tmp_path / "b", say=kill, **OPTIONS)
    before = contents(tmp_path / "b")
    assert 1 <= len(before) < 4
    again = []
    compare.compare(host, chosen, RECIPES, tmp_path / "b", say=again.append, **OPTIONS)
    assert len(again) == 4 - len(before), "what was there is not run again"
    assert contents(tmp_path / "b") == contents(tmp_path / "a")


def test_a_folder_with_another_comparison_is_refused(path, host, done):
    chosen = compare.units([path], [])
    with pytest.raises(BenchError, match="differs in trials"):
        compare.compare(host, chosen, ["random"], done.folder, trials=101)
    with pytest.raises(BenchError, match="differs in recipe random"):
        compare.compare(host, chosen, ["random"], done.folder, trials=100, sets=["batch=3"])
    with pytest.raises(BenchError, match=r"bench\.json"):
        compare.read(done.folder / "runs")


def test_units_are_tasks_or_whole_models(recording, tmp_path):
    where = tmp_path / "x.json"
    files.write_t4(recording, where)
    assert [u.name for u in compare.units([where], [])] == ["toy a [template]", "toy b [template]"]
    assert [u.parts for u in compare.units([where], ["template"], whole=True)] == [(0, 1)]
    assert [u.name for u in compare.units([where], [], tasks="b")] == ["toy [template]"]
    with pytest.raises(BenchError, match="no recorded task with space sketch"):
        compare.units([where], ["sketch"])
    shutil.copy(where, tmp_path / "y.json")
    with pytest.raises(BenchError, match="several recordings"):
        compare.units([where, tmp_path / "y.json"], [])


def test_schedulers_are_compared_on_whole_models(host, recording, tmp_path):
    files.write_t4(recording, tmp_path / "x.json")
    chosen = compare.units([tmp_path / "x.json"], [], whole=True)
    done = compare.compare(host, chosen, ["random", "oracle"], tmp_path / "out", seeds=2, trials=48, jobs=1)
    (unit,) = done.units
    assert done.best[unit] == pytest.approx(sum(p.task.weight * p.best_s for p in recording.parts))
    assert all(set(r.task) == {0, 1} for r in done.runs.values())
    assert all(r.true_s[-1] == pytest.approx(done.best[unit]) for r in done.of("oracle", unit))
    page.publish(done, lambda text: None)
    assert "Not scored: toy [template] (several tasks)" in (tmp_path / "out" / "bench.html").read_text()


def test_a_partial_recording_needs_a_policy(host, tmp_path):
    t = task()
    part = recorded(t, rows=t.space.sample(20, np.random.default_rng(0)))
    files.write_t4(Recording("op:toy", "template", (part,), "toy", {}), tmp_path / "x.json")
    chosen = compare.units([tmp_path / "x.json"], [])
    with pytest.raises(BenchError, match="--unrecorded nearest"):
        compare.compare(host, chosen, ["random"], tmp_path / "out", seeds=1)
    run = tune(host, [part], "random", [], 0, 10, thoughts=Thoughts(), unrecorded="nearest")
    assert len(run.t) == 10 and 0.3 < run.lacking < 1.0


@pytest.mark.together
def test_random_search_scores_0_and_the_oracle_1(done):
    pytest.importorskip("autotuning_methodology")
    found = scores(done)
    assert found.left_out == {}
    _, low, high = found.by_recipe["random"]
    assert low <= 0 <= high and high - low < 1
    assert found.by_recipe["oracle"][0] > 0.95


def test_the_expected_index_is_the_mean_over_all_draws():
    for n in range(1, 7):
        for m in range(1, n + 1):
            best = [max(drawn) for drawn in itertools.combinations(range(n), m)]
            assert abs(expected_index(m, n) - np.mean(best)) <= 0.5


def test_the_page_has_every_curve_and_needs_no_network(done):
    import re
    import xml.etree.ElementTree as ET

    said = []
    path = page.publish(done, said.append)
    text = path.read_text()
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", text.replace("http://www.w3.org", ""))
    ids = set()
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        for element in ET.fromstring(svg).iter():
            if element.get("id", "").startswith("curve-"):
                (line,) = [e for e in element.iter() if e.tag.endswith("path")]
                ids.add((element.get("id"), len(line.attrib["d"].split("L"))))
    names = {f"curve-{over}-{r}-toy_[template]" for over in ("seconds", "trials") for r in ("random", "oracle")}
    assert {i for i, _ in ids} == names
    assert all(points > 10 for i, points in ids if "random" in i), "a curve with its steps"
    data = json.loads((path.parent / "summary.json").read_text())
    assert {s["recipe"] for s in data["summary"]} == {"random", "oracle"}
    oracle = next(s for s in data["summary"] if s["recipe"] == "oracle")
    assert oracle["final"] == 1.0 and oracle["to_95_s"] < 1.0
    assert (path.parent / "summary.csv").read_text().startswith("recipe,unit,seeds,final")
    assert all((path.parent / f"{n}.png").stat().st_size > 5000 for n in ("curves-seconds", "curves-trials", "split"))


def test_curves_are_drawn_by_a_browser(done, browser):
    page.publish(done, lambda text: None)
    drawn = browser(done.folder / "bench.html", "[id^=curve-] path")
    assert len(drawn) == 4 and all(width > 100 for width, _ in drawn)
    random = browser(done.folder / "bench.html", "[id*=-random-] path")
    assert len(random) == 2 and all(height > 50 for _, height in random)


def test_names_that_would_share_a_file_are_refused(tmp_path):
    settings = {"recipes": {"mine/a": {}, "Mine-A": {}, "other": {}}, "units": []}
    with pytest.raises(BenchError, match=r"'mine/a' and 'Mine-A' would share"):
        compare._begin(tmp_path, settings)


def test_names_with_dollar_signs_are_no_formulas():
    made, (ax,) = pictures.grid(1)
    hostile = r"$\frac{ costs $5 and $"
    ax.set_title(hostile)
    ax.plot([1, 1000], [1, 2], label=hostile)
    ax.set_yticks([1, 2], [hostile, "plain"])
    ax.legend()
    pictures.log_axis(ax)
    drawn = pictures.svg(made, "hostile")
    assert drawn.count(r"$\frac{ costs $5 and $") >= 3
