"""Suggestions: found on some tasks and seeds, believed if others agree, kept, and gone on with after a kill."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tt_history import SqliteStore, suggest
from tt_history.cli import run
from tt_history.errors import HistoryError
from tt_history.exchange import export, take
from tt_history.maintenance import merge
from tt_history.suggest_command import _lines
from tt_history.suggestion import study
from tt_history.suggestion.past_runs import judged, reached
from tt_history.suggestion.toml import written
from tt_spec import Knob, Measurement, Space, Task
from tt_spec.pieces.jsonl_format import JsonlFormat
from tt_spec.suggestions import Suggestion, keep, newest, suggestions

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from tt_history_landscapes import TT, Fitting, Host, Landscape, pieces, tomllib  # noqa: E402

SPACE = Space((Knob("tile", "choice", tuple(range(64))),))
HOST: Any = Host()


def task(i: int) -> Task:
    return Task(
        f"k{i}", "conv" if not i else f"conv{i}", "conv2d", "llvm", (SPACE,), 1e6 * (1 + i), 1.0, b"", f"1x{8 + i}"
    )


@pytest.fixture
def history(tmp_path):
    """A history with one task, measured once."""
    path = tmp_path / "tt.db"
    store = SqliteStore(path)
    store.remember([task(0)])
    store.append([Measurement("k0", SPACE.key, (0,), SPACE.decode((0,)), (1e-3,), device="xeon")])
    store.close()
    return path


def asked(history, kind="helps", **options: Any):
    every: dict[str, Any] = {"by": "replay", "trials": 16, **options}
    with pieces(kind):
        (found,) = suggest(history, "conv", host=HOST, **every)
    return found


# -- replays ----------------------------------------------------------------------------------------------------------


def test_a_better_option_is_found_and_judged_by_other_tasks(history):
    found = asked(history)
    told = found.evidence["replay"]
    assert found.better and found.ground == "replay"
    assert 2 <= found.recipe["searcher"]["steps"] <= 32 and found.recipe["searcher"]["piece"] == "hill"
    assert "store" not in found.recipe and found.recipe["batch"] >= 8
    assert not set(told["tasks"]) & set(told["held_out_tasks"]) and len(told["held_out_tasks"]) == 3
    gain = told["held_out"]
    assert gain["p"] < 0.05 and gain["low"] <= gain["ratio"] <= gain["high"] < 1 and gain["pairs"] == 15
    assert told["complete"] + told["pruned"] == 16 and told["pruned"] > 2, "bad options are given up early"
    assert told["devices"] == ("xeon",) and told["seeds"] == 3 and found.device == "xeon" and found.kind == "conv2d"


@pytest.mark.parametrize("kind", ["noise", "misleads"])
def test_it_can_say_no(history, kind):
    found = asked(history, kind, trials=10)
    assert not found.better and not found.recipe and found.ground is None
    gain: Any = found.evidence["replay"]["held_out"]
    assert gain is None or gain["p"] >= 0.05 or gain["ratio"] > 1, "with the figures"
    if kind == "misleads":
        assert gain is not None
        assert found.evidence["replay"]["chosen"] < 0.9 and gain["ratio"] > 1, "what chose it was misled"


def test_one_task_that_judges_is_too_few_however_many_seeds(history):
    found = asked(history, "few")
    told = found.evidence["replay"]
    assert told["judges"] == 1 and told["held_out"]["p"] < 0.05 and told["held_out"]["ratio"] < 1
    assert not found.better and not found.recipe and "too few to tell" in found.evidence["notes"][0]


def test_a_history_that_is_no_recording_is_replayed_and_labelled_so(history, capsys):
    with pieces("unrecorded", Fitting):
        (found,) = suggest(history, "conv", host=HOST, by="replay", trials=12)
    assert found.better and found.ground == "model" and set(found.evidence) == {"model"}
    told = "\n".join(_lines(found, "tt"))
    assert "better by replays over a fitted model" in told and "replays over a model fitted to the history:" in told


def test_a_fitted_model_never_outvotes_a_recording(history):
    with pieces("misleads", Fitting):
        (found,) = suggest(history, "conv", host=HOST, by="replay", trials=8)
    assert not found.better and found.ground is None and set(found.evidence) == {"replay"}


def test_a_fitted_model_never_outvotes_past_runs(history):
    store = SqliteStore(history)
    for i in range(1, 15):
        past(store, i, recipe("tt", 64), arrives=20 + i)
        past(store, i, recipe("mine", 32), arrives=10 + i)
    store.close()
    with pieces("unrecorded", Fitting):
        (found,) = suggest(history, "conv", host=HOST, trials=8)
    assert found.evidence["model"]["held_out"]["ratio"] < 1 and found.ground == "runs"
    assert found.recipe["searcher"] == {"piece": "hill", "steps": 32}


def test_the_same_seed_tries_the_same(history, tmp_path):
    one, two = (asked(history, study=tmp_path / f"{n}.log", trials=6, seed=3) for n in "ab")
    assert one.recipe == two.recipe
    assert {**one.evidence["replay"], "study": ""} == {**two.evidence["replay"], "study": ""}


def test_an_interrupted_call_goes_on(history):
    seen = []

    def halt():
        seen.append(1)
        return "interrupted" if len(seen) > 100 else None

    with (
        pieces("helps"),
        pytest.raises(HistoryError, match=r"interrupted; what was tried is in .*the same command goes on"),
    ):
        suggest(history, "conv", host=HOST, by="replay", trials=16, halt=halt)
    Landscape.plays = 0
    found = asked(history, trials=16)
    whole = Landscape.plays
    assert found.better and found.evidence["replay"]["failed"] == 1, "the trial in hand was lost, no other one"
    Landscape.plays = 0
    again = asked(history, trials=16)
    assert Landscape.plays < whole and again.recipe == found.recipe, "what was tried is not tried again"


def test_a_killed_study_goes_on(history):
    script = [sys.executable, str(HERE / "tt_history_landscapes.py"), str(history), "47"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    log = history.with_name("tt.suggest.log")
    kept = log.read_bytes()
    log.write_bytes(kept + kept.splitlines()[-1][:20])  # and in the middle of a line
    found = asked(history, trials=6)
    told = found.evidence["replay"]
    assert told["failed"] == 1 and told["complete"] + told["pruned"] == 6


def test_what_is_tried_is_what_the_ranges_allow(history):
    asked(history, trials=6)
    for line in history.with_name("tt.suggest.log").read_text().splitlines():
        content = json.loads(line).get("user_attr", {}).get("content")
        if content is not None:
            searcher = json.loads(content)["searcher"]
            assert 1 <= searcher["steps"] <= 256 and 0.1 <= searcher.get("heat", 1.0) <= 10
            assert set(searcher) <= {"piece", "steps", "heat", "way"}, "an option without a range keeps its default"


def test_too_little_time_is_said(history):
    found = asked(history, minutes=1e-6)
    assert not found.better and not found.id and "too little time for one trial" in found.evidence["notes"][0]
    assert "give more --minutes" in found.evidence["notes"][0]


def test_without_recordings_the_answer_is_no_and_nothing_is_kept(history):
    found = asked(history, "unrecorded")
    assert not found.better and not found.id and "no recorded task" in found.evidence["notes"][0]
    assert SqliteStore(history).runs() == []


# -- the store --------------------------------------------------------------------------------------------------------


def test_a_suggestion_is_kept_and_travels(history, tmp_path):
    found = asked(history, trials=8)
    store = SqliteStore(history)
    (kept,) = suggestions(store.runs())
    assert kept.id == found.id and kept.recipe == found.recipe and kept.versions == {"python": "3"} and kept.at > 0
    assert newest(store.runs(), "conv2d", "xeon") == kept and newest(store.runs(), "conv2d", "other") is None
    merged, imported = SqliteStore(tmp_path / "merged.db"), SqliteStore(tmp_path / "imported.db")
    merge([store], merged)
    assert suggestions(merged.runs()) == [kept]
    export(store, JsonlFormat(), tmp_path / "them.jsonl")
    take(imported, JsonlFormat(), tmp_path / "them.jsonl")
    (came,) = suggestions(imported.runs())
    assert came.recipe == kept.recipe and came.file == "them.jsonl", "one that came from a file says so"
    later = Suggestion("conv2d", "xeon", False, {}, None, {})
    keep(store, later)
    last = newest(store.runs(), "conv2d", "xeon")
    assert last is not None and not last.better, "the last word counts"
    for s in (store, merged, imported):
        s.close()


def test_a_run_that_is_no_suggestion_is_passed_over():
    good = {"id": "1", "started": 1.0, "info": Suggestion("k", "d", True, {"batch": 8}, "runs", {}).info()}
    assert Suggestion.of(good) is not None
    for damage in ({"format": 2}, {"recipe": 3}, {"better": "yes"}, {"ground": "hearsay"}, {"kind": None}):
        info = {**good["info"], "suggestion": {**good["info"]["suggestion"], **damage}}  # type: ignore[dict-item]
        assert Suggestion.of({**good, "info": info}) is None
    assert Suggestion.of({"id": "1", "started": 1.0, "info": {}}) is None


# -- past runs --------------------------------------------------------------------------------------------------------


def recipe(name: str, steps: int) -> dict[str, Any]:
    return {**TT, "name": name, "searcher": {"piece": "hill", "steps": steps}}


def past(store, i, about, arrives, rows=40, options=None):
    """A run of task `i` that finds the best row at trial `arrives`, a second each."""
    store.remember([task(i)])
    run_id = store.begin_run(
        {"recipe": about, "device": "xeon", "options": options or {"history": f"{about['name']}.db"}}
    )
    store.append(
        [
            Measurement(
                f"k{i}", SPACE.key, (n,), SPACE.decode((n,)), (1.0e-3 if n + 1 == arrives else 2e-3 + 1e-5 * n,),
                cost={"build": 0.75, "run": 0.25}, device="xeon", run_id=run_id, origin="search", at=float(n),
            )
            for n in range(rows)
        ]
    )  # fmt: skip


def test_past_runs_rank_recipes_by_the_way_to_the_best(history):
    store = SqliteStore(history)
    for i in range(1, 15):
        past(store, i, recipe("tt", 64), arrives=20 + i)
        past(store, i, recipe("mine", 8), arrives=10 + i)
    found = {(r.task, r.name): r.to for r in reached(store, [f"k{i}" for i in range(15)])}
    assert found["k3", "tt"] == (23, 23.0) and found["k3", "mine"] == (13, 13.0)
    verdict = judged(reached(store, [f"k{i}" for i in range(15)]), recipe("tt", 64), "tt")
    assert verdict.better and verdict.name == "mine" and verdict.recipe is not None
    assert verdict.recipe["searcher"]["steps"] == 8 and verdict.held_out is not None and verdict.held_out.pairs == 7
    store.close()
    (kept,) = suggest(history, "conv*", by="runs")
    assert kept.better and kept.ground == "runs" and kept.evidence["runs"]["runs"] == 28


def test_few_runs_are_no_evidence(history):
    store = SqliteStore(history)
    for i in range(1, 9):
        past(store, i, recipe("tt", 64), arrives=30)
        past(store, i, recipe("mine", 8), arrives=10)
    verdict = judged(reached(store, [f"k{i}" for i in range(9)]), None, "tt")
    assert verdict.chosen is not None and verdict.chosen.ratio < 0.5 and not verdict.better, "four pairs cannot say so"
    store.close()


def test_unequal_budgets_are_compared_only_where_both_arrived(history):
    store = SqliteStore(history)
    for i in range(1, 5):
        past(store, i, recipe("tt", 64), arrives=0, rows=20)  # never
        past(store, i, recipe("mine", 8), arrives=30, rows=40)
    assert judged(reached(store, [f"k{i}" for i in range(1, 5)]), None, "tt").chosen is None
    for i in range(5, 9):
        past(store, i, recipe("tt", 64), arrives=0, rows=40)
        past(store, i, recipe("mine", 8), arrives=30, rows=40)
    gain = judged(reached(store, [f"k{i}" for i in range(5, 9)]), None, "tt").chosen
    assert gain is not None and gain.ratio == pytest.approx(30 / 80), "of equal budgets, who never arrives took twice"
    store.close()


def test_a_run_that_went_on_from_another_one_is_no_evidence(history):
    store = SqliteStore(history)
    past(store, 1, recipe("tt", 64), arrives=30, options={"history": "ours.db"})
    past(store, 1, recipe("mine", 8), arrives=1, options={"history": "ours.db"})
    assert [r.name for r in reached(store, ["k1"])] == ["tt"]
    store.close()


# -- recipes as files -------------------------------------------------------------------------------------------------

VALUES = st.one_of(
    st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False), st.text(st.characters(codec="utf-8"))
)
VALUES = st.one_of(VALUES, st.lists(VALUES, max_size=3), st.dictionaries(st.text(min_size=1), VALUES, max_size=2))


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), VALUES, max_size=4))
def test_a_recipe_reads_back_equal(options):
    content = {"batch": 16, "summary": 'a "b"\n\\', "searcher": {"piece": "hill", **options}}
    assert tomllib.loads(written(content, "two\nlines")) == content


# -- mistakes ---------------------------------------------------------------------------------------------------------


def refused(history, match, **options: Any):
    every: dict[str, Any] = {"by": "replay", "trials": 3, **options}
    with pieces("helps"), pytest.raises(HistoryError, match=match) as caught:
        suggest(history, "conv", host=HOST, **every)
    assert "\n" not in str(caught.value)


def test_mistakes_are_one_line(history, tmp_path):
    refused(tmp_path / "none.db", "no history .*none.db: tt tune writes one")
    refused(history, "has no operator of kind 'conv3d'; did you mean 'conv2d'", kinds=["conv3d"])
    refused(history, "--by is runs, replay, both, got 'luck'", by="luck")
    refused(history, "minutes must be above 0", minutes=0)
    refused(history, "no recording matches", recordings=[str(tmp_path / "*.json.gz")])
    refused(history, "study .*nowhere.*No such file", study=tmp_path / "nowhere" / "s.log")
    refused(history, "study .*: .*a file is wanted|Is a directory", study=tmp_path)
    with pieces("helps"), pytest.raises(HistoryError, match="has no task 'gone'"):
        suggest(history, "gone", by="runs")
    with pytest.raises(HistoryError, match="replays need tt-core"):
        suggest(history, "conv", by="replay")


def test_a_study_that_cannot_be_used_is_refused_in_one_line(history, tmp_path):
    file = tmp_path / "s.log"
    for content in (
        b"rubbish",
        b"rubbish\n",
        b"[1]\n",
        b'{"op_code": 99}\n',
        b'{"a"\n{"op_code":0}\n',
        b"\x00" * 40 + b"\n",
    ):
        file.write_bytes(content)
        refused(history, "study .*s.log: damaged .*move it away", study=file)
        assert file.read_bytes() == content
    file.unlink()
    asked(history, study=file, trials=3)
    kept = file.read_bytes()
    file.write_bytes(kept.replace(b'"tt_suggest":1', b'"tt_suggest":7'))
    refused(history, "of format 7, this tt-history reads 1; move it away", study=file)
    file.write_bytes(kept.replace(b'"tt_suggest":1', b'"colleague":1'))
    refused(history, "is not of tt suggest", study=file)
    file.write_bytes(kept)
    with study.opened(file):
        refused(history, "another tt suggest works on it", study=file)


def test_the_command_without_a_compiler(history, capsys, monkeypatch):
    monkeypatch.chdir(history.parent)
    store = SqliteStore(history)
    for i in range(1, 15):
        past(store, i, recipe("tt", 64), arrives=20 + i)
        past(store, i, recipe("mine", 8), arrives=10 + i)
    store.close()
    assert run(["suggest", "conv*", "--by", "runs", "--out", "my.toml"]) == 0
    said = capsys.readouterr()
    assert "conv2d on xeon: better by past runs: batch=16; searcher hill (steps=8)" in said.out
    assert "held out: 0." in said.out and "28 runs of 14 tasks, 2 recipes" in said.out
    assert tomllib.loads(Path("my.toml").read_text())["searcher"] == {"piece": "hill", "steps": 8}
    assert run(["suggest", "conv*", "--by", "runs", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["better"] and found["kept"] and found["recipe"]["searcher"]["steps"] == 8
    for words, code in ((["--out", "my.txt"], 6), (["--by", "luck"], 6), (["--out", "no/my.toml"], 6)):
        assert run(["suggest", "conv*", "--by", "runs", *words]) == code
        with contextlib.suppress(UnicodeError):
            assert capsys.readouterr().err.count("\n") == 1
