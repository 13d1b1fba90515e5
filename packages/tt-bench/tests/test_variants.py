"""Variants of recipes, compared."""

from __future__ import annotations

from typing import Any

import pytest
from tt_bench import compare, files, stats
from tt_bench.errors import BenchError
from tt_bench.recording import Recording
from tt_bench.variants import Variant, compare_variants
from tt_bench_toy import recorded, task

VARIANTS = {"small batches": Variant("random", ("batch=4",)), "large batches": Variant("random", ("batch=16",))}


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    path = tmp_path_factory.mktemp("recordings") / "toy.json.gz"
    files.write_t4(Recording("op:toy", "template", (recorded(task("a", 60)),), "toy", {}), path)
    return compare.units([path], [])


def test_one_recipe_under_two_names(chosen, host, tmp_path):
    said: list[str] = []
    options: dict[str, Any] = {"seeds": 2, "trials": 16, "jobs": 1}
    done = compare_variants(host, chosen, VARIANTS, tmp_path, say=said.append, **options)
    (unit,) = done.units
    assert done.recipes == list(VARIANTS)
    assert [done.settings["recipes"][name]["batch"] for name in VARIANTS] == [4, 16]
    assert set(done.runs) == set(done.thinking) == {(name, unit, seed) for name in VARIANTS for seed in (0, 1)}
    small, large = (done.of(name, unit)[0] for name in VARIANTS)
    assert len(small.t) == len(large.t) == 16 and small.t != large.t, "a small batch is timed sooner"
    assert {s.recipe for s in stats.summaries(done)} == set(VARIANTS) and stats.paired(done)
    assert any(text.startswith("small batches: random on") for text in said)

    again: list[str] = []
    same = compare_variants(host, chosen, VARIANTS, tmp_path, say=again.append, **options)
    assert same.runs == done.runs and not again, "nothing is run twice"


def test_a_name_keeps_to_its_settings(chosen, host, tmp_path):
    options: dict[str, Any] = {"seeds": 1, "trials": 8, "jobs": 1}
    compare_variants(host, chosen, {"a": Variant("random", ("batch=4",))}, tmp_path, **options)
    with pytest.raises(BenchError, match="differs in recipe random"):
        compare_variants(host, chosen, {"a": Variant("random", ("batch=8",))}, tmp_path, **options)
    with pytest.raises(BenchError, match="needs a variant"):
        compare_variants(host, chosen, {}, tmp_path, **options)
