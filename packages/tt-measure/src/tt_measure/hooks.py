"""tt-measure's pieces."""

from __future__ import annotations

from tt_spec.hooks import Entry, hookimpl


@hookimpl
def tt_evaluators() -> list[Entry]:
    return [
        Entry("fixed", "tt_measure.fixed:Fixed", "the same number of runs for every candidate", "TVM 2018"),
        Entry("adaptive", "tt_measure.adaptive:Adaptive", "runs until the performance settles", "AdaTune, Li 2020"),
        Entry("racing", "tt_measure.racing:Racing", "stops what is surely worse than the incumbent", "Ville 1939"),
    ]


@hookimpl
def tt_measurers() -> list[Entry]:
    return [Entry("local", "tt_measure.pool:WorkerPool", "persistent worker processes on this machine")]
