"""Rows of other spaces, joined by names and kinds, and brought to legal rows."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tt_history import SqliteStore
from tt_history.transfer import FromHistory, thin
from tt_history.translate import nearest_row, translated
from tt_spec import Foreign, Knob, Limit, Measurement, Space, Task, Trial
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.testing import mixed_space

SMALL = Space(
    (
        Knob("tile", "tile", ((1, 4), (2, 2), (4, 1))),
        Knob("order", "choice", ("rows", "columns")),
        Knob("unroll", "choice", (1, 2, 4)),
    ),
    name="template",
)
LARGE = Space(
    (
        Knob("tile", "tile", ((1, 16), (2, 8), (4, 4), (8, 2))),
        Knob("order", "choice", ("columns", "blocks")),
        Knob("unroll", "location", (0, 1)),
        Knob("pad", "choice", (0, 1)),
    ),
    name="template",
)
UNION = Space(
    (
        Knob("space", "choice", ("winograd", "template")),
        Knob("winograd.tile", "tile", ((1, 4), (4, 1)), active_if=(0, (0,))),
        Knob("template.tile", "tile", ((1, 4), (2, 2), (8, 2)), active_if=(0, (1,))),
        Knob("template.unroll", "choice", (1, 8), active_if=(0, (1,))),
    ),
    name="winograd+template",
)


def task(name, space, **about):
    return Task(name, name, "conv", "cpu", (space,), **{"flops": 1e6, **about})


def test_knobs_join_where_names_and_kinds_agree():
    X, known, joined = translated(LARGE, SMALL, np.array([[1, 1, 2], [0, 0, 0]]))
    # tile: 2 columns; order: one-hot of "columns", "blocks"; unroll: another kind; pad: missing
    assert X.tolist() == [[1, 1, 1, 0, 0, 0], [0, 2, 0, 0, 0, 0]]
    assert known.tolist() == [[True] * 4 + [False] * 2, [True, True, False, False, False, False]]
    assert joined.all()


def test_a_tile_of_other_depth_does_not_join():
    deep = Space((Knob("tile", "tile", ((1, 2, 2), (2, 2, 1))),), name="template")
    _, known, joined = translated(SMALL, deep, np.array([[0]]))
    assert not known.any() and not joined.any()


def test_spaces_of_one_part_join_with_that_part_of_several():
    X, _, joined = translated(UNION, SMALL, np.array([[1, 0, 2]]))
    assert X[0].tolist() == [0, 1, 0, 0, 1, 1, np.log2(5)] and joined.all()
    codes = UNION.canonical(np.array([[1, 0, 1, 1], [0, 1, 0, 0]]))
    X, known, joined = translated(SMALL, UNION, codes)
    assert joined.tolist() == [True, False], "Winograd's rows say nothing about a template"
    assert X[0].tolist() == [1, 1, 0, 0, np.log2(9)] and not known[1].any()


def test_a_space_says_of_itself_what_it_encodes():
    space = mixed_space()
    codes = space.sample(50, np.random.default_rng(0))
    X, _, joined = translated(space, space, codes)
    assert np.allclose(X, space.encode(codes)) and joined.all()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)
@given(st.integers(0, 2**32 - 1))
def test_the_nearest_row_is_legal_and_a_legal_row_is_its_own(seed):
    rng = np.random.default_rng(seed)
    space = mixed_space()
    tight = dataclasses.replace(space, limits=(Limit(((1, 2), (3, 2)), 16, "the inner body is too large"),))
    row = space.sample(1, rng)
    X, known, _ = translated(tight, space, row)
    found = nearest_row(tight, X[0], known[0], rng)
    assert found is not None and tight.allowed(found[None])[0] and (tight.canonical(found[None])[0] == found).all()
    if tight.allowed(row)[0]:
        assert np.allclose(tight.encode(found[None]) * known[0], X[0])


def test_a_space_without_a_legal_row_has_no_nearest():
    never = dataclasses.replace(SMALL, limits=(Limit(((0, 0), (0, 1)), 1, "never"),))
    assert nearest_row(never, np.zeros(5), np.ones(5, bool), np.random.default_rng(0)) is None


def test_the_best_of_each_neighbour_comes_first_the_nearest_before_all():
    own = task("own", SMALL, shapes="1x8 -> 1x8")
    rows = np.array([[0, 0, 0], [1, 1, 1], [2, 1, 2]])
    far = Foreign(task("far", SMALL, shapes="1x32 -> 1x32"), rows, np.array([3.0, 1.0, 2.0]))
    near = Foreign(task("near", SMALL, shapes="1x16 -> 1x16"), rows, np.array([np.inf, 2.0, 1.0]))
    rng = np.random.default_rng(0)
    assert FromHistory().rows(own, [far, near], rng).tolist() == [[2, 1, 2], [1, 1, 1], [0, 0, 0]]
    assert FromHistory(best=1).rows(own, [far, near], rng).tolist() == [[2, 1, 2]]
    assert FromHistory(within=0.3).rows(own, [far, near], rng).tolist() == []


def test_choosing_stays_within_the_number_of_rows_for_what_the_model_reads():
    own = task("own", SMALL)
    rows = np.array(list(np.ndindex(3, 2, 3)))
    lent = [Foreign(task(str(i), SMALL), np.repeat(rows, 40, axis=0), np.arange(1.0, 721.0)) for i in range(4)]
    piece = FromHistory(most=1000, statements=100)
    assert sum(len(f.rows) for f in piece.choose(own, lent, "knobs")) == 1000
    assert sum(len(f.rows) for f in piece.choose(own, lent, "statements")) == 100
    failed = dataclasses.replace(lent[0], seconds=np.full(720, np.inf))
    assert piece.choose(own, [failed], "knobs") == [], "no valid row, no order"


def test_thinning_keeps_the_best_and_some_of_the_rest():
    seconds = np.concatenate([np.arange(1.0, 91.0), np.full(10, np.inf)])
    kept = thin(np.random.default_rng(0).permutation(seconds), 20)
    assert len(kept) == len(set(kept.tolist())) == 20
    kept = thin(seconds, 20)
    assert kept[:10].tolist() == list(range(10)) and kept[-1] == 99, "failures teach too"
    assert thin(seconds[:5], 20).tolist() == [0, 1, 2, 3, 4] and not len(thin(seconds, 0))


def test_a_model_no_better_than_chance_is_useless():
    rng = np.random.default_rng(0)
    y = rng.random(64)
    piece = FromHistory()
    assert piece.useless(y + rng.normal(0, 0.3, 64), y) is None
    assert "first 64 rows no better than chance (Spearman -1.00)" in str(piece.useless(-y, y))
    assert piece.useless(np.zeros(64), y) is not None, "a constant ranks nothing"
    assert piece.useless(-y[:31], y[:31]) is None, "too early to say"
    assert piece.useless(y, np.zeros(64)) is None, "failures alone have no order"
    wrong = sum(piece.useless(rng.random(64), y) is None for _ in range(400))
    assert wrong < 40, f"{wrong} of 400 models of chance were kept, 5 % are expected"


@pytest.mark.parametrize(
    "options", [{"most": 0}, {"best": -1}, {"half": 0}, {"within": -1}, {"random_share": 1.5}, {"judge": 1}]
)
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match="must be"):
        FromHistory(**options)


# -- what a store lends ------------------------------------------------------------------------------------------------


def measured(of, n, device="d1", start=1.0, **about):
    rows = of.space.sample(4 * n, np.random.default_rng(0))
    rows = np.unique(rows, axis=0)[:n]
    return [
        Measurement.of(Trial(tuple(map(int, r)), (start + i,)), of, device=device, **about) for i, r in enumerate(rows)
    ]


def named(store, of, device, rows=1000):
    return [(f.task.name, f.source, len(f.rows)) for f in store.lend(of, device, rows)]


def test_the_same_workload_elsewhere_comes_before_near_tasks(tmp_path):
    store = SqliteStore(tmp_path / "tt.db")
    own = dataclasses.replace(synthetic_task("own"), workload="w", shapes="1x8")
    arm = dataclasses.replace(synthetic_task("own on arm"), workload="w", shapes="1x8", target="arm")
    near, far = (dataclasses.replace(synthetic_task(n), shapes=s) for n, s in (("near", "1x16"), ("far", "1x64")))
    other = dataclasses.replace(synthetic_task("softmax"), op="softmax")
    store.remember([own, arm, near, far, other])
    for of, device in ((far, "d1"), (near, "d1"), (arm, "d2"), (own, "d1"), (own, "d3"), (other, "d1")):
        store.append(measured(of, 10, device))
    found = [("own", "device", 10), ("own on arm", "device", 10), ("near", "near", 10), ("far", "near", 10)]
    assert named(store, own, "d1") == found
    assert named(store, own, "d4") == [("own", "device", 10), *found], "both other devices"
    assert sum(n for *_, n in named(store, own, "d1", rows=15)) == 15
    store.close()


def test_rows_of_an_older_space_are_lent_and_forgotten_spaces_are_not(tmp_path):
    store = SqliteStore(tmp_path / "tt.db")
    old = synthetic_task("own", knobs=3)
    new = dataclasses.replace(synthetic_task("own"), key=old.key)
    store.append(measured(synthetic_task("never remembered"), 5))
    store.remember([old, new])
    store.append(measured(old, 10))
    store.append(measured(new, 10))
    (found,) = store.lend(new, "d1", 100)
    assert found.task.space == old.space and found.rows.shape == (10, 3) and found.task.payload == old.payload
    store.close()


def test_invalid_rows_are_not_lent_and_failures_are(tmp_path):
    store = SqliteStore(tmp_path / "tt.db")
    of = synthetic_task("near")
    store.remember([of])
    errors = ["invalid", "build", "wrong-result"]
    good = measured(of, 6)
    store.append(good)
    store.append([Measurement.of(Trial(good[i].config, error=e), of, device="d1") for i, e in enumerate(errors)])
    (found,) = store.lend(synthetic_task("own"), "d1", 100)
    assert len(found.rows) == 5 and np.isinf(found.seconds).sum() == 2
    store.close()


def test_a_version_1_file_lends_nothing(tmp_path):
    shutil.copy(Path(__file__).parent / "data" / "version1.sqlite", tmp_path / "old.db")
    store = SqliteStore(tmp_path / "old.db")
    assert store.tasks() and store.lend(synthetic_task("own"), "d1", 100) == []
    store.close()
