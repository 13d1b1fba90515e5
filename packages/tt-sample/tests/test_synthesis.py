from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tt_sample import synthesise
from tt_spec import Knob, Space, token, tokens
from tt_spec.testing import mixed_space

PLAIN = Space(tuple(Knob(f"k{i}", "choice", tuple("abcd"[: 2 + i])) for i in range(3)), name="plain")


def test_the_mode_first():
    rows = np.array([[0, 1, 3], [0, 2, 3], [1, 1, 0]])
    assert synthesise(PLAIN, rows, 1).tolist() == [[0, 1, 3]]
    assert synthesise(PLAIN, np.array([[0, 1, 0], [0, 2, 3], [1, 1, 3]]), 1).tolist() == [[0, 1, 3]], "a new row"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*(st.integers(0, n - 1) for n in PLAIN.shape)), min_size=1, max_size=12))
def test_order_is_that_of_the_product_of_frequencies(rows):
    codes = np.array(rows)
    share = [np.bincount(codes[:, j], minlength=n) / len(codes) for j, n in enumerate(PLAIN.shape)]
    product = {
        c: np.prod([s[v] for s, v in zip(share, c, strict=True)]) for c in itertools.product(*map(range, (2, 3, 4)))
    }
    found = [tuple(r) for r in synthesise(PLAIN, codes, 100).tolist()]
    assert set(found) == {c for c, p in product.items() if p > 0}, "every combination of the values, once"
    values = [product[c] for c in found]
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(values))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(0, 60))
def test_never_invalid_visited_or_repeated(seed, n, visited):
    space, rng = mixed_space(), np.random.default_rng(seed)
    known = set(tokens(space.sample(visited, rng)))
    found = synthesise(space, space.sample(40, rng), n, known)
    assert len(found) <= n and space.allowed(found).all() and np.array_equal(found, space.canonical(found))
    made = tokens(found)
    assert len(set(made)) == len(made) and not known & set(made)


def test_candidates_that_are_not_allowed_do_not_count():
    space = mixed_space()
    good = np.array([[1, 7, 1, 7, 0, 0, 2, 0]])
    bad = np.array([[1, 0, 2, 0, 0, 0, 3, 0]] * 5)  # 16 x 16 exceeds the limit
    assert space.allowed(good).all() and not space.allowed(bad).any()
    assert synthesise(space, np.concatenate([good, bad]), 9).tolist() == good.tolist()
    assert synthesise(space, bad, 9).shape == (0, 8)


def test_only_those_who_use_a_knob_vote_on_it():
    space = mixed_space()
    rows = np.array([[0, 3, 0, 0, 0, 0, 0, 0]] * 2 + [[1, 3, 2, 4, 0, 0, 0, 0]] * 3)
    assert synthesise(space, rows, 1)[0, 2:4].tolist() == [2, 4]
    assert synthesise(space, rows[:4], 2, {token(rows[0])})[0].tolist() == rows[2].tolist()


def test_gives_up_after_its_tries():
    rows = np.array([[0, 0, 0], [1, 1, 1]])
    mode = token(synthesise(PLAIN, rows, 1)[0])
    assert len(synthesise(PLAIN, rows, 1, {mode}, tries=1)) == 0
    assert len(synthesise(PLAIN, rows, 1, {mode}, tries=2)) == 1
    assert len(synthesise(PLAIN, rows, 0)) == 0
