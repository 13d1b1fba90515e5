"""Whether a tuned model computes what the untuned one and the model's peer compute.

Two right programs of one model differ in the last places of their floats. How much that may become is measured for each
element (`tt_core.deploy.nudging`), and at most a fixed small share of the largest output. Where the peer shows more
doubt, that share is measured, too: what its own ways to compute differ by, and, of a model that rounds to 8 bits, what
becomes of nudging every rounding (`tt_core.models.model.Roundings`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tt_core.compiler.arrays import compare, difference, mean_difference
from tt_core.deploy.nudging import Nudged
from tt_core.errors import VerificationError, summary
from tt_core.models.model import Arrays, Model

__all__ = ["MODEL_TOLERANCE", "ROUNDED_TOLERANCE", "WORST_TOLERANCE", "verify"]

MODEL_TOLERANCE = 1e-3
"""Largest allowed difference of a whole float32 model's output, relative to the output's largest magnitude."""

WORST_TOLERANCE = 2e-2
"""The bound to which it may grow where a peer's own two ways to compute an output differ."""

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


def verify(
    model: Model,
    inputs: Arrays,
    got: list[np.ndarray],
    untuned: list[np.ndarray],
    say: Callable[[str], None] = lambda text: None,
    nudged: Nudged | None = None,
) -> dict[str, str]:
    """Compare a tuned model's outputs with the untuned program's, and with those of the model's peer.

    The tolerance is `MODEL_TOLERANCE`; integers are equal. Some outputs are worse conditioned than that, e.g. the far
    tail of a sigmoid: where the peer's two ways to compute differ by more than a third of it, three times their
    difference is allowed against the peer, at most `WORST_TOLERANCE`. An output that depends on rounded floats may
    differ from both by `BEYOND` times what nudging the roundings does to the peer, in its largest value and on average.
    Of the others each element is also within what `nudged` measured, where the untuned program is compared with.

    A peer that cannot run the model is left out, and `say` is told. Returns what each was compared with. Raises
    `VerificationError` naming output and peer.
    """
    results, draws = _asked(model, inputs, say)
    usual = [_Allowed() for _ in untuned]
    rounded = _measured(draws, model)
    peers = {"the untuned program": (untuned, [rounded.get(i, a) for i, a in enumerate(usual)])}
    if results and model.peer is not None:
        allowed = [_Allowed(t) for t in _tolerances(results)]
        written = results[-1] if draws else results[0]  # what is rounded is compared with the graph as it is written
        peers[model.peer.name] = (written, [rounded.get(i, a) for i, a in enumerate(allowed)])
    for peer, (want, allowed) in peers.items():
        if len(want) != len(got):
            raise VerificationError(f"the tuned model has {len(got)} outputs, {peer} has {len(want)}")
        for name, a, b, limit in zip(model.outputs, got, want, allowed, strict=True):
            if (wrong := limit.wrong(a, b)) is not None:
                raise VerificationError(f"output {name!r} of {model.name} does not match {peer}: {wrong}")
    for i, (name, a) in enumerate(zip(model.outputs, got, strict=True)):
        if nudged is not None and i not in rounded and (wrong := nudged.fault(i, a)) is not None:
            raise VerificationError(f"output {name!r} of {model.name} does not match the untuned program: {wrong}")
    return {peer: _said(want, allowed) for peer, (want, allowed) in peers.items()}


def _asked(
    model: Model, inputs: Arrays, say: Callable[[str], None]
) -> tuple[list[list[np.ndarray]], list[list[np.ndarray]]]:
    """The peer's outputs, one way after the other, and those of its nudged runs, the first of them not nudged."""
    if model.peer is None:
        return [], []
    try:
        results = model.peer.run(inputs)
    except Exception as e:  # each peer has its own errors, and none is about the tuned program
        say(f"{model.peer.name} cannot run the model: {summary(e)}")
        return [], []
    if not results or model.peer.roundings is None:
        return results, []
    try:
        return results, [results[-1], *model.peer.roundings.run(inputs)]
    except Exception as e:  # as above
        say(f"{model.peer.name} cannot say what the model's roundings do: {summary(e)}")
        return results, []


def _measured(nudged: Sequence[Sequence[np.ndarray]], model: Model) -> dict[int, _Allowed]:
    """The tolerance of each output that depends on a rounding, by its position."""
    if not nudged or model.peer is None or model.peer.roundings is None:
        return {}
    found = {}
    for i in model.peer.roundings.outputs:
        want, *others = (outputs[i] for outputs in nudged)
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


def _said(want: Sequence[np.ndarray], allowed: Sequence[_Allowed]) -> str:
    floats = [a for w, a in zip(want, allowed, strict=True) if w.dtype.kind == "f"]
    if not floats:
        return "equal, 8-bit roundings aside" if any(a.rounded for a in allowed) else "equal"
    text = f"equal within {max(a.worst for a in floats):.1e} of the largest magnitude"
    means = [a.mean for a in floats if a.rounded and a.worst > MODEL_TOLERANCE]
    return f"{text}, {max(means):.1e} on average: as far as its roundings carry" if means else text


def _tolerances(results: list[list[np.ndarray]]) -> list[float]:
    """The tolerance of each output, from how far apart the peer's results are."""
    return [
        min(WORST_TOLERANCE, max(MODEL_TOLERANCE, 3 * difference(ways[0], ways[-1])))
        for ways in zip(*results, strict=True)
    ]
