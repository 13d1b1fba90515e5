"""Suggestions measured: is what was chosen without a kind of operator better on that kind?

    hatch run python studies/suggest/study.py --recordings recordings --out suggested                  # quiet machine
    hatch run python studies/suggest/study.py --kinds dwconv2d --trials 4 --seeds 3 --out short        # a minute

Leave-one-kind-out over the recorded operators: options of the default recipe are chosen on all operators of the other
kinds (Optuna, as `tt suggest --by replay` chooses), and the winner, the default and `autotvm` are played on those of
the kind, seed by seed. Every play is a file and the study of what was tried is one, so that the same command goes on.
The figures, per kind: seconds and trials until 98 % of the best known speed is held, as ratios to the default, with the
paired test and its 95 % interval. The final quality and the standard score are still to come.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy is loaded: thinking is counted on one core

from tt_bench.atomic import read_json, write_json
from tt_bench.playing import Player
from tt_bench.tables import show
from tt_core.host import Host
from tt_history.suggestion.paired import compared
from tt_history.suggestion.plays import Plays, Score, pairs_of
from tt_history.suggestion.study import Found, Limits, Study, opened
from tt_history.suggestion.toml import content_of
from tt_spec.roles import Playable

CHOOSING = 3
FIRST = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, default=Path("recordings"))
    parser.add_argument("--out", type=Path, default=Path("suggested"))
    parser.add_argument("--kinds", default="", help="with commas; else all")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=15)
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    (options.out / "plays").mkdir(parents=True, exist_ok=True)
    every = Player().playables(sorted(options.recordings.glob("*-template.json.gz")))
    kinds = options.kinds.split(",") if options.kinds else sorted({p.op for p in every})
    ends = time.monotonic() + 60 * options.minutes
    with Plays("recordings", Host()) as plays:
        for kind in kinds:
            found = chosen(plays, options.out, kind, [p for p in every if p.op != kind], options.trials, ends)
            contents = {"suggested": found.content, "default": recipe("tt"), "autotvm": recipe("autotvm")}
            told(kind, played(plays, options.out, kind, contents, [p for p in every if p.op == kind], options.seeds))


def recipe(name: str) -> dict[str, Any]:
    return content_of(Host().recipe(name).describe())


def chosen(plays: Plays, out: Path, kind: str, others: Sequence[Playable], trials: int, ends: float) -> Found:
    """The best recipe without a kind."""
    with opened(out / "tried.log") as storage:
        study = Study(storage, f"without {kind}", {"tt": recipe("tt")}, pairs_of(others, range(CHOOSING)))
        over = Limits(trials, lambda: "the minutes are over" if time.monotonic() > ends else None)
        return study.search(plays, over, 0, lambda text: print(text, flush=True))


def played(
    plays: Plays, out: Path, kind: str, contents: Mapping[str, Any], own: Sequence[Playable], seeds: int
) -> dict[str, list[tuple[str, Score]]]:
    """Every recipe on every operator of the kind and seed; those that are done are read."""
    found: dict[str, list[tuple[str, Score]]] = {}
    for name, content in contents.items():
        file = plays.file(content)
        for pair in pairs_of(own, range(FIRST, FIRST + seeds)):
            kept = out / "plays" / f"{kind}--{name}--{pair.playable.digest}--{pair.seed}.json"
            known = read_json(kept) if kept.exists() else None
            if known is None or known["content"] != content:
                (score,) = plays.scores(file, [pair])
                known = {"content": content, **vars(score)}
                write_json(kept, known)
            score = Score(*(known[k] for k in ("trials", "seconds", "length_s", "there")))
            found.setdefault(name, []).append((pair.playable.name, score))
    return found


def told(kind: str, scores: Mapping[str, Sequence[tuple[str, Score]]]) -> None:
    """A row for each recipe that is not the default."""
    rows = []
    for name in ("suggested", "autotvm"):
        pairs = list(zip((s for _, s in scores[name]), (s for _, s in scores["default"]), strict=True))
        gain = compared(
            [math.log(a.seconds / b.seconds) for a, b in pairs],
            [math.log(a.trials / b.trials) for a, b in pairs],
            len({t for t, _ in scores[name]}),
        )
        there = sum(a.there for a, _ in pairs) / len(pairs)
        rows.append(
            [
                name,
                f"{gain.ratio:.2f} [{gain.low:.2f}, {gain.high:.2f}]",
                f"{gain.trials:.2f}",
                f"{gain.p:.3f}",
                f"{there:.0%}",
            ]
        )
    print(f"\n{kind}, over the default, {len(scores['default'])} pairs")
    show(["recipe", "seconds to 98 %", "trials", "p", "arrived"], rows)


if __name__ == "__main__":
    main()
