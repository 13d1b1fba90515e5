"""Seconds that a pipeline thinks per batch of 64: fit and propose on knob features, by records and searcher.

    hatch run python tools/bench/think.py [--records 1000]

The space is a real convolution's; run times are drawn, since thinking does not depend on them. One thread.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from tt_core.tuning import prepare
from tt_spec import Measurement, Pipeline, Plugins


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
    for searcher, settings in (("anneal", {}), ("anneal", {"unit": "spread", "temperature": 0.3}), ("evolve", {})):
        for objective in ("rank", "regression"):
            pipeline = Pipeline(
                task,
                plugins.build("surrogate", "xgb", inputs="knobs", objective=objective),
                plugins.build("searcher", searcher, **settings),
                plugins.build("sampler", "diverse"),
            )
            pipeline.restore(known)
            start = time.perf_counter()
            batch = pipeline.ask(64)
            took = time.perf_counter() - start
            print(f"{searcher:8} {settings!s:42} {objective:11} {len(batch.codes)} rows, {took:.2f} s")


if __name__ == "__main__":
    main()
