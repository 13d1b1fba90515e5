"""What is told of a task, against the plainest way to keep it; and what a long run keeps in memory."""

import math

import numpy as np
import pytest
from tt_spec import Pipeline
from tt_spec.cost_models import CostModels
from tt_spec.pieces.null_surrogate import NullSurrogate
from tt_spec.pieces.random_searcher import RandomSearcher
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.pieces.top_sampler import TopSampler
from tt_spec.space import token
from tt_spec.told import Told
from tt_spec.types import Trial


@pytest.mark.parametrize("seed", range(4))
def test_it_tells_what_plain_lists_tell(seed):
    rng = np.random.default_rng(seed)
    told, rows, seconds, errors = Told(3), [], [], []
    for n in range(200):
        if n and rng.random() < 0.2:
            i = int(rng.integers(n := len(rows)))
            seconds[i], errors[i] = (math.inf, "run") if rng.random() < 0.3 else (float(rng.integers(1, 9)), None)
            told.change(i, seconds[i], errors[i], (seconds[i], 1.0))
            continue
        rows.append(np.array([len(rows), 1, 2]))
        failed = rng.random() < 0.3
        seconds.append(math.inf if failed else float(rng.integers(1, 50)))
        errors.append(str(rng.choice(["invalid", "run"])) if failed else None)
        told.add(rows[-1], seconds[-1], errors[-1], (seconds[-1], 1.0))
    assert told.rows.tolist() == np.stack(rows).tolist() and told.seconds.tolist() == seconds
    assert told.errors == errors and told.best_s == min(seconds) and len(told) == len(rows)
    assert told.timed == [(x, 1.0) for x in seconds]
    usable = [i for i, e in enumerate(errors) if e != "invalid"]
    assert told.usable.tolist() == usable and told.trials == len(usable)
    for n in (0, 1, 5, 60, 500):
        assert told.best(n).tolist() == sorted(range(len(rows)), key=seconds.__getitem__)[:n]
        among = np.array(usable)
        assert told.best(n, among).tolist() == sorted(usable, key=seconds.__getitem__)[:n]
    found, trial, best = [], 0, math.inf
    for s, e in zip(seconds, errors, strict=True):
        trial += e != "invalid"
        if s < best:
            best = s
            found.append((trial, s))
    assert told.incumbents() == found
    assert all(told.at[token(r)] == i for i, r in enumerate(rows))


def test_seconds_of_building_and_timing_reach_searchers_and_samplers():
    seen = []

    class Watching(TopSampler):
        def select(self, ctx, proposal, n):
            seen.append((ctx.rows.tolist(), ctx.costs.copy()))
            return super().select(ctx, proposal, n)

    def new():
        return Pipeline(synthetic_task(), NullSurrogate(), RandomSearcher(), Watching())

    p = new()
    batch = p.ask(3)
    costs = [{"apply": 0.1, "build": 0.3, "run": 0.05}, {"run": 0.2}, {"build": 0.5, "run": 0.0}]
    trials = [Trial(tuple(map(int, r)), (1.0,), cost=c) for r, c in zip(batch.codes, costs, strict=True)]
    p.tell(batch.id, trials)
    p.ask(2)
    rows, found = seen[-1]
    assert rows == batch.codes.tolist()
    assert found[0] == pytest.approx([0.4, 0.05]) and np.isnan(found[1:]).all(), "both, or nothing is known"
    again = new()
    again.restore([p.measured(t) for t in trials])
    again.ask(2)
    assert np.array_equal(seen[-1][1], found, equal_nan=True), "a history tells the same"


def test_what_a_network_adds_is_kept_apart_from_what_was_timed():
    asked: list[int] = []
    told = Told(1, lambda row: asked.append(row[0]) or 0.5 * row[0])
    for knob, seconds in ((0, 3.0), (4, 2.0), (1, math.inf), (2, 2.5)):
        told.add(np.array([knob]), seconds, None if math.isfinite(seconds) else "run")
    assert told.expected.tolist() == [3.0, 4.0, math.inf, 3.5]
    assert told.best_s == 2.0 and told.best(2).tolist() == [0, 3] and told.top(1)[0][1] == 3.0
    assert asked == [0, 4, 2], "a row that failed may have no program"
    told.change(2, 1.5, None)
    assert told.expected[2] == 2.0
    told.change(2, math.inf, "run")
    told.rescale(2.0)
    assert told.expected.tolist() == [6.0, 6.0, math.inf, 6.0], "another machine does not change the network's part"
    told.change(1, 1.0, None)
    for knob in range(100):
        told.add(np.array([knob]), 1.0, None)
    assert told.expected[:2].tolist() == [6.0, 3.0] and told.expected[4:].tolist() == [1 + k / 2 for k in range(100)]


def test_nothing_told_is_nothing_known():
    told = Told(2)
    assert told.rows.shape == (0, 2) and told.best_s == math.inf and told.incumbents() == []
    assert told.best(3).tolist() == [] and told.usable.tolist() == []


def test_rows_are_neither_copied_nor_to_be_written():
    """A copy of 10^5 rows for every batch is what made long runs slow."""
    told = Told(2)
    for i in range(100):
        told.add(np.array([i, 0]), 1.0, None)
    before = told.rows
    assert np.shares_memory(before, told.rows)
    with pytest.raises(ValueError):
        before[0, 0] = 7
    for i in range(100, 200):
        told.add(np.array([i, 0]), 1.0, None)
    assert before[:, 0].tolist() == list(range(100))


class ByStatements(NullSurrogate):
    inputs = "statements"


def test_statements_of_all_tasks_together_are_bounded(monkeypatch):
    """200 tasks of which each kept 4,096 rows' statements would need 10 GB."""
    monkeypatch.setattr(CostModels, "ALL_FEATURES", 100)
    peers, programs = [], SyntheticMeasurer()
    for i in range(6):
        task = synthetic_task(f"t{i}")
        peers.append(Pipeline(task, ByStatements(), RandomSearcher(), TopSampler(), programs=programs, peers=peers))
    for turn in range(3):
        for p in peers:
            batch = p.ask(16)
            p.tell(batch.id, [Trial(tuple(map(int, row)), (1e-3 + turn,), 1) for row in batch.codes])
            assert sum(len(q.models.kept) for q in peers) <= 100
    assert len(peers[-1].models.kept) and not len(peers[0].models.kept)
