"""Timing on machines with two states of speed: evaluators with and without windows.

    hatch run python studies/timing/study.py simulate [--pairs 100] [--out timing]   # a minute; no machine is timed
    hatch run python studies/timing/study.py errors [--races 2000] [--out timing]    # a minute; no machine is timed
    hatch run python benchmarks/truth_of_timing.py --against ../before   # this machine: run nothing beside it

`simulate` lets evaluators time pairs of programs 5 % apart on a simulated machine that jumps between two states
(`tt_spec.testing.machine`), with builds between the timings. Printed are how often the faster one of a pair came out
faster, the share of timings within 5 % of their median, and what a timing cost. Programs suffer from the slow state
with a power of 0.8 of what the probe does, which the estimator is not told.

`errors` is about racing: how often a candidate as fast as the incumbent is stopped.

The machines of `CHOSEN` were looked at while the windows were designed; those of `SHOWN` were not.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from tt_bench.atomic import write_json
from tt_bench.launch import program
from tt_measure import Adaptive, Fixed, Racing
from tt_spec import Bar, Reference, Windows
from tt_spec.testing.machine import TwoStates

CHOSEN = {
    "steady": (1e9, 1e-9, 1.9),
    "10 ms fast, 10 slow": (0.01, 0.01, 1.9),
    "100 ms fast, 100 slow": (0.1, 0.1, 1.9),
    "5 ms fast, 20 slow": (0.005, 0.02, 1.9),
    "1.5 ms fast, 18 slow": (0.0015, 0.018, 1.9),
    "100 ms fast, 10 slow": (0.1, 0.01, 1.9),
}
"""Mean seconds in the fast and the slow state, and the slow state's factor."""

SHOWN = {
    "40 ms fast, 25 slow, 1.6": (0.04, 0.025, 1.6),
    "3 ms fast, 7 slow, 2.3": (0.003, 0.007, 2.3),
    "2 s fast, 0.5 slow, 1.35": (2.0, 0.5, 1.35),
    "0.3 s fast, 1 slow, 3": (0.3, 1.0, 3.0),
}

LENGTHS = {"20 us": 20e-6, "200 us": 200e-6, "2 ms": 2e-3, "20 ms": 20e-3}
EVALUATORS = {"fixed": Fixed(slow_factor=0), "adaptive": Adaptive(), "racing": Racing()}
BEFORE = {"fixed": Fixed(min_repeat_ms=10, slow_factor=0), "adaptive": Adaptive(), "racing": Racing()}
"""The evaluators' defaults before there were windows."""

SUFFERS = 0.8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("simulate", "errors"))
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--races", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("timing"))
    options = parser.parse_args()
    rows = simulate(options.pairs) if options.part == "simulate" else errors(options.races)
    options.out.mkdir(exist_ok=True)
    write_json(options.out / f"{options.part}.json", rows)


def simulate(pairs: int) -> list[dict[str, Any]]:
    """A row for each machine, length of program and evaluator."""
    rows = []
    print(f"{'machine':26} {'program':7} {'evaluator':9}  right: before, now  within 5 %  cost ms: before, now")
    for name, states in {**CHOSEN, **SHOWN}.items():
        for length, seconds in LENGTHS.items():
            for evaluator in EVALUATORS:
                now = _pairs(EVALUATORS[evaluator], True, states, seconds, pairs)
                before = _pairs(BEFORE[evaluator], False, states, seconds, pairs)
                rows.append({"machine": name, "program": length, "evaluator": evaluator, "before": before, "now": now})
                figures = [f"{before[k]:.0%} {now[k]:5.0%}" for k in ("right", "near")]
                cost = f"{before['cost_s'] * 1e3:6.1f} {now['cost_s'] * 1e3:6.1f}"
                print(f"{name:26} {length:7} {evaluator:9} {figures[0]:>18} {figures[1]:>12} {cost:>20}", flush=True)
    for half, names in (("chosen on", CHOSEN), ("not looked at", SHOWN)):
        for length in LENGTHS:
            mine = [r for r in rows if r["machine"] in names and r["program"] == length and r["machine"] != "steady"]
            right = [np.mean([r[when]["right"] for r in mine]) for when in ("before", "now")]
            cost = np.exp(np.mean([np.log(r["now"]["cost_s"] / r["before"]["cost_s"]) for r in mine]))
            print(f"machines {half}, {length}: right {right[0]:.0%} before, {right[1]:.0%} now; cost x {cost:.2f}")
    return rows


