"""One program timed again and again through the engine, between builds of others: how far the timings lie apart.

    hatch run python benchmarks/truth_of_timing.py [--times 200] [--against ../other-checkout]
    hatch run python benchmarks/truth_of_timing.py --rounds 10 [--against ../other-checkout]

For programs of about 20 us, 200 us, 2 ms and 20 ms: the share of timings within 5 % and within 15 % of the least, the
ratio of the 90th percentile to the least and to the 10th, and seconds a candidate, building included. With `--against`
the engine of another checkout times the same row in turns with this one's, 20 timings at a time; each tells seconds in
the state that it takes for the machine's, so spreads can be compared, and seconds cannot.

With `--rounds` the better half of 48 rows of each program's space is timed once a round, in another order each time,
and the programs take turns, so that the rounds of one are minutes apart: how often two timings of a row lie within 10 %
and how often single timings order two rows rightly whose medians over all other rounds are 4 to 6 % apart.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

PROGRAMS = {
    "20 us": "op:conv2d:1,16,28,32,1,1,0",
    "200 us": "op:conv2d:1,48,40,72,3,1,1",
    "2 ms": "op:conv2d:1,64,80,64,3,1,1",
    "20 ms": "op:matmul:1280,1280,1280",
}
TURN = 20
"""Timings of one checkout before the other one has its turn."""

OTHERS = 12
"""Candidates built between two timings of the program, in turn."""

ROWS = 24
"""Rows of a program's space that are timed in every round: the better half of so many times two."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS), choices=PROGRAMS, metavar="LENGTH")
    parser.add_argument("--against", type=Path, help="a checkout whose engine times in turns with this one")
    parser.add_argument("--rounds", type=int, help="time rows again, minutes later, instead of one row at once")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    sides = {"here": Path(__file__).parents[1], **({"there": options.against} if options.against else {})}
    if options.rounds:
        rounds(sides, options.programs, options.rounds)
        return
    spreads = f"{'within 5 %':>11} {'15 %':>6} {'p90/least':>10} {'p90/p10':>8}"
    print(f"{'program':8} {'engine':6} {'least':>10} {spreads} {'s each':>7}")
    for name in options.programs:
        engines = {side: _engine(root) for side, root in sides.items()}
        found: dict[str, list[list[float]]] = {side: [] for side in sides}
        took = dict.fromkeys(sides, 0.0)
        rows = None
        for engine in engines.values():
            rows = _ask(engine, {"op": PROGRAMS[name], "rows": rows})["rows"]
        for _ in range(-(-options.times // TURN)):
            for side, engine in engines.items():
                answer = _ask(engine, {"times": TURN})
                found[side] += answer["timings"]
                took[side] += answer["seconds"]
        for engine in engines.values():
            engine.kill()
        for side in sides:
            print(_row(name, side, np.array(found[side]), took[side]), flush=True)


def rounds(sides: dict[str, Path], programs: list[str], n: int) -> None:
    """Times the rows of all programs, round after round, and prints a line for each program and engine."""
    engines = {(side, name): _engine(root) for side, root in sides.items() for name in programs}
    for name in programs:
        rows = None
        for side in sides:
            rows = _ask(engines[side, name], {"op": PROGRAMS[name], "rows": rows})["rows"]
    found: dict[tuple[str, str], list[list[float]]] = {who: [] for who in engines}
    for i in range(n):
        for who, engine in engines.items():
            found[who].append(_ask(engine, {"round": i})["seconds"])
        print(f"round {i + 1} of {n}", file=sys.stderr)
    print(f"{'program':8} {'engine':6} {'best':>10} {'again within 10 %':>18} {'5 % apart ordered':>18} {'pairs':>6}")
    for (side, name), engine in engines.items():
        engine.kill()
        seconds = np.array(found[side, name])
        right, pairs = _ordered(seconds)
        best = np.median(seconds, axis=0).min() * 1e6
        print(f"{name:8} {side:6} {best:7.1f} us {_again(seconds):18.0%} {right / max(pairs, 1):18.0%} {pairs:6}")


def _again(seconds: np.ndarray) -> float:
    """Share of the rows that two rounds one after the other time within 10 % of each other; `(rounds, rows)`."""
    ratio = seconds[1:] / seconds[:-1]
    return float(np.mean(np.maximum(ratio, 1 / ratio) <= 1.1))


def _ordered(seconds: np.ndarray) -> tuple[int, int]:
    """Of pairs 4 to 6 % apart, in each round: how many its timings order rightly, and how many there are.

    The truth of a round is each row's median over the other rounds.
    """
    right = pairs = 0
    for i, now in enumerate(seconds):
        truth = np.median(np.delete(seconds, i, axis=0), axis=0)
        apart = truth[None, :] / truth[:, None]
        a, b = np.nonzero((apart >= 1.04) & (apart <= 1.06))
        right, pairs = right + int(np.sum(now[a] < now[b])), pairs + len(a)
    return right, pairs


def _row(name: str, side: str, found: np.ndarray, took: float) -> str:
    """A line about `found` `(n, 3)`: seconds, windows left out, slowdown."""
    seconds = found[:, 0]
    least = seconds.min()
    shares = [float(np.mean(seconds <= least * (1 + x))) for x in (0.05, 0.15)]
    state = f"{found[:, 1].mean():.1f} windows left out, slowdown {np.median(found[:, 2]):.2f}" if found[0, 2] else ""
    return (
        f"{name:8} {side:6} {least * 1e6:7.1f} us {shares[0]:11.0%} {shares[1]:6.0%}"
        f" {np.percentile(seconds, 90) / least:10.2f} {np.divide(*np.percentile(seconds, [90, 10])):8.2f}"
        f" {took / len(seconds):7.2f}  {state}"
    )


def _engine(root: Path) -> subprocess.Popen[str]:
    sources = os.pathsep.join(str(p) for p in sorted(root.resolve().glob("packages/*/src")))
    environment = {**os.environ, "PYTHONPATH": sources}
    command = [sys.executable, __file__, "--serve"]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _ask(engine: subprocess.Popen[str], what: dict[str, object]) -> dict:
    assert engine.stdin is not None and engine.stdout is not None
    engine.stdin.write(json.dumps(what) + "\n")
    engine.stdin.flush()
    for line in engine.stdout:
        if line.startswith("{"):
            return json.loads(line)
    sys.exit("the engine ended early; its message stands above")


def serve() -> None:
    """Times what standard input names, with this process's own sources."""
    import time

    from tt_core.assembly import BACKEND
    from tt_core.compiler.target import cores, use_all_cores
    from tt_core.prepared import prepare
    from tt_measure.fixed import Fixed
    from tt_measure.pool import WorkerPool
    from tt_spec import Bar

    use_all_cores()
    with WorkerPool(backend=BACKEND, threads=cores(), evaluator=Fixed(), verify=False) as pool:
        task, rows, at = None, np.empty((0, 0), dtype=np.int64), 0
        for line in sys.stdin:
            asked = json.loads(line)
            if "op" in asked:
                task = prepare(asked["op"], space="template").tasks[0]
                rows = np.array(asked["rows"] or _best(pool, task))
                print(json.dumps({"rows": rows.tolist()}), flush=True)
                continue
            assert task is not None
            if "round" in asked:
                order = np.random.default_rng(asked["round"]).permutation(len(rows))
                told = {t.config: t.latency_s for t in pool.measure(task, rows[order], Bar(flops=task.flops))}
                print(json.dumps({"seconds": [told[tuple(r)] for r in rows.tolist()]}), flush=True)
                continue
            began, timings, best = time.monotonic(), [], tuple(int(c) for c in rows[0])
            for _ in range(asked["times"]):
                at += 1
                for t in pool.measure(task, rows[[1 + at % OTHERS, 0]], Bar(flops=task.flops)):
                    if t.config == best:
                        n = getattr(t, "noise", None)  # engines from before 2026-11 do not have it
                        timings.append([t.latency_s, *((0, 0) if n is None else (n.discarded, n.slowdown))])
            print(json.dumps({"timings": timings, "seconds": time.monotonic() - began}), flush=True)


def _best(pool: Any, task: Any) -> list[list[int]]:
    """The better half of `2 * ROWS` rows, the best first."""
    from tt_spec import Bar

    real = pool.realise(task, task.space.sample(2 * ROWS, np.random.default_rng(0)))
    drawn = np.unique(real.codes[[w is None for w in real.why]], axis=0)
    timed = [t for t in pool.measure(task, drawn, Bar(flops=task.flops)) if t.error is None]
    return [list(t.config) for t in sorted(timed, key=lambda t: t.latency_s)[:ROWS]]


if __name__ == "__main__":
    main()
