"""The recorded set: six convolutions of ResNet-18, four of MobileNet-V2, four matrix products of a transformer encoder.

    hatch run python benchmarks/recordings.py [--out recordings] [--only conv2d] [--estimate]

Each operator is recorded twice by `tt record`, without the layouts that change around it: every row of an enumerated
sub-space of its templates, and a sample of its sketches. Stop it at any time; the same command goes on. First it prints
how long the rest will take, at the pace of what is recorded, or at 0.25 s a candidate.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from tt_bench.launch import program, tt
from tt_bench.operators import RESNET18

OPERATORS = {
    **RESNET18,
    "mobilenet-dw-96": "op:dwconv2d:1,96,112,3,2,1",
    "mobilenet-dw-192": "op:dwconv2d:1,192,28,3,1,1",
    "mobilenet-1x1-24": "op:conv2d:1,24,56,144,1,1,0",
    "mobilenet-1x1-96": "op:conv2d:1,576,14,96,1,1,0",
    "encoder-qkv": "op:matmul:128,768,768",
    "encoder-up": "op:matmul:128,3072,768",
    "encoder-down": "op:matmul:128,768,3072",
    "encoder-scores": "op:batch_matmul:12,128,128,64",
}
SPACES = {"template": ("--candidates", "all", "--most", "1000"), "sketch": ("--candidates", "500")}
MOST = {"template": 1000, "sketch": 500}
LONG = 82
"""Rows of each that get a long series: 50 from the fastest to the slowest, and the fastest."""
SECONDS = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("recordings"))
    parser.add_argument("--only", default="", help="part of an operator's text or name")
    parser.add_argument("--estimate", action="store_true", help="print how long it will take, and stop")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    jobs = [
        (name, operator, space)
        for space in SPACES
        for name, operator in OPERATORS.items()
        if options.only in name or options.only in operator
    ]
    left = [j for j in jobs if not (options.out / f"{j[0]}-{j[2]}.json.gz").exists()]
    print(f"{len(left)} of {len(jobs)} recordings to make, at most {_hours(left, options.out):.1f} h", flush=True)
    if options.estimate:
        return
    for name, operator, space in left:
        where = ("--out", str(options.out / f"{name}-{space}"), "--tasks", f"*{_kind(operator)}")
        tt("record", operator, "--space", space, *where, *SPACES[space])


def _kind(operator: str) -> str:
    """How the operator's own task is called, without those that only change layouts around it."""
    return operator.split(":")[1].removeprefix("dw")


def _hours(left: list[tuple[str, str, str]], out: Path) -> float:
    pace = _pace(out)
    return sum(MOST[space] * pace + LONG * 4 * pace for _, _, space in left) / 3600


def _pace(out: Path) -> float:
    """Mean seconds from one measured row to the next in what is recorded so far."""
    from tt_spec import Plugins

    gaps = []
    for path in sorted(out.glob("*.db")):
        store = Plugins().build("store", "sqlite", path=str(path))
        times = [m.at for m in store.query() if m.origin == "record"]
        store.close()
        gaps += [b - a for a, b in itertools.pairwise(times) if b - a < 60]
    return sum(gaps) / len(gaps) if len(gaps) > 100 else SECONDS


if __name__ == "__main__":
    program(main)
