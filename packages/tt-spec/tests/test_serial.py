"""Everything that crosses a border comes back as it was."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tt_spec import (
    Bar,
    Batch,
    Measurement,
    Prediction,
    Proposal,
    Selection,
    Slot,
    TaskState,
    Timing,
    Trial,
    from_json,
    to_json,
)
from tt_spec.testing import mixed_task
from tt_spec.testing.examples import statements


def same(a, b):
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if dataclasses.is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return type(a) is type(b) and a == b


CODES = np.arange(6, dtype=np.int64).reshape(2, 3)
THINGS = [
    mixed_task(),
    dataclasses.replace(mixed_task(), payload=bytes(range(256))),
    Measurement("t", "s", (1, 2), {"tile": (2, (4,)), "x": [1, 2.5, None]}, (0.1 + 0.2, 5e-324), 3, cost={"run": 1.0}),
    Measurement("t", "s", (1,), error="build", why='multi\nline "quoted" \N{SNOWMAN}'),
    Prediction(np.array([0.1, np.inf, np.nan]), np.zeros(3, dtype=np.float32)),
    statements(4, np.random.default_rng(0)),
    statements(0, np.random.default_rng(0)),
    Bar(),
    Bar(1e-3, 1e9, 2.0),
    Timing((1e-3,), 2, "why"),
    Proposal(CODES, np.zeros(2), 0.25, {"epsilon": 0.1}),
    Selection(CODES[:0], {"elbow": 3}),
    Batch(1, CODES, ("search", "random"), np.array([0.5, np.nan]), CODES[:0], {"a": [1, (2, 3)]}),
    Slot(1, seconds=2.5, gain_s=1e-6, info={"ucb": -math.inf}),
    TaskState(mixed_task(), curve=[(8, 1.5, math.inf), (16, 3.0, 1e-3)], errors={"build": 2}),
    np.array([], dtype=bool),
    np.array(3.5),
    np.array(["ab", "c"]),
    {"nested": [{"deep": (CODES, b"\x00", True, None)}]},
]


@pytest.mark.parametrize("thing", THINGS, ids=lambda t: type(t).__name__)
def test_round_trip(thing):
    text = to_json(thing)
    assert same(from_json(text), thing)
    assert to_json(from_json(text)) == text
    assert same(from_json(text.encode()), thing)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda x: (
        st.lists(x, max_size=3)
        | st.lists(x, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4).filter(lambda k: not k.startswith("$")), x, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
@settings(max_examples=100, deadline=None)
def test_any_value_comes_back(value):
    assert same(from_json(to_json(value)), value)


def test_numpy_scalars_become_python_ones():
    given = [np.float64(np.inf), np.float32(0.5), np.int64(3), np.bool_(True), np.float64("nan")]
    back = from_json(to_json(given))
    assert back[:4] == [math.inf, 0.5, 3, True] and math.isnan(back[4])


def test_a_space_keeps_its_key_and_its_rows():
    space = mixed_task().space
    again = from_json(to_json(space))
    rows = space.sample(20, np.random.default_rng(0))
    assert again.key == space.key and again == space
    assert np.array_equal(again.encode(rows), space.encode(rows))


@pytest.mark.parametrize("thing", [object(), {1: 2}, {"$type": 1}, {1, 2}, np.array([object()]), 1j, print])
def test_strangers_are_refused(thing):
    with pytest.raises(ValueError):
        to_json(thing)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "\x00",
        '{"$type":"Nothing"}',
        '{"$type":"Slot","wrong":1}',
        '{"$type":"Slot"}',
        '{"$array":"AA==","dtype":"nonsense","shape":[1]}',
        '{"$array":"AA==","dtype":"int64","shape":[1]}',
        '{"$float":"much"}',
        '{"$bytes":"?"}',
        '{"$tuple":3}',
        '{"$type":"Measurement","task_key":"t","space_key":"s","config":[],"error":"odd"}',
    ],
)
def test_damaged_text_is_a_value_error(text):
    with pytest.raises(ValueError):
        from_json(text)


def test_statements_are_sliced_by_program():
    s = statements(5, np.random.default_rng(1))
    part = s[[3, 1]]
    assert len(part) == 2
    assert np.array_equal(part.values[: part.offsets[1]], s.values[s.offsets[3] : s.offsets[4]])
    assert np.array_equal(s[np.array([False, True, False, True, True])].operator, s.operator[[1, 3, 4]])
    assert len(s[:0]) == 0


@pytest.mark.parametrize("odd", [math.nan, math.inf, 0.0, -1e-3])
@pytest.mark.parametrize("place", range(3))
def test_seconds_that_are_none_are_refused_wherever_they_stand(odd, place):
    seconds = [1e-3, 2e-3, 3e-3]
    seconds[place] = odd
    with pytest.raises(ValueError, match="finite and positive"):
        Trial((0,), tuple(seconds))
    assert Trial((0,), (1e308, 1e308)).seconds, "their sum may be infinite"
