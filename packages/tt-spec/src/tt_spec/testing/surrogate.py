"""The contract of cost models."""

from __future__ import annotations

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from tt_spec.errors import UserError
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.rng import draw
from tt_spec.roles import Foreknows, Prestarts, Pretrains, Progress, Saves, capabilities
from tt_spec.testing.examples import mixed_task, statements, wide_task
from tt_spec.types import Group, Prediction, Statements, Task, labels

__all__ = ["SurrogateContract"]


class SurrogateContract:
    """Subclass it and override `piece`."""

    @pytest.fixture
    def piece(self) -> Any:
        """A fresh model with small options: few trees, few epochs."""
        raise NotImplementedError("override the fixture `piece`")

    def test_declares_what_it_reads(self, piece: Any) -> None:
        assert piece.inputs in ("knobs", "statements"), f"inputs must be knobs or statements, got {piece.inputs!r}"
        assert isinstance(piece.shared, bool), f"shared must be a bool, got {piece.shared!r}"

    def test_starts_early(self, piece: Any) -> None:
        if Prestarts in capabilities("surrogate", piece):
            assert piece.prestart() is None and piece.prestart() is None, "prestart may be called twice"
            piece.fit([_group(piece, mixed_task(), 10)], np.random.default_rng(0))

    def test_predicts_one_finite_label_per_row(self, piece: Any) -> None:
        for task in (wide_task(), mixed_task()):
            model = copy.deepcopy(piece)
            model.fit([_group(piece, task, 30)], np.random.default_rng(0))
            for n in (1, 17):
                _check(model, task, _group(piece, task, n, seed=5)[1], n)

    def test_can_be_fitted_again_with_more(self, piece: Any) -> None:
        task = mixed_task()
        for n in (3, 10, 25):
            piece.fit([_group(piece, task, n)], np.random.default_rng(n))
            _check(piece, task, _group(piece, task, 9, seed=5)[1], 9)

    def test_can_be_fitted_on_nothing_and_on_little(self, piece: Any) -> None:
        task = mixed_task()
        X = _group(piece, task, 9, seed=5)[1]
        one, failed = _group(piece, task, 1), _group(piece, task, 12)
        empty = (task, one[1][:0], one[2][:0])
        flat = (task, failed[1], np.ones(12))
        for groups in ([], [empty], [one], [(task, failed[1], np.zeros(12))], [flat]):
            model = copy.deepcopy(piece)
            model.fit(groups, np.random.default_rng(0))
            _check(model, task, X, 9)

    def test_same_rng_same_prediction(self, piece: Any) -> None:
        task, twin = mixed_task(), copy.deepcopy(piece)
        X = _group(piece, task, 9, seed=5)[1]
        out = []
        for model in (piece, twin):
            model.fit([_group(piece, task, 30)], np.random.default_rng(3))
            out.append((model.predict(task, X), model.predict(task, X)))
        (a, again), (b, _) = out
        assert np.array_equal(a.mean, again.mean), "predicting twice must give the same"
        assert np.allclose(a.mean, b.mean, rtol=1e-6) and np.allclose(a.std, b.std, rtol=1e-6), (
            "same data and rng must give the same model: draw from the rng argument only"
        )

    def test_leaves_the_data_alone(self, piece: Any) -> None:
        task = mixed_task()
        group, before = _group(piece, task, 20), _group(piece, task, 20)
        piece.fit([group], np.random.default_rng(0))
        piece.predict(task, group[1])
        assert np.array_equal(group[2], before[2]), "labels are an argument and must not be changed"
        for a, b in zip(_arrays(group[1]), _arrays(before[1]), strict=True):
            assert np.array_equal(a, b), "features are an argument and must not be changed"

    def test_a_shared_model_learns_from_several_tasks(self, piece: Any) -> None:
        if not piece.shared:
            return
        tasks = (wide_task(), mixed_task(), synthetic_task("other", knobs=3))
        piece.fit([_group(piece, t, 12) for t in tasks], np.random.default_rng(0))
        for task in tasks:
            _check(piece, task, _group(piece, task, 5, seed=5)[1], 5)

    def test_a_higher_mean_never_scores_lower(self, piece: Any) -> None:
        task = wide_task()
        piece.fit([_group(piece, task, 30)], np.random.default_rng(0))
        for std in (0.0, 0.1):
            scores = piece.score(Prediction(np.linspace(0.1, 1.0, 10), np.full(10, std)), 1.0)
            assert np.shape(scores) == (10,) and np.isfinite(scores).all(), "one finite score per row"
            assert (np.diff(scores) >= -1e-9).all(), f"at equal doubt ({std}) a higher mean must not score lower"

    def test_pretrains_on_many_tasks_and_predicts_another(self, piece: Any) -> None:
        if not _pretrains(piece):
            return
        groups, before = _school(piece), _school(piece)
        reports: list[Progress] = []

        def report(p: Progress) -> bool:
            _check(piece, mixed_task(), _group(piece, mixed_task(), 3, seed=5)[1], 3)
            reports.append(p)
            return True

        piece.pretrain(groups, np.random.default_rng(0), report)
        done = [p.done for p in reports]
        assert done and done == sorted(set(done)), f"each round is reported once, in order, got {done}"
        assert {p.total for p in reports} == {done[-1]}, f"the last report is of the last round, {done[-1]}"
        assert all(np.isfinite(p.loss) for p in reports), "a loss must be finite"
        for a, b in zip(groups, before, strict=True):
            for x, y in zip((*_arrays(a[1]), a[2]), (*_arrays(b[1]), b[2]), strict=True):
                assert np.array_equal(x, y), "groups are an argument and must not be changed"
        piece.fit([_group(piece, mixed_task(), 12)], np.random.default_rng(1))
        _check(piece, mixed_task(), _group(piece, mixed_task(), 9, seed=5)[1], 9)

    def test_pretraining_ends_when_told(self, piece: Any) -> None:
        if not _pretrains(piece):
            return
        reports: list[Progress] = []
        piece.pretrain(_school(piece), np.random.default_rng(0), lambda p: bool(reports.append(p)))
        assert len(reports) == 1, f"training must end when report says False, {len(reports)} rounds were reported"

    def test_pretraining_goes_on_from_a_state(self, piece: Any) -> None:
        if not _pretrains(piece):
            return
        reports: list[Progress] = []
        twin, states = copy.deepcopy(piece), []

        def report(p: Progress) -> bool:
            reports.append(p)
            states.append({k: np.array(v) for k, v in p.state().items()} if len(states) < 2 else {})
            return True

        piece.pretrain(_school(piece), np.random.default_rng(3), report)
        if not reports:
            return
        at = min(1, len(states) - 1)
        assert all(v.dtype != object for v in states[at].values()), "a state is arrays without objects"
        again: list[Progress] = []
        twin.pretrain(_school(twin), np.random.default_rng(3), lambda p: again.append(p) is None, states[at])
        assert [p.done for p in again] == [p.done for p in reports[at:]], (
            "the round of the state is reported again, then those after it"
        )
        X = _group(piece, mixed_task(), 9, seed=5)[1]
        a, b = (m.predict(mixed_task(), X).mean for m in (piece, twin))
        assert np.allclose(a, b, rtol=1e-6), "training that goes on from a state must end as if it had never stopped"

    def test_pretrains_on_nothing_and_on_little(self, piece: Any) -> None:
        if not _pretrains(piece):
            return
        task, X, y = _group(piece, mixed_task(), 12)
        for groups in ([], [(task, X[:0], y[:0])], [(task, X[:1], y[:1])], [(task, X, np.zeros(12))]):
            model = copy.deepcopy(piece)
            model.pretrain(groups, np.random.default_rng(0), lambda p: True)
            _check(model, task, X, 12)

    def test_says_what_it_knows_beforehand(self, piece: Any) -> None:
        if Foreknows not in capabilities("surrogate", piece):
            return
        if _pretrains(piece):
            piece.pretrain(_school(piece), np.random.default_rng(0), lambda p: True)
        for task, X, _ in (_group(piece, mixed_task(), 30, seed=5), *_school(piece)):
            before = piece.predict(task, X).mean
            where = piece.foreknows(task)
            assert where is None or (isinstance(where, str) and where), f"foreknows says where, or None, got {where!r}"
            assert where is None or np.ptp(before) > 0, "whoever knows a task beforehand does not score all rows alike"
            assert np.array_equal(piece.predict(task, X).mean, before), "being asked must not change what it predicts"

    def test_what_it_saves_is_read_again(self, piece: Any) -> None:
        if Saves not in capabilities("surrogate", piece) or not _pretrains(piece):
            return
        fresh = copy.deepcopy(piece)
        piece.pretrain(_school(piece), np.random.default_rng(0), lambda p: True)
        task, X, y = _group(piece, mixed_task(), 12, seed=5)
        learned = piece.predict(task, X).mean
        with TemporaryDirectory() as folder:
            path, other = Path(folder, "weights"), Path(folder, "other")
            piece.save(path, {"data": "synthetic", "rows": 90})
            assert [p.name for p in Path(folder).iterdir()] == ["weights"], "save writes its file and leaves no other"
            piece.fit([(task, X, y)], np.random.default_rng(1))
            piece.save(other, {"data": "synthetic", "rows": 90})
            assert path.read_bytes() == other.read_bytes(), "what was learned beforehand is saved, whatever fit did"
            other.write_bytes(path.read_bytes()[:-9])
            for bad in (other, Path(folder, "none")):
                model = copy.deepcopy(fresh)
                model.weights = str(bad)
                with pytest.raises(UserError):
                    model.predict(task, X)
            fresh.weights = str(path)
            assert np.allclose(fresh.predict(task, X).mean, learned, rtol=1e-4, atol=1e-6), (
                "a model with `weights` must predict like the one that saved them"
            )
            fresh.fit([(task, X, y)], np.random.default_rng(1))
            _check(fresh, task, X, 12)


