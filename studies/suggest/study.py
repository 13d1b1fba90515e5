"""Suggestions measured: is what was chosen without a kind of operator better on that kind?

    hatch run python studies/suggest/study.py --recordings recordings --out suggested                  # quiet machine
    hatch run python studies/suggest/study.py --kinds dwconv2d --trials 4 --seeds 3 --out short        # a minute

Leave-one-kind-out over the recorded operators: options of the default recipe are chosen on all operators of the other
kinds (Optuna, as `tt suggest --by replay` chooses), and the winner, the default and `autotvm` are compared on those of
the kind by `tt_bench.compare`, 128 trials each. The winner is judged as the command judges, on operators of the kind
with seeds of their own: `suggested` is the winner where these speak for it, else the default. The study of what was
tried, the recipe that was chosen, the judgement and every run are files in `--out`, so that the same command goes on.

Figures: trials and seconds until 98 % of the best known speed is held, and the quality held in the end, as ratios to
the default over pairs of operator and seed; and the standard score. A run that never arrived counts as twice all of its
trials. `--out` holds the picture too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy is loaded: thinking is counted on one core

import numpy as np
from tt_bench import compare
from tt_bench.launch import program
from tt_bench.pictures import COLOURS, grid
from tt_bench.playing import Player
from tt_bench.runs import Run
from tt_bench.score import scores
from tt_bench.stats import final, geometric_interval, quality
from tt_bench.tables import show
from tt_core.host import Host
from tt_history.suggestion.paired import Gain, compared
from tt_history.suggestion.plays import GOAL, TRIALS, Plays, judged, pairs_of
from tt_history.suggestion.study import Limits, Study, opened
from tt_history.suggestion.toml import written
from tt_spec.recipe import content_of
from tt_spec.roles import Playable

CHOOSING = 2
"""Seeds that choose."""

JUDGES, LEAST_PAIRS = 1000, 15
"""The first seed that judges, and how many pairs of operator and seed judge at least."""

DEFAULT, OTHERS = "tt", ("chosen", "suggested", "autotvm")

Ratios = dict[tuple[str, str], np.ndarray]
"""Of a recipe on a unit: trials, seconds and final quality over the default's, `(seeds, 3)`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, default=Path("recordings"))
    parser.add_argument("--out", type=Path, default=Path("suggested"))
    parser.add_argument("--kinds", default="", help="with commas; else all")
    parser.add_argument("--trials", type=int, default=100, help="of options, for each kind that is left out")
    parser.add_argument("--minutes", type=float, default=10.0, help="of choosing, for each kind that is left out")
    parser.add_argument("--seeds", type=int, default=15)
    parser.add_argument("--jobs", type=int, default=Host().cores())
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    paths = sorted(options.recordings.glob("*-template.json.gz"))
    every = Player().playables(paths)
    kinds = options.kinds.split(",") if options.kinds else sorted({p.op for p in every})
    for kind in kinds:
        if not chosen(options.out, kind).exists():
            choose(options, kind, [p for p in every if p.op != kind])
    each, gains = {}, {}
    for kind in kinds:
        own = [p for p in every if p.op == kind]
        gains[kind] = judgement(options, kind, own)
        each[kind] = played(options, kind, sorted({p.path for p in own}))
    told(options.out, each, gains)


# -- choosing ---------------------------------------------------------------------------------------------------------


def chosen(out: Path, kind: str) -> Path:
    """The recipe that was chosen without a kind."""
    return out / f"without-{kind}.toml"


def choose(options: argparse.Namespace, kind: str, others: Sequence[Playable]) -> None:
    """Try options of the default on the other kinds, and keep the best recipe."""
    ends = time.monotonic() + 60 * options.minutes
    with opened(options.out / "tried.log") as storage, Plays("recordings", Host(), options.jobs) as plays:
        default = content_of(Host().recipe(DEFAULT).describe())
        study = Study(storage, f"without {kind}", {DEFAULT: default}, pairs_of(others, range(CHOOSING)))
        over = Limits(options.trials, lambda: "the minutes are over" if time.monotonic() > ends else None)
        found = study.search(plays, over, 0, lambda text: print(text, flush=True))
    tried = f"{found.complete} trials complete, {found.pruned} ended early, {found.failed} failed"
    took = f"{np.exp(found.cost - found.default_cost):.3f} of the default's seconds on {len(study.pairs)} pairs"
    unchanged = "; the default itself" if found.unchanged else ""
    remark = f"chosen without {kind}: {tried}\n{took}{unchanged}"
    chosen(options.out, kind).write_text(written(found.content, remark), encoding="utf-8")


# -- judging ----------------------------------------------------------------------------------------------------------


def judgement(options: argparse.Namespace, kind: str, own: Sequence[Playable]) -> Gain:
    """What the kind's operators say of the recipe, with seeds that neither choose nor compare."""
    kept = options.out / f"judged-{kind}.json"
    if not kept.exists():
        seeds = range(JUDGES, JUDGES + math.ceil(LEAST_PAIRS / len(own)))
        default = content_of(Host().recipe(DEFAULT).describe())
        with Plays("recordings", Host(), options.jobs) as plays:
            sides = str(chosen(options.out, kind)), plays.file(default)
            kept.write_text(json.dumps(judged(plays, sides, own, seeds).as_dict()), encoding="utf-8")
    return Gain(**json.loads(kept.read_text(encoding="utf-8")))


