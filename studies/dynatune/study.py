"""Schedulers compared: ResNet-18, SqueezeNet and a transformer encoder in replay, two of them live.

    hatch run python studies/dynatune/study.py record [--out dynatune]   # once, on a quiet machine: 22 minutes
    hatch run python studies/dynatune/study.py replay [--out dynatune]   # 15 seeds: 3 minutes, and 20 for the tapes
    hatch run python studies/dynatune/study.py live [--out dynatune]     # two models, three schedulers: 13 minutes
    hatch run python studies/dynatune/study.py show [--out dynatune]     # tables and pictures of what there is

Each goes on where it was stopped. `record` measures every row of a sub-space of each convolution and matrix product
(`tt record`), and the device's peak. `replay` tunes every operator alone, once per seed, with the pieces of recipe
dynatune, and lets each scheduler share as many trials as there are operators times 72 among these tapes
(`tt_bench.tapes`): what a slot brings does not depend on the scheduler. Where recipe chameleon is installed, its tapes
are made too. Every belief is charged what one was measured to take. `live` runs `tt tune`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from tt_bench.atomic import read_json, write_json
from tt_bench.errors import BenchError
from tt_bench.launch import program, tt
from tt_bench.stats import geometric_interval, geometric_mean
from tt_schedule import DynaTune
from tt_spec import Entry, Plugins, TaskState, hookimpl

MODELS = {"resnet18": "conv2d*,matmul*", "squeezenet1_1": "conv2d*", "transformer-encoder": "*matmul*"}
ROWS = ("--candidates", "all", "--most", "200", "--long-rows", "10", "--long-runs", "200")
SEEDS, TRIALS, TAPE, SLOT = 15, 72, 144, 16
LIVE_MODELS, LIVE_SCHEDULERS = ("resnet18", "squeezenet1_1"), ("sequential", "gradient", "dynatune")
LIVE_MINUTES = 2
CHAMELEON = "chameleon sequential"
SHARED = "dynatune-shared"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("record", "replay", "live", "show"))
    parser.add_argument("--out", type=Path, default=Path("dynatune"))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--live-seeds", type=int, default=1)
    parser.add_argument("--models", default=",".join(MODELS), help="with commas")
    options = parser.parse_args()
    models = [m for m in options.models.split(",") if m]
    if unknown := set(models) - set(MODELS):
        raise BenchError(f"no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part == "record":
        _record(models, options.out)
    elif options.part == "replay":
        _replay(models, options.out, options.seeds)
    elif options.part == "live":
        _live([m for m in LIVE_MODELS if m in models], options.out, options.live_seeds)
    _show(options.out)


# -- record -------------------------------------------------------------------------------------------------------


def _record(models: Sequence[str], out: Path) -> None:
    if not (out / "peak.json").exists():
        from tt_core.compiler.target import resolve, use_all_cores

        use_all_cores()
        from tt_core.compiler.peak import peak_flops

        write_json(out / "peak.json", {"gflops": peak_flops(resolve("native")) / 1e9})
    for model in models:
        if not (out / f"{model}.json.gz").exists():
            tt("record", model, "--tasks", MODELS[model], "--space", "template", "--out", str(out / model), *ROWS)


# -- replay -------------------------------------------------------------------------------------------------------


def _replay(models: Sequence[str], out: Path, seeds: int) -> None:
    from tt_bench.compare import compare, units
    from tt_core.host import Host

    recipes = [r for r in ("dynatune", "chameleon") if r in Plugins().names("recipe")]
    for model in models:
        chosen = units([out / f"{model}.json.gz"], [])
        for recipe in recipes:
            compare(
                Host(),
                chosen,
                [recipe],
                out / f"tapes-{recipe}-{model}",
                sets=["scheduler=sequential", f"batch={SLOT}"],
                seeds=seeds,
                trials=TAPE,
                say=lambda text: print(text, flush=True),
            )
        charge = out / "belief.json"
        if not charge.exists():
            importlib.import_module("emcee")  # which loads once a run, beside the first slot
            played = _play_one(out, model, 0, 0.0)["dynatune"]
            write_json(charge, {"seconds": round(played["decided_s"] / played["beliefs"], 3)})
        todo = [s for s in range(seeds) if not (out / "played" / f"{model}-{s}.json").exists()]
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            belief_s = read_json(charge)["seconds"]
            jobs = {s: pool.submit(_play_one, out, model, s, belief_s) for s in todo}
            for s, job in jobs.items():
                write_json(out / "played" / f"{model}-{s}.json", job.result())
                print(f"{model}, seed {s}: played", flush=True)


def _play_one(out: Path, model: str, seed: int, belief_s: float) -> dict[str, Any]:
    """Every scheduler on one seed's tapes."""
    from tt_bench.tapes import Hindsight, Played, play, regret

    beliefs = Beliefs(belief_s)
    plugins = Plugins(extra=[("dynatune-study", beliefs)])
    total = TRIALS * len(_tapes(out, "dynatune", model, seed))
    asked: dict[str, int] = {}

    def played(name: str, recipe: str, make: Callable[[Any], Any]) -> Played:
        tapes, stop = _tapes(out, recipe, model, seed), [plugins.build("stopper", "patience", trials=200)]
        before = beliefs.asked
        done = play(tapes, make(tapes), total, batch=SLOT, stoppers=stop, charge_s=beliefs.charge_s)
        asked[name] = beliefs.asked - before
        return done

    def dynatune(**options: Any) -> Callable[[Any], Any]:
        peak = read_json(out / "peak.json")["gflops"]
        return lambda tapes: plugins.build("scheduler", SHARED, peak_gflops=peak, **options)

    def plain(name: str, **options: Any) -> Callable[[Any], Any]:
        return lambda tapes: plugins.build("scheduler", name, **options)

    schedulers = {
        "oracle": lambda tapes: Hindsight(tapes, SLOT),
        "dynatune": dynatune(),
        "dynatune beta=inf": dynatune(beta=math.inf),
        "dynatune c=paper": dynatune(c="paper", beta=math.inf),
        "dynatune epsilon-greedy": dynatune(action="epsilon-greedy"),
        "dynatune softmax": dynatune(action="softmax"),
        **{name: plain(name, trials=SLOT) for name in ("round-robin", "random", "linear", "gradient")},
        "sequential": plain("sequential"),
    }
    found = {name: played(name, "dynatune", make) for name, make in schedulers.items()}
    regrets = {name: regret(p, found["oracle"]).tolist() for name, p in found.items()}
    if (out / f"tapes-chameleon-{model}").exists():
        found[CHAMELEON] = played(CHAMELEON, "chameleon", plain("sequential"))
        found["chameleon dynatune"] = played("chameleon dynatune", "chameleon", dynatune())
    return {
        name: {
            "t": np.round(p.t, 3).tolist(),
            "model_s": [s if math.isfinite(s) else None for s in p.model_s],
            "slots": p.slots,
            "decisions": p.decisions,
            "decided_s": p.decided_s,
            "beliefs": asked[name],
            "regret_s": regrets.get(name),
        }
        for name, p in found.items()
    }


