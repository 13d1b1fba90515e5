"""Hypothesis strategies of what histories keep, for round trips."""

from __future__ import annotations

from hypothesis import strategies as st

from tt_spec.types import ERRORS, Measurement, Noise, RunRecord

__all__ = ["MEASUREMENTS", "RUNS"]

_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
_NUMBER = st.floats(allow_nan=False) | st.integers(-(2**53), 2**53)
_PLAIN = st.none() | st.booleans() | _NUMBER | _TEXT
_NAME = _TEXT.filter(lambda t: not t.startswith("$"))
_VALUE = st.recursive(
    _PLAIN,
    lambda x: st.lists(x, max_size=3) | st.lists(x, max_size=3).map(tuple) | st.dictionaries(_NAME, x, max_size=2),
)
_TIME = st.floats(0.0, 4e9)
_SECONDS = st.floats(5e-324, 1e300).filter(lambda s: s > 0)

MEASUREMENTS = st.builds(
    lambda verdict, **about: Measurement(seconds=verdict[0], error=verdict[1], **about),
    verdict=st.lists(_SECONDS, min_size=1, max_size=4).map(lambda s: (tuple(s), None))
    | st.sampled_from(ERRORS).map(lambda e: ((), e)),
    task_key=_TEXT,
    space_key=_TEXT,
    config=st.lists(st.integers(0, 2**40), max_size=4).map(tuple),
    knobs=st.dictionaries(_NAME, _VALUE, max_size=3),
    runs=st.integers(0, 2**40),
    why=_TEXT | st.lists(_TEXT, max_size=3).map("\r\n".join),
    cost=st.dictionaries(_NAME, st.floats(allow_nan=False), max_size=3),
    origin=_TEXT,
    device=_TEXT,
    versions=st.dictionaries(_NAME, _TEXT, max_size=2),
    at=_TIME,
    run_id=_TEXT,
    noise=st.none() | st.builds(Noise, st.integers(0, 99), st.integers(0, 99), _TIME, _TIME),
)
"""Measurements of all kinds."""

RUNS = st.builds(
    RunRecord, _TEXT, _TIME, st.none() | _TIME, st.none() | _NAME.filter(bool), st.dictionaries(_NAME, _VALUE)
)
"""Runs, ended or not."""
