"""Verification tried: how many programs broken on purpose pass, and how much of what is allowed right ones use.

    hatch run python benchmarks/verification.py [--rows 20] [--sites 3] [--ops OP ...]

For each operator of `integration/mutants.py` and each of `--ops` random rows are built and checked: none may be
refused. "used" is the largest error over what is allowed there, of all elements, draws and rows, beside so many nudged
runs. Then a row of each operator is broken in every way, at up to `--sites` places: none may pass but those that
compute the same bits.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))


def used(one, candidate) -> float:
    """The largest error of a program over what is allowed there."""
    from tt_core.compiler.reference import apart

    worst, work = 0.0, one.work
    for draw in work.reference().draws():
        got = work.outputs(candidate._call, draw, candidate._repacked)
        for a, b, allowed in zip(got, draw.want, draw.allowed, strict=True):
            with np.errstate(all="ignore"):
                worst = max(worst, float(np.nanmax(apart(a, b) / allowed, initial=0.0)))
    return worst


def right(one, name: str, rows: int) -> None:
    begin = time.perf_counter()
    draws = one.work.reference().draws()
    made_s = time.perf_counter() - begin
    most, seconds, refused = 0.0, [], 0
    for row, candidate in one.candidates(rows):
        begin = time.perf_counter()
        why = candidate.check()
        seconds.append(time.perf_counter() - begin)
        if why is not None:
            refused += 1
            print(f"  REFUSED {name}: {why} {one.task.space.decode(row)}")
        most = max(most, used(one, candidate))
    runs = max(d.nudges for d in draws)
    print(
        f"{name}: {len(seconds)} rows, {refused} refused, used {most:.2f} of {runs} runs; reference {made_s:.2f} s,"
        f" check {1e3 * np.median(seconds or [0.0]):.0f} ms; {one.work.reference().doubts or ''}",
        flush=True,
    )


def broken(one, name: str, sites: int) -> tuple[int, int]:
    """Mutants that differ from their program, and those among them that pass."""
    from integration.mutants import HARMLESS, MUTATIONS, mutants

    row, candidate = next(one.candidates(1))
    want, count, passed = one.outputs(candidate), 0, 0
    for mutation in MUTATIONS:
        for mod in mutants(one.work.schedule(row).mod, mutation, sites):
            try:
                mutant = one.broken(candidate, mod)
            except RuntimeError:  # LLVM does not build each of them
                continue
            why = mutant.check()
            same = why is None and all(
                np.array_equal(a, b, equal_nan=True) for a, b in zip(one.outputs(mutant), want, strict=True)
            )
            if same or (why is None and (name, mutation) in HARMLESS):
                continue
            count += 1
            if why is None:
                passed += 1
                print(f"  PASSED {name}: {mutation}, used {used(one, mutant):.2f}")
    print(f"{name}: {count} broken, {passed} passed", flush=True)
    return count, passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument(
        "--ops", nargs="*", default=[], help='models of one operator, e.g. "op:conv2d:1,64,56,64,3,1,1"'
    )
    args = parser.parse_args()

    from integration.mutants import OPERATORS, opened

    OPERATORS.update({op: (op, "both", "") for op in args.ops})
    total = np.zeros(2, dtype=int)
    for name in OPERATORS:
        one = opened(name)
        right(one, name, args.rows)
        if args.sites and name not in args.ops:
            total += broken(one, name, args.sites)
    print(f"in all: {total[0]} broken, {total[1]} passed")


if __name__ == "__main__":
    main()
