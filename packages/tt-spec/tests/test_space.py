"""Properties of every space."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tt_spec import Knob, Limit, Space, draw, token, tokens
from tt_spec.testing import mixed_space

TILES = ((1, 8), (2, 4), (4, 2), (8, 1), (1, 4), (3, 5))


@st.composite
def spaces(draw):
    """Small spaces whose knobs may hang on one another."""
    knobs = []
    for i in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["tile", "choice", "location"]))
        pool = {"tile": TILES, "choice": ("a", "b", "c"), "location": (0, 1, 2, 3)}[kind]
        choices = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=4, unique=True))
        active_if = None
        if i and draw(st.booleans()):
            parent = draw(st.integers(0, i - 1))
            codes = draw(st.lists(st.integers(0, len(knobs[parent].choices) - 1), max_size=3, unique=True))
            active_if = (parent, tuple(codes))
        knobs.append(Knob(f"k{i}", kind, tuple(choices), active_if))
    tiles = [i for i, k in enumerate(knobs) if k.kind == "tile"]
    limits = ()
    if tiles and draw(st.booleans()):
        limits = (Limit(tuple((i, 0) for i in tiles), draw(st.sampled_from([1, 2, 8])), "too large"),)
    return Space(tuple(knobs), limits=limits)


def rows_of(space, seed, n=20):
    return np.random.default_rng(seed).integers(0, space.shape, size=(n, len(space.knobs)))


@given(spaces(), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_canonical_is_idempotent_and_keeps_the_program(space, seed):
    codes = rows_of(space, seed)
    once = space.canonical(codes)
    assert np.array_equal(space.canonical(once), once)
    assert np.array_equal(space.active(once), space.active(codes))
    assert [space.decode(r) for r in once] == [space.decode(r) for r in codes]
    assert np.array_equal(space.encode(once), space.encode(codes))
    assert np.array_equal(space.allowed(once), space.allowed(codes))


@given(spaces(), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_features_are_finite_and_of_one_width(space, seed):
    X = space.encode(rows_of(space, seed))
    assert X.shape == (20, sum(k.table.shape[1] for k in space.knobs))
    assert X.dtype == np.float64 and np.isfinite(X).all()
    assert space.encode(rows_of(space, seed)[:0]).shape == (0, X.shape[1])


@given(spaces())
@settings(max_examples=60, deadline=None)
def test_size_counts_what_enumerate_yields(space):
    free = Space(space.knobs)
    rows = [tuple(r.tolist()) for r in free.enumerate()]
    assert len(rows) == len(set(rows)) == free.size
    allowed = [tuple(r.tolist()) for r in space.enumerate()]
    assert allowed == [r for r in rows if space.allowed(np.asarray([r]))[0]]
    assert allowed == sorted(allowed)


@given(spaces(), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_samples_are_canonical_and_allowed(space, seed):
    rows = space.sample(20, np.random.default_rng(seed))
    assert len(rows) <= 20 and space.allowed(rows).all()
    assert np.array_equal(space.canonical(rows), rows)
    share = sum(1 for _ in space.enumerate()) / Space(space.knobs).size
    assert len(rows) == 20 or share < 0.05, "fewer only where hardly any row is allowed"


@given(spaces(), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_mutate_moves_one_active_knob(space, seed):
    codes = space.sample(20, np.random.default_rng(seed))
    new = space.mutate(codes, np.random.default_rng(seed + 1))
    assert new.shape == codes.shape and space.allowed(new).all()
    assert np.array_equal(space.canonical(new), new)
    both = space.active(codes) & space.active(new)
    assert (((codes != new) & both).sum(axis=1) <= 1).all()
    changed = (codes != new).any(axis=1)
    assert (((codes != new) & both).sum(axis=1) == 1)[changed].all()


@given(spaces(), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_neighbours_are_one_step_away(space, seed):
    for row in space.sample(3, np.random.default_rng(seed)):
        near = space.neighbours(row)
        assert len(np.unique(near, axis=0)) == len(near)
        assert space.allowed(near).all() and np.array_equal(space.canonical(near), near)
        for other in near:
            both = space.active(row[None])[0] & space.active(other[None])[0]
            (moved,) = np.flatnonzero((row != other) & both)
            knob = space.knobs[moved]
            a, b = knob.choices[row[moved]], knob.choices[other[moved]]
            if knob.kind == "tile":
                if sum(x != y for x, y in zip(a, b, strict=True)) == 1:
                    (i,) = (i for i in range(len(a)) if a[i] != b[i])
                    rest = [c for c in knob.choices if c[:i] + c[i + 1 :] == a[:i] + a[i + 1 :]]
                    assert not any(min(a[i], b[i]) < c[i] < max(a[i], b[i]) for c in rest)
                    continue
                assert math.prod(a) == math.prod(b)
                ratios = sorted(max(x, y) // min(x, y) for x, y in zip(a, b, strict=True))
                assert ratios[:-2] == [1] * (len(a) - 2) and ratios[-2] == ratios[-1] in (2, 3, 5, 7)
            elif knob.ordered:
                assert abs(int(row[moved]) - int(other[moved])) == 1


def test_neighbours_of_a_tile():
    space = Space((Knob("t", "tile", ((1, 8), (2, 4), (4, 2), (8, 1))),))
    assert space.neighbours([1]).tolist() == [[0], [2]]


def test_neighbours_of_a_tile_whose_product_is_free():
    space = Space((Knob("t", "tile", ((1, 1), (1, 7), (1, 14), (2, 7), (4, 7), (4, 14))),))
    decoded = {space.decode(r)["t"] for r in space.neighbours([1])}
    assert decoded == {(1, 1), (1, 14), (2, 7)}, "the next larger or smaller factor, one at a time"


def test_random_rows_follow_a_prior():
    knobs = (Knob("where", "choice", ("here", "there"), prior=(9, 1)), Knob("x", "choice", (0, 1), active_if=(0, (1,))))
    rows = Space(knobs).sample(2000, np.random.default_rng(0))
    assert 0.87 < (rows[:, 0] == 0).mean() < 0.93
    assert 0.35 < rows[rows[:, 0] == 1, 1].mean() < 0.65


def test_choices_with_a_prior_take_turns():
    algorithm = Knob("algorithm", "choice", ("direct", "winograd", "sketch"), prior=(5, 2, 1))
    space = Space((algorithm, Knob("x", "choice", tuple(range(100)))))
    for seed in range(50):
        rng = np.random.default_rng(seed)
        first = draw(space, set(), 8, rng)
        assert np.bincount(first[:, 0]).tolist() == [5, 2, 1] and 1 in first[:4, 0]
        searched = {token([0, x]) for x in range(60)}  # a search that forgot the others
        assert sorted(draw(space, searched, 3, rng)[:, 0].tolist()) == [1, 1, 2]
    small = Space((algorithm, Knob("x", "choice", tuple(range(9)), active_if=(0, (0, 2)))))
    assert sorted(draw(small, set(), 30, rng)[:, 0].tolist()) == [0] * 9 + [1] + [2] * 9, "every row there is"


def test_a_prior_changes_no_meaning():
    even, uneven = (Space((Knob("a", "choice", (0, 1), prior=p),)) for p in (None, (3, 1)))
    assert even.key == uneven.key


@pytest.mark.parametrize("prior", [(1,), (1, 0), (1, -1), (1, 2, 3)])
def test_a_wrong_prior_is_named(prior):
    with pytest.raises(ValueError, match="prior"):
        Knob("a", "choice", (0, 1), prior=prior)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", ">i8"])
def test_a_row_has_one_token_in_every_form(dtype):
    codes = np.array([[3, 1, 2], [0, 7, 100], [3, 1, 2]])
    known = [row.tobytes() for row in codes]
    assert known[0] == known[2] != known[1]
    for form in (codes, codes[:, ::-1].copy()[:, ::-1], np.asfortranarray(codes), np.repeat(codes, 2, axis=0)[::2]):
        form = form.astype(dtype, order="K")
        assert tokens(form) == [token(row) for row in form] == known
    assert tokens(codes.tolist()) == [token(row) for row in codes.tolist()] == known
    assert np.frombuffer(b"".join(known), dtype=np.int64).reshape(-1, 3).tolist() == codes.tolist()


def test_tokens_of_no_rows_and_of_a_single_row():
    assert tokens(np.empty((0, 3))) == []
    with pytest.raises(ValueError, match=r"\(n, d\), got \(3,\): `token` takes a single row"):
        tokens(np.arange(3))


def test_a_large_conditional_space_is_enumerated_in_the_size_it_has():
    sketches = tuple(Knob(f"k{s}{i}", "choice", tuple(range(4)), (0, (s,))) for s in range(6) for i in range(5))
    space = Space((Knob("sketch", "choice", tuple("abcdef")), *sketches))
    assert space.size == 6 * 4**5  # of 6 * 4**30 combinations
    everything = np.stack(list(space.enumerate()))
    assert len(everything) == space.size
    last = draw(space, set(tokens(everything[1:])), 5, np.random.default_rng(0))
    assert last.tolist() == everything[:1].tolist()


KEYED = Space((Knob("t", "tile", TILES[:4]), Knob("c", "choice", ("x", 1, 0.5))), name="n")


@pytest.mark.parametrize(
    "other",
    [
        Space(KEYED.knobs, name="m"),
        Space(KEYED.knobs, version="2", name="n"),
        Space(KEYED.knobs[::-1], name="n"),
        Space((Knob("t", "tile", TILES[:3]), KEYED.knobs[1]), name="n"),
        Space((KEYED.knobs[0], Knob("c", "choice", ("x", 1, 0.25))), name="n"),
        Space((KEYED.knobs[0], Knob("c", "choice", KEYED.knobs[1].choices, (0, (1,)))), name="n"),
        Space(KEYED.knobs, limits=(Limit(((0, 0),), 4, "why"),), name="n"),
    ],
)
def test_key_changes_with_what_a_row_means(other):
    assert other.key != KEYED.key


def test_key_ignores_how_a_limit_is_explained_and_how_numbers_are_held():
    one, two = (Space(KEYED.knobs, limits=(Limit(((0, 0),), 4, why),)) for why in ("a", "b"))
    assert one.key == two.key
    held = Space((Knob("c", "choice", (np.int64(1), np.float64(0.5))),))
    assert held.key == Space((Knob("c", "choice", (1, 0.5)),)).key


def test_key_is_the_same_in_every_process():
    code = "from tt_spec.testing import mixed_space; print(mixed_space().key)"
    for seed in ("1", "2"):
        out = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        )
        assert out.stdout.strip() == mixed_space().key


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="has no choices"):
        Knob("k", "choice", ())
    with pytest.raises(ValueError, match="same number of factors"):
        Knob("k", "tile", ((1, 2), (1, 2, 3)))
    with pytest.raises(ValueError, match="kind must be"):
        Knob("k", "nonsense", (1,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="names must differ"):
        Space((Knob("k", "choice", (1,)), Knob("k", "choice", (1,))))
    with pytest.raises(ValueError, match="not before it"):
        Space((Knob("k", "choice", (1,), (0, (0,))),))
    with pytest.raises(ValueError, match="choices must be"):
        Space((Knob("k", "choice", (object(),)),))
    with pytest.raises(ValueError, match=r"codes must be \(n, 2\)"):
        KEYED.encode(np.zeros((3, 5), dtype=int))
    with pytest.raises(ValueError, match="outside the space"):
        KEYED.decode([0, 9])
