"""tt-measure's pieces."""

from __future__ import annotations

from tt_spec.hooks import Entry, hookimpl
from tt_spec.ranges import Choice, Float, Integer


@hookimpl
def tt_evaluators() -> list[Entry]:
    return [
        Entry(
            "fixed",
            "tt_measure.fixed:Fixed",
            "the same number of runs for every candidate",
            "TVM 2018",
            ranges={
                "repeat": Integer(2, 8),
                "min_repeat_ms": Float(1.0, 20.0, log=True),
                "slow_factor": Float(1.5, 8.0, log=True),
            },
        ),
        Entry(
            "adaptive",
            "tt_measure.adaptive:Adaptive",
            "runs until the performance settles",
            "AdaTune, Li 2020",
            ranges={
                "micro_batch": Integer(5, 100, log=True),
                "threshold": Float(0.02, 0.3, log=True),
                "most_s": Float(0.02, 0.5, log=True),
            },
        ),
        Entry(
            "racing",
            "tt_measure.racing:Racing",
            "stops what is surely worse than the incumbent",
            "Ville 1939",
            ranges={
                "inner": Choice(("adaptive", "fixed")),
                "error": Float(0.005, 0.2, log=True),
                "slack": Float(1.2, 4.0, log=True),
            },
        ),
    ]


@hookimpl
def tt_measurers() -> list[Entry]:
    return [Entry("local", "tt_measure.pool:WorkerPool", "persistent worker processes on this machine")]
