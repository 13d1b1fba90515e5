"""Whether a tuned model computes what the untuned one and the model's peer compute.

Two right programs of one model differ in the last places of their floats. How much that may become is measured for each
element (`tt_core.deploy.nudging`), and at most a fixed small share of the largest output. Where the peer shows more
doubt, that share is measured, too: what its own ways to compute differ by, and, of a model that rounds to 8 bits, what
becomes of nudging every rounding (`tt_core.models.model.Roundings`). Where outputs tell nothing, because the untuned
program's are the same everywhere or the peer's ways disagree by more than any bound, other inputs are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tt_core.compiler.arrays import compare, difference, mean_difference
from tt_core.compiler.reference import doubt, variants
from tt_core.deploy.nudging import Nudged
from tt_core.errors import VerificationError, summary
from tt_core.models.model import Arrays, Model

__all__ = ["MODEL_TOLERANCE", "ROUNDED_TOLERANCE", "WORST_TOLERANCE", "Wanted", "telling", "verify", "wanted"]

MODEL_TOLERANCE = 1e-3
"""Largest allowed difference of a whole float32 model's output, relative to the output's largest magnitude."""

WORST_TOLERANCE = 2e-2
"""The bound to which it may grow where a peer's own two ways to compute an output differ, before a peer tells so little
that other inputs are sought."""

ROUNDED_TOLERANCE = 0.25
"""The bound to which it may grow for what depends on rounded values: beyond it an output says nothing."""

BEYOND = 1.5
"""How many times the largest difference among the peer's nudged runs is allowed: they are few draws."""


@dataclass(frozen=True)
class _Allowed:
    """How far an output may be from another program's.

    Args:
        worst: Largest difference, over the output's largest magnitude; of integers largest difference in steps.
        mean: Root of the mean square, over the same; of integers the share of values that differ.
        rounded: Whether it is measured from nudged roundings; integers are exact otherwise.
    """

    worst: float = MODEL_TOLERANCE
    mean: float = np.inf
    rounded: bool = False

    def wrong(self, got: np.ndarray, want: np.ndarray) -> str | None:
        """None, or how far apart."""
        if want.dtype.kind in "iu" and self.rounded and got.shape == want.shape:
            return self._steps(got, want)
        found = compare(got, want, self.worst if want.dtype == np.float32 else None)
        if found or not self.rounded or want.dtype != np.float32:
            return found
        mean = mean_difference(got, want)
        if mean <= self.mean:
            return None
        return f"the output differs by {mean:.2e} of its largest magnitude on average (allowed: {self.mean:.1e})"

    def _steps(self, got: np.ndarray, want: np.ndarray) -> str | None:
        apart = np.abs(got.astype(np.int64) - want.astype(np.int64))
        share, worst = float(np.mean(apart > 0)), int(apart.max(initial=0))
        if share <= self.mean and worst <= self.worst:
            return None
        return (
            f"{share:.2%} of its values differ, by {worst} at most"
            f" (allowed: {self.mean:.2%}, by {self.worst:.0f} at most)"
        )


@dataclass(frozen=True)
class Wanted:
    """Inputs, and what others than the tuned program make of them.

    Args:
        untuned: The untuned program's outputs.
        peer: The peer's, one way after the other; empty without one that can run the model.
        draws: Those of the peer's nudged runs, the first of them not nudged; empty for a model that rounds nothing.
        tuned: The tuned program's, where it was asked to choose the inputs.
    """

    model: Model
    inputs: Arrays
    untuned: list[np.ndarray]
    peer: list[list[np.ndarray]] = field(default_factory=list)
    draws: list[list[np.ndarray]] = field(default_factory=list)
    tuned: list[np.ndarray] | None = None

    def doubts(self) -> list[str]:
        """Outputs of which a comparison tells nothing, and why."""
        names = self.model.outputs
        found = [
            f"comparing outputs tells nothing of output {name!r}: {why}"
            for name, w in zip(names, self.untuned, strict=False)
            if (why := doubt(w, np.zeros(w.shape)))
        ]
        return found + [
            f"{self.name} tells little of output {names[i]!r}: its own two results differ by {apart:.1e} of the largest"
            " magnitude"
            for i, apart in self.unsure().items()
        ]

    def unsure(self) -> dict[int, float]:
        """How far the peer's ways are apart where more than `WORST_TOLERANCE` has to be allowed, by position."""
        apart = {i: difference(ways[0], ways[-1]) for i, ways in enumerate(zip(*self.peer, strict=True))}
        return {i: d for i, d in apart.items() if 3 * d > WORST_TOLERANCE and i not in self.rounded}

    @property
    def rounded(self) -> frozenset[int]:
        """Positions of the outputs that depend on a rounding whose effect is known."""
        peer = self.model.peer
        return peer.roundings.outputs if self.draws and peer is not None and peer.roundings else frozenset()

    @property
    def name(self) -> str:
        """The peer's."""
        return "no peer" if self.model.peer is None else self.model.peer.name


def wanted(
    model: Model, inputs: Arrays, untuned: list[np.ndarray], say: Callable[[str], None] = lambda text: None
) -> Wanted:
    """What the untuned program computed, and what the model's peer does. A peer that cannot run the model is left out,
    and `say` is told."""
    if model.peer is None:
        return Wanted(model, inputs, untuned)
    try:
        results = model.peer.run(inputs)
    except Exception as e:  # each peer has its own errors, and none is about the tuned program
        say(f"{model.peer.name} cannot run the model: {summary(e)}")
        return Wanted(model, inputs, untuned)
    if not results or model.peer.roundings is None:
        return Wanted(model, inputs, untuned, results)
    try:
        return Wanted(model, inputs, untuned, results, [results[-1], *model.peer.roundings.run(inputs)])
    except Exception as e:  # as above
        say(f"{model.peer.name} cannot say what the model's roundings do: {summary(e)}")
        return Wanted(model, inputs, untuned, results)


