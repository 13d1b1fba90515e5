"""The contract of searchers."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from tt_spec.rng import draw
from tt_spec.roles import Learns
from tt_spec.testing.examples import check_info, context, mixed_task, tiny_task, untouched, wide_task, within
from tt_spec.types import Context, Proposal

__all__ = ["SearcherContract"]


class SearcherContract:
    """Subclass it and override `piece`.

    A searcher may hand over more rows than asked for, so that the sampler has a choice.
    """

    patience_s = 60.0

    @pytest.fixture
    def piece(self) -> Any:
        """A fresh searcher with small options."""
        raise NotImplementedError("override the fixture `piece`")

    def test_proposes_distinct_fresh_canonical_allowed_rows(self, piece: Any) -> None:
        for task in (wide_task(), mixed_task()):
            ctx = context(task, 20, fitted=True, pending=4)
            check_proposal(ctx, copy.deepcopy(piece).propose(ctx, 16))

    def test_works_before_any_model_is_fitted(self, piece: Any) -> None:
        for task in (wide_task(), mixed_task()):
            for rows in (0, 1, 10):
                ctx = context(task, rows)
                check_proposal(ctx, copy.deepcopy(piece).propose(ctx, 8))

    def test_works_when_every_row_failed(self, piece: Any) -> None:
        ctx = context(mixed_task(), 12, fail=True)
        first = piece.propose(ctx, 8)
        check_proposal(ctx, first)
        _tell(piece, ctx, first.codes, np.zeros(len(first.codes)))
        ctx = context(mixed_task(), np.concatenate([ctx.rows, first.codes]), fail=True, fitted=True)
        check_proposal(ctx, piece.propose(ctx, 8))

    def test_never_repeats_over_rounds(self, piece: Any) -> None:
        for task in (wide_task(), mixed_task()):
            searcher, rows = copy.deepcopy(piece), draw(task.space, set(), 8, np.random.default_rng(0))
            for turn in range(4):
                ctx = context(task, rows, seed=turn, fitted=True)
                new = searcher.propose(ctx, 8)
                check_proposal(ctx, new)
                told = context(task, np.concatenate([rows, new.codes]), seed=turn, fitted=True)
                _tell(searcher, told, new.codes, told.y[len(rows) :])
                rows = told.rows

    def test_same_rng_same_proposal(self, piece: Any) -> None:
        twin = copy.deepcopy(piece)
        for turn in range(2):
            a = piece.propose(context(mixed_task(), 20, seed=turn, fitted=True), 12)
            b = twin.propose(context(mixed_task(), 20, seed=turn, fitted=True), 12)
            assert np.array_equal(a.codes, b.codes), "same rng must give the same rows: draw from ctx.rng only"
            assert np.array_equal(a.scores, b.scores), "same context and rng must give the same scores"
            assert a.random_share == b.random_share, "same context and rng must give the same random share"

    def test_ends_on_an_exhausted_space(self, piece: Any) -> None:
        task = tiny_task()
        everything = np.stack(list(task.space.enumerate()))
        for left in (0, 1, 2):
            ctx = context(task, everything[left:], fitted=True)
            searcher = copy.deepcopy(piece)
            proposal = within(
                self.patience_s, f"propose with {left} rows left", lambda s=searcher, c=ctx: s.propose(c, 8)
            )
            check_proposal(ctx, proposal, at_least=0)
            assert len(proposal.codes) <= left, f"only {left} rows are fresh, {len(proposal.codes)} were proposed"

    def test_leaves_the_context_alone(self, piece: Any) -> None:
        ctx = context(mixed_task(), 20, fitted=True, pending=3)
        with untouched(rows=ctx.rows, y=ctx.y, pending=ctx.pending):
            proposal = piece.propose(ctx, 8)
            _tell(piece, ctx, ctx.rows[:4], ctx.y[:4])
        assert not np.shares_memory(proposal.codes, ctx.rows), "proposed rows must not be a view of ctx.rows"


def check_proposal(ctx: Context, proposal: Proposal, at_least: int = 1) -> None:
    """Everything that one proposal must be."""
    codes, d = proposal.codes, len(ctx.space.knobs)
    assert isinstance(proposal, Proposal), f"propose returns a Proposal, got {type(proposal).__name__}"
    assert codes.ndim == 2 and codes.shape[1] == d, f"codes must be (n, {d}), got {codes.shape}"
    assert np.issubdtype(codes.dtype, np.integer), f"codes must be integers, got {codes.dtype}"
    assert len(codes) >= at_least, f"at least {at_least} fresh row must be proposed in a space that has many"
    assert ctx.space.in_range(codes).all(), "every row must index existing choices"
    assert np.array_equal(ctx.space.canonical(codes), codes), "every row must be canonical: space.canonical(codes)"
    assert ctx.space.allowed(codes).all(), "every row must be allowed: space.allowed(codes)"
    assert len(np.unique(codes, axis=0)) == len(codes), "rows must be distinct"
    assert ctx.fresh(codes).all(), "rows must be fresh: neither measured nor pending, see ctx.fresh"
    scores = np.asarray(proposal.scores)
    assert scores.shape == (len(codes),), f"one score per row: {(len(codes),)} expected, got {scores.shape}"
    assert np.isfinite(scores).all(), "scores must be finite"
    assert 0.0 <= proposal.random_share <= 1.0, f"random_share must be in [0, 1], got {proposal.random_share}"
    check_info(proposal.info)


def _tell(piece: Any, ctx: Context, rows: np.ndarray, y: np.ndarray) -> None:
    if isinstance(piece, Learns) and len(rows):
        piece.tell(ctx, rows, y)
