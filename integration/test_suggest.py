"""`tt suggest` on real recordings with real pieces, and `tt tune --recipe suggested`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from tt_core.elsewhere import recipe_here
from tt_core.host import Host
from tt_core.request import Request
from tt_core.suggested import taken
from tt_history import SqliteStore, suggest
from tt_history.suggestion.suggest import Subject
from tt_history.suggestion.toml import written
from tt_search.anneal import Anneal
from tt_spec import Plugins, Task
from tt_spec.assembly import assemble
from tt_spec.pieces.random_searcher import RandomSearcher
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.recipe import read_toml, recipe_of, resolve
from tt_spec.suggestions import Suggestion, keep

RECORDINGS = Path(__file__).parents[1] / "recordings"
TASK = Task("k", "depthwise", "dwconv2d", "llvm", (), 1e6, 1.0, b"", "1x8")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A suggestion for depthwise convolutions, by replays in other processes, of which two are recorded."""
    history = tmp_path_factory.mktemp("suggested") / "tt.db"
    with_history(history)
    recipe = history.with_name("mine.toml")
    recipe.write_text(
        'batch = 16\n[searcher]\npiece = "anneal"\nsteps = 40\n'
        '[surrogate]\npiece = "xgb"\n[stopper]\npiece = "adaptive-stop"\n'
    )
    (one,) = suggest(
        history,
        Subject("op", (TASK,), "here"),
        host=Host(),
        by="replay",
        trials=4,
        jobs=2,
        against="random",
        recipes=[str(recipe)],
        recordings=[str(RECORDINGS / "mobilenet-dw-*-template.json.gz")],
    )
    return history, one


def with_history(path):
    store = SqliteStore(path)
    store.remember([])
    store.close()


def test_options_are_tried_on_one_recording_and_judged_on_the_other(found):
    history, one = found
    told = one.evidence["replay"]
    assert len(told["tasks"]) == len(told["held_out_tasks"]) == 1 and told["tasks"] != told["held_out_tasks"]
    assert told["complete"] + told["pruned"] + told["failed"] == 4 and told["complete"] >= 2
    assert one.versions["tt-history"] and told["devices"] == ("znver5/AMD EPYC/2 cores",)
    if told["held_out"] is not None:
        assert told["held_out"]["pairs"] == 15
        good = told["held_out"]["p"] < 0.05 and told["held_out"]["ratio"] < 1
        assert ("too few to tell" in " ".join(one.evidence.get("notes", ()))) == good
    assert not one.better, "one task judged"
    assert one.id and [r["id"] for r in SqliteStore(history).runs()] == [one.id]


def test_what_was_tried_can_be_tuned_with(found, tmp_path):
    _, one = found
    content = one.evidence["replay"]["recipe"]
    file = tmp_path / "my.toml"
    file.write_text(written(content))
    assert read_toml(file) == content
    assert resolve(str(file)).describe()["batch"] == content["batch"]


def test_a_run_takes_the_newest_suggestion_of_its_device_and_says_which(tmp_path):
    store = SqliteStore(tmp_path / "tt.db")
    request, plugins = Request("op", recipe="suggested", sets=["batch=24"]), Plugins()
    tasks = [TASK, Task("l", "dense", "matmul", "llvm", (), 1e9, 1.0)]
    first = recipe_here(request, None, plugins)
    assert first.name == "tt"
    got, said = taken(request, first, store, tasks, "here")
    assert (
        got is first and "the history has no suggestion for matmul, dwconv2d on here; tt suggest makes one" in said[0]
    )

    def told(kind, device, better, content):
        keep(store, Suggestion(kind, device, better, content, "replay" if better else None, {}, who="ann"))
        got, said = taken(request, first, store, tasks, "here")
        return got, "\n".join(said)

    content = {"batch": 8, "searcher": {"piece": "anneal", "chains": 16}, "store": {"piece": "lines"}}
    got, said = told("matmul", "elsewhere", True, content)
    assert got is first and "no suggestion" in said
    got, said = told("dwconv2d", "here", True, content)
    assert got.pieces["searcher"] == first.pieces["searcher"] and got.batch == 24, "--set goes last"
    assert got.of("dwconv2d").pieces["searcher"] == ("anneal", {"chains": 16})
    assert got.pieces["store"] == ("sqlite", {}) and got.name == "suggested"
    assert "by ann for dwconv2d, 0% of the work" in said
    assert got.of("matmul") is got
    got, said = told("matmul", "here", False, {})
    assert "for matmul, 100% of the work, is to keep the default\nrecipe suggested: " in said
    assert got.of("matmul").pieces["surrogate"] == first.pieces["surrogate"]
    heavy = {"batch": 4, "searcher": {"piece": "evolve"}, "stopper": {"piece": "patience"}}
    got, said = told("matmul", "here", True, heavy)
    assert got.pieces["searcher"] == ("evolve", {}) and got.pieces["stopper"] == ("patience", {}), "it decides"
    assert got.of("dwconv2d").pieces["searcher"] == ("anneal", {"chains": 16}) and len(said.splitlines()) == 2
    assert got.of("dwconv2d").pieces["stopper"] == ("patience", {})
    told("dwconv2d", "here", False, {})
    got, said = told("matmul", "here", True, {"searcher": {"piece": "gone"}})
    assert got is first and "cannot be used here" in said and "no searcher is called 'gone'" in said
    assert taken(Request("op"), first, store, tasks, "here") == (first, [])
    store.close()


def test_each_kind_of_operator_is_searched_by_its_own_pieces():
    model = {"surrogate": {"piece": "xgb", "shared": True}}
    kinds = {"conv2d": {"searcher": {"piece": "anneal", "chains": 16}, **model}, "pool": model}
    recipe = recipe_of("mine", {"batch": 8, "kind": kinds}, (), Plugins())
    tasks = [
        replace(synthetic_task(), key=f"t{i}", op=op) for i, op in enumerate(("conv2d", "matmul", "conv2d", "pool"))
    ]
    first, plain, second, pool = assemble(recipe, tasks, None).pipelines
    assert [type(p.searcher) for p in (first, second)] == [Anneal] * 2
    assert [type(p.searcher) for p in (plain, pool)] == [RandomSearcher] * 2
    assert cast(Anneal, first.searcher).chains == 16
    assert first.surrogate is second.surrogate is not pool.surrogate, "a shared model is its kind's"
    assert type(pool.surrogate) is type(first.surrogate) is not type(plain.surrogate)


def test_a_shared_model_is_made_once_for_all_tasks(monkeypatch):
    recipe = recipe_of("mine", {"surrogate": {"piece": "xgb", "shared": True}}, (), Plugins())
    made, build = [], recipe.build
    monkeypatch.setattr(recipe, "build", lambda role, **more: made.append(role) or build(role, **more))
    assemble(recipe, [replace(synthetic_task(), key=f"t{i}") for i in range(9)], None)
    assert made.count("surrogate") == 1, "it may have weights to read"