class Beliefs:
    """A plug-in: DynaTune's variants, which share what they believe. Each belief is charged to whoever asks for it.

    Args:
        belief_s: What one is charged.
    """

    def __init__(self, belief_s: float) -> None:
        self.belief_s, self.asked, self.paid = belief_s, 0, 0
        self.known: dict[Any, tuple[float, Any]] = {}

    @hookimpl
    def tt_schedulers(self) -> list[Entry]:
        return [Entry(SHARED, lambda **options: Shared(self, **options), "dynatune; variants share beliefs")]

    def charge_s(self) -> float:
        """For what was asked since the last time."""
        new, self.paid = self.asked - self.paid, self.asked
        return new * self.belief_s


class Shared(DynaTune):
    """DynaTune that asks others first: a belief follows from the operator's tape and the place in it alone."""

    def __init__(self, beliefs: Beliefs, **options: Any) -> None:
        super().__init__(**options)
        self.shared = beliefs

    def believe(self, states: Sequence[TaskState], s: TaskState, known: int, size: int) -> tuple[float, Any]:
        key = (s.task.key, tuple(s.incumbents), known, size)
        if key not in self.shared.known:
            self.shared.known[key] = super().believe(states, s, known, size)
        self.shared.asked += 1
        return self.shared.known[key]


