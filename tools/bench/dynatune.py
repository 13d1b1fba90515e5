"""Schedulers compared: ResNet-18, SqueezeNet and a transformer encoder in replay, two of them live.

    hatch run python tools/bench/dynatune.py record [--out dynatune]   # once, on a quiet machine: about 20 minutes
    hatch run python tools/bench/dynatune.py replay [--out dynatune]   # 15 seeds: about 15 minutes
    hatch run python tools/bench/dynatune.py live [--out dynatune]     # two models, three schedulers: about 15 minutes
    hatch run python tools/bench/dynatune.py show [--out dynatune]     # tables and pictures of what there is

Each goes on where it was stopped. `record` measures every row of a sub-space of each convolution and matrix product
(`tt record`), and the device's peak. `replay` tunes every operator alone, once per seed, with the pieces of recipe
dynatune, and lets each scheduler share as many trials as there are operators times 72 among these tapes
(`tt_bench.tapes`): what a slot brings does not depend on the scheduler. Where recipe chameleon is installed, its tapes
are made too. Decisions of the belief are charged what they were measured to take. `live` runs `tt tune`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

MODELS = {"resnet18": "conv2d*,matmul*", "squeezenet1_1": "conv2d*", "transformer-encoder": "*matmul*"}
ROWS = ("--candidates", "all", "--most", "200", "--long-rows", "10", "--long-runs", "200")
SEEDS, TRIALS, TAPE, SLOT = 15, 72, 144, 16
LIVE = {"models": ("resnet18", "squeezenet1_1"), "schedulers": ("sequential", "gradient", "dynatune"), "minutes": 2}
CHAMELEON = "chameleon sequential"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("record", "replay", "live", "show"))
    parser.add_argument("--out", type=Path, default=Path("dynatune"))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--models", default=",".join(MODELS), help="with commas")
    options = parser.parse_args()
    models = [m for m in options.models.split(",") if m]
    if unknown := set(models) - set(MODELS):
        sys.exit(f"no model {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.part == "record":
        _record(models, options.out)
    elif options.part == "replay":
        _replay(models, options.out, options.seeds)
    elif options.part == "live":
        _live([m for m in LIVE["models"] if m in models], options.out)
    _show(options.out)


# -- record -------------------------------------------------------------------------------------------------------


def _record(models: Sequence[str], out: Path) -> None:
    if not (out / "peak.json").exists():
        from tt_core.target import prepare_threads, resolve

        prepare_threads()
        from tt_core.peak import peak_flops

        _keep(out / "peak.json", {"gflops": peak_flops(resolve("native")) / 1e9})
    for model in models:
        if not (out / f"{model}.json.gz").exists():
            _tt("record", model, "--tasks", MODELS[model], "--space", "template", "--out", str(out / model), *ROWS)


# -- replay -------------------------------------------------------------------------------------------------------


def _replay(models: Sequence[str], out: Path, seeds: int) -> None:
    from tt_bench.compare import compare, units
    from tt_core.host import Host
    from tt_spec import Plugins

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
        charge = out / "decision.json"
        if not charge.exists():
            played = _play_one(out, model, 0, 0.0)["dynatune"]
            _keep(charge, {"seconds": round(played["decided_s"] / played["decisions"], 3)})
        todo = [s for s in range(seeds) if not (out / "played" / f"{model}-{s}.json").exists()]
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            decision_s = _read(charge)["seconds"]
            jobs = {s: pool.submit(_play_one, out, model, s, decision_s) for s in todo}
            for s, job in jobs.items():
                _keep(out / "played" / f"{model}-{s}.json", job.result())
                print(f"{model}, seed {s}: played", flush=True)


def _play_one(out: Path, model: str, seed: int, decision_s: float) -> dict[str, Any]:
    """Every scheduler on one seed's tapes."""
    from tt_bench.tapes import Hindsight, play, regret
    from tt_spec import Plugins

    plugins = Plugins()
    tapes = _tapes(out, "dynatune", model, seed)
    total = TRIALS * len(tapes)
    stop = [plugins.build("stopper", "patience", trials=200)]
    best = play(tapes, Hindsight(tapes, SLOT), total, batch=SLOT, stoppers=stop)
    found = {"oracle": best}
    for name, scheduler, charge in _schedulers(plugins, _read(out / "peak.json")["gflops"], decision_s):
        found[name] = play(tapes, scheduler, total, batch=SLOT, stoppers=stop, decision_s=charge)
    regrets = {name: regret(p, best).tolist() for name, p in found.items()}
    if (out / f"tapes-chameleon-{model}").exists():
        others = _tapes(out, "chameleon", model, seed)
        sequential = plugins.build("scheduler", "sequential")
        found[CHAMELEON] = play(others, sequential, total, batch=SLOT, stoppers=stop)
        name, scheduler, charge = next(_schedulers(plugins, _read(out / "peak.json")["gflops"], decision_s))
        found["chameleon dynatune"] = play(others, scheduler, total, batch=SLOT, stoppers=stop, decision_s=charge)
    return {
        name: {
            "t": np.round(p.t, 3).tolist(),
            "model_s": [s if math.isfinite(s) else None for s in p.model_s],
            "slots": p.slots,
            "decisions": p.decisions,
            "decided_s": p.decided_s,
            "regret_s": regrets.get(name),
        }
        for name, p in found.items()
    }


