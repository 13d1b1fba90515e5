"""tt-sample's pieces."""

from __future__ import annotations

from tt_spec.hooks import Entry, hookimpl
from tt_spec.ranges import Choice, Float, Integer


@hookimpl
def tt_samplers() -> list[Entry]:
    return [
        Entry(
            "diverse",
            "tt_sample.diverse:Diverse",
            "high scores and many knob values",
            "AutoTVM, Chen 2018",
            ranges={"alpha": Float(0.05, 4.0, log=True)},
        ),
        Entry(
            "adaptive",
            "tt_sample.adaptive:Adaptive",
            "a row of each cluster, new ones for those visited",
            "Chameleon, Ahn 2020",
            ranges={
                "variant": Choice(("public", "knee")),
                "threshold": Float(1.1, 10.0, log=True),
                "centre": Choice(("rounded", "member")),
                "least": Integer(2, 16),
            },
        ),
        Entry(
            "kmeans",
            "tt_sample.kmeans:KMeans",
            "a row of each cluster, to a precision",
            "adaptive workflow, 2024, II.C",
            ranges={"threshold": Float(0.02, 0.6)},
        ),
        Entry(
            "per-second",
            "tt_sample.per_second:PerSecond",
            "expected gain per second of building and timing",
            "tt; Snoek 2012, section 3.2",
        ),
    ]
