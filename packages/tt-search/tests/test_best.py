from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tt_search.best import Best, row_keys
from tt_spec import tokens
from tt_spec.testing import context, wide_task


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40))
def test_keeps_what_sorting_everything_would_keep(seed, size):
    rng = np.random.default_rng(seed)
    ctx = context(wide_task(), 30, seed=seed % 5, pending=5)
    best, met = Best(ctx, size), {}
    for _ in range(6):
        codes = np.concatenate([ctx.space.sample(20, rng), ctx.rows[:3], ctx.pending])
        scores = np.round(codes @ np.array([0.3, 0.2, 0.11, 0.07]), 2)
        before = best.codes.copy()
        assert best.add(codes, scores) == (not np.array_equal(before, best.codes))
        met.update((t, s) for t, s in zip(tokens(codes), scores, strict=True) if t not in ctx.seen)
    wanted = sorted(met.values(), reverse=True)[:size]
    assert best.scores.tolist() == wanted
    assert [met[t] for t in tokens(best.codes)] == wanted
    assert len(set(tokens(best.codes))) == len(best.codes)


def test_keys_differ_where_rows_do():
    codes = np.stack(list(wide_task().space.enumerate()))
    assert len(np.unique(row_keys(codes))) == len(codes) == 4096
