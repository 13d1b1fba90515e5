"""Whether a program computes what the untuned one computes: on three draws of inputs, element by element.

Two right programs of one operator add in different orders, so they differ in the last places. By how much depends on
the element: a sum that cancels loses more than one that does not, and beside an output of 20,000 an output of 0 that
should be 1 is wrong. So the bound of each element is measured. A stable program's result is the exact one of inputs
that differ by some units in the last place (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section
1.5), for a sum of n values by about sqrt(n) of them (Higham and Mary, A New Approach to Probabilistic Rounding Error
Analysis, 2019, doi:10.1137/18M1226312). The inputs are nudged by `NUDGE` sqrt(n) eps, and an element may be off by
`FACTOR` times what that does to it. Winograd's programs, the worst, use up to three quarters of it
(`benchmarks/verification.py`); more nudged runs are made before a program is refused. A sum of normal products that
misses one of n is off by about 80,000 / n times what is allowed.

Three draws, since what is wrong may not show on normal numbers: those; zeros and negative ones; large ones and
denormals. Where the reference tells nothing, being infinite, the same everywhere or lost in rounding, others are drawn.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import tvm

from tt_core.compiler.arrays import compare, is_float, nudged, random_array
from tt_core.compiler.primfunc import floats, outputs, parameter_bound, rounds
from tt_core.compiler.quick import depths

__all__ = ["EPS", "Draw", "Recent", "Reference", "apart", "doubt", "drawn", "fault", "rounding", "variants"]

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Distance from 1 to the next number."""

LEAST = {"float64": 1e-290, "float32": 1e-30, "float16": 1e-6, "bfloat16": 1e-30}
"""What may be left of denormals, which one program computes and the other takes for zeros."""

NUDGE, FACTOR = 16.0, 4.0
"""Units in the last place by which inputs are nudged, times sqrt(n); and how much more than the largest effect of that
an element may be off: few nudges may all leave it where it is."""

COARSE = 2.0**-5
"""The largest nudge, whatever the precision: beyond it nothing would be told apart."""

PLACES = 16.0
"""Units in its last place by which an element may be off for its own rounding: approximations of exp and the like."""

FIRST, MORE = 4, 12
"""Nudged runs for every program, and those added before one is refused."""

BIG, BIG_WEIGHT = 2**24, 2**18
"""A first parameter of more values, and others of more, are the same in all draws: they would have to fit into a
worker's memory three times, and big weights are slow to put into another form."""

Change = Callable[[np.ndarray, np.random.Generator], np.ndarray]


class Placed(Protocol):
    """An array on the device."""

    def numpy(self) -> np.ndarray: ...


@dataclass
class Draw:
    """Inputs, and what the untuned program makes of them.

    Args:
        want: Its outputs.
        allowed: How far each element may be off: arrays of the outputs' shapes.
        doubt: Why these outputs tell nothing, if they do not.
        nbytes: Memory of its own, in bytes.
    """

    name: str
    inputs: list[Placed]
    want: list[np.ndarray]
    allowed: list[np.ndarray]
    doubt: str | None = None
    nudges: int = field(default=0, repr=False)
    nbytes: int = field(default=0, repr=False)


