"""tt-spec's own pieces."""

from __future__ import annotations

import functools
from pathlib import Path

from tt_spec.hooks import Entry, hookimpl
from tt_spec.recipe import read_toml

_P = "tt_spec.pieces"


@hookimpl
def tt_evaluators() -> list[Entry]:
    return [Entry("once", f"{_P}.once_evaluator:OnceEvaluator", "one run to warm up, one that counts")]


@hookimpl
def tt_measurers() -> list[Entry]:
    return [Entry("synthetic", f"{_P}.synthetic:SyntheticMeasurer", "simulated run times by a formula")]


@hookimpl
def tt_surrogates() -> list[Entry]:
    return [Entry("null", f"{_P}.null_surrogate:NullSurrogate", "no model: the mean label")]


@hookimpl
def tt_searchers() -> list[Entry]:
    return [Entry("random", f"{_P}.random_searcher:RandomSearcher", "uniform random rows", "Bergstra 2012")]


@hookimpl
def tt_samplers() -> list[Entry]:
    return [Entry("top", f"{_P}.top_sampler:TopSampler", "rows of highest score")]


@hookimpl
def tt_transfers() -> list[Entry]:
    return [Entry("same-space", f"{_P}.same_space_transfer:SameSpaceTransfer", "rows of the very same space")]


@hookimpl
def tt_schedulers() -> list[Entry]:
    return [
        Entry("sequential", f"{_P}.sequential_scheduler:SequentialScheduler", "one task after the other", "AutoTVM")
    ]


@hookimpl
def tt_stoppers() -> list[Entry]:
    return [Entry("trials", f"{_P}.trials_stopper:TrialsStopper", "a budget of measured rows")]


@hookimpl
def tt_stores() -> list[Entry]:
    return [Entry("memory", f"{_P}.memory_store:MemoryStore", "lives as long as its process")]


@hookimpl
def tt_formats() -> list[Entry]:
    return [Entry("jsonl", f"{_P}.jsonl_format:JsonlFormat", "a line of JSON for each task, run and record")]


@hookimpl
def tt_recipes() -> list[Entry]:
    folder = Path(__file__).parents[1] / "recipes"
    found = []
    for path in sorted(folder.glob("*.toml")):
        recipe = read_toml(path)
        found.append(
            Entry(path.stem, functools.partial(read_toml, path), recipe.get("summary", ""), recipe.get("source", ""))
        )
    return found


@hookimpl
def tt_replays() -> list[Entry]:
    return [Entry("synthetic", f"{_P}.synthetic_replay:SyntheticReplay", "random search on formulas")]
