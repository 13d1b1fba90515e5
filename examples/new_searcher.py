"""Research: a new searcher as a plug-in, compared with random search on recorded measurements.

    python new_searcher.py                              # two of the repository's recordings
    python new_searcher.py mine.json.gz                 # your own: tt record MODEL --out mine

In a distribution of its own the searcher needs two lines of TOML more (docs/plugins.md); then `tt bench --recipes
random,mine.toml` compares whole recipes, with tests and pictures. tests/test_examples.py holds it to the contract of
searchers, in five lines.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tt_bench import Recorded, Replay
from tt_bench.files import load
from tt_spec import Bar, Context, Entry, Pipeline, Plugins, Proposal, VirtualClock, draw, hookimpl

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"
SEEDS, TRIALS, BATCH = 15, 128, 8


class Steps:
    """Rows one knob away from the fastest few; random rows where none of those is new.

    Source: coordinate descent, as in Hooke and Jeeves (1961), doi:10.1145/321062.321069.

    Args:
        parents: How many of the fastest rows have their neighbours proposed. (default: 2)
    """

    def __init__(self, parents: int = 2) -> None:
        self.parents = parents

    def propose(self, ctx: Context, n: int) -> Proposal:
        fastest = [i for i in np.argsort(-ctx.y, kind="stable")[: self.parents] if ctx.y[i] > 0]
        near = np.concatenate([ctx.rows[:0], *(ctx.space.neighbours(ctx.rows[i]) for i in fastest)])
        near = near[ctx.fresh(near)]
        _, first = np.unique(near, axis=0, return_index=True)
        codes = near[np.sort(first)][:n]
        if len(codes) < n:
            seen = ctx.seen | {row.tobytes() for row in codes}
            codes = np.concatenate([codes, draw(ctx.space, seen, n - len(codes), ctx.rng)])
        return Proposal(codes, ctx.score(codes), info={"steps": len(near)})


class MyPlugin:
    """The content of a distribution's `hooks.py`."""

    @hookimpl
    def tt_searchers(self) -> list[Entry]:
        return [Entry("steps", Steps, "rows one knob away from the fastest", "Hooke and Jeeves 1961")]


def curve(part: Recorded, searcher: str, seed: int, plugins: Plugins) -> np.ndarray:
    """Quality after each trial, `(TRIALS,)` in [0, 1]: best known seconds by those of the row that looks fastest."""
    evaluator = plugins.build("evaluator", "fixed")
    replay = Replay([part], evaluator, VirtualClock(), seed)
    surrogate, sampler = plugins.build("surrogate", "null"), plugins.build("sampler", "top")
    search = Pipeline(part.task, surrogate, plugins.build("searcher", searcher), sampler, programs=replay, seed=seed)
    found: list[float] = []
    while len(found) < TRIALS:
        batch = search.ask(BATCH)
        for m in replay.measure(part.task, batch.codes, Bar(search.best_s, part.task.flops, cap_s=10.0)):
            search.tell(batch.id, [m])
            # What looks fastest is flattered by noise: its long recorded series judges it.
            fastest = [part.latency[part.index[row.tobytes()]] for row, _ in search.top(1)]
            found.append(part.best_s / fastest[0] if fastest else 0.0)
    return np.array(found[:TRIALS])


def interval(differences: np.ndarray, draws: int = 10_000) -> tuple[float, float]:
    """95 % bootstrap interval of the mean of paired differences, one per seed."""
    rng = np.random.default_rng(0)
    low, high = np.quantile(rng.choice(differences, (draws, len(differences))).mean(axis=1), (0.025, 0.975))
    return float(low), float(high)


def main(paths: Sequence[str]) -> None:
    plugins = Plugins(extra=[("my-plugin", MyPlugin())])
    for path in paths or [RECORDINGS / f"{name}-template.json.gz" for name in ("encoder-qkv", "resnet18-256")]:
        recording = load(path)
        for doubt in recording.doubts():
            print("warning:", doubt)
        for part in recording.parts:
            if len(part.rows) < 2 * TRIALS:
                continue  # whoever measures half of the rows finds a good one
            # The mean over trials counts speed and end; the same seed gives both searchers the same first rows.
            mine, random = (
                np.array([curve(part, name, seed, plugins).mean() for seed in range(SEEDS)])
                for name in ("steps", "random")
            )
            low, high = interval(mine - random)
            verdict = "better" if low > 0 else "worse" if high < 0 else "no difference shown"
            print(
                f"{recording.model}, {len(part.rows)} rows: steps {mine.mean():.3f}, random {random.mean():.3f},"
                f" difference {low:+.4f} to {high:+.4f} over {SEEDS} seeds: {verdict}"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
