"""Whose fault it was: a piece that raises or returns rubbish is named, with the distribution that brought it."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tt_spec import roles
from tt_spec.plugins import ORIGIN, PluginError
from tt_spec.roles import PieceError, Realised
from tt_spec.space import Space
from tt_spec.types import Prediction, Proposal, Selection, Statements

__all__ = [
    "PieceFailure",
    "blame",
    "checked_features",
    "checked_prediction",
    "checked_proposal",
    "checked_realised",
    "checked_scores",
    "checked_selection",
    "lacks",
    "summary",
    "whose",
]


class PieceFailure(PieceError):
    """A piece failed at its work; the message names it, its distribution and what went wrong.

    Args:
        piece: The piece, or what stands for it.
        what: The exception that it raised, which also becomes `__cause__`, or a text where that lives elsewhere.
    """

    def __init__(self, role: str, piece: Any, what: BaseException | str) -> None:
        text = summary(what) if isinstance(what, BaseException) else what
        super().__init__(f"{whose(role, piece)} failed: {text}")


def summary(e: BaseException) -> str:
    """Any exception in one line: its type and 300 characters of its message; of our own, which say all, the message."""
    text = " ".join(str(e).split())
    if isinstance(e, PieceError | PluginError):
        return text
    return f"{type(e).__name__}: {text[:300]}" if text else type(e).__name__


def whose(role: str, piece: Any) -> str:
    """How to call a piece: "searcher 'anneal' of tt-search 0.1.0" if `Plugins` built it, else by its class."""
    known = getattr(piece, ORIGIN, None)
    return known if isinstance(known, str) else f"{role} {type(piece).__module__}.{type(piece).__qualname__}"


def lacks(role: str, piece: Any) -> list[str]:
    """What the role's protocol in `tt_spec.roles` asks for and the piece has not."""
    protocol = getattr(roles, role.capitalize(), object)
    wanted = [*getattr(protocol, "__annotations__", {}), *vars(protocol)]
    return [name for name in wanted if not name.startswith("_") and not hasattr(piece, name)]


@contextmanager
def blame(role: str, piece: Any) -> Iterator[None]:
    """Whatever the block raises becomes the piece's `PieceFailure`; one raised further inside stays as it is."""
    try:
        yield
    except PieceFailure:
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
    """What `realise` answered if it is a row of the space, or a reason, for each row asked; else ValueError."""
    codes = _rows("realise", real.codes, space)
    if len(codes) != len(asked) or len(real.why) != len(asked):
        raise ValueError(f"realise was asked {len(asked)} rows, got {len(codes)} rows and {len(real.why)} reasons")
    made = codes[[why is None for why in real.why]]
    if not space.in_range(made).all():
        raise ValueError(f"realise gave rows outside the space, e.g. {made[~space.in_range(made)][0].tolist()}")
    return Realised(codes, tuple(real.why))


def checked_features(found: Statements, ok: Any, n: int) -> tuple[Statements, np.ndarray]:
    """What `features` answered if it has a flag for each of `n` rows and a program for each flag, else ValueError."""
    ok = np.asarray(ok, dtype=bool)
    if ok.shape != (n,) or len(found) != ok.sum():
        raise ValueError(f"features was asked {n} rows, got {len(found)} programs and flags {ok.shape}")
    return found, ok


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
