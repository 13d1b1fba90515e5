"""The scheduler dynatune in recipes of other papers, on recorded rows."""

import math

import numpy as np
import pytest
from tt_bench import Recorded
from tt_bench.runs import tune
from tt_bench.thinking import Thoughts
from tt_core.host import Host
from tt_spec import Bar, Measurement, Trial
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task

SMALL = ["batch=8", "scheduler.trials=8", "scheduler.first=8", "scheduler.steps=120"]
SETS = {
    "dynatune": ["searcher.chains=16", "searcher.steps=20"],
    "chameleon": ["scheduler=dynatune", "searcher.patience=10", "searcher.steps=30"],
    "adatune": ["schedule=dynatune", "surrogate.trees=20", "searcher.chains=16", "searcher.steps=20"],
}


def recorded(name: str) -> Recorded:
    """Every row of an operator of 64, 20 timings each."""
    task, measurer = synthetic_task(name, knobs=2), SyntheticMeasurer()
    rows = np.stack(list(task.space.enumerate()))
    seconds = measurer.seconds(task, rows)
    found = [
        Measurement.of(Trial(m.config, (float(s),) * 20, cost={"build": 0.1}), task)
        for m, s in zip(measurer.measure(task, rows, Bar()), seconds, strict=True)
    ]
    return Recorded.of(task, tuple(tuple(range(n)) for n in task.space.shape), found)


@pytest.mark.parametrize("recipe", SETS)
def test_each_recipe_tunes_a_model_with_it(recipe):
    parts = [recorded(name) for name in ("a", "b", "c")]
    run = tune(Host(), parts, recipe, [*SETS[recipe], *SMALL], 0, 72, thoughts=Thoughts())
    assert len(run.t) == 72 and sorted(set(run.task[:24])) == [0, 1, 2], "every operator has its first slot"
    assert run.true_s[23] is not None and math.isfinite(run.true_s[-1])
    best = sum(p.best_s for p in parts)
    assert run.true_s[-1] <= 1.15 * best and run.true_s[-1] <= run.true_s[23]
