"""Faults of pieces: one that raises or returns rubbish is named, with the distribution that brought it."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tt_spec.errors import PieceFailure, PluginError, whose
from tt_spec.roles import Listener, Realised
from tt_spec.space import Space
from tt_spec.types import Prediction, Proposal, Selection, Statements

__all__ = [
    "Audience",
    "blame",
    "checked_features",
    "checked_foreign_rows",
    "checked_prediction",
    "checked_proposal",
    "checked_realised",
    "checked_scores",
    "checked_selection",
]


class Audience:
    """Listeners. One that fails is warned of once: who only listens loses no more than what it would have written."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = listeners
        self._failing: set[int] = set()

    def tell(self, event: str, *args: Any, **what: Any) -> None:
        """Call every listener's method `event`."""
        for i, listener in enumerate(self.listeners):
            try:
                getattr(listener, event)(*args, **what)
            except Exception as e:  # a stranger's code
                if i not in self._failing:
                    text = f"{whose('listener', listener)} failed in {event}; the run goes on: {type(e).__name__}: {e}"
                    warnings.warn(text, stacklevel=3)
                self._failing.add(i)


@contextmanager
def blame(role: str, piece: Any) -> Iterator[None]:
    """Turn whatever the block raises into the piece's `PieceFailure`; one raised further inside stays as it is, and so
    does what the piece says of its options (`PluginError`), such as a file that cannot be used."""
    try:
        yield
    except (PieceFailure, PluginError):
        raise
    except Exception as e:  # a stranger's piece may fail in any way
        raise PieceFailure(role, piece, e) from e


def checked_proposal(proposal: Any, space: Space, searcher: Any) -> Proposal:
    """The proposal with its rows outside the space dropped, of which one warning says whose they were.

    Raises ValueError where shapes, types or scores are wrong.
    """
    if not isinstance(proposal, Proposal):
        raise ValueError(f"propose must return a Proposal, got {type(proposal).__name__}")
    codes = _rows("propose", proposal.codes, space)
    scores = _finite("the scores of a proposal", proposal.scores, len(codes))
    if not np.isfinite(proposal.random_share):
        raise ValueError(f"random_share must be in [0, 1], got {proposal.random_share}")
    inside = _inside(codes, space, "searcher", searcher)
    return dataclasses.replace(proposal, codes=codes[inside], scores=scores[inside])


def checked_selection(selection: Any, space: Space, sampler: Any) -> Selection:
    """The same for a sampler's answer."""
    if not isinstance(selection, Selection):
        raise ValueError(f"select must return a Selection, got {type(selection).__name__}")
    codes = _rows("select", selection.codes, space)
    return dataclasses.replace(selection, codes=codes[_inside(codes, space, "sampler", sampler)])


def checked_prediction(prediction: Any, n: int) -> Prediction:
    """The prediction if it is `n` finite means and standard deviations, else ValueError."""
    if not isinstance(prediction, Prediction):
        raise ValueError(f"predict must return a Prediction, got {type(prediction).__name__}")
    return Prediction(*(_finite(f"predicted {k}", getattr(prediction, k), n) for k in ("mean", "std")))


def checked_scores(scores: Any, n: int) -> np.ndarray:
    """The scores if they are `n` finite numbers, else ValueError."""
    return _finite("scores", scores, n)


def checked_realised(real: Any, asked: np.ndarray, space: Space) -> Realised:
    """The answer of `realise` if it is a row of the space, or a reason, for each row asked; else ValueError."""
    codes = _rows("realise", real.codes, space)
    if len(codes) != len(asked) or len(real.why) != len(asked):
        raise ValueError(f"realise was asked {len(asked)} rows, got {len(codes)} rows and {len(real.why)} reasons")
    made = codes[[why is None for why in real.why]]
    if not space.in_range(made).all():
        raise ValueError(f"realise gave rows outside the space, e.g. {made[~space.in_range(made)][0].tolist()}")
    return Realised(codes, tuple(real.why))


def checked_features(found: Statements, ok: Any, n: int) -> tuple[Statements, np.ndarray]:
    """The answer of `features` if it has a flag for each of `n` rows and a program for each flag, else ValueError."""
    ok = np.asarray(ok, dtype=bool)
    if ok.shape != (n,) or len(found) != ok.sum():
        raise ValueError(f"features was asked {n} rows, got {len(found)} programs and flags {ok.shape}")
    return found, ok


def checked_foreign_rows(rows: Any, space: Space) -> np.ndarray:
    """The answer of `Transfer.rows` if it is rows of the space, else ValueError."""
    codes = _rows("rows", rows, space)
    if not space.allowed(space.canonical(codes)).all():
        raise ValueError("rows must return rows that the space allows")
    return codes


def _rows(method: str, codes: Any, space: Space) -> np.ndarray:
    codes, d = np.asarray(codes), len(space.knobs)
    if codes.ndim != 2 or codes.shape[1] != d or not np.issubdtype(codes.dtype, np.integer):
        raise ValueError(f"{method} must return rows (n, {d}) of integers, got {codes.shape} of {codes.dtype}")
    return codes.astype(np.int64)


def _finite(what: str, values: Any, n: int) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (n,):
        raise ValueError(f"{what} must be ({n},), got {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"{what} must be finite, {(~np.isfinite(values)).sum()} of {n} are not")
    return values


def _inside(codes: np.ndarray, space: Space, role: str, piece: Any) -> np.ndarray:
    inside = space.allowed(space.canonical(codes))
    if not inside.all():  # Python shows a text once
        warnings.warn(f"{whose(role, piece)} gives rows that are not in the space; they are dropped", stacklevel=4)
    return inside
