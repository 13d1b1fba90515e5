"""Cost models on real measurements: random rows of three convolutions, measured here, split into training and test.

    hatch run python benchmarks/surrogate.py [--rows 240] [--splits 8]

Prints, as means over tasks and splits: Spearman on unseen rows, and best and mean label of the 8 rows ranked first.
"""

from __future__ import annotations

import argparse

import numpy as np
from tt_core.assembly import BACKEND
from tt_core.prepared import prepare

OPERATORS = ("op:conv2d:1,64,56,64,3,1,1", "op:conv2d:1,256,14,256,3,1,1", "op:conv2d:1,96,14,576,1,1,0")
METASCHEDULE = {"max_depth": 10, "eta": 0.2, "gamma": 1e-3, "min_child_weight": 0}
MODELS = (
    ("knobs, rank", {"inputs": "knobs", "objective": "rank"}),
    ("knobs, regression", {"inputs": "knobs", "objective": "regression"}),
    ("statements, regression", {"inputs": "statements", "objective": "regression", "shared": False}),
    (
        "statements, regression, MetaSchedule's parameters",
        {"inputs": "statements", "objective": "regression", "shared": False, "least_weight": 0.0, **METASCHEDULE},
    ),
    ("statements, rank", {"inputs": "statements", "objective": "rank", "shared": False}),
    (
        "statements, rank, MetaSchedule's parameters",
        {"inputs": "statements", "objective": "rank", "shared": False, **METASCHEDULE},
    ),
    ("statements, rank, one model for the three tasks", {"inputs": "statements", "objective": "rank"}),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=240, help="per operator; two thirds train")
    parser.add_argument("--splits", type=int, default=8)
    options = parser.parse_args()
    data = _measure(options.rows)
    print(f"{'model':52} {'Spearman':>9} {'best of 8':>10} {'mean of 8':>10}")
    for name, settings in MODELS:
        scores = np.array([s for split in range(options.splits) for s in _scores(settings, data, split)])
        print(f"{name:52} {scores[:, 0].mean():9.2f} {scores[:, 1].mean():10.2f} {scores[:, 2].mean():10.2f}")


def _measure(rows: int):
    from tt_measure.pool import WorkerPool
    from tt_spec import Bar, labels

    data = []
    with WorkerPool(backend=BACKEND) as pool:
        for operator in OPERATORS:
            task = next(t for t in prepare(operator).tasks if t.op == "conv2d")
            real = pool.realise(task, task.space.sample(2 * rows, np.random.default_rng(0)))
            codes = np.unique(real.codes[[w is None for w in real.why]], axis=0)
            codes = codes[np.random.default_rng(1).permutation(len(codes))][:rows]
            seconds = {m.config: m.latency_s for m in pool.measure(task, codes, Bar(flops=task.flops))}
            statements, ok = pool.features(task, codes)
            y = labels(np.array([seconds[tuple(map(int, c))] for c in codes]))
            data.append((task, task.space.encode(codes)[ok], statements, y[ok]))
            print(f"{operator}: {len(codes)} rows measured, {int((y == 0).sum())} failed", flush=True)
    return data


def _scores(settings, data, split: int):
    from scipy.stats import spearmanr
    from tt_surrogate import XGB

    rng = np.random.default_rng(split)
    train, test = [], []
    for task, knobs, statements, y in data:
        order = rng.permutation(len(y))
        X = knobs if settings["inputs"] == "knobs" else statements
        cut = 2 * len(y) // 3
        train.append((task, X[order[:cut]], y[order[:cut]]))
        test.append((task, X[order[cut:]], y[order[cut:]]))
    together = XGB(**settings)
    groups = [train] if together.shared else [[g] for g in train]
    models = []
    for group in groups:
        model = XGB(**settings)
        model.fit(group, rng)
        models += [model] * len(group)
    for model, (task, X, y) in zip(models, test, strict=True):
        mean = model.predict(task, X).mean
        first = y[np.argsort(-mean)[:8]]
        yield spearmanr(mean, y).statistic, first.max(), first.mean()


if __name__ == "__main__":
    main()
