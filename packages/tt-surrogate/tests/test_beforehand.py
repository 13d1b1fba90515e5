"""Trees that learned beforehand: columns that mean the same everywhere, and what a fit does with them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tt_spec import Knob, Space, Statements, Task
from tt_spec.errors import UserError
from tt_surrogate import XGB, weights
from tt_surrogate.portable import Portable, all_columns


def tiled(extent, union=False, name="template"):
    """A space of one tile of two factors, and an order."""
    factors = [(a, extent // a) for a in (1, 2, 4, 8, 16, 32) if extent % a == 0]
    if not union:
        return Space((Knob("tile", "tile", tuple(factors)), Knob("order", "choice", ("ab", "ba"))), name=name)
    part = Knob("space", "choice", (name, "sketch"))
    return Space(
        (
            part,
            Knob(f"{name}.tile", "tile", tuple(factors), active_if=(0, (0,))),
            Knob(f"{name}.order", "choice", ("ab", "ba"), active_if=(0, (0,))),
            Knob("sketch.tile_0", "tile", ((1, 2), (2, 1)), active_if=(0, (1,))),
        ),
        name=f"{name}+sketch",
    )


def task(space, op="conv2d", flops=1024.0):
    return Task(f"key of {op} {space.key}", "t", op, "llvm", (space,), flops)


def test_columns_have_names_that_hold_for_every_shape():
    one, other = task(tiled(8)), task(tiled(32, union=True))
    columns = all_columns([one, other])
    row = dict(zip(columns, Portable(one, columns)(one.space.encode(np.array([[1, 1]])))[0], strict=True))
    assert (row["template.tile[0]"], row["template.tile[1]"]) == (1.0, 2.0)  # 2 x 4
    assert (row["template.order=ab"], row["template.order=ba"]) == (0.0, 1.0)
    assert (row["most template.tile[0]"], row["extent template.tile"], row["flops"]) == (3.0, 3.0, 10.0)
    assert (row["space=template"], row["space=sketch"]) == (1.0, 0.0), "a space of one part says which"
    assert np.isnan(row["sketch 2.tile_0[0]"]), "a column that the task lacks is missing, not 0"
    code = np.array([[0, 3, 0, 0]])
    row = dict(zip(columns, Portable(other, columns)(other.space.encode(code))[0], strict=True))
    assert (row["template.tile[0]"], row["extent template.tile"], row["space=template"]) == (3.0, 5.0, 1.0)


def test_a_sketch_of_other_loops_has_other_columns():
    knob = Knob("tile_0", "tile", ((1, 2), (2, 1)))
    narrow = task(Space((knob,), name="sketch"))
    wide = task(Space((knob, Knob("tile_1", "tile", ((1, 1, 4), (4, 1, 1)))), name="sketch"))
    columns = [name for name in all_columns([narrow]) if name.startswith("sketch")]
    assert not Portable(wide, columns).known and Portable(narrow, columns).known


def school(rng, op="conv2d", better="template.tile[0]"):
    """Tasks of several extents in which a larger first factor is faster, with their labels."""
    groups = []
    for extent in (8, 16, 32):
        t = task(tiled(extent, union=extent == 16), op)
        X = t.space.encode(t.space.sample(60, rng))
        column = 2 if extent == 16 else 0
        groups.append((t, X, (1 + X[:, column]) / 6.0))
    return groups


def pretrained(**options):
    model = XGB("knobs", rounds=40, **options)
    model.pretrain(school(np.random.default_rng(0)), np.random.default_rng(0), lambda p: True)
    return model


def test_what_ranks_after_every_round_reads_a_tasks_columns_once(monkeypatch):
    read = Counter()
    begin = Portable.__init__
    monkeypatch.setattr(Portable, "__init__", lambda self, t, c: (read.update([t.key]), begin(self, t, c))[1])
    model, other = XGB("knobs", rounds=20), task(tiled(16))
    X, ranked = other.space.encode(np.array([[0, 0], [1, 1], [2, 0]])), []

    def ranks(progress):
        ranked.append(model.predict(other, X).mean)
        return True

    model.pretrain(school(np.random.default_rng(0)), np.random.default_rng(0), ranks)
    assert len(ranked) == 20 and read[other.key] == 1
    assert not np.array_equal(ranked[0], ranked[-1]), "each round's trees were asked"


def test_ranks_a_task_that_it_never_saw():
    model, fresh = pretrained(), task(tiled(64))
    codes = np.array([[i, o] for i in range(6) for o in range(2)])
    mean = model.predict(fresh, fresh.space.encode(codes)).mean
    assert mean[0] < mean[4] < mean[10] and model.foreknows(fresh) == "this run"


def test_knows_nothing_of_other_kinds_of_operator_and_of_other_columns():
    model = pretrained()
    softmax, strange = task(tiled(64), op="softmax"), task(tiled(64, name="ours"))
    for t in (softmax, strange):
        assert model.foreknows(t) is None
        assert not model.predict(t, t.space.encode(np.array([[0, 0], [3, 1]]))).mean.any()


def test_a_kind_that_it_never_saw_is_learned_as_without_weights():
    """So a search of such an operator is not worse for the weights: it is the same search."""
    rng = np.random.default_rng(5)
    softmax = task(tiled(64), op="softmax")
    X = softmax.space.encode(softmax.space.sample(32, rng))
    rows = [(softmax, X, rng.random(len(X)))]
    taught, plain = pretrained(), XGB("knobs", rounds=40)
    for model in (taught, plain):
        model.fit(rows, np.random.default_rng(1))
    got, want = (m.predict(softmax, X).mean for m in (taught, plain))
    assert np.ptp(want) > 0 and np.array_equal(got, want)


def test_measured_rows_outweigh_what_was_learned_elsewhere():
    model, here = pretrained(), task(tiled(64))
    codes = np.array([[i, o] for i in range(6) for o in range(2)])
    X = here.space.encode(codes)
    y = 1.0 - X[:, 0] / 8.0  # the other way round
    model.fit([(here, np.repeat(X, 4, axis=0), np.repeat(y, 4))], np.random.default_rng(0))
    assert np.abs(model.predict(here, X).mean - y).max() < 0.1


def test_few_rows_leave_the_rest_as_it_was_learned():
    model, here = pretrained(), task(tiled(64))
    codes = np.array([[i, o] for i in range(6) for o in range(2)])
    X = here.space.encode(codes)
    model.fit([(here, X[[2, 8]], np.array([0.5, 1.0]))], np.random.default_rng(0))
    mean = model.predict(here, X).mean
    assert mean[0] < mean[4] < mean[10], "rows that nobody measured are ranked as before"


def programs(values):
    """Programs of one statement whose first feature says how good they are."""
    found = np.zeros((len(values), 164), dtype=np.float32)
    found[:, 0] = values
    return Statements(found, np.arange(len(values) + 1), np.zeros((len(values), 10)))


def test_few_programs_do_not_undo_what_many_taught_and_many_do():
    rng, values = np.random.default_rng(0), np.linspace(0.05, 1.0, 60)
    taught = [(task(tiled(extent)), programs(v := rng.permutation(values)), v) for extent in (8, 16, 32)]
    here = task(tiled(64))

    def pairs_right(rows, labels, **options):
        """By what was taught, after these rows of here said something else."""
        model = XGB("statements", "rank", **options)
        model.pretrain(taught, np.random.default_rng(0), lambda p: True)
        model.fit([(here, programs(values[rows]), labels)], np.random.default_rng(0))
        mean = model.predict(here, programs(values)).mean
        above = np.sign(mean[:, None] - mean[None, :])[np.tril_indices(60, -1)]
        return float((0.5 + 0.5 * above).mean())

    few, noise = rng.choice(60, 16, replace=False), rng.random(16)
    many = np.repeat(np.arange(60), 8)
    assert pairs_right(few, noise) > 0.9 > pairs_right(few, noise, tune_lambda=1.0)
    assert pairs_right(many, 1.05 - values[many]) < 0.1, "the other way round"


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_a_fit_without_weights_is_the_same_as_ever(objective):
    t = task(tiled(32, union=True))
    X = t.space.encode(t.space.sample(80, np.random.default_rng(3)))
    y = np.linspace(0.1, 1.0, 80)
    a, b = XGB("knobs", objective), XGB("knobs", objective, weights="none")
    for model in (a, b):
        model.fit([(t, X, y)], np.random.default_rng(5))
    assert np.array_equal(a.predict(t, X).mean, b.predict(t, X).mean)


def test_weights_of_another_kind_of_model_are_refused(tmp_path):
    model = pretrained()
    path = tmp_path / "knobs.safetensors"
    model.save(path, {"device": "a CPU"})
    fresh = task(tiled(64))
    assert XGB("knobs", weights=str(path)).foreknows(fresh) == "a CPU"
    for other in (XGB("statements", weights=str(path)), XGB("knobs", "rank", weights=str(path))):
        with pytest.raises(UserError, match="this model has"):
            other.foreknows(fresh)
    with pytest.raises(UserError, match="nothing was learned"):
        XGB("knobs").save(path, {})
    with pytest.raises(UserError, match="objective=regression"):
        XGB("knobs", "rank").pretrain(school(np.random.default_rng(0)), np.random.default_rng(0), lambda p: True)


@pytest.mark.parametrize("spoil", [None, lambda raw: raw[:-9], lambda raw: b"no weights"])
def test_shipped_weights_that_cannot_be_read_cost_a_warning_and_not_the_run(tmp_path, monkeypatch, spoil):
    monkeypatch.setattr(weights, "SHIPPED", tmp_path)
    if spoil is not None:
        path = tmp_path / "knobs.safetensors"
        pretrained().save(path, {"device": "a CPU"})
        path.write_bytes(spoil(path.read_bytes()))
    model, fresh = XGB("knobs", weights="shipped"), task(tiled(64))
    with pytest.warns(UserWarning, match="searching without what tt-surrogate learned beforehand: .*weights"):
        assert model.foreknows(fresh) is None
    X = fresh.space.encode(fresh.space.sample(20, np.random.default_rng(0)))
    model.fit([(fresh, X, np.linspace(0.1, 1, 20))], np.random.default_rng(0))
    assert np.ptp(model.predict(fresh, X).mean) > 0, "it learns from the run itself"


def test_predicts_the_same_whatever_name_a_task_has():
    model, here = pretrained(), task(tiled(64))
    X = here.space.encode(np.array([[1, 0], [4, 1]]))
    twin = replace(here, key="another", name="u")
    assert np.array_equal(model.predict(here, X).mean, model.predict(twin, X).mean)