def _pairs(evaluator: Any, windows: bool, states: tuple[float, float, float], seconds: float, pairs: int) -> dict:
    rng = np.random.default_rng(1)
    machine = TwoStates(rng, *states)
    reference = _reference(machine)
    right, cost_s, values = 0, 0.0, []
    for _ in range(pairs):
        found = {}
        reference.settle()
        for slower in rng.permutation(2):
            machine.sleep(0.1 + 0.1 * rng.random())
            began = machine.now
            run = machine.candidate(seconds * (1.05 if slower else 1.0), SUFFERS)
            found[slower] = _timed(evaluator, run, machine, reference if windows else None, Bar(), rng)
            cost_s += machine.now - began
        right += found[0] < found[1]
        values.append(found[0])
    near = float(np.mean(np.abs(np.log(values / np.median(values))) <= 0.05))
    return {"right": right / pairs, "near": near, "cost_s": cost_s / pairs / 2}


def errors(races: int) -> list[dict[str, Any]]:
    """A row for each machine: how often racing stopped a candidate as fast as the incumbent."""
    rows = []
    print(f"{'machine':26}  stopped in error: before, now (stated: 5 %)")
    for name, states in {**CHOSEN, **SHOWN}.items():
        found = {}
        for when, windows in (("before", False), ("now", True)):
            rng = np.random.default_rng(2)
            machine = TwoStates(rng, *states)
            reference = _reference(machine)
            # the incumbent's seconds are what a timing of it found, by the same way of timing
            bar, stopped = Bar(_incumbent(machine, reference if windows else None, rng)), 0
            for _ in range(races):
                reference.settle()
                bar = Bar(bar.incumbent_s * reference.rescaled("t"))
                machine.sleep(0.1 + 0.1 * rng.random())
                run = machine.candidate(2e-4, SUFFERS)
                timed = Windows(run, machine.probe, reference.seconds or 1.0, reference.sensitivity("t"))
                stopped += Racing(slack=1.25).evaluate(timed if windows else run, bar, rng).why.startswith("stopped")
                if windows:
                    reference.tell("t", timed.seen())
            found[when] = stopped / races
        rows.append({"machine": name, **found})
        print(f"{name:26} {found['before']:22.1%} {found['now']:7.1%}", flush=True)
    return rows


def _reference(machine: TwoStates) -> Reference:
    reference = Reference()
    reference.look([machine.probe() for _ in range(1500)])
    return reference


def _incumbent(machine: TwoStates, reference: Reference | None, rng: np.random.Generator) -> float:
    """The least of 16 timings of one program, as a search finds its incumbent."""
    found = []
    for _ in range(16):
        machine.sleep(0.15)
        if reference is not None:
            reference.settle()
            factor = reference.rescaled("t")
            found = [factor * s for s in found]
        found.append(_timed(Fixed(slow_factor=0), machine.candidate(2e-4, SUFFERS), machine, reference, Bar(), rng))
    return min(found)


def _timed(
    evaluator: Any, run: Any, machine: TwoStates, reference: Reference | None, bar: Bar, rng: np.random.Generator
) -> float:
    if reference is None:
        return float(np.median(evaluator.evaluate(run, bar, rng).seconds))
    assert reference.seconds is not None
    windows = Windows(run, machine.probe, reference.seconds, reference.sensitivity("t"))
    timing = evaluator.evaluate(windows, bar, rng)
    reference.tell("t", windows.seen())
    return float(np.median(timing.seconds))


if __name__ == "__main__":
    program(main)
