"""tt-sample's pieces."""

from __future__ import annotations

from tt_spec.hooks import Entry, hookimpl


@hookimpl
def tt_samplers() -> list[Entry]:
    return [
        Entry("diverse", "tt_sample.diverse:Diverse", "high scores and many knob values", "AutoTVM, Chen 2018"),
    ]
