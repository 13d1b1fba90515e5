"""Minutes that mean minutes: what a run keeps back to finish, and what it says of its stages."""

from __future__ import annotations

import math

import pytest
from tt_core.stages import (
    APPLY_S,
    CHECK_S,
    LEAST_TIMING_S,
    LINEUP_S,
    LONGEST_S,
    MODELS_S,
    MOST_INSIDE,
    MOST_RETIME,
    MOST_TIMING_S,
    RACE_S,
    TUNED,
    UNTUNED_FLOPS,
    VARIANTS,
    WEIGHT_S,
    Ending,
    Stages,
    clock_text,
    past_endings,
    search_s,
    timing_s,
)
from tt_spec import VirtualClock
from tt_spec.pieces.memory_store import MemoryStore


def test_the_end_of_a_run_by_hand():
    ending = Ending.of(10, 8.0)
    assert ending.retime_s == pytest.approx(10 * RACE_S)
    assert ending.compile_s == pytest.approx(0.5 * 8 + 10 * APPLY_S)
    assert ending.inside_s == pytest.approx((VARIANTS + 1) * (ending.compile_s + LINEUP_S))
    assert ending.total_s == pytest.approx(10 * RACE_S + 4 + 10 * APPLY_S + MODELS_S + MOST_TIMING_S + ending.inside_s)
    heavy = Ending.of(10, 8.0, flops=2 * UNTUNED_FLOPS, size=10**8)
    assert heavy.models_s - ending.models_s == pytest.approx(2), "timed once; other runs beside 8 s of compiling"
    heavier = Ending.of(10, 8.0, flops=10 * UNTUNED_FLOPS)
    assert heavier.models_s - ending.models_s == pytest.approx(10 + 20 - ending.compile_s / 2)
    assert heavy.compile_s == pytest.approx(ending.compile_s + 1e8 * WEIGHT_S)


def test_re_timing_many_operators_takes_a_share_of_the_minutes_or_what_checking_them_takes():
    assert Ending.of(100, 8.0, minutes=1).retime_s == pytest.approx(MOST_RETIME * 60)
    assert Ending.of(100, 8.0, minutes=0.25).retime_s == pytest.approx(100 * CHECK_S)
    assert Ending.of(10, 8.0, minutes=2).retime_s == pytest.approx(10 * RACE_S)


def test_a_race_inside_the_model_has_its_share_of_the_minutes_or_none():
    each_s = Ending.of(10, 8.0).compile_s + LINEUP_S
    for libraries in (3, 4, VARIANTS + 1):
        minutes = (libraries + 0.5) * each_s / MOST_INSIDE / 60
        assert Ending.of(10, 8.0, minutes=minutes).inside_s == pytest.approx(libraries * each_s)
    assert Ending.of(10, 8.0, minutes=2.9 * each_s / MOST_INSIDE / 60).inside_s == 0
    assert Ending.of(10, 8.0, minutes=0.5).inside_s == 0
    slow = TUNED * LONGEST_S * UNTUNED_FLOPS
    assert Ending.of(10, 8.0, flops=0.9 * slow).inside_s > 0 == Ending.of(10, 8.0, flops=1.1 * slow).inside_s


def test_the_whole_model_is_timed_for_less_where_the_minutes_are_few():
    assert [timing_s(m) for m in (None, 5, 1, 0.25)] == [MOST_TIMING_S, MOST_TIMING_S, pytest.approx(3), LEAST_TIMING_S]