def _schedulers(plugins: Any, peak_gflops: float, decision_s: float) -> Iterator[tuple[str, Any, float]]:
    """Name, scheduler and what its decisions are charged; DynaTune's variants hand on what they believe."""
    beliefs: dict[Any, Any] = {}

    def dynatune(**options: Any) -> Any:
        made = plugins.build("scheduler", "dynatune", peak_gflops=peak_gflops, **options)
        made.believe = _remembered(made.believe, beliefs)
        return made

    yield "dynatune", dynatune(), decision_s
    yield "dynatune c=paper", dynatune(c="paper"), decision_s
    yield "dynatune epsilon-greedy", dynatune(action="epsilon-greedy"), decision_s
    yield "dynatune softmax", dynatune(action="softmax"), decision_s
    for name in ("round-robin", "random", "linear", "gradient"):
        yield name, plugins.build("scheduler", name, trials=SLOT), 0.0
    yield "sequential", plugins.build("scheduler", "sequential"), 0.0


def _remembered(believe: Callable[..., Any], known: dict[Any, Any]) -> Callable[..., Any]:
    """A belief follows from the operator's tape and the place in it alone."""

    def remembered(states: Any, s: Any, trials: int, size: int) -> Any:
        key = (s.task.key, trials, size)
        if key not in known:
            known[key] = believe(states, s, trials, size)
        return known[key]

    return remembered


def _tapes(out: Path, recipe: str, model: str, seed: int) -> list[Any]:
    from tt_bench.compare import read
    from tt_bench.files import load
    from tt_bench.tapes import Tape

    done = read(out / f"tapes-{recipe}-{model}")
    parts = load(out / f"{model}.json.gz").parts
    return [Tape.of(parts[u["parts"][0]].whole, done.runs[recipe, u["name"], seed]) for u in done.settings["units"]]


# -- live ---------------------------------------------------------------------------------------------------------


def _live(models: Sequence[str], out: Path) -> None:
    folder = out / "live"
    folder.mkdir(exist_ok=True)
    for model in models:
        for scheduler in LIVE["schedulers"]:
            name = folder / f"{model}-{scheduler}"
            if name.with_suffix(".json").exists():
                continue
            history = name.with_suffix(".db")
            for old in (history, *folder.glob(f"{name.name}.runs/*")):
                old.unlink(missing_ok=True)
            options = ["--recipe", "dynatune", "--minutes", str(LIVE["minutes"]), "--history", str(history)]
            if scheduler != "dynatune":
                options += ["--set", f"scheduler={scheduler}"]
            _tt("tune", model, *options)
            (log,) = (folder / f"{name.name}.runs").glob("*.jsonl")
            _keep(name.with_suffix(".json"), _told(log))


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
    played = {m: [_read(p) for p in sorted((out / "played").glob(f"{m}-*.json"))] for m in MODELS}
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
            quicker = _interval([_quicker(r["dynatune"], r[name]) for r in runs])
            summary[model][name] = {"final_ms": final, "quicker": quicker}
            shown = f"{np.median(lost):11.3f}" if lost else f"{'-':>11}"
            text = "{:.2f} [{:.2f}, {:.2f}]".format(*quicker)
            print(f"{name:26}{final:10.3f}{reach:10.1f}{shown}   {text}")
        _picture(out / f"{model}.png", model, runs)
        slots = [r["dynatune"]["decisions"] for r in runs]
        each = np.mean([r["dynatune"]["t"][-1] / n for r, n in zip(runs, slots, strict=True)])
        decided = _read(out / "decision.json")["seconds"]
        print(f"a slot takes {each:.2f} s, {decided:.3f} s of it for deciding ({decided / each:.1%})")
    for name in next(iter(summary.values()), {}):
        logs = [math.log(s[name]["quicker"][0]) for s in summary.values() if name in s]
        print(f"geometric mean over models, dynatune beside {name}: {math.exp(np.mean(logs)):.2f}")
    for path in sorted((out / "live").glob("*.json")):
        run = _read(path)
        share = run["decided_s"] / run["t"][-1]
        accepted = f", acceptance {np.mean(run['acceptance']):.2f}" if run["acceptance"] else ""
        print(
            f"live {path.stem}: {_ms(run['model_s'][-1])} after {run['t'][-1]:.0f} s, {run['slots']} slots,"
            f" deciding took {share:.2%}{accepted}, {run['fallbacks']} fell back to least squares"
        )
    _keep(out / "summary.json", summary)


def _final(run: dict[str, Any]) -> float:
    return run["model_s"][-1] or math.inf


def _reach(run: dict[str, Any], latency_s: float) -> float:
    """Seconds until the model takes no more than that; the whole run if it never does."""
    pairs = zip(run["t"], run["model_s"], strict=True)
    return next((t for t, s in pairs if s is not None and s <= latency_s), run["t"][-1])


def _quicker(one: dict[str, Any], other: dict[str, Any]) -> float:
    """How many times sooner `one` comes within 2 % of the latency that both have reached in the end."""
    goal = 1.02 * max(_final(one), _final(other))
    return _reach(other, goal) / _reach(one, goal)


def _interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of ratios with its 95 % percentile bootstrap interval."""
    logs = np.log(ratios)
    means = logs[np.random.default_rng(0).integers(0, len(logs), (4000, len(logs)))].mean(axis=1)
    low, high = np.exp(np.quantile(means, [0.025, 0.975]))
    return float(np.exp(logs.mean())), float(low), float(high)


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


def _tt(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "tt_core", *arguments], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _keep(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(data))
    part.replace(path)


if __name__ == "__main__":
    main()