class Reference:
    """What programs of one workload are compared with.

    Args:
        func: The untuned program.
        base: Random inputs on the device, from which those of the draws are made; see `drawn`.
        run: Runs the program on arrays and returns its outputs.
        place: Puts an array where programs can read it.
    """

    def __init__(
        self,
        func: tvm.tirx.PrimFunc,
        base: Sequence[Placed],
        run: Callable[[Sequence[np.ndarray]], list[np.ndarray]],
        place: Callable[[np.ndarray], Placed],
    ) -> None:
        self.func, self.base, self.run, self.place = func, base, run, place
        self.rounds = rounds(func)
        self._doubts: list[str] | None = None
        self._draws: list[Draw] = []

    def draws(self) -> list[Draw]:
        """The three draws; made when first asked for."""
        if not self._draws:
            self._draws = [self._draw(i) for i in range(len(DRAWS))]
            self._doubts = [f"{d.name}: {d.doubt}" for d in self._draws if d.doubt]
        return self._draws

    def fault(self, draw: Draw, got: Sequence[np.ndarray]) -> str | None:
        """How a program's outputs on a draw are wrong, or None."""
        found = self._fault(draw, got)
        if found is not None and draw.nudges == FIRST:
            self._nudge(draw, MORE)
            found = self._fault(draw, got)
        return found

    @property
    def doubts(self) -> list[str]:
        """Draws that tell nothing, and why."""
        if self._doubts is None:
            self.draws()
        return self._doubts or []

    @property
    def nbytes(self) -> int:
        """Memory of the draws, in bytes, without inputs that all of them share."""
        return sum(d.nbytes for d in self._draws)

    def forget(self) -> None:
        """Let go of the draws; the same ones are made when asked for again."""
        self._draws = []

    def _fault(self, draw: Draw, got: Sequence[np.ndarray]) -> str | None:
        for i, (a, b, allowed) in enumerate(zip(got, draw.want, draw.allowed, strict=True)):
            if (wrong := fault(a, b, allowed, self.rounds)) is not None:
                where = f"output {i}: " if len(draw.want) > 1 else ""
                return where + wrong + (f" ({draw.name})" if draw is not self._draws[0] else "")
        return None

    def _draw(self, number: int) -> Draw:
        """The first of a draw's variants that tells something, else the last of the finite ones."""
        name, variants = DRAWS[number]
        base = [a.numpy() for a in self.base]
        best: Draw | None = None
        for tried, (first, others) in enumerate(variants):
            rng = np.random.default_rng([number, tried])
            changes = [(first, BIG), *[(others, BIG_WEIGHT)] * (len(base) - 1)]
            inputs = [a if a.size > big else change(a, rng) for a, (change, big) in zip(base, changes, strict=False)]
            placed = [p if a is b else self.place(a) for p, a, b in zip(self.base, inputs, base, strict=True)]
            want = self.run(inputs)
            draw = Draw(name, placed, want, [np.zeros(w.shape, np.float32) for w in want])
            draw.nbytes = sum(a.nbytes for a, b in zip(inputs, base, strict=True) if a is not b)
            draw.nbytes += sum(2 * w.nbytes for w in want)
            self._nudge(draw, FIRST)
            draw.doubt = next((d for w, a in zip(want, draw.allowed, strict=True) if (d := doubt(w, a))), None)
            if draw.doubt is None:
                return draw
            if best is None or all(np.isfinite(w).all() for w in want if w.dtype.kind == "f"):
                best = draw
        assert best is not None
        return best

    def _nudge(self, draw: Draw, times: int) -> None:
        """Allow what nudging the inputs of a draw does to each element."""
        inputs = [a.numpy() for a in draw.inputs]
        share, moves = self._share(), any(is_float(a) for a in inputs)
        effect = [np.zeros(w.shape, np.float32 if w.dtype == np.float32 else np.float64) for w in draw.want]
        for i in range(draw.nudges, draw.nudges + times) if moves else ():
            rng = np.random.default_rng([len(draw.name), i])
            for most, b, c in zip(effect, draw.want, self.run([nudged(a, share, rng) for a in inputs]), strict=True):
                np.maximum(most, apart(c, b), out=most)
        draw.nudges += times
        for i, (want, most) in enumerate(zip(draw.want, effect, strict=True)):
            draw.allowed[i] = np.asarray(np.maximum(draw.allowed[i], rounding(want, most)))

    def _share(self) -> float:
        """By which share of themselves inputs are nudged."""
        coarsest = max((EPS.get(d, EPS["float32"]) for d in floats(self.func)), default=0.0)
        sums = [EPS[d] * math.sqrt(n) for d, n in depths(self.func).items() if d in EPS]
        return min(COARSE, NUDGE * max([coarsest, *sums]))


class Recent:
    """Makes references forget their draws but those that were used last, for a process with many tasks.

    Args:
        most: Memory of all draws together, in bytes. (default: 512 MB)
    """

    def __init__(self, most: int = 512 << 20) -> None:
        self.most = most
        self._references: OrderedDict[Reference, None] = OrderedDict()

    def used(self, reference: Reference) -> None:
        """Say that a reference was used now."""
        self._references[reference] = None
        self._references.move_to_end(reference)
        while len(self._references) > 1 and sum(r.nbytes for r in self._references) > self.most:
            self._references.popitem(last=False)[0].forget()


def drawn(func: tvm.tirx.PrimFunc) -> list[np.ndarray]:
    """Random inputs of a PrimFunc: normal floats, integers that index what is there."""
    rng, below = np.random.default_rng(0), parameter_bound(func)
    params = list(func.params)[: len(func.params) - outputs(func)]
    return [random_array([int(d) for d in p.shape], str(p.dtype), rng, below) for p in params]


