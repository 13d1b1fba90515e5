"""Schedulers that let go: recipe tt's scheduler beside others, in replay on composed models and live.

    hatch run python studies/schedulers/study.py tapes [--out schedulers]   # 14 operators, 8 seeds: 10 minutes
    hatch run python studies/schedulers/study.py play [--out schedulers]    # every scheduler on every model: 2 minutes
    hatch run python studies/schedulers/study.py live [--out schedulers]    # 7 models, 3 of them, 3 seeds: 5.25 h
    hatch run python studies/schedulers/study.py live --minutes 1 --seeds 1 [--out schedulers]    # 25 minutes

Each goes on where it was stopped. `tapes` tunes each recorded operator alone, once per seed, with the pieces of recipe
dynatune. `play` lets each scheduler share trials among tapes (`tt_bench.tapes`). Models are composed of recorded
operators with the weights that real ones have; one that occurs several times, fused with others, has the tape of
another seed each time. `live` runs `tt tune` for `--minutes` each, one after the other, and times the files in turns:
run nothing beside it.

A hog is an operator that brought less than 2 % of what all slots gained; printed is the largest share of the batches
that one took.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tt_bench.atomic import read_json, write_json
from tt_bench.launch import program, tt
from tt_bench.real import source
from tt_bench.stats import geometric_mean, geometric_text
from tt_bench.tables import show
from tt_spec import Plugins

CHOSEN = {
    "resnet18": {
        "resnet18-stem": (1,),
        "resnet18-64": (2, 2),
        "resnet18-128-stride": (1,),
        "resnet18-128": (1, 2),
        "resnet18-256": (1, 2),
        "resnet18-512": (1, 2),
    },
    "mobilenet_v2": {
        "mobilenet-dw-96": (1,),
        "mobilenet-dw-192": (2, 4, 2),
        "mobilenet-1x1-24": (1, 2),
        "mobilenet-1x1-96": (2, 3),
    },
}
"""Models on which the options were chosen: weights by recorded operator."""

SHOWN = {
    "encoder": {"encoder-qkv": (36, 12), "encoder-up": (12,), "encoder-down": (12,), "encoder-scores": (12, 12)},
    "cnn-encoder": {
        "resnet18-stem": (1,),
        "resnet18-64": (4,),
        "resnet18-128-stride": (1,),
        "resnet18-128": (3,),
        "resnet18-256": (4,),
        "mobilenet-dw-96": (1,),
        "mobilenet-dw-192": (3,),
        "mobilenet-1x1-24": (2,),
        "mobilenet-1x1-96": (3,),
        "encoder-qkv": (12,),
        "encoder-up": (4,),
        "encoder-down": (4,),
        "encoder-scores": (4,),
    },
    "resnet-wide": {
        "resnet18-stem": (1,),
        "resnet18-64": (3,),
        "resnet18-128-stride": (1, 1),
        "resnet18-128": (3,),
        "resnet18-256": (5,),
        "resnet18-512": (2,),
        "mobilenet-1x1-24": (16, 8),
        "mobilenet-1x1-96": (16, 8),
    },
}
"""Models on which they are shown."""

SEEDS, TAPE, TRIALS, SLOT = 8, 240, 112, 16
REFERENCE = "ansor"
SCHEDULERS: dict[str, tuple[str, dict[str, Any]]] = {
    REFERENCE: ("gradient", {"fade": 0.0, "share": 1.0}),
    "gradient": ("gradient", {}),
    "gradient fade=0.5": ("gradient", {"fade": 0.5}),
    "gradient fade=1": ("gradient", {"fade": 1.0}),
    "dynatune": ("dynatune", {"peak_gflops": 130.0}),
    "round-robin": ("round-robin", {}),
}
"""By name: the piece and its options."""

ANY = "ansor, any algorithm"
"""Ansor's as it is published, which takes every operator of a kind for similar, whatever algorithms it has."""
LIVE_MODELS = ("squeezenet1_1", "mobilenet_v2", "detector", "recogniser", "classifier", "bert-tiny", "resnet50")
"""None of them shaped a scheduler, but for MobileNet-V2, of which four operators did."""

