"""Recipe `adatune` as Algorithm 1 has it, its ablation, and its trace."""

from __future__ import annotations

import types

import numpy as np
import pytest
from tt_bench import runpage
from tt_core.events import retell
from tt_core.events.log import EventLog
from tt_core.host import Host
from tt_history import SqliteStore
from tt_measure import Adaptive, Fixed
from tt_sample import Diverse
from tt_search import Anneal, ContextualAnneal
from tt_spec import Loop, Pipeline, Proposal, RunInfo, VirtualClock
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.recipe import resolve
from tt_surrogate import XGB, ForestEI, GaussianProcess
from tt_surrogate.improvement import expected_improvement

SA = ("searcher=anneal", "searcher.unit=spread", "searcher.temperature=0.3")
N500 = ("evaluator=fixed", "evaluator.number=500", "evaluator.repeat=1", "evaluator.min_repeat_ms=0")
SMALL = ("searcher.chains=16", "searcher.steps=40")


class Spy(Diverse):
    """Keeps what it was given and what it picked."""

    def select(self, ctx, proposal, n):
        self.seen = ctx, proposal, n
        self.picked = super().select(ctx, proposal, n)
        return self.picked


def pipeline(task, *sets, sampler=None, clock=None):
    recipe = resolve("adatune", [*SMALL, *sets])
    return Pipeline(
        task, recipe.build("surrogate"), recipe.build("searcher"), sampler or recipe.build("sampler"), clock=clock
    )


def test_one_round_of_algorithm_1():
    task, spy, recipe = synthetic_task(knobs=6), Spy(), resolve("adatune")
    pipe = pipeline(task, sampler=spy)
    for _ in range(3):
        batch = pipe.ask(recipe.batch)
        pipe.tell(batch.id, list(SyntheticMeasurer(fail=0.1).measure(task, batch.codes, types.SimpleNamespace())))
    ctx, proposal, greedy = spy.seen
    believed = ctx.predict(proposal.codes)
    assert ctx.y.max() == 1.0  # labels are shares of the best: Perf(p*) = 1
    ei = expected_improvement(believed.mean, believed.std, 1.0)
    assert proposal.scores == pytest.approx(ei)
    epsilon = batch.info["epsilon"]
    assert 0 < epsilon < 1 and proposal.random_share == epsilon
    assert greedy == recipe.batch - round(epsilon * recipe.batch)
    assert batch.origin == ("search",) * greedy + ("random",) * (recipe.batch - greedy)
    assert np.array_equal(batch.codes[:greedy], spy.picked.codes)
    assert np.array_equal(spy.picked.codes, Diverse().select(ctx, Proposal(proposal.codes, ei), greedy).codes)


@pytest.mark.parametrize(
    ("sets", "pieces"),
    [
        (("surrogate=xgb", *SA, *N500), (XGB, Anneal, Fixed)),
        ((*SA, *N500), (ForestEI, Anneal, Fixed)),
        (N500, (ForestEI, ContextualAnneal, Fixed)),
        ((), (ForestEI, ContextualAnneal, Adaptive)),
        (("surrogate=gp",), (GaussianProcess, ContextualAnneal, Adaptive)),
    ],
)
def test_the_ablation_of_section_5_3_is_made_by_set(sets, pieces):
    recipe = resolve("adatune", sets)
    assert recipe.batch == 32
    assert tuple(type(recipe.build(role)) for role in ("surrogate", "searcher", "evaluator")) == pieces
    if Fixed in pieces:
        assert recipe.build("evaluator").number == 500


@pytest.mark.parametrize("epsilon", [0.01, 0.05, 0.2, 0.5])
def test_fixed_epsilons_of_figure_4_are_made_by_set(epsilon):
    task = synthetic_task(knobs=6)
    pipe = pipeline(task, *SA, f"searcher.random_share={epsilon}")
    batch = pipe.ask(32)
    pipe.tell(batch.id, list(SyntheticMeasurer().measure(task, batch.codes, types.SimpleNamespace())))
    assert pipe.ask(32).origin.count("random") == int(epsilon * 32 + 0.5)


def test_the_trace_of_epsilon_is_logged_and_drawn(tmp_path):
    clock, tasks = VirtualClock(1e9), [synthetic_task("first", 6), synthetic_task("second", 6)]
    store = SqliteStore(tmp_path / "tt.db", clock=clock)
    run_id = store.begin_run({"model": "toy"})
    log = EventLog(tmp_path / "tt.runs" / f"{run_id}.jsonl", clock)
    recipe = resolve("adatune")
    out = Loop(
        [pipeline(t, clock=clock) for t in tasks],
        SyntheticMeasurer(),
        store,
        recipe.build("scheduler"),
        [recipe.plugins.build("stopper", "trials", trials=4 * 32)],
        clock,
        info=RunInfo(run_id, tuple(tasks), {"model": "toy"}),
        batch=recipe.batch,
        listeners=[log],
    ).run()
    log.close()
    store.close()
    assert out.failure is None
    batches = [e for e in retell.read(log.path) if e["event"] == "batch_measured"]
    trace = [e["info"]["epsilon"] for e in batches if "epsilon" in e["info"]]
    assert len(batches) == 4 and len(trace) == 2 and all(0 < e < 1 for e in trace)  # the first of each is random
    told = runpage.listen(Host(), str(log.path), tmp_path / "tt.db")
    assert [value for _, _, value in told.info["epsilon"]] == trace
    runpage.write(told, tmp_path / "tt.db", tmp_path / "report.html")
    assert ">epsilon</text>" in (tmp_path / "report.html").read_text()
