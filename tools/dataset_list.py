"""Writes the list of operators that tt dataset record measures: python tools/dataset_list.py [--check]

TVM's table of operators, random shapes of a fixed seed, and the zoo at batch 1 and 8; of the random ones none is held
out. Kinds take turns, so that a session that is cut short has some of each.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tt_bench.dataset_record import LIST
from tt_bench.held_out import held_out
from tt_spec import Knob, Space, Task

HEAD = """\
# What tt dataset record measures where no list is given, a model a line; see docs/datasets.md.
# Written by tools/dataset_list.py.
"""

FOUR = ["C1D", "C2D", "GMM", "GRP", "DIL", "DEP", "T2D", "NRM", "SFM", "TBG"]
TABLE = {**dict.fromkeys(FOUR, 4), "CAP": 3, "CBR": 3}
"""Names in TVM's table of operators, and how many of their shapes."""

ZOO = (
    "mobilenet_v2 tasks=conv2d*,mean*",
    "mobilenet_v2@8 tasks=depthwise*",
    "inception_v2 tasks=*pool2d*",
    "bert-tiny",
    "bert-tiny@8 tasks=*softmax*,*layer_norm*,*matmul*",
    "resnet50@8 tasks=conv2d_add_relu_1*,max_pool*,mean*",
)

CHANNELS = (16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 240, 256, 320)
DEEP = (32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512)
WIDE = (320, 384, 448, 512, 640)
LONG = 1 << 20
"""Elements of weights that, transformed, no second cache holds."""

IMAGES = (7, 10, 13, 14, 17, 20, 26, 28, 35, 40, 52, 56)
WIDTHS = (64, 96, 128, 160, 256, 384, 512, 640, 1000, 1024, 1536, 2048)
MOST = 6e8
"""Floating-point operations of a random operator at most: 400 timings of each must not take hours."""


@dataclass(frozen=True)
class Drawn:
    """A random operator: how `op:` names it, its kind and shapes as a task has them, and its operations."""

    name: str
    op: str
    shapes: str
    flops: float

    @property
    def kept(self) -> bool:
        """Whether it may be in the list."""
        task = Task("", "", self.op, "", (Space((Knob("none", "choice", (0,)),)),), 0.0, shapes=self.shapes)
        return 1e6 <= self.flops <= MOST and not held_out(task)


def conv2d(rng: np.random.Generator) -> Drawn:
    n, ci, hw, co = rng.choice((1, 1, 2, 8)), rng.choice(CHANNELS), rng.choice(IMAGES), rng.choice(CHANNELS)
    k, s = rng.choice((1, 1, 3, 3, 5)), rng.choice((1, 1, 2))
    return convolution(n, ci, hw, co, k, s)


def winograd(rng: np.random.Generator) -> Drawn:
    """A convolution that Winograd can compute; of the kinds above few are."""
    return convolution(rng.choice((1, 1, 1, 2)), rng.choice(DEEP), rng.choice(IMAGES), rng.choice(DEEP), 3, 1)


def heavy(rng: np.random.Generator) -> Drawn:
    """The same, of so many weights that reading them decides which form of Winograd is the best."""
    while True:
        ci, hw, co = rng.choice(WIDE), rng.choice((6, 7, 8, 10, 12, 14)), rng.choice(WIDE)
        if ci * co >= LONG // 9:
            return convolution(1, ci, hw, co, 3, 1)


def convolution(n: int, ci: int, hw: int, co: int, k: int, s: int) -> Drawn:
    """A square convolution of `k` x `k` and stride `s`, padded by half its kernel."""
    out = (hw + 2 * (k // 2) - k) // s + 1
    shapes = f"{n}x{hw}x{hw}x{ci}, {k}x{k}x{ci}x{co} -> {n}x{out}x{out}x{co}"
    return Drawn(f"op:conv2d:{n},{ci},{hw},{co},{k},{s},{k // 2}", "conv2d", shapes, 2.0 * n * out**2 * ci * co * k * k)


def dwconv2d(rng: np.random.Generator) -> Drawn:
    n, c, hw = rng.choice((1, 1, 2, 8)), rng.choice(CHANNELS), rng.choice(IMAGES)
    k, s = rng.choice((3, 3, 5)), rng.choice((1, 1, 2))
    out = (hw + 2 * (k // 2) - k) // s + 1
    shapes = f"{n}x{hw}x{hw}x{c}, {k}x{k}x1x{c} -> {n}x{out}x{out}x{c}"
    return Drawn(f"op:dwconv2d:{n},{c},{hw},{k},{s},{k // 2}", "dwconv2d", shapes, 2.0 * n * out**2 * c * k * k)


def matmul(rng: np.random.Generator) -> Drawn:
    m, n, k = rng.choice((1, 8, 16, 32, 49, 64, 128, 196, 384)), rng.choice(WIDTHS), rng.choice(WIDTHS)
    return Drawn(f"op:matmul:{m},{n},{k}", "matmul", f"{m}x{k}, {k}x{n} -> {m}x{n}", 2.0 * m * n * k)


def batch_matmul(rng: np.random.Generator) -> Drawn:
    b, m, n, k = (
        rng.choice((2, 4, 8, 12, 16)),
        *rng.choice((16, 32, 49, 64, 96, 128, 196, 256), 2),
        rng.choice((32, 64, 80, 128)),
    )
    return Drawn(f"op:batch_matmul:{b},{m},{n},{k}", "matmul", f"{b}x{m}x{k} -> {b}x{m}x{n}", 2.0 * b * m * n * k)


def drawn(make: Callable[[np.random.Generator], Drawn], n: int, seed: int) -> list[str]:
    """`n` different random operators of a kind."""
    rng = np.random.default_rng(seed)
    found: dict[str, None] = {}
    while len(found) < n:
        if (one := make(rng)).kept:
            found[one.name] = None
    return list(found)


def main() -> None:
    """Write the list, or say whether it is as it would be written."""
    table = [f"op:{name}:{i}" for i in range(4) for name, n in TABLE.items() if i < n]
    random = [
        drawn(make, n, seed)
        for seed, (make, n) in enumerate(
            ((conv2d, 24), (dwconv2d, 10), (matmul, 12), (batch_matmul, 8), (winograd, 24), (heavy, 6))
        )
    ]
    turns = [x for group in itertools.zip_longest(*random) for x in group if x is not None]
    spread = np.concatenate([np.linspace(0, 1, len(part), endpoint=False) for part in (table, turns, ZOO)])
    lines = [*table, *turns, *ZOO]
    text = HEAD + "\n".join(lines[i] for i in np.argsort(spread, kind="stable")) + "\n"
    if "--check" in sys.argv[1:]:
        sys.exit(None if LIST.read_text(encoding="utf-8") == text else f"{LIST} is out of date: run {sys.argv[0]}")
    LIST.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
