"""Ranges of options: the options exist, the defaults lie inside, both ends can be built."""

from __future__ import annotations

import inspect

import pytest
from tt_spec import Choice, Entry, Float, Integer, Plugins
from tt_spec.ranges import BATCH
from tt_spec.roles import ROLES

PLUGINS = Plugins()
RANGED = [(role, name) for role in ROLES for name, p in PLUGINS.pieces[role].items() if p.entry.ranges]


def test_the_pieces_whose_options_count_declare_them():
    wanted = {("stopper", "adaptive-stop"), ("searcher", "anneal"), ("searcher", "evolve"), ("surrogate", "xgb")}
    wanted |= {("sampler", n) for n in ("adaptive", "diverse", "kmeans")}
    wanted |= {("evaluator", n) for n in ("adaptive", "fixed", "racing")}
    assert wanted <= set(RANGED)
    assert len(PLUGINS.find("stopper", "adaptive-stop").entry.ranges) == 7


@pytest.mark.parametrize(("role", "name"), RANGED)
def test_ranges_are_of_options_and_both_ends_can_be_built(role, name):
    ranges = PLUGINS.find(role, name).entry.ranges
    parameters = inspect.signature(PLUGINS.factory(role, name)).parameters
    for option, r in ranges.items():
        default = parameters[option].default
        assert default is None or r.holds(default), f"{option}: the default {default!r} lies outside {r}"
        for end in r.values if isinstance(r, Choice) else (r.low, r.high):
            assert r.holds(end)
            PLUGINS.build(role, name, **{option: end})
    ends = [{o: e(r) for o, r in ranges.items()} for e in (low, high)]
    assert all(PLUGINS.build(role, name, **options) is not None for options in ends)


def low(r):
    return r.values[0] if isinstance(r, Choice) else r.low


def high(r):
    return r.values[-1] if isinstance(r, Choice) else r.high


def test_a_range_that_is_none_is_refused():
    for wrong in (lambda: Integer(3, 3), lambda: Integer(1, 2.5), lambda: Float(0.0, 1.0, log=True)):  # type: ignore[arg-type]
        with pytest.raises(ValueError):
            wrong()
    for wrong in (lambda: Float(0.0, float("inf")), lambda: Choice(("a",)), lambda: Choice(("a", "a"))):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(ValueError, match="a number or a text"):
        Choice((1, (2, 3)))  # type: ignore[arg-type]
    assert not Integer(1, 4).holds(True) and not Choice((0, 1)).holds(False)
    assert BATCH.holds(16) and Entry("x", dict).ranges == {}
