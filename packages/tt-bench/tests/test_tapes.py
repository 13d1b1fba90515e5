"""Schedulers over operators that were tuned alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tt_bench.runs import tune
from tt_bench.tapes import Hindsight, Tape, play, regret
from tt_bench.thinking import Thoughts
from tt_bench_toy import recorded, task
from tt_schedule import Patience, RoundRobin
from tt_spec.pieces.sequential_scheduler import SequentialScheduler
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.testing import SchedulerContract


def tape(name: str, *steps: tuple[int, float], trials: int = 64, weight: float = 1.0, row_s: float = 1.0) -> Tape:
    """Seconds of the best program from each trial on."""
    seen = np.full(trials, np.inf)
    for at, best in steps:
        seen[at - 1 :] = best
    one = dataclasses.replace(synthetic_task(name), weight=weight)
    times = np.arange(1, trials + 1) * row_s
    told = [None if np.isinf(s) else float(s) for s in seen]
    run = dataclasses.make_dataclass("R", ["t", "task", "seen_s", "true_s"])(
        times.tolist(), [0] * trials, told, [None if s is None else weight * s for s in told]
    )
    return Tape.of(one, run)


class TestHindsight(SchedulerContract):
    @pytest.fixture
    def piece(self):
        return Hindsight([tape(f"task {i}", (1, 1.0)) for i in range(4)], trials=8)


SLOW = [tape("a", (1, 8.0), (40, 7.0)), tape("b", (3, 9.0), (20, 5.0), (36, 2.0), weight=2.0)]


def test_hindsight_goes_where_the_most_is_gained_and_has_no_regret():
    oracle = play(SLOW, Hindsight(SLOW), 96)
    # first slots in turn; b saves 8 by its second slot, 6 by its third; a 1 by its third, behind a plateau
    assert [s[0] for s in oracle.slots] == [0, 1, 1, 1, 0, 0]
    assert [s[3] for s in oracle.slots] == [None, None, 8.0, 6.0, 0.0, 1.0]
    assert [s[2] for s in oracle.slots] == [0.0, 0.0, 8.0, 6.0, 0.5, 1.0]
    assert regret(oracle, oracle).tolist() == [0.0] * 6


def test_regret_is_what_hindsight_had_gained_more():
    oracle = play(SLOW, Hindsight(SLOW), 96)
    turns = play(SLOW, RoundRobin(16), 96)
    assert [s[0] for s in turns.slots] == [0, 1, 0, 1, 0, 1]
    assert [s[3] for s in turns.slots] == [None, None, 0.0, 8.0, 1.0, 6.0]
    assert regret(turns, oracle).tolist() == [0.0, 0.0, 8.0, 6.0, 5.0, 0.0]


def test_the_model_is_the_weighted_sum_and_time_is_the_tape_s():
    tapes = [tape("a", (1, 8.0), row_s=2.0), tape("b", (3, 9.0), (20, 5.0), weight=2.0)]
    played = play(tapes, SequentialScheduler(32), 64, charge_s=lambda: 0.5)
    assert played.model_s[:34] == [np.inf] * 34 and played.model_s[34] == 8 + 18 and played.model_s[-1] == 8 + 10
    assert played.t[31] == pytest.approx(0.5 + 64) and played.t[-1] == pytest.approx(1.0 + 64 + 32)
    assert played.reach(18.0) == pytest.approx(1.0 + 64 + 20) and played.reach(1.0) == np.inf
    assert played.decisions == 2 and played.decided_s >= 0
    assert [s[:2] for s in played.slots] == [(0, 16), (0, 16), (1, 16), (1, 16)]


def test_the_end_of_a_tape_and_patience_finish_an_operator():
    played = play(SLOW, RoundRobin(16), 10_000)
    assert len(played.t) == 128
    played = play(SLOW, RoundRobin(16), 10_000, stoppers=[Patience(16)])
    assert [sum(s[1] for s in played.slots if s[0] == i) for i in (0, 1)] == [32, 64]


def test_a_slot_brings_on_tape_what_it_brings_in_replay(host):
    """Two operators tuned in turns by one run are as each of them tuned alone."""
    parts = [recorded(task("a", 6)), recorded(task("b", 8, weight=3.0))]
    sets = ["batch=8", "searcher=anneal", "searcher.chains=8", "searcher.steps=10"]
    whole = tune(
        host, parts, "random", [*sets, "scheduler=round-robin", "scheduler.trials=8"], 3, 48, thoughts=Thoughts()
    )
    tapes = []
    for part in parts:
        # a batch more than is played: the last one of a run has no second look
        alone = tune(host, [part], "random", [*sets, "scheduler=sequential"], 3, 32, thoughts=Thoughts())
        tapes.append(Tape.of(part.task, alone))
    played = play(tapes, RoundRobin(8), 48, batch=8)
    assert played.t[:-1] == pytest.approx(whole.t[:-1], abs=1e-4)  # the last batch of the whole has no second look
    wanted = [np.inf if s is None else s for s in whole.true_s]
    assert played.model_s[:-1] == pytest.approx(wanted[:-1])


def test_a_tape_is_of_one_task():
    with pytest.raises(ValueError, match="a run of one task, this has 2"):
        Tape.of(synthetic_task(), dataclasses.make_dataclass("R", ["t", "task"])([1.0, 2.0], [0, 1]))