def _tapes(out: Path, recipe: str, model: str, seed: int) -> list[Any]:
    from tt_bench.compare import read
    from tt_bench.files import load
    from tt_bench.tapes import Tape

    done = read(out / f"tapes-{recipe}-{model}")
    parts = load(out / f"{model}.json.gz").parts
    return [Tape.of(parts[u["parts"][0]].whole, done.runs[recipe, u["name"], seed]) for u in done.settings["units"]]


# -- live ---------------------------------------------------------------------------------------------------------


def _live(models: Sequence[str], out: Path, seeds: int) -> None:
    folder = out / "live"
    folder.mkdir(exist_ok=True)
    for seed, model, scheduler in product(range(seeds), models, LIVE_SCHEDULERS):
        name = folder / f"{model}-{scheduler}-{seed}"
        if name.with_suffix(".json").exists():
            continue
        history = name.with_suffix(".db")
        for old in (*folder.glob(f"{history.name}*"), *folder.glob(f"{name.name}.runs/*")):  # of one that was cut off
            old.unlink()
        options = ["--recipe", "dynatune", "--minutes", str(LIVE_MINUTES), "--seed", str(seed)]
        if scheduler != "dynatune":
            options += ["--set", f"scheduler={scheduler}"]
        tt("tune", model, *options, "--history", str(history))
        (log,) = (folder / f"{name.name}.runs").glob("*.jsonl")
        write_json(name.with_suffix(".json"), {"model": model, "scheduler": scheduler, **_told(log)})


def _told(log: Path) -> dict[str, Any]:
    """Latency over time and what deciding took, from a run's event log."""
    events = [json.loads(line) for line in log.read_text().splitlines()]
    batches = [e for e in events if e["event"] == "batch_measured"]
    began = next(e["at"] for e in events if e["event"] == "run_started")
    slots = {e["info"]["slot"]["number"]: e["info"]["slot"] for e in batches}
    return {
        "t": [e["at"] - began for e in batches],
        "model_s": [e["model_s"] for e in batches],
        "decided_s": sum(s["decided_s"] for s in slots.values()),
        "slots": len(slots),
        "fallbacks": sum(str(s.get("belief", "")).startswith("least") for s in slots.values()),
        "acceptance": [s["acceptance"] for s in slots.values() if "acceptance" in s],
        "autocorrelation": [s["autocorrelation"] for s in slots.values() if "autocorrelation" in s],
    }


# -- show ---------------------------------------------------------------------------------------------------------


def _show(out: Path) -> None:
    played = {m: [read_json(p) for p in sorted((out / "played").glob(f"{m}-*.json"))] for m in MODELS}
    played = {m: runs for m, runs in played.items() if runs}
    summary: dict[str, Any] = {}
    for model, runs in played.items():
        print(f"\n{model}: {len(runs)} seeds; medians with 95 % intervals, x = times quicker than that scheduler")
        print(f"{'scheduler':26}{'final ms':>10}{'to 2 % s':>10}{'regret ms':>11}   dynatune x quicker")
        summary[model] = {}
        for name in runs[0]:
            final = 1e3 * np.median([_final(r[name]) for r in runs])
            reach = np.median([_reach(r[name], 1.02 * _final(r["sequential"])) for r in runs])
            lost = [1e3 * r[name]["regret_s"][-1] for r in runs if r[name]["regret_s"]]
            ratios = [_quicker(r["dynatune"], r[name]) for r in runs]
            quicker = geometric_interval(ratios, np.random.default_rng(0))
            summary[model][name] = {"final_ms": final if math.isfinite(final) else None, "quicker": quicker}
            shown = f"{np.median(lost):11.3f}" if lost else f"{'-':>11}"
            text = "{:.2f} [{:.2f}, {:.2f}]".format(*quicker)
            print(f"{name:26}{final:10.3f}{reach:10.1f}{shown}   {text}")
        _picture(out / f"{model}.png", model, runs)
        each, mine = read_json(out / "belief.json")["seconds"], [r["dynatune"] for r in runs]
        share = each * sum(r["beliefs"] for r in mine) / sum(r["t"][-1] for r in mine)
        slot_s = sum(r["t"][-1] for r in mine) / sum(r["decisions"] for r in mine)
        print(f"a slot takes {slot_s:.2f} s, a belief {each:.3f} s, all of them {share:.1%} of the run")
    for name in next(iter(summary.values()), {}):
        mean = geometric_mean([s[name]["quicker"][0] for s in summary.values() if name in s])
        print(f"geometric mean over models, dynatune beside {name}: {mean:.2f}")
    live = [read_json(p) for p in sorted((out / "live").glob("*.json"))]
    for model, scheduler in product(LIVE_MODELS, LIVE_SCHEDULERS):
        runs = [r for r in live if (r["model"], r["scheduler"]) == (model, scheduler)]
        if runs:
            _show_live(model, scheduler, runs)
    write_json(out / "summary.json", summary)


