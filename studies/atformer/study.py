"""ATFormer's claims on this machine: accuracy, ablation, curves, transfer, replay, live.

    hatch run python studies/atformer/study.py --part accuracy --data datasets/zen5 recordings [--out atformer]
    hatch run python studies/atformer/study.py --part ablation --data datasets/zen5 recordings [--out atformer]
    hatch run python studies/atformer/study.py --part curves --data datasets/zen5 recordings [--out atformer]
    hatch run python studies/atformer/study.py --part transfer --data datasets/zen5 recordings --devices datasets/*
    hatch run python studies/atformer/study.py --part replay --recordings recordings [--out atformer]
    hatch run python studies/atformer/study.py --part live [--out atformer]

Stop any of it at any time; the same command goes on. `--seeds`, `--epochs`, `--rows`, `--pick` and `--models` make it
smaller.
Training is `tt train`'s, and ends early on operators of the training folds alone; what is judged was never seen.
`live` wants a machine on which nothing else runs. `--variants tt,ansor,autotvm` compares recipes there and in `replay`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from accuracy import accuracy
from cost_models import ABLATION, MODELS, PROTOCOLS, Study, begin, few
from curves import CURVES, curves
from searches import FIRST, LIVE, RECIPES, live, replay
from transfer import transfer
from tt_bench import lessons
from tt_bench.errors import BenchError
from tt_bench.launch import program

PARTS = ("accuracy", "ablation", "curves", "transfer", "replay", "live")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--data", nargs="+", type=Path, default=[Path("recordings")], help="folders, as of tt train")
    parser.add_argument("--devices", nargs="+", type=Path, help="folders of leave-device-out, over knobs; else --data")
    parser.add_argument("--recordings", type=Path, default=Path("recordings"), help="of replay and curves")
    parser.add_argument("--out", type=Path, default=Path("atformer"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--rows", type=int, default=400, help="of an operator, at most, drawn by its name")
    parser.add_argument("--pick", default="*", help="names of operators, a pattern as in a shell")
    parser.add_argument("--models", default="", help="those of the part, with commas; else all")
    parser.add_argument("--protocols", default="", help="of accuracy, with commas: what is left out")
    parser.add_argument(
        "--variants", default="", help="of replay and live: ways of recipe tt, or recipes; by the first"
    )
    parser.add_argument("--minutes", default="0.5,1", help="of live, with commas")
    parser.add_argument("--trials", type=int, default=160, help="of a replayed run")
    parser.add_argument("--whole", action="store_true", help="of replay: operators composed to models")
    o = parser.parse_args()
    if o.part == "replay":
        out, names = o.out / ("whole" if o.whole else "replay"), named(o.variants, (*FIRST, *RECIPES))
        replay(o.recordings, out, o.seeds, o.trials, names, o.pick, o.whole)
        return
    if o.part == "live":
        models = o.models.split(",") if o.models else LIVE
        live(o.out / "live", o.seeds, models, named(o.variants, (*FIRST, *RECIPES), 2), o.minutes.split(","))
        return
    study = Study(few(lessons.read(o.data), o.pick, o.rows), o.out, o.seeds, o.epochs)
    begin(study)
    if o.part == "transfer":
        transfer(study, o.devices or o.data)
        return
    if o.part == "curves":
        curves(study, lessons.read([o.recordings]), named(o.models, CURVES))
        return
    table = MODELS if o.part == "accuracy" else ABLATION
    names = named(o.models, tuple(table))
    protocols = named(o.protocols, PROTOCOLS) if o.part == "accuracy" else PROTOCOLS[:1]
    accuracy(study, {name: table[name] for name in names}, protocols)


def named(text: str, known: Sequence[str], first: int | None = None) -> list[str]:
    """The names in a text with commas; without one, all known or the first of them."""
    names = [n.strip() for n in text.split(",") if n.strip()] or list(known[:first])
    wrong = [n for n in names if n not in known]
    if wrong:
        raise BenchError(f"{wrong[0]} is not known here (known: {', '.join(known)})")
    return names


if __name__ == "__main__":
    program(main)