def telling(
    model: Model,
    inputs: Arrays,
    run: Callable[[Arrays], list[np.ndarray]],
    say: Callable[[str], None] = lambda text: None,
    tuned: Callable[[Arrays], list[np.ndarray]] | None = None,
) -> Wanted:
    """These inputs if the outputs tell something, or others that do; `say` is told what tells nothing on any of them.

    Args:
        run: The untuned program.
        tuned: The tuned one, where there is one: the inputs are chosen by its outputs, since it is often a hundred
            times as fast, and by the untuned program's where those tell less.
    """
    found: list[tuple[list[str], Wanted]] = []
    for arrays in variants(list(inputs.values())):
        tried = dict(zip(inputs, arrays, strict=True))
        made = wanted(model, tried, (tuned or run)(tried), say if not found else lambda text: None)
        found.append((made.doubts(), made))
        if not found[-1][0]:
            break
    doubts, best = min(found, key=lambda one: len(one[0]))
    if tuned is not None:
        best = replace(best, untuned=run(best.inputs), tuned=best.untuned)
        if len(best.doubts()) > len(doubts):
            return telling(model, inputs, run, say)
        doubts = best.doubts()
    for text in doubts:
        say(text)
    return best


def verify(want: Wanted, got: list[np.ndarray], nudged: Nudged | None = None) -> dict[str, str]:
    """Compare a tuned model's outputs with the untuned program's, and with those of the model's peer.

    The tolerance is `MODEL_TOLERANCE`; integers are equal. Some outputs are worse conditioned than that, e.g. the far
    tail of a sigmoid: where the peer's two ways to compute differ by more than a third of it, three times their
    difference is allowed against the peer; that is more than `WORST_TOLERANCE` only where `telling` finds no inputs on
    which it is less, and says so. An output that depends on rounded floats may differ from both by `BEYOND` times
    what nudging the roundings does to the peer, in its largest value and on average. Of the others each element is also
    within what `nudged` measured, where the untuned program is compared with.

    Returns what each was compared with. Raises `VerificationError` naming output and peer.
    """
    model, rounded = want.model, _measured(want)
    peers = {"the untuned program": (want.untuned, dict.fromkeys(range(len(want.untuned)), _Allowed()))}
    if want.peer:
        written = want.peer[-1] if want.draws else want.peer[0]  # what is rounded: with the graph as it is written
        peers[want.name] = (written, {i: _Allowed(t) for i, t in enumerate(_tolerances(want.peer))})
    for peer, (outputs, allowed) in peers.items():
        allowed.update({i: rounded[i] for i in allowed if i in rounded})
        if len(outputs) != len(got):
            raise VerificationError(f"the tuned model has {len(got)} outputs, {peer} has {len(outputs)}")
        for i, limit in allowed.items():
            if (wrong := limit.wrong(got[i], outputs[i])) is not None:
                raise VerificationError(f"output {model.outputs[i]!r} of {model.name} does not match {peer}: {wrong}")
    for i, a in enumerate(got):
        if nudged is not None and i not in rounded and (wrong := nudged.fault(i, a)) is not None:
            raise VerificationError(
                f"output {model.outputs[i]!r} of {model.name} does not match the untuned program: {wrong}"
            )
    return {peer: _said(outputs, allowed) for peer, (outputs, allowed) in peers.items()}


def _measured(of: Wanted) -> dict[int, _Allowed]:
    """The tolerance of each output that depends on a rounding, by its position."""
    found = {}
    for i in of.rounded:
        want, *others = (outputs[i] for outputs in of.draws)
        if want.dtype.kind == "f":
            worst = BEYOND * max(difference(o, want) for o in others)
            mean = BEYOND * max(mean_difference(o, want) for o in others)
            worst, mean = (min(ROUNDED_TOLERANCE, max(MODEL_TOLERANCE, m)) for m in (worst, mean))
            found[i] = _Allowed(worst, mean, True)
        elif want.dtype.kind in "iu":
            apart = [np.abs(o.astype(np.int64) - want.astype(np.int64)) for o in others]
            worst, share = max(a.max(initial=0) for a in apart), max(float(np.mean(a > 0)) for a in apart)
            small = want.dtype.itemsize == 1  # an 8-bit value may be the rounding itself: one step in one place
            least = (1.0, 1.0 / max(1, want.size)) if small else (0.0, 0.0)
            found[i] = _Allowed(max(least[0], BEYOND * worst), max(least[1], min(1.0, BEYOND * share)), True)
    return found


def _said(want: Sequence[np.ndarray], allowed: Mapping[int, _Allowed]) -> str:
    floats = [a for i, a in allowed.items() if want[i].dtype.kind == "f"]
    if not floats:
        return "equal, 8-bit roundings aside" if any(a.rounded for a in allowed.values()) else "equal"
    text = f"equal within {max(a.worst for a in floats):.1e} of the largest magnitude"
    means = [a.mean for a in floats if a.rounded and a.worst > MODEL_TOLERANCE]
    return f"{text}, {max(means):.1e} on average: as far as its roundings carry" if means else text


def _tolerances(results: list[list[np.ndarray]]) -> list[float]:
    """The tolerance of each output, from how far apart the peer's results are."""
    return [max(MODEL_TOLERANCE, 3 * difference(ways[0], ways[-1])) for ways in zip(*results, strict=True)]
