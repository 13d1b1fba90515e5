"""Design spaces as integer matrices: what searches, learns or stores needs no compiler."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

__all__ = ["Knob", "Limit", "Space", "token", "tokens"]

Kind = Literal["tile", "choice", "location"]


@dataclass(frozen=True)
class Knob:
    """One decision of a schedule.

    Args:
        name: Unique in its space.
        kind: "tile" (choices are tuples of factors, outermost first), "choice" or "location" (a loop's index).
        choices: What the knob may be; a configuration stores an index into it.
        active_if: `(index of an earlier knob, codes)`: the knob matters only where that knob is active and has
            one of these codes. None means always.
        prior: How random rows divide between the choices, positive, in any unit; None is evenly. Says where to look,
            not what a row means.
    """

    name: str
    kind: Kind
    choices: tuple[Any, ...]
    active_if: tuple[int, tuple[int, ...]] | None = None
    prior: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("tile", "choice", "location"):
            raise ValueError(f"knob {self.name!r}: kind must be tile, choice or location, got {self.kind!r}")
        if not self.choices:
            raise ValueError(f"knob {self.name!r} has no choices: give at least one")
        if self.kind == "tile" and len({len(c) for c in self.choices}) != 1:
            raise ValueError(f"knob {self.name!r}: every tile needs the same number of factors")
        if self.prior is not None and (len(self.prior) != len(self.choices) or min(self.prior) <= 0):
            raise ValueError(f"knob {self.name!r}: a prior is one positive number for each of its choices")

    @property
    def ordered(self) -> bool:
        """Whether the choices are numbers, so that their order carries meaning."""
        return self.kind != "tile" and all(isinstance(c, int | float) for c in self.choices)

    @property
    def table(self) -> np.ndarray:
        """Features of each choice, (choices, p) float64: log2 of factors, log2(1 + v), or one-hot."""
        if self.kind == "tile":
            return np.log2(np.asarray(self.choices, dtype=np.float64))
        if self.ordered:
            values = np.asarray(self.choices, dtype=np.float64)
            return np.log2(1.0 + values - min(values.min(), 0.0))[:, None]
        return np.eye(len(self.choices)) if len(self.choices) > 1 else np.zeros((1, 1))


@dataclass(frozen=True)
class Limit:
    """A product of tile factors that may not exceed a bound: register pressure, unrolled body size.

    Args:
        factors: `(knob index, factor index)` pairs whose product is bounded; inactive knobs count as 1.
        at_most: The largest product that is allowed.
        why: One phrase for the error message.
    """

    factors: tuple[tuple[int, int], ...]
    at_most: float
    why: str


@dataclass(frozen=True)
class Space:
    """A finite set of configurations, each a row of `d` choice indices (int64).

    Args:
        knobs: In order; a knob may depend on earlier ones only.
        version: Changes whenever the meaning of a row changes, so that old rows are never reinterpreted.
        limits: What is known invalid without building.
        name: Which kind of space it is, e.g. "sketch"; of several joined ones, "template+winograd".
    """

    knobs: tuple[Knob, ...]
    version: str = "1"
    limits: tuple[Limit, ...] = ()
    name: str = "space"
    key: str = field(init=False, default="")

    def __post_init__(self) -> None:
        names = [k.name for k in self.knobs]
        if not names:
            raise ValueError("a space needs at least one knob")
        if len(set(names)) != len(names):
            raise ValueError(f"knob names must differ, got {names}")
        for i, k in enumerate(self.knobs):
            if k.active_if is not None and not 0 <= k.active_if[0] < i:
                raise ValueError(f"knob {k.name!r} depends on knob {k.active_if[0]}, which is not before it")
        text = json.dumps(
            [
                self.name,
                self.version,
                [[k.name, k.kind, k.choices, k.active_if] for k in self.knobs],
                [[x.factors, x.at_most] for x in self.limits],
            ],
            separators=(",", ":"),
            default=_plain,
        )
        object.__setattr__(self, "key", hashlib.sha256(text.encode()).hexdigest()[:16])

    @cached_property
    def parts(self) -> frozenset[str]:
        """Names of the spaces that are joined in this one, as `Space.name` lists them: the algorithms it offers."""
        return frozenset(self.name.split("+"))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of choices of each knob."""
        return tuple(len(k.choices) for k in self.knobs)

    @cached_property
    def size(self) -> int:
        """Number of distinct (canonical) rows, limits not subtracted."""
        children: dict[int, list[int]] = {}
        for i, k in enumerate(self.knobs):
            children.setdefault(-1 if k.active_if is None else k.active_if[0], []).append(i)

        def count(i: int) -> int:
            below = children.get(i, [])
            if not below:
                return self.shape[i]
            return sum(
                math.prod(count(j) for j in below if code in (self.knobs[j].active_if or (0, ()))[1])
                for code in range(self.shape[i])
            )

        return math.prod(count(i) for i in children.get(-1, []))

    @cached_property
    def _tables(self) -> list[np.ndarray]:
        return [k.table for k in self.knobs]

    @cached_property
    def _shape(self) -> np.ndarray:
        return np.asarray(self.shape, dtype=np.int64)

    @cached_property
    def _switches(self) -> list[np.ndarray]:
        """For each conditional knob, which of its parent's codes switch it on, `(choices of the parent,)` bool."""
        return [
            np.isin(np.arange(self.shape[k.active_if[0]]), k.active_if[1]) if k.active_if else np.ones(1, dtype=bool)
            for k in self.knobs
        ]

    def _rows(self, codes: Any) -> np.ndarray:
        codes = np.asarray(codes, dtype=np.int64)
        if codes.ndim != 2 or codes.shape[1] != len(self.knobs):
            raise ValueError(f"codes must be (n, {len(self.knobs)}), got {codes.shape}")
        return codes

    def decode(self, row: Sequence[int] | np.ndarray) -> dict[str, Any]:
        """The values of one row's active knobs, by name."""
        codes = self._rows(np.asarray(row)[None])
        if not self.in_range(codes)[0]:
            raise ValueError(f"row {list(map(int, row))} is outside the space's shape {self.shape}")
        on = self.active(codes)[0]
        return {k.name: k.choices[int(c)] for k, c, a in zip(self.knobs, codes[0], on, strict=True) if a}

    def encode(self, codes: np.ndarray) -> np.ndarray:
        """Features `(n, p)` float64: log2 of each factor, log2 of ordered values, one-hot of the rest."""
        codes = self._rows(codes)
        on = self.active(codes)
        return np.concatenate([t[codes[:, i]] * on[:, i : i + 1] for i, t in enumerate(self._tables)], axis=1)

    def active(self, codes: np.ndarray) -> np.ndarray:
        """The knobs that matter in each row, `(n, d)` bool."""
        codes = self._rows(codes)
        on = np.ones(codes.shape, dtype=bool)
        for i, k in enumerate(self.knobs):
            if k.active_if is not None:
                parent, inside = k.active_if[0], self._switches[i]
                known = np.minimum(np.maximum(codes[:, parent], 0), len(inside) - 1)  # np.clip takes thrice as long
                on[:, i] = on[:, parent] & inside[known] & (known == codes[:, parent])
        return on

    def canonical(self, codes: np.ndarray) -> np.ndarray:
        """The same programs with inactive knobs set to 0, so that one program has one row."""
        codes = self._rows(codes)
        return np.where(self.active(codes), codes, 0)

    def in_range(self, codes: np.ndarray) -> np.ndarray:
        """The rows that index existing choices, `(n,)` bool."""
        codes = self._rows(codes)
        return np.asarray(((codes >= 0) & (codes < self._shape)).all(axis=1))

    def allowed(self, codes: np.ndarray) -> np.ndarray:
        """The rows that are not known to be invalid, `(n,)` bool; costs no build."""
        codes = self._rows(codes)
        ok = self.in_range(codes)
        if self.limits and ok.any():
            inside = codes[ok]
            on = self.active(inside)
            good = np.ones(len(inside), dtype=bool)
            for limit in self.limits:
                product = np.zeros(len(inside))
                for knob, factor in limit.factors:
                    product += self._tables[knob][inside[:, knob], factor] * on[:, knob]
                good &= product <= math.log2(limit.at_most) + 1e-9
            ok[ok] = good
        return ok

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """`n` canonical, allowed rows, drawn independently by the knobs' priors; fewer if hardly any is allowed."""
        found = np.empty((0, len(self.knobs)), dtype=np.int64)
        for _ in range(64):
            rows = rng.integers(0, self._shape, size=(max(n, 16), len(self.knobs)))
            for i, k in enumerate(self.knobs):
                if k.prior is not None:
                    rows[:, i] = rng.choice(len(k.prior), size=len(rows), p=np.divide(k.prior, sum(k.prior)))
            rows = self.canonical(rows)
            found = np.concatenate([found, rows[self.allowed(rows)]])
            if len(found) >= n:
                break
        return found[:n]

    def mutate(self, codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Each row with one active knob re-drawn to another value (AutoTVM's move); canonical, allowed or unchanged."""
        codes = self._rows(codes)
        if not len(codes):
            return codes.copy()
        on = self.active(codes)
        movable = on & (self._shape > 1)
        knob = np.where(movable, rng.random(codes.shape), -1.0).argmax(axis=1)
        rows = np.arange(len(codes))
        fresh = np.where(on, codes, rng.integers(0, self._shape, size=codes.shape))
        step = rng.integers(1, np.maximum(self._shape[knob], 2))
        moved = movable.any(axis=1)
        fresh[rows, knob] = np.where(moved, (codes[rows, knob] + step) % self._shape[knob], codes[rows, knob])
        fresh = self.canonical(fresh)
        return np.where((moved & self.allowed(fresh))[:, None], fresh, codes)

    def neighbours(self, row: Sequence[int] | np.ndarray) -> np.ndarray:
        """Rows one small step away, `(m, d)`: one prime moved between two factors of a tile, or one factor to the next
        larger or smaller that some choice has; the next or previous value of an ordered knob, any other value of an
        unordered one."""
        base = self.canonical(np.asarray(row, dtype=np.int64)[None])[0]
        on = self.active(base[None])[0]
        found = []
        for i, k in enumerate(self.knobs):
            if not on[i]:
                continue
            for code in _near(k, int(base[i])):
                new = base.copy()
                new[i] = code
                found.append(new)
        if not found:
            return np.empty((0, len(self.knobs)), dtype=np.int64)
        rows = self.canonical(np.stack(found))
        return np.unique(rows[self.allowed(rows)], axis=0)

    def enumerate(self) -> Iterator[np.ndarray]:
        """Every canonical, allowed row in lexicographic order; for small spaces."""
        rows = self._below([], [])
        while chunk := list(itertools.islice(rows, 1024)):
            codes = np.asarray(chunk, dtype=np.int64)
            yield from codes[self.allowed(codes)]

    def _below(self, row: list[int], on: list[bool]) -> Iterator[list[int]]:
        """Canonical rows that begin with `row`, whose knobs are `on`: inactive knobs do not multiply the work."""
        i = len(row)
        if i == len(self.knobs):
            yield row
            return
        condition = self.knobs[i].active_if
        here = condition is None or (on[condition[0]] and row[condition[0]] in condition[1])
        for code in range(self.shape[i] if here else 1):
            yield from self._below([*row, code], [*on, here])


def token(row: Sequence[int] | np.ndarray) -> bytes:
    """The bytes of a row: what it is known by in sets and dictionaries.

    Args:
        row: `(d,)`, any integer dtype or order in memory.
    """
    return np.ascontiguousarray(row, dtype=np.int64).tobytes()


def tokens(codes: Sequence[Sequence[int]] | np.ndarray) -> list[bytes]:
    """The `token` of each row of `codes` `(n, d)`, in order."""
    codes = np.ascontiguousarray(codes, dtype=np.int64)
    if codes.ndim != 2:
        raise ValueError(f"codes must be (n, d), got {codes.shape}: `token` takes a single row")
    return [row.tobytes() for row in codes]


def _plain(choice: Any) -> Any:
    if isinstance(choice, np.generic):
        return choice.item()
    raise ValueError(f"choices must be numbers, text or tuples of them, got {type(choice).__name__}: {choice!r}")


def _near(knob: Knob, code: int) -> list[int]:
    if knob.kind == "tile":
        here = knob.choices[code]
        total = math.prod(here)
        moved = [
            j
            for j, other in enumerate(knob.choices)
            if j != code and math.prod(other) == total and _one_prime_moved(here, other)
        ]
        return moved + _one_factor_stepped(knob, here)
    if knob.ordered:
        return [j for j in (code - 1, code + 1) if 0 <= j < len(knob.choices)]
    return [j for j in range(len(knob.choices)) if j != code]


def _one_factor_stepped(knob: Knob, here: tuple[int, ...]) -> list[int]:
    """Choices that differ from `here` in one factor, which is the next larger or smaller of all such choices."""
    nearest: dict[tuple[int, bool], int] = {}
    for j, other in enumerate(knob.choices):
        differ = [i for i in range(len(here)) if here[i] != other[i]]
        if len(differ) == 1:
            i = differ[0]
            side = (i, other[i] > here[i])
            best = nearest.get(side)
            if best is None or abs(other[i] - here[i]) < abs(knob.choices[best][i] - here[i]):
                nearest[side] = j
    return list(nearest.values())


def _one_prime_moved(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    differ = [i for i in range(len(a)) if a[i] != b[i]]
    if len(differ) != 2:
        return False
    small, large = sorted((a[differ[0]], b[differ[0]]))
    step = large / small
    return step == int(step) and all(int(step) % p for p in range(2, math.isqrt(int(step)) + 1))
