"""Writes the list of operators that tt dataset record measures: python tools/dataset_list.py [--check]

TVM's table of operators, random shapes of a fixed seed, and the zoo at batch 1 and 8; of the random ones none is held
out. Kinds take turns, so that a session that is cut short has some of each.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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

EPILOGUES = ("", "+bias", "+bias+relu", "+bias+relu6", "+bias+hardswish", "+bias+silu", "+bias+add", "+bias+add+relu")
"""What follows those of the kinds below that are followed by anything; the others stand alone."""

FEW = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
SMALL = (3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24)
LARGE = (64, 72, 80, 96, 104, 112, 128, 144, 150, 160)
TINY = 4e6
"""Floating-point operations of a tiny operator at most, of which the smallest do ten thousand."""


@dataclass(frozen=True)
class Drawn:
    """A random operator: how `op:` names it, its kind and shapes as a task has them, and its operations."""

    name: str
    op: str
    shapes: str
    flops: float
    least: float = 1e6

    @property
    def kept(self) -> bool:
        """Whether it may be in the list."""
        task = Task("", "", self.op, "", (Space((Knob("none", "choice", (0,)),)),), 0.0, shapes=self.shapes)
        return self.least <= self.flops <= MOST and not held_out(task)

    def followed(self, rng: np.random.Generator, steps: Sequence[str] = EPILOGUES) -> Drawn:
        """The same, fused with what may follow it in a network."""
        _, kind, numbers = self.name.split(":")
        return replace(self, name=f"op:{kind}{rng.choice(steps)}:{numbers}")


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


def tiny(rng: np.random.Generator) -> Drawn:
    """What small networks are made of: a few microseconds, of which starting a thread is the most."""
    while True:
        match rng.integers(5):
            case 0:  # a squeeze-and-excitation, or a classifier's last layer
                one = convolution(1, rng.choice(FEW), 1, rng.choice(FEW), 1, 1)
                one = one.followed(rng, ("+bias", "+bias+relu", "+bias+sigmoid", "+bias+hardswish"))
            case 1:
                one = convolution(1, rng.choice(FEW), rng.choice(SMALL), rng.choice(FEW), 1, 1).followed(rng)
            case 2:
                one = convolution(1, rng.choice(FEW), rng.choice(SMALL), rng.choice(FEW), 3, rng.choice((1, 2)))
                one = one.followed(rng)
            case 3:
                one = depthwise(1, rng.choice(FEW), rng.choice(SMALL), rng.choice((3, 5)), rng.choice((1, 2)))
                one = one.followed(rng, EPILOGUES[:6])
            case _:
                one = product(rng.choice((1, 4, 8, 16, 40)), *rng.choice((16, 32, 48, 64, 96, 128, 192), 2))
                one = one.followed(rng, EPILOGUES[:6])
        if one.flops <= TINY:
            return replace(one, least=1e4)


def stem(rng: np.random.Generator) -> Drawn:
    """A network's first layer: three channels of a large image."""
    hw, co = rng.choice((96, 112, 128, 160, 192, 240, 256)), rng.choice((16, 24, 32, 48, 64))
    return convolution(1, 3, hw, co, rng.choice((3, 3, 5, 7)), 2).followed(rng, EPILOGUES[1:6])


def large(rng: np.random.Generator) -> Drawn:
    """Few channels of a large image, as in the first stages of a network."""
    c, hw = rng.choice((16, 24, 32, 48, 64, 96)), rng.choice(LARGE)
    match rng.integers(3):
        case 0:
            return convolution(1, c, hw, rng.choice((16, 24, 32, 48, 64, 96)), 1, 1).followed(rng)
        case 1:
            return convolution(1, c, hw, rng.choice((16, 24, 32, 48, 64)), 3, rng.choice((1, 2))).followed(rng)
        case _:
            return depthwise(1, c, hw, rng.choice((3, 5)), rng.choice((1, 2, 2))).followed(rng, EPILOGUES[:6])


def convolution(n: int, ci: int, hw: int, co: int, k: int, s: int) -> Drawn:
    """A square convolution of `k` x `k` and stride `s`, padded by half its kernel."""
    out = (hw + 2 * (k // 2) - k) // s + 1
    shapes = f"{n}x{hw}x{hw}x{ci}, {k}x{k}x{ci}x{co} -> {n}x{out}x{out}x{co}"
    return Drawn(f"op:conv2d:{n},{ci},{hw},{co},{k},{s},{k // 2}", "conv2d", shapes, 2.0 * n * out**2 * ci * co * k * k)


def dwconv2d(rng: np.random.Generator) -> Drawn:
    n, c, hw = rng.choice((1, 1, 2, 8)), rng.choice(CHANNELS), rng.choice(IMAGES)
    k, s = rng.choice((3, 3, 5)), rng.choice((1, 1, 2))
    return depthwise(n, c, hw, k, s)


def depthwise(n: int, c: int, hw: int, k: int, s: int) -> Drawn:
    """As `convolution`, of each channel alone."""
    out = (hw + 2 * (k // 2) - k) // s + 1
    shapes = f"{n}x{hw}x{hw}x{c}, {k}x{k}x1x{c} -> {n}x{out}x{out}x{c}"
    return Drawn(f"op:dwconv2d:{n},{c},{hw},{k},{s},{k // 2}", "dwconv2d", shapes, 2.0 * n * out**2 * c * k * k)


def matmul(rng: np.random.Generator) -> Drawn:
    m, n, k = rng.choice((1, 8, 16, 32, 49, 64, 128, 196, 384)), rng.choice(WIDTHS), rng.choice(WIDTHS)
    return product(m, n, k)


def product(m: int, n: int, k: int) -> Drawn:
    """A matrix of `m` x `k` times one of `k` x `n`."""
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


KINDS = (
    (conv2d, 24),
    (dwconv2d, 10),
    (matmul, 12),
    (batch_matmul, 8),
    (winograd, 24),
    (heavy, 6),
    (tiny, 40),
    (stem, 8),
    (large, 16),
)
"""What is drawn, and how many; the place is the seed."""


def main() -> None:
    """Write the list, or say whether it is as it would be written."""
    table = [f"op:{name}:{i}" for i in range(4) for name, n in TABLE.items() if i < n]
    random = [drawn(make, n, seed) for seed, (make, n) in enumerate(KINDS)]
    turns = [x for group in itertools.zip_longest(*random) for x in group if x is not None]
    spread = np.concatenate([np.linspace(0, 1, len(part), endpoint=False) for part in (table, turns, ZOO)])
    lines = [*table, *turns, *ZOO]
    text = HEAD + "\n".join(lines[i] for i in np.argsort(spread, kind="stable")) + "\n"
    if "--check" in sys.argv[1:]:
        sys.exit(None if LIST.read_text(encoding="utf-8") == text else f"{LIST} is out of date: run {sys.argv[0]}")
    LIST.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
