"""Recipe chameleon: reinforcement learning and adaptive sampling together, and each alone."""

import numpy as np
import pytest
from tt_spec import Bar, Pipeline
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.recipe import resolve
from tt_spec.serial import to_json

SA = ["searcher=anneal", "searcher.unit=spread", "searcher.temperature=0.3"]


@pytest.mark.parametrize(
    ("sets", "searcher", "sampler"),
    [
        ([*SA, "sampler=diverse"], "Anneal", "Diverse"),
        (SA, "Anneal", "Adaptive"),
        (["sampler=diverse"], "PPO", "Diverse"),
        ([], "PPO", "Adaptive"),
    ],
    ids=["SA", "SA+AS", "RL", "RL+AS"],
)
def test_ablations(sets, searcher, sampler):
    small = ["searcher.patience=10", "searcher.steps=30"]
    recipe = resolve("chameleon", [*sets, *small])
    task, measurer = synthetic_task("chameleon", 6, 8), SyntheticMeasurer()
    pieces = [recipe.build(role) for role in ("surrogate", "searcher", "sampler")]
    assert [type(p).__name__ for p in pieces[1:]] == [searcher, sampler]
    pipeline, sizes = Pipeline(task, *pieces, programs=measurer), []
    for _ in range(3):
        batch = pipeline.ask(recipe.batch)
        pipeline.tell(batch.id, list(measurer.measure(task, batch.codes, Bar())))
        sizes.append(len(batch.codes))
        to_json(batch.info)
    rows = pipeline.rows
    assert len(np.unique(rows, axis=0)) == len(rows) == sum(sizes), "nothing is measured twice"
    if sampler == "Diverse":
        assert sizes == [64, 64, 64]
    else:
        assert sizes[0] == 64 and all(8 <= n < 64 for n in sizes[1:]), "random at first, then one of each cluster"
        assert batch.info["k"] == batch.info["selected"] + batch.info["lacking"]
        assert batch.info["loss_curve"]["k"][0] == 8 and "steps" in batch.info