def _show_live(model: str, scheduler: str, runs: Sequence[dict[str, Any]]) -> None:
    ends = ", ".join(_ms(r["model_s"][-1]) for r in runs)
    whole = np.median([next((t for t, s in zip(r["t"], r["model_s"], strict=True) if s), math.inf) for r in runs])
    lasted = sum(r["t"][-1] for r in runs)
    decided_s, slots, fallbacks = (sum(r[k] for r in runs) for k in ("decided_s", "slots", "fallbacks"))
    accepted = [a for r in runs for a in r["acceptance"]]
    about = f", acceptance {np.mean(accepted):.2f}, {fallbacks} fell back to least squares" if accepted else ""
    print(f"live {model} {scheduler}: whole after {whole:.0f} s, {ends} in the end,", end=" ")
    print(f"{slots} slots of {lasted / slots:.2f} s, deciding took {1e3 * decided_s / slots:.1f} ms each,", end=" ")
    print(f"{decided_s / lasted:.2%}{about}")


def _final(run: dict[str, Any]) -> float:
    return run["model_s"][-1] or math.inf


def _reach(run: dict[str, Any], latency_s: float) -> float:
    """Seconds until the model takes no more than that; the whole run if it never does."""
    pairs = zip(run["t"], run["model_s"], strict=True)
    return next((t for t, s in pairs if s is not None and s <= latency_s), run["t"][-1])


def _quicker(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The factor by which `one` comes sooner within 2 % of the latency that both have reached in the end."""
    goal = 1.02 * max(_final(one), _final(other))
    return _reach(other, goal) / _reach(one, goal)


def _picture(path: Path, model: str, runs: Sequence[dict[str, Any]]) -> None:
    """Median model latency over time with its quartiles, per scheduler."""
    from tt_bench.pictures import figure

    made = figure(8, 4.5)
    ax = made.subplots()
    for k, name in enumerate(runs[0]):
        grid = np.linspace(0, max(r[name]["t"][-1] for r in runs), 200)
        curves = np.array([_at(r[name], grid) for r in runs])
        low, middle, high = (np.quantile(curves, q, axis=0, method="nearest") for q in (0.25, 0.5, 0.75))
        ax.plot(grid, 1e3 * middle, color=f"C{k % 10}", label=name, linestyle="-" if k < 10 else "--")
        ax.fill_between(grid, 1e3 * low, 1e3 * high, color=f"C{k % 10}", alpha=0.15, linewidth=0)
    ends = [_final(r[n]) for r in runs for n in r]
    ax.set_ylim(0.98e3 * min(ends), 1.35e3 * min(ends))
    ax.set(title=model, xlabel="seconds", ylabel="model latency, ms")
    ax.legend(fontsize=7)
    made.savefig(path, dpi=120)


def _at(run: dict[str, Any], grid: np.ndarray) -> np.ndarray:
    values = np.array([math.inf, *(math.inf if s is None else s for s in run["model_s"])])
    return values[np.searchsorted(run["t"], grid, side="right")]


def _ms(seconds: float | None) -> str:
    return "not yet whole" if seconds is None else f"{1e3 * seconds:.2f} ms"


if __name__ == "__main__":
    program(main)