def fault(got: np.ndarray, want: np.ndarray, allowed: np.ndarray, rounded: bool = False) -> str | None:
    """None if each element is within what is allowed, else how many are not and by how much.

    Infinities and NaNs stand in the same places. Integers and booleans are equal but where something is allowed, and
    8-bit ones that are `rounded` as `compare` says.
    """
    if got.shape != want.shape:
        return f"shape {got.shape} instead of {want.shape}"
    off = apart(got, want)
    bad = ~(off <= allowed)
    if not bad.any() or (want.dtype.kind in "biu" and compare(got, want, rounded=rounded) is None):
        return None
    wrong = int(bad.sum())
    if want.dtype.kind in "biu":
        return f"{wrong} of {want.size} values differ"
    if not np.isfinite(off[bad]).all():
        return "infinities or NaNs stand in other places than in the untuned program's output"
    values = np.abs(want.astype("float64"))
    largest = float(values[np.isfinite(values)].max(initial=0.0)) or 1.0
    with np.errstate(divide="ignore", over="ignore"):
        times = float((off[bad] / allowed[bad]).max())
    return (
        f"the output differs by {float(off[bad].max()) / largest:.2e} of its largest magnitude"
        f" ({wrong} of {want.size} values, by up to {times:.2g} times what rounding may do)"
    )


def apart(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Absolute differences; infinite where only one is finite, or infinities or NaNs differ."""
    if got.dtype == np.float32 and want.dtype == np.float32:
        with np.errstate(invalid="ignore", over="ignore"):
            off = np.asarray(np.abs(got - want))  # of scalars numpy makes no array
        if np.isfinite(off).all():
            return off
    a, b = got.astype("float64"), want.astype("float64")
    with np.errstate(invalid="ignore"):
        off = np.asarray(np.abs(a - b))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isfinite(a) & np.isfinite(b), off, np.inf))


def rounding(want: np.ndarray, most: np.ndarray) -> np.ndarray:
    """What is allowed where nudging does so much."""
    if not is_float(want):
        return most
    name = str(want.dtype)
    values = np.abs(want if want.dtype == most.dtype else want.astype("float64"))
    values = np.where(np.isfinite(values), values, values.dtype.type(0))
    with np.errstate(over="ignore"):
        return FACTOR * most + PLACES * EPS.get(name, EPS["float32"]) * values + LEAST.get(name, 0.0)


def doubt(want: np.ndarray, allowed: np.ndarray) -> str | None:
    """Why an output of the untuned program tells nothing, or None: a wrong program could make it, too.

    Args:
        allowed: How far each element may be off.
    """
    values = want.astype("float64").ravel()
    if not values.size:
        return None
    if not np.isfinite(values).all():
        return "the untuned program's output is not finite"
    if values.size > 1 and (values == values[0]).all():
        return "the untuned program's output is the same everywhere"
    any_of_them = values[values.size // 2] if values.size > 1 else 0.0
    if is_float(want) and (np.abs(values - any_of_them) <= allowed.ravel()).all():
        return "the untuned program's output is lost in rounding"
    return None


def variants(arrays: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """These inputs, then others of the same shapes for where they tell nothing: positive ones, small ones."""
    for first, others in DRAWS[0][1]:
        rng = np.random.default_rng(0)
        yield [(first if i == 0 else others)(a, rng) for i, a in enumerate(arrays)]


# -- draws ------------------------------------------------------------------------------------------------------------


def _same(a: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return a


def _positive(a: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (np.abs(a) + 0.125).astype(a.dtype) if is_float(a) else a


def _scaled(by: float, below: Change = _same) -> Change:
    """A change, then floats times so much, an eighth of them denormal; an eighth each of the integers the extremes."""

    def change(a: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        a, pick = below(a, rng), rng.random(a.shape)
        if a.dtype.kind in "iu" and a.size:
            return np.where(pick < 0.125, a.min(), np.where(pick > 0.875, a.max(), a)).astype(a.dtype)
        if not is_float(a):
            return a
        denormal = {"float64": 1e-310, "float16": 3e-6}.get(str(a.dtype), 1e-40)
        return np.where(pick < 0.125, denormal, a * by).astype(a.dtype)

    return change


def _sparse(sign: int, share: float = 0.25) -> Change:
    """Zeros among the values, which are all negative, all positive, or as they are."""

    def change(a: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        signed = sign * np.abs(a) if sign and is_float(a) else a
        return np.where(rng.random(a.shape) < share, 0, signed).astype(a.dtype)

    return change


DRAWS: tuple[tuple[str, tuple[tuple[Change, Change], ...]], ...] = (
    (
        "normal numbers",
        ((_same, _same), (_same, _positive), (_positive, _positive), (_scaled(2.0**-6, _positive), _positive)),
    ),
    (
        "zeros and negative numbers",
        ((_sparse(-1), _sparse(0)), (_sparse(-1), _positive), (_sparse(0), _positive), (_sparse(1), _positive)),
    ),
    (
        "large numbers and denormals",
        (
            (_scaled(2.0**10), _scaled(1.0)),
            (_scaled(2.0**10), _positive),
            (_scaled(2.0**4), _positive),
            (_scaled(2.0**4, _positive), _positive),
        ),
    ),
)
"""Each draw's name, and its variants in the order in which they are tried: changes of the first parameter and of the
others."""
