"""One program timed again and again through the engine, between builds of others: how far the timings lie apart.

    hatch run python benchmarks/truth_of_timing.py [--times 200] [--against ../other-checkout]

For programs of about 20 us, 200 us, 2 ms and 20 ms: the share of timings within 5 % and within 15 % of the least, the
ratio of the 90th percentile to the least and to the 10th, and seconds a candidate, building included. With `--against`
the engine of another checkout times the same row in turns with this one's, 20 timings at a time; each tells seconds in
the state that it takes for the machine's, so spreads can be compared, and seconds cannot.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS), choices=PROGRAMS, metavar="LENGTH")
    parser.add_argument("--against", type=Path, help="a checkout whose engine times in turns with this one")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    sides = {"here": Path(__file__).parents[1], **({"there": options.against} if options.against else {})}
    spreads = f"{'within 5 %':>11} {'15 %':>6} {'p90/least':>10} {'p90/p10':>8}"
    print(f"{'program':8} {'engine':6} {'least':>10} {spreads} {'s each':>7}")
    for name in options.programs:
        engines = {side: _engine(root) for side, root in sides.items()}
        found: dict[str, list[list[float]]] = {side: [] for side in sides}
        took = dict.fromkeys(sides, 0.0)
        row = None
        for engine in engines.values():
            row = _ask(engine, {"op": PROGRAMS[name], "row": row})["row"]
        for _ in range(-(-options.times // TURN)):
            for side, engine in engines.items():
                answer = _ask(engine, {"times": TURN})
                found[side] += answer["timings"]
                took[side] += answer["seconds"]
        for engine in engines.values():
            engine.kill()
        for side in sides:
            print(_row(name, side, np.array(found[side]), took[side]), flush=True)


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
        task, chosen, others, at = None, None, np.empty(0), 0
        for line in sys.stdin:
            asked = json.loads(line)
            if "op" in asked:
                task = prepare(asked["op"], space="template").tasks[0]
                real = pool.realise(task, task.space.sample(3 * OTHERS, np.random.default_rng(0)))
                rows = np.unique(real.codes[[w is None for w in real.why]], axis=0)
                timed = [t for t in pool.measure(task, rows, Bar(flops=task.flops)) if t.error is None]
                timed.sort(key=lambda t: t.latency_s)
                chosen = np.array(asked["row"] or timed[0].config)
                others = np.array([t.config for t in timed if t.config != tuple(chosen)][:OTHERS])
                print(json.dumps({"row": chosen.tolist()}), flush=True)
                continue
            assert task is not None and chosen is not None
            began, timings = time.monotonic(), []
            for _ in range(asked["times"]):
                batch = np.stack([others[at % len(others)], chosen])
                at += 1
                for t in pool.measure(task, batch, Bar(flops=task.flops)):
                    if t.config == tuple(chosen):
                        n = getattr(t, "noise", None)  # engines from before 2026-11 do not have it
                        timings.append([t.latency_s, *((0, 0) if n is None else (n.discarded, n.slowdown))])
            print(json.dumps({"timings": timings, "seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main()
