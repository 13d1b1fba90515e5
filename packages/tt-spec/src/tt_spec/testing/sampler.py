"""The contract of samplers."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from tt_spec.rng import draw
from tt_spec.space import tokens
from tt_spec.testing.examples import check_info, context, mixed_task, untouched, wide_task
from tt_spec.types import Context, Proposal, Selection

__all__ = ["SamplerContract"]


class SamplerContract:
    """Subclass it and override `piece`; a sampler that synthesises rows of its own also sets `subset = False`."""

    subset = True

    @pytest.fixture
    def piece(self) -> Any:
        """A fresh sampler."""
        raise NotImplementedError("override the fixture `piece`")

    def test_selects_distinct_fresh_rows_of_the_proposal(self, piece: Any) -> None:
        for task in (wide_task(), mixed_task()):
            for n in (1, 8, 100):
                ctx, proposal = _proposal(task, 40)
                self._check(ctx, proposal, copy.deepcopy(piece).select(ctx, proposal, n), n)

    def test_never_selects_a_row_that_is_no_longer_fresh(self, piece: Any) -> None:
        ctx, proposal = _proposal(wide_task(), 20)
        stale = np.concatenate([ctx.rows[:10], ctx.pending, proposal.codes, proposal.codes[:5]])
        proposal = Proposal(stale, np.linspace(1.0, 0.0, len(stale)))
        self._check(ctx, proposal, piece.select(ctx, proposal, 12), 12)

    def test_works_with_equal_scores_and_one_row(self, piece: Any) -> None:
        for m in (1, 30):
            ctx, proposal = _proposal(mixed_task(), m)
            flat = Proposal(proposal.codes, np.zeros(m))
            self._check(ctx, flat, copy.deepcopy(piece).select(ctx, flat, 8), 8)

    def test_selects_none_of_none(self, piece: Any) -> None:
        ctx, proposal = _proposal(mixed_task(), 20)
        for offered, n in ((proposal, 0), (Proposal(proposal.codes[:0], proposal.scores[:0]), 8)):
            chosen = copy.deepcopy(piece).select(ctx, offered, n)
            self._check(ctx, offered, chosen, n, at_least=0)
            assert n or not len(chosen.codes), "n = 0 means no row at all"

    def test_works_before_any_row_is_measured(self, piece: Any) -> None:
        ctx, proposal = _proposal(mixed_task(), 20, measured=0, fitted=False)
        self._check(ctx, proposal, piece.select(ctx, proposal, 8), 8)

    def test_same_rng_same_selection(self, piece: Any) -> None:
        twin = copy.deepcopy(piece)
        a = piece.select(*_proposal(mixed_task(), 40), 8)
        b = twin.select(*_proposal(mixed_task(), 40), 8)
        assert np.array_equal(a.codes, b.codes), "same proposal and rng must give the same rows: draw from ctx.rng only"

    def test_leaves_the_arguments_alone(self, piece: Any) -> None:
        ctx, proposal = _proposal(mixed_task(), 40)
        with untouched(rows=ctx.rows, y=ctx.y, codes=proposal.codes, scores=proposal.scores):
            piece.select(ctx, proposal, 8)

    def _check(self, ctx: Context, proposal: Proposal, chosen: Selection, n: int, at_least: int = 1) -> None:
        codes, d = chosen.codes, len(ctx.space.knobs)
        assert isinstance(chosen, Selection), f"select returns a Selection, got {type(chosen).__name__}"
        assert codes.ndim == 2 and codes.shape[1] == d, f"codes must be (n, {d}), got {codes.shape}"
        assert np.issubdtype(codes.dtype, np.integer), f"codes must be integers, got {codes.dtype}"
        assert len(codes) <= n, f"at most {n} rows may be selected, got {len(codes)}"
        assert len(codes) >= min(at_least, n), "at least one row must be selected from fresh ones"
        assert ctx.space.allowed(codes).all(), "every row must be in range and allowed"
        assert np.array_equal(ctx.space.canonical(codes), codes), "every row must be canonical"
        assert len(np.unique(codes, axis=0)) == len(codes), "rows must be distinct"
        assert ctx.fresh(codes).all(), "rows must be fresh: neither measured nor pending, see ctx.fresh"
        if self.subset:
            offered = set(tokens(proposal.codes))
            known = [name in offered for name in tokens(codes)]
            assert all(known), "rows must come from the proposal"
        check_info(chosen.info)


def _proposal(task: Any, m: int, measured: int = 20, fitted: bool = True) -> tuple[Context, Proposal]:
    ctx = context(task, measured, fitted=fitted, pending=3)
    codes = draw(task.space, ctx.seen, m, np.random.default_rng(7))
    return ctx, Proposal(codes, ctx.score(codes))
