"""The figures of a ranking, against cases worked by hand."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tt_bench.ranking import Ranked, best_of, best_of_chance, mean_interval, pair_accuracy, summary, top_k

INF = math.inf


def test_pairs_by_hand():
    # pairs (faster, slower): 1-2 right, 1-4 wrong, 2-4 wrong
    assert pair_accuracy(np.array([3.0, 2.0, 9.0]), np.array([1.0, 2.0, 4.0])) == pytest.approx(1 / 3)
    # equal scores are half right; equal seconds are no pair; a failure is slower than all, two of them are no pair
    assert pair_accuracy(np.array([1.0, 1.0]), np.array([1.0, 2.0])) == 0.5
    assert math.isnan(pair_accuracy(np.array([1.0, 2.0]), np.array([1.0, 1.0])))
    assert pair_accuracy(np.array([5.0, 4.0, 6.0]), np.array([1.0, INF, INF])) == 0.5


def test_pairs_apart_by_hand():
    scores, seconds = np.array([1.0, 2.0, 0.0]), np.array([1.00, 1.04, 1.06])
    # 1.00-1.04 is wrong and 4 % apart; 1.00-1.06 is right; 1.04-1.06 is right and 2 % apart
    assert pair_accuracy(scores, seconds) == pytest.approx(2 / 3)
    assert pair_accuracy(scores, seconds, apart=0.05) == 1.0


def test_best_of_by_hand():
    scores, seconds = np.array([9.0, 8.0, 7.0, 1.0]), np.array([4.0, 2.0, INF, 1.0])
    assert [best_of(scores, seconds, k) for k in (1, 2, 3, 4)] == [0.25, 0.5, 0.5, 1.0]
    assert best_of(np.array([2.0, 1.0]), np.array([INF, 1.0]), 1) == 0.0


def test_top_k_by_hand():
    a = Ranked("a", np.array([2.0, 1.0]), np.array([3.0, 1.0]), weight=2.0)
    b = Ranked("b", np.array([2.0, 1.0]), np.array([4.0, 5.0]), weight=1.0)
    # (2 x 1 + 1 x 4) / (2 x 3 + 1 x 4) of one, everything of two
    assert top_k([a, b], 1) == pytest.approx(6 / 10)
    assert top_k([a, b], 2) == 1.0
    failed = Ranked("c", np.array([1.0]), np.array([INF]))
    assert top_k([a, b, failed], 1) == pytest.approx(6 / 10), "an operator without a valid row does not count"
    assert math.isnan(top_k([failed], 1))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.one_of(st.floats(0.1, 10), st.just(INF)), min_size=1, max_size=7), st.integers(1, 8))
def test_chance_is_the_mean_over_all_choices(seconds, k):
    seconds = np.array([0.5, *seconds])
    chosen = list(combinations(seconds, min(k, len(seconds))))
    assert best_of_chance(seconds, k) == pytest.approx(np.mean([seconds.min() / min(c) for c in chosen]))


def test_a_summary_is_plain_and_knows_nothing_of_empty_operators():
    rng = np.random.default_rng(0)
    some = [Ranked(str(i), rng.random(40), rng.random(40) + 1.0) for i in range(12)]
    found = summary([*some, Ranked("none", np.zeros(0), np.zeros(0)), Ranked("bad", np.zeros(2), np.full(2, INF))])
    mean, low, high = found["pairs"]
    assert found["operators"] == 12 and low <= mean <= high and 0.45 < mean < 0.55
    assert abs(found["best of 16"][0] - found["best of 16 by chance"][0]) < 0.05
    assert summary([]) == {"operators": 0.0}
    assert math.isnan(mean_interval([math.nan])[0])