def _pretrains(piece: Any) -> bool:
    """Whether the piece pre-trains. A model over knobs may refuse; it must do so before anything else."""
    if Pretrains not in capabilities("surrogate", piece):
        return False
    if piece.inputs == "knobs":
        try:
            copy.deepcopy(piece).pretrain(_school(piece), np.random.default_rng(0), lambda p: False)
        except UserError:
            return False
    return True


def _school(piece: Any) -> list[Group]:
    """Several tasks to learn from beforehand."""
    return [_group(piece, synthetic_task(f"school-{i}", knobs=4), 30, seed=i) for i in range(3)]


def _group(piece: Any, task: Task, n: int, seed: int = 0) -> Group:
    rng = np.random.default_rng([seed, n])
    codes = draw(task.space, set(), n, rng)
    y = labels(np.where(np.arange(n) % 7 == 3, np.inf, SyntheticMeasurer().seconds(task, codes)))
    return task, (task.space.encode(codes) if piece.inputs == "knobs" else statements(n, rng)), y


def _arrays(X: Any) -> tuple[np.ndarray, ...]:
    return (X.values, X.offsets, X.operator) if isinstance(X, Statements) else (X,)


def _check(model: Any, task: Task, X: Any, n: int) -> None:
    p = model.predict(task, X)
    assert isinstance(p, Prediction), f"predict returns a Prediction, got {type(p).__name__}"
    for what, values in (("mean", p.mean), ("std", p.std)):
        assert np.shape(values) == (n,), f"{what} must be ({n},), got {np.shape(values)}"
        assert np.isfinite(values).all(), f"{what} must be finite"
    assert (p.std >= 0).all(), "std must not be negative"
    scores = model.score(p, 1.0)
    assert np.shape(scores) == (n,), f"score must be ({n},), got {np.shape(scores)}"
    assert np.isfinite(scores).all(), "scores must be finite"
