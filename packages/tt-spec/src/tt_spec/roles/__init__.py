"""The roles that pieces play, and what else the runner, the bench and the commands may ask of a piece.

Batch first: rows are `(n, d)` int64 matrices. Ownership: the pipeline owns visited, pending and failed rows and the
random share of a batch; learned state lives in the piece (attributes ending in `_`), one piece per task unless the
surrogate says `shared = True`. Randomness is always the argument `rng`.

A **role** is what every piece of its kind must do. A **capability** is what some can: a protocol of its own with one
method, checked by `isinstance` and listed in `CAPABILITIES`; whoever wraps a piece forwards all capabilities of its
role. Both have contracts in `tt_spec.testing`.
"""

from __future__ import annotations

from inspect import get_annotations
from typing import Any

from tt_spec.roles.measuring import (
    Backend,
    Begins,
    Candidate,
    Checks,
    Doubts,
    Evaluator,
    Expects,
    Gauges,
    Measurer,
    MeasurerOptions,
    Measures,
    NudgesModels,
    Prepares,
    Prestarts,
    ProfilesModels,
    ProgramSource,
    Races,
    RacesModels,
    Realised,
    Recalibrates,
    Retimes,
    RunsModels,
    StartsModels,
    Traces,
    Work,
)
from tt_spec.roles.replay import Fits, Playable, Played, Replay
from tt_spec.roles.run import Errand, Host, Judges, Listener, Place, RunInfo, Service
from tt_spec.roles.scheduling import (
    Bounds,
    Budgeted,
    Foresees,
    LimitsRows,
    LimitsTime,
    Overlaps,
    Peaked,
    Remarks,
    RunState,
    Scheduler,
    Stopper,
)
from tt_spec.roles.search import Foreknows, Learns, Pretrains, Progress, Sampler, Saves, Searcher, Surrogate, Transfer
from tt_spec.roles.sources import Assures, Interprets, ModelFormat, ReadsTraces, Reopens, SpaceBuilder, Workload
from tt_spec.roles.stores import (
    Appends,
    Format,
    Lends,
    ListsRuns,
    RanksRuns,
    Recalls,
    Remembers,
    Store,
    Summarises,
    Writes,
)

__all__ = [
    "Appends",
    "Assures",
    "Backend",
    "Begins",
    "Bounds",
    "Budgeted",
    "CAPABILITIES",
    "Candidate",
    "Checks",
    "Doubts",
    "Errand",
    "Evaluator",
    "Expects",
    "Fits",
    "Foreknows",
    "Foresees",
    "Format",
    "Gauges",
    "Host",
    "Interprets",
    "Judges",
    "Learns",
    "Lends",
    "LimitsRows",
    "LimitsTime",
    "Listener",
    "ListsRuns",
    "Measurer",
    "MeasurerOptions",
    "Measures",
    "ModelFormat",
    "NudgesModels",
    "Overlaps",
    "PROTOCOLS",
    "Peaked",
    "Place",
    "Playable",
    "Played",
    "Prepares",
    "Prestarts",
    "Pretrains",
    "ProfilesModels",
    "ProgramSource",
    "Progress",
    "ROLES",
    "Races",
    "RacesModels",
    "RanksRuns",
    "ReadsTraces",
    "Realised",
    "Recalibrates",
    "Recalls",
    "Remarks",
    "Remembers",
    "Reopens",
    "Replay",
    "Retimes",
    "RunInfo",
    "RunState",
    "RunsModels",
    "Sampler",
    "Saves",
    "Scheduler",
    "Searcher",
    "Service",
    "SpaceBuilder",
    "StartsModels",
    "Stopper",
    "Store",
    "Summarises",
    "Surrogate",
    "Traces",
    "Transfer",
    "Work",
    "Workload",
    "Writes",
    "capabilities",
    "missing",
]

ROLES = (
    "evaluator",
    "measurer",
    "surrogate",
    "searcher",
    "sampler",
    "transfer",
    "scheduler",
    "stopper",
    "store",
    "format",
    "replay",
    "space",
    "model",
    "rewrite",
    "recipe",
    "service",
    "command",
)
"""Every role has a registration hook `tt_<role>s`."""

PROTOCOLS: dict[str, type] = {
    "evaluator": Evaluator,
    "measurer": Measurer,
    "surrogate": Surrogate,
    "searcher": Searcher,
    "sampler": Sampler,
    "transfer": Transfer,
    "scheduler": Scheduler,
    "stopper": Stopper,
    "store": Store,
    "format": Format,
    "replay": Replay,
    "space": SpaceBuilder,
}
"""The protocol of each role."""

CAPABILITIES: dict[str, tuple[type, ...]] = {
    "measurer": (
        Prestarts,
        Expects,
        Begins,
        Traces,
        Retimes,
        Recalibrates,
        Prepares,
        Races,
        Checks,
        Doubts,
        RacesModels,
        ProfilesModels,
        RunsModels,
        NudgesModels,
        StartsModels,
    ),
    "surrogate": (Prestarts, Pretrains, Saves, Foreknows),
    "searcher": (Learns,),
    "scheduler": (Budgeted, Foresees, Overlaps, Peaked),
    "stopper": (LimitsRows, LimitsTime, Bounds, Remarks),
    "store": (Remembers, Recalls, ListsRuns, RanksRuns, Summarises, Lends),
    "space": (Prestarts, Reopens),
    "format": (Writes,),
    "replay": (Fits,),
}
"""The capabilities that a piece of a role may have."""


def capabilities(role: str, piece: Any) -> tuple[type, ...]:
    """The capabilities that a piece of the role has."""
    return tuple(c for c in CAPABILITIES.get(role, ()) if isinstance(piece, c))


def missing(piece: Any, *protocols: type) -> list[str]:
    """The members of these protocols that the piece lacks: "race (Races)"; of a role's own, the method alone."""
    own = set(PROTOCOLS.values())
    found = []
    for protocol in protocols:
        if not isinstance(piece, protocol):
            members = [n for p in protocol.__mro__ for n in (*get_annotations(p), *vars(p))]
            names = [n for n in members if not n.startswith("_") and getattr(piece, n, None) is None]
            found += names if protocol in own else [f"{name} ({protocol.__name__})" for name in names]
    return found
