"""CPU seconds that a pipeline thinks per batch: fit and propose on knob features, by records, surrogate and searcher.

    hatch run python benchmarks/think.py [--records 1000] [--batch 64] [--only rf-ei]

The space is a real convolution's; run times are drawn, since thinking does not depend on them. One thread; each line is
a process of its own, whose peak memory beyond its start is printed. Searchers run until they stop by themselves; `ppo`
also in full, Chameleon's 128 episodes of 500 steps. Last, how long samplers take for 1,000 candidates.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import time

import numpy as np

LINES = (
    *(
        (("xgb", {"inputs": "knobs", "objective": objective}), searcher)
        for searcher in (
            ("anneal", {}),
            ("anneal", {"unit": "spread", "temperature": 0.3}),
            ("evolve", {}),
            ("ppo", {}),
            ("ppo", {"patience": 500}),
        )
        for objective in ("rank", "regression")
    ),
    *(
        (surrogate, ("contextual-anneal", {}))
        for surrogate in (
            ("rf-ei", {}),
            ("rf-ei", {"calibrate": True}),
            ("rf-ei", {"uncertainty": "forestci"}),
            ("gp", {}),
        )
    ),
)
SAMPLERS = (
    ("diverse", {}),
    ("adaptive", {}),
    ("adaptive", {"variant": "literal"}),
    ("adaptive", {"variant": "public"}),
    ("kmeans", {}),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--only", default="", help="part of a line's text")
    options = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for surrogate, searcher in LINES:
            text = f"{_text(surrogate)}, {_text(searcher)}"
            if options.only in text:
                rows, took, extra = pool.apply(_think, (surrogate, searcher, options.records, options.batch))
                print(f"{text:90} {rows} rows, {took:.2f} s, {extra:.0f} MB", flush=True)
        for sampler in SAMPLERS:
            if options.only in (text := _text(sampler)):
                rows, took = pool.apply(_sample, (sampler,))
                print(f"{text:90} {rows} rows, {took:.2f} s", flush=True)


def _text(piece) -> str:
    return piece[0] + "".join(f" {k}={v}" for k, v in piece[1].items())


def _think(surrogate, searcher, records: int, n: int) -> tuple[int, float, float]:
    from tt_core.prepared import prepare
    from tt_spec import Measurement, Pipeline, Plugins, draw

    task = prepare("op:conv2d:1,64,56,64,3,1,1").tasks[0]
    rng = np.random.default_rng(0)
    rows = draw(task.space, set(), records, rng)
    features = task.space.encode(rows)
    seconds = 1e-3 * np.exp(features @ rng.normal(0, 0.1, features.shape[1]))
    known = [
        Measurement(task.key, task.space.key, tuple(map(int, r)), seconds=(float(s),))
        for r, s in zip(rows, seconds, strict=True)
    ]
    plugins = Plugins()

    def pipeline(known) -> Pipeline:
        pieces = (
            plugins.build("surrogate", surrogate[0], **surrogate[1]),
            plugins.build("searcher", searcher[0], **searcher[1]),
        )
        made = Pipeline(task, *pieces, plugins.build("sampler", "diverse"))
        made.restore(known)
        return made

    pipeline(known[:32]).ask(8)  # libraries load
    whole = pipeline(known)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    codes = whole.ask(n).codes
    took = time.process_time() - began
    return len(codes), took, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def _sample(sampler, candidates: int = 1000, n: int = 61) -> tuple[int, float]:
    from tt_core.prepared import prepare
    from tt_spec import Context, Plugins, Prediction, Proposal, VirtualClock

    task = prepare("op:conv2d:1,64,56,64,3,1,1").tasks[0]
    rng = np.random.default_rng(0)
    codes = task.space.sample(candidates, rng)
    seen = frozenset(r.tobytes() for r in codes[::2])  # half of what is offered was visited
    piece = Plugins().build("sampler", sampler[0], **sampler[1])

    def flat(codes: np.ndarray) -> np.ndarray:
        return np.zeros(len(codes))

    def predict(codes: np.ndarray) -> Prediction:
        return Prediction(flat(codes), flat(codes))

    def select() -> tuple[int, float]:
        none, clock = codes[:0], VirtualClock()
        ctx = Context(task, task.space, none, flat(none), [], none, 1.0, predict, flat, rng, clock, True, seen)
        began = time.process_time()
        chosen = piece.select(ctx, Proposal(codes, flat(codes)), n)
        return len(chosen.codes), time.process_time() - began

    select()  # libraries load
    return select()


if __name__ == "__main__":
    main()
