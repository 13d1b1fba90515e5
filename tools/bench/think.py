"""Seconds of one core that a pipeline thinks per batch of 64: fit and propose on knob features, by searcher.

    hatch run python tools/bench/think.py [--records 1000]

The space is a real convolution's; run times are drawn, since thinking does not depend on them. Searchers run as they
stop by themselves; `ppo` also in full, Chameleon's 128 episodes of 500 steps. Last, how long samplers take for 1,000
candidates.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy and torch are loaded

import numpy as np
from tt_core.tuning import prepare
from tt_spec import Context, Measurement, Pipeline, Plugins, Prediction, Proposal, VirtualClock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1000)
    options = parser.parse_args()
    task = prepare("op:conv2d:1,64,56,64,3,1,1").tasks[0]
    rng = np.random.default_rng(0)
    rows = task.space.sample(options.records, rng)
    features = task.space.encode(rows)
    seconds = 1e-3 * np.exp(features @ rng.normal(0, 0.1, features.shape[1]))
    known = [
        Measurement(task.key, task.space.key, tuple(map(int, r)), seconds=(float(s),))
        for r, s in zip(rows, seconds, strict=True)
    ]
    plugins = Plugins()
    cooled = {"unit": "spread", "temperature": 0.3}
    searchers = (("anneal", {}), ("anneal", cooled), ("evolve", {}), ("ppo", {}), ("ppo", {"patience": 500}))
    for searcher, settings in searchers:
        for objective in ("rank", "regression"):
            for _ in range(2):  # the first loads libraries
                pipeline = Pipeline(
                    task,
                    plugins.build("surrogate", "xgb", inputs="knobs", objective=objective),
                    plugins.build("searcher", searcher, **settings),
                    plugins.build("sampler", "diverse"),
                )
                pipeline.restore(known)
                start = time.process_time()
                batch = pipeline.ask(64)
                took = time.process_time() - start
            steps = f", {batch.info['steps']} steps" if "steps" in batch.info else ""
            print(f"{searcher:8} {settings!s:42} {objective:11} {len(batch.codes)} rows, {took:.2f} s{steps}")
    _samplers(task, plugins, rows, rng)


def _samplers(task: Any, plugins: Plugins, rows: np.ndarray, rng: np.random.Generator) -> None:
    codes = task.space.sample(1000, rng)

    def flat(codes: np.ndarray) -> np.ndarray:
        return np.zeros(len(codes))

    def predict(codes: np.ndarray) -> Prediction:
        return Prediction(flat(codes), flat(codes))

    seen = frozenset(r.tobytes() for r in (*rows, *codes[::2]))  # half of what is offered was visited
    for sampler, settings in (
        ("diverse", {}),
        ("adaptive", {}),
        ("adaptive", {"variant": "literal"}),
        ("adaptive", {"variant": "public"}),
        ("kmeans", {}),
    ):
        piece = plugins.build("sampler", sampler, **settings)
        for _ in range(2):  # the first loads libraries
            ctx = Context(
                task, task.space, rows, flat(rows), [], rows[:0], 1.0, predict, flat, rng, VirtualClock(), True, seen
            )
            start = time.process_time()
            chosen = piece.select(ctx, Proposal(codes, flat(codes)), 61)
            took = time.process_time() - start
        print(f"{sampler:8} {settings!s:42} {len(codes)} candidates, {len(chosen.codes)} rows, {took:.2f} s")


if __name__ == "__main__":
    main()