def test_earlier_runs_say_how_long_it_takes():
    alone = Ending.of(10, 8.0)
    told = Ending.of(10, 8.0, past=[(0.8 * alone.total_s, math.inf), (1.5 * alone.total_s, math.inf)])
    assert told.total_s == pytest.approx(1.5 * alone.total_s)
    assert told.compile_s == pytest.approx(1.5 * alone.compile_s)
    hour = 3600.0, math.inf
    assert Ending.of(10, 8.0, past=[hour, (1.5 * alone.total_s, math.inf)]) == told, "a clock was set"
    assert Ending.of(10, 8.0, past=[hour]) == alone
    quick = Ending.of(10, 8.0, past=[(1.0, math.inf)])
    assert quick.total_s == pytest.approx(0.5 * alone.total_s), "one run that was cut short does not take all of it"
    short = Ending.of(10, 8.0, minutes=1)
    longer = Ending.of(10, 8.0, past=[(1.2 * alone.total_s, math.inf)], minutes=1)
    assert short.inside_s == 0 < alone.inside_s, "a race inside the model is for long runs"
    assert longer.total_s == pytest.approx(1.2 * short.total_s), "each run's end by what is estimated for its minutes"


def test_the_search_gets_what_is_left_and_a_third_at_least():
    ending = Ending(10.0, 20.0, 12.0)
    assert search_s(5, 18.0, ending) == pytest.approx(300 - 18 - 42)
    assert search_s(1, 18.0, ending) == pytest.approx(20.0)


def test_what_is_not_the_search_s_leaves_time_for_the_end():
    clock = VirtualClock()
    stages = Stages(clock, 5.0, lambda text: None)
    clock.advance(18.0)
    apart_s = stages.apart_s(Ending(10.0, 20.0, 12.0))
    assert apart_s == pytest.approx(60.0)  # 18 before, 42 after
    clock.advance(300.0 - 18.0 - 42.0)
    assert stages.left_s == pytest.approx(42.0)


def test_a_stage_is_said_with_what_remains_and_told_when_it_ends():
    clock, said, told = VirtualClock(), [], []
    stages = Stages(clock, 2.0, said.append)
    with stages.stage("reading", "reading m.onnx"):
        clock.advance(5.0)
    assert said == ["reading m.onnx (2:00 left)"]
    stages.hear(lambda **what: told.append(what))
    with pytest.raises(KeyError), stages.stage("compiling", "compiling the model"):
        clock.advance(2.5)
        raise KeyError
    assert said[1] == "compiling the model (1:55 left)"
    assert told == [
        {"name": "reading", "began": 0.0, "seconds": 5.0},
        {"name": "compiling", "began": 5.0, "seconds": 2.5},
    ]


def test_minutes_may_have_begun_before():
    clock = VirtualClock(100.0)
    assert Stages(clock, 1.0, lambda text: None, began=97.5).left_s == pytest.approx(57.5)


def test_without_minutes_nothing_remains_to_be_said():
    said = []
    stages = Stages(VirtualClock(), None, said.append)
    with stages.stage("reading", "reading m.onnx"):
        pass
    assert said == ["reading m.onnx"] and math.isinf(stages.left_s)
    assert stages.apart_s(Ending(1.0, 1.0, 1.0)) == 0.0


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (-3, "0:00"), (59.6, "1:00"), (245, "4:05")])
def test_seconds_as_a_clock_shows_them(seconds, text):
    assert clock_text(seconds) == text


class Runs(MemoryStore):
    """Told of runs."""

    def __init__(self, *runs):
        super().__init__()
        self.told = list(runs)

    def runs(self):
        return self.told


def run(i: str, ended: float | None, model: str = "m", device: str = "cpu", **options):
    options = {"out": "m.so", "minutes": 2.0, **options}
    return {"id": i, "ended": ended, "info": {"model": model, "device": device, "options": options}}


def test_only_ends_of_the_same_model_here_count():
    last = {"a": 100.0, "b": 200.0, "c": 300.0, "d": 400.0, "e": 500.0}
    store = Runs(
        run("a", 130.0),
        run("b", 220.0, model="n"),
        run("c", None),
        run("d", 444.0, out=None),
        run("e", 541.0, minutes=None),
        run("unknown", 600.0),
    )
    assert past_endings(store, "m", "cpu", last) == [(41.0, math.inf), (30.0, 2.0)]
    assert past_endings(store, "m", "cpu", last, most=1) == [(41.0, math.inf)]
    assert past_endings(store, "m", "gpu", last) == []
    assert past_endings(MemoryStore(), "m", "cpu", last) == []