LIVE = {
    "gradient": [],
    "ansor": ["--set", "scheduler.fade=0", "--set", "scheduler.share=1"],
    "dynatune": ["--set", "scheduler=dynatune"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("tapes", "play", "live"))
    parser.add_argument("--recordings", type=Path, default=Path("recordings"))
    parser.add_argument("--out", type=Path, default=Path("schedulers"))
    parser.add_argument("--minutes", default="5", help="of live")
    parser.add_argument("--seeds", type=int, default=3, help="of live")
    parser.add_argument("--models", nargs="+", default=list(LIVE_MODELS), help="of live")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part == "tapes":
        _tapes(options.recordings, options.out)
    elif options.part == "play":
        _play(options.out)
    else:
        _live(options.out, options.minutes, options.seeds, options.models)


def _tapes(recordings: Path, out: Path) -> None:
    from tt_bench.compare import compare, units
    from tt_core.host import Host

    files = sorted(recordings.glob("*-template.json.gz"))
    sets = ["scheduler=sequential", f"batch={SLOT}"]
    compare(Host(), units(files, []), ["dynatune"], out / "tapes", sets=sets, seeds=SEEDS, trials=TAPE, say=print)


# -- replay -----------------------------------------------------------------------------------------------------------


def _play(out: Path) -> None:
    known = _Known(out / "tapes")
    table: dict[str, Any] = {}
    for model, operators in {**CHOSEN, **SHOWN}.items():
        played = {name: _played(known, operators, name) for name in (REFERENCE, ANY, *SCHEDULERS, "hindsight")}
        print(f"\n{model}{'' if model in SHOWN else ' (chosen on)'}: {sum(map(len, operators.values()))} operators")
        print(f"{'scheduler':24}{'final ms':>10}{'time':>8}{'hog':>7}{'most':>7}")
        for name, runs in played.items():
            final_ms = 1e3 * float(np.median([r.model_s[-1] for r in runs]))
            times = [_times_as_long(r, ref) for r, ref in zip(runs, played[REFERENCE], strict=True)]
            hogs = [_hog(r.slots) for r in runs]
            row = [final_ms, float(np.exp(np.mean(np.log(times)))), float(np.median(hogs)), max(hogs)]
            table.setdefault(model, {})[name] = row
            print(f"{name:24}{row[0]:10.3f}{row[1]:8.2f}{row[2]:7.2f}{row[3]:7.2f}", flush=True)
    write_json(out / "played.json", table)


class _Known:
    """The tapes of a comparison, by recording."""

    def __init__(self, folder: Path) -> None:
        from tt_bench.compare import read
        from tt_bench.files import load

        self.done = read(folder)
        self.tasks = {}
        for u in self.done.settings["units"]:
            name = Path(u["path"]).name.removesuffix("-template.json.gz")
            self.tasks[name] = (u["name"], load(u["path"]).parts[u["parts"][0]].whole)

    def tape(self, recording: str, number: int, weight: float, seed: int, alike: bool) -> Any:
        """The tape of an operator's `number`-th occurrence; `alike` hides which algorithms it can use."""
        from tt_bench.tapes import Tape

        unit, whole = self.tasks[recording]
        task = dataclasses.replace(whole, weight=weight, key=f"{whole.key}-{number}", name=f"{recording}-{number}")
        tape = Tape.of(task, self.done.runs["dynatune", unit, (seed + 3 * number) % SEEDS])
        space = dataclasses.replace(tape.task.space, name="tape" if alike else whole.space.name)
        return dataclasses.replace(
            tape, true_s=weight * tape.true_s, task=dataclasses.replace(tape.task, spaces=(space,))
        )


def _played(known: _Known, operators: dict[str, tuple[int, ...]], name: str) -> list[Any]:
    """A scheduler on a model's tapes, once per seed."""
    from tt_bench.tapes import Hindsight, play

    found, plugins = [], Plugins()
    for seed in range(SEEDS):
        tapes = [
            known.tape(recording, number, weight, seed, name == ANY)
            for recording, weights in operators.items()
            for number, weight in enumerate(weights)
        ]
        if name == "hindsight":
            scheduler: Any = Hindsight(tapes, SLOT)
        else:
            piece, options = SCHEDULERS[REFERENCE if name == ANY else name]
            seeded = {} if piece == "round-robin" else {"seed": seed}
            scheduler = plugins.build("scheduler", piece, trials=SLOT, **options, **seeded)
        found.append(play(tapes, scheduler, TRIALS * len(tapes), batch=SLOT))
    return found


def _times_as_long(run: Any, reference: Any) -> float:
    """Seconds to within 10, 5, 2 and 1 % of where the slower of two ends, as a multiple of the reference's."""
    end = max(run.model_s[-1], reference.model_s[-1])
    return float(
        np.exp(np.mean([np.log(run.reach(s * end) / reference.reach(s * end)) for s in (1.1, 1.05, 1.02, 1.01)]))
    )


def _hog(slots: Sequence[tuple[int, int, float, float | None]]) -> float:
    """The largest share of the batches that went to one operator with less than 2 % of the gain."""
    many, gained = Counter(s[0] for s in slots), dict.fromkeys((s[0] for s in slots), 0.0)
    for task, _, _, realised_s in slots:
        gained[task] += realised_s or 0.0
    least = 0.02 * sum(gained.values())
    return max((n / len(slots) for task, n in many.items() if gained[task] < least), default=0.0)


# -- live -------------------------------------------------------------------------------------------------------------


def _live(out: Path, minutes: str, seeds: int, models: Sequence[str]) -> None:
    folder = out / "live"
    folder.mkdir(exist_ok=True)
    names, rows = list(LIVE), []
    found: dict[str, list[list[tuple[float, ...]]]] = {name: [] for name in names}
    for model in models:
        runs = [_raced(folder, model, minutes, seed) for seed in range(seeds)]
        for name in names:
            found[name].append([_by_first(run, name) for run in runs])
            rows.append((model, name, *_middle(found[name][-1])))
    print(f"\n{minutes} minutes, {seeds} seeds, by {names[0]}; geometric means, of all models with 95 % over models")
    for name in names[1:]:
        of_models = [_middle(some) for some in found[name]]
        rows.append(
            ("all", name, *(geometric_text([m[k] for m in of_models]) for k in (0, 1)), max(m[2] for m in of_models))
        )
    shown = [(m, n, *(f"{v:.3f}" if isinstance(v, float) else v for v in rest)) for m, n, *rest in rows]
    show(("model", "scheduler", "file", "sum of operators", "hog, the most"), shown, text=2)


def _raced(folder: Path, model: str, minutes: str, seed: int) -> dict[str, dict[str, float]]:
    """What each scheduler's command came to, its files timed in turns."""
    from tt_core.host import Host

    kept = folder / f"{model}-{minutes}-{seed}.json"
    if kept.exists():
        return read_json(kept)
    places = [folder / f"{model}-{name}-{minutes}-{seed}" for name in LIVE]
    for name, place in zip(LIVE, places, strict=True):
        if not place.with_suffix(".so").exists():
            for old in (*folder.glob(f"{place.name}.db*"), *folder.glob(f"{place.name}.runs/*")):  # it was cut off
                old.unlink()
            wanted = ["--minutes", minutes, "--seed", str(seed), "--history", str(place.with_suffix(".db"))]
            tt("tune", *source(model), *wanted, *LIVE[name], "--out", str(place.with_suffix(".so")))
            print(f"live: {place.name}", flush=True)
    told = [_told(next((folder / f"{place.name}.runs").glob("*.jsonl"))) for place in places]
    files = Host().raced([place.with_suffix(".so") for place in places])
    found = {n: {**of, "file_s": s} for n, of, s in zip(LIVE, told, files, strict=True)}
    write_json(kept, found)
    return found


def _by_first(run: dict[str, dict[str, float]], name: str) -> tuple[float, ...]:
    """File and sum of operators by the first scheduler's, and the hog."""
    first = next(iter(run.values()))
    return run[name]["file_s"] / first["file_s"], run[name]["sum_s"] / first["sum_s"], run[name]["hog"]


def _middle(of_seeds: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Geometric means of both ratios over seeds, and the largest hog."""
    return (*(geometric_mean([s[k] for s in of_seeds]) for k in (0, 1)), max(s[2] for s in of_seeds))


def _told(log: Path) -> dict[str, float]:
    """Seconds of all operators alone at the end, and the hog."""
    events = [json.loads(line) for line in log.read_text().splitlines()]
    batches = [e for e in events if e["event"] == "batch_measured"]
    numbers = {name: i for i, name in enumerate({e["task"] for e in batches})}
    slots = [(numbers[e["task"]], e["measured"], 0.0, e["info"]["slot"].get("realised_s")) for e in batches]
    return {"sum_s": batches[-1]["model_s"], "hog": _hog(slots)}


if __name__ == "__main__":
    program(main)
