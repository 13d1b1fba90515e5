"""The contract of transfers."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest

from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.rng import draw
from tt_spec.testing.examples import mixed_task, untouched, wide_task
from tt_spec.types import Foreign, Task

__all__ = ["TransferContract"]

INPUTS: tuple[Literal["knobs", "statements"], ...] = ("knobs", "statements")


class TransferContract:
    """Subclass it and override `piece`."""

    @pytest.fixture
    def piece(self) -> Any:
        """A fresh transfer."""
        raise NotImplementedError("override the fixture `piece`")

    def test_declares_how_much_it_asks_for(self, piece: Any) -> None:
        assert piece.most == int(piece.most) and piece.most >= 1, f"most is a number of rows, got {piece.most!r}"
        assert 0 <= piece.random_share <= 1, f"random_share is in [0, 1], got {piece.random_share!r}"

    def test_fades(self, piece: Any) -> None:
        weights = [float(piece.weight(n)) for n in (0, 1, 8, 64, 128, 1000, 100_000)]
        assert all(0 <= w <= 1 for w in weights), f"a weight is in [0, 1], got {weights}"
        assert all(a >= b for a, b in pairwise(weights)), f"a weight never grows, got {weights}"
        assert weights[0] > 0 and weights[-1] < 0.01, f"it has a say at first and none in the end, got {weights}"

    def test_chooses_among_what_is_lent(self, piece: Any) -> None:
        task = mixed_task()
        for inputs in INPUTS:
            assert piece.choose(task, [], inputs) == [], "nothing comes of nothing"
            for lent in ([_lent(task, 30)], _several(task)):
                chosen = piece.choose(task, lent, inputs)
                known = {(f.task.key, *row) for f in lent for row in f.rows.tolist()}
                for f in chosen:
                    assert {(f.task.key, *row) for row in f.rows.tolist()} <= known, "rows of its own making"
                    assert len(f.rows) == len(f.seconds) and len(f.rows), "each row with its seconds, and no empty part"
                assert len(chosen) <= len(lent), "a part of each at most"

    def test_the_same_workload_elsewhere_is_worth_learning_from(self, piece: Any) -> None:
        task = mixed_task()
        lent = [_lent(task, 30, source="device")]
        for inputs in INPUTS:
            assert piece.choose(task, lent, inputs), "30 rows of the same space on another device were not chosen"

    def test_encodes_into_the_tasks_columns(self, piece: Any) -> None:
        task = mixed_task()
        width = task.space.encode(task.space.sample(1, np.random.default_rng(0))).shape[1]
        for lent in _several(task):
            found = piece.encode(task, lent)
            if found is None:
                continue
            X, joined = found
            assert joined.shape == (len(lent.rows),) and joined.dtype == bool, "a flag for each row"
            assert X.shape == (int(joined.sum()), width), f"{width} columns for each row that joins, got {X.shape}"
            assert np.isfinite(X).all(), "features are finite"
        lent = _lent(task, 20)
        X, joined = piece.encode(task, lent)
        assert joined.all() and np.allclose(X, task.space.encode(lent.rows)), "rows of the same space are as it says"

    def test_first_rows_are_legal(self, piece: Any) -> None:
        for task in (mixed_task(), wide_task()):
            assert np.shape(piece.rows(task, [], np.random.default_rng(0))) == (0, len(task.space.knobs))
            for lent in ([_lent(task, 30)], _several(task), [_failed(task)]):
                twin = copy.deepcopy(piece)
                codes = piece.rows(task, lent, np.random.default_rng(1))
                again = twin.rows(task, lent, np.random.default_rng(1))
                assert codes.ndim == 2 and codes.shape[1] == len(task.space.knobs), f"(m, d), got {codes.shape}"
                assert np.array_equal(codes, task.space.canonical(codes)), "rows are canonical"
                assert task.space.allowed(codes).all(), "rows are allowed"
                assert np.array_equal(codes, again), "the same rng gives the same rows"
        best = _lent(wide_task(), 30)
        codes = piece.rows(wide_task(), [best], np.random.default_rng(0))
        assert best.rows[best.seconds.argmin()].tolist() in codes.tolist(), "the best row of the same space comes first"

    def test_a_perfect_model_is_kept(self, piece: Any) -> None:
        y = np.random.default_rng(0).random(128)
        assert piece.useless(y[:0], y[:0]) is None, "nothing is known yet"
        assert piece.useless(y, y) is None, "a model that ranks every row right is dropped"
        assert piece.trust(y, y) > 0.9, f"a model that ranks every row right is trusted, got {piece.trust(y, y)}"

    def test_a_verdict_is_text_or_none(self, piece: Any) -> None:
        rng = np.random.default_rng(1)
        for predicted, y in (
            (np.zeros(128), rng.random(128)),
            (rng.random(128), np.zeros(128)),
            (np.arange(128.0), np.linspace(1, 0, 128)),
        ):
            assert 0 <= piece.trust(predicted, y) <= 1, f"trust is in [0, 1], got {piece.trust(predicted, y)}"
            why = piece.useless(predicted, y)
            assert why is None or (isinstance(why, str) and why), f"text or None, got {why!r}"

    def test_leaves_its_arguments_alone(self, piece: Any) -> None:
        task, lent = mixed_task(), _lent(mixed_task(), 20)
        y = np.random.default_rng(0).random(64)
        with untouched(rows=lent.rows, seconds=lent.seconds, y=y):
            for inputs in INPUTS:
                piece.choose(task, [lent], inputs)
            piece.encode(task, lent)
            piece.rows(task, [lent], np.random.default_rng(0))
            piece.useless(y, y)


def _lent(task: Task, n: int, source: str = "near") -> Foreign:
    rows = draw(task.space, set(), n, np.random.default_rng(7))
    seconds = np.array(SyntheticMeasurer().seconds(task, rows))
    if n > 3:
        seconds[2] = np.inf
    return Foreign(task, rows, seconds, source)


def _failed(task: Task) -> Foreign:
    lent = _lent(task, 8)
    return dataclasses.replace(lent, seconds=np.full(8, np.inf))


def _several(task: Task) -> Sequence[Foreign]:
    """The task itself, one with other knobs, one with other choices, and one that failed throughout."""
    knobs = tuple(dataclasses.replace(k, choices=k.choices[:1], prior=None) for k in task.space.knobs)
    fewer = dataclasses.replace(task.space, knobs=knobs, limits=())
    narrow = dataclasses.replace(task, key="narrow", spaces=(fewer,))
    return [_lent(task, 20), _lent(synthetic_task("other", knobs=3), 12), _lent(narrow, 1), _failed(task)]
