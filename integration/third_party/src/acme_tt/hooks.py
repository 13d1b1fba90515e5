"""The pieces that acme-tt brings to tt."""

from __future__ import annotations

import os
from pathlib import Path

from tt_spec import Entry, Integer, Measurement, TaskState, hookimpl


@hookimpl
def tt_searchers() -> list[Entry]:
    return [
        Entry(
            "hillclimb",
            "acme_tt.climb:HillClimb",
            "children of the fastest row",
            "Rechenberg 1973",
            ranges={"steps": Integer(1, 8), "children": Integer(1, 32, log=True)},
        )
    ]


@hookimpl
def tt_surrogates() -> list[Entry]:
    return [
        Entry(
            "knn",
            "acme_tt.knn:NearestNeighbours",
            "mean of the nearest rows",
            "Cover and Hart 1967",
            ranges={"neighbours": Integer(1, 20, log=True)},
        ),
        Entry("linear", "acme_tt.linear:LinearModel", "ridge regression on statements", "Hoerl and Kennard 1970"),
    ]


@hookimpl
def tt_recipes() -> list[Entry]:
    pieces = {"batch": 8, "searcher": {"piece": "hillclimb"}, "surrogate": {"piece": "knn"}}
    return [Entry("acme", lambda: pieces, "hill climbing by the nearest rows")]


@hookimpl
def tt_measurers() -> list[Entry]:
    return [Entry("here", "acme_tt.here:InThisProcess", "candidates in this process")]


@hookimpl
def tt_stores() -> list[Entry]:
    return [Entry("lines", "acme_tt.lines:LinesStore", "a line of JSON for everything")]


@hookimpl
def tt_batch_measured(state: TaskState, results: list[Measurement]) -> None:
    if path := os.environ.get("ACME_CSV"):
        from acme_tt import csv_log

        csv_log.write(Path(path), state.task, results)