def played(options: argparse.Namespace, kind: str, paths: Sequence[str]) -> compare.Comparison:
    """The recipe, the default and `autotvm` on the operators of the kind."""
    recipe = str(chosen(options.out, kind))
    units = compare.units([Path(p) for p in paths], ())
    done = compare.compare(
        Host(),
        units,
        [recipe, DEFAULT, "autotvm"],
        options.out / kind,
        seeds=options.seeds,
        trials=TRIALS,
        unrecorded="nearest",
        jobs=options.jobs,
        say=lambda text: print(text, flush=True),
    )

    def named(by: Mapping[Any, Any]) -> dict[Any, Any]:
        return {("chosen" if r == recipe else r, *rest): x for (r, *rest), x in by.items()}

    recipes = {"chosen" if r == recipe else r: about for r, about in done.settings["recipes"].items()}
    settings = {**done.settings, "recipes": recipes}
    return compare.Comparison(settings, named(done.runs), named(done.thinking), done.best, done.folder)


def ratios(done: compare.Comparison, better: bool) -> Ratios:
    """Every run by the default's of the same unit and seed.

    Args:
        better: Whether the chosen recipe is suggested; else the default is.
    """
    found = {}
    for unit in done.units:
        base = np.array([figures(r, done.best[unit]) for r in done.of(DEFAULT, unit)])
        for name in OTHERS:
            recipe = name if name != "suggested" else "chosen" if better else DEFAULT
            found[name, unit] = np.array([figures(r, done.best[unit]) for r in done.of(recipe, unit)]) / base
    return found


def figures(run: Run, best_s: float) -> tuple[float, float, float]:
    """Trials and seconds to the goal, and the quality in the end."""
    there = np.flatnonzero(quality(run, best_s) >= GOAL - 1e-12)
    if len(there):
        return float(there[0] + 1), max(run.t[there[0]], 1e-3), final(run, best_s)
    return 2.0 * TRIALS, 2.0 * run.t[-1] * TRIALS / len(run.t), final(run, best_s)


# -- telling ----------------------------------------------------------------------------------------------------------


def told(out: Path, each: Mapping[str, compare.Comparison], gains: Mapping[str, Gain]) -> None:
    """Print the tables and draw the picture."""
    found = {kind: ratios(done, gains[kind].better) for kind, done in each.items()}
    rows, lines = [], []
    for kind, of_kind in found.items():
        score = scores(each[kind]).by_recipe
        for name in (DEFAULT, *OTHERS):
            shown = "" if name not in score else "{:.2f} [{:.2f}, {:.2f}]".format(*score[name])
            three = ["1", "1", "1", ""] if name == DEFAULT else against(of_kind, name)
            rows.append([kind, name, *three, shown])
        lines += [(unit.split(" [")[0], [unit], of_kind) for unit in each[kind].units]
    everything = {key: x for of_kind in found.values() for key, x in of_kind.items()}
    rows += [["all", name, *against(everything, name), ""] for name in OTHERS]
    head = ["trials to 98 %", "seconds to 98 %", "final quality", "p of the seconds", "standard score"]
    print()
    show(["left out", "recipe", *head], rows, text=2)
    for kind in each:
        remarks = [s for s in chosen(out, kind).read_text(encoding="utf-8").splitlines() if s.startswith("# ")]
        answer = "the recipe is suggested" if gains[kind].better else "keep the default"
        print("\n".join([*(s.removeprefix("# ") for s in remarks), f"judged: {gains[kind]}: {answer}"]))
    units = [unit for done in each.values() for unit in done.units]
    draw(out / "suggested.png", [*lines, ("all", units, everything)])


def against(of: Ratios, name: str) -> list[str]:
    """Trials, seconds and quality by the default's, each with its interval, and the p value of the seconds."""
    all_ = np.concatenate([x for (recipe, _), x in of.items() if recipe == name])
    logs = np.log(all_)
    p = compared(logs[:, 1].tolist(), logs[:, 0].tolist(), len(of)).p
    shown = ["{:.2f} [{:.2f}, {:.2f}]".format(*_interval(all_[:, i])) for i in (0, 1)]
    return [*shown, "{:.3f} [{:.3f}, {:.3f}]".format(*_interval(all_[:, 2])), f"{p:.2g}"]


def _interval(x: np.ndarray) -> tuple[float, float, float]:
    return geometric_interval(x.tolist(), np.random.default_rng(0))


def draw(path: Path, lines: Sequence[tuple[str, Sequence[str], Ratios]]) -> None:
    """Ratios with their intervals, a line for each operator and one for all."""
    made, axes = grid(2, width=4.8, height=0.8 + 0.3 * len(lines), columns=2)
    for i, (ax, what) in enumerate(zip(axes, ("trials", "seconds"), strict=True)):
        for colour, shift, name in zip(COLOURS, (-0.2, 0.0, 0.2), OTHERS, strict=False):
            mid, low, high = np.array(
                [_interval(np.concatenate([of[name, u][:, i] for u in units])) for _, units, of in lines]
            ).T
            at = np.arange(len(lines)) + shift
            ax.errorbar(mid, at, xerr=(mid - low, high - mid), fmt="o", markersize=4, color=colour, label=name)
        ax.axvline(1.0, color="black", linewidth=0.8)
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(lambda v, _: f"{v:g}")
        ax.set_yticks(range(len(lines)), [name for name, _, _ in lines] if i == 0 else [""] * len(lines))
        ax.invert_yaxis()
        ax.set_xlabel(f"{what} to 98 %, by the default's")
    axes[0].legend(loc="best", frameon=False)
    made.savefig(path, dpi=110)


if __name__ == "__main__":
    program(main)
