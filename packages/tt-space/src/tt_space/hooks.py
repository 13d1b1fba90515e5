"""tt-space's pieces."""

from __future__ import annotations

from tt_spec.hooks import Entry, hookimpl


@hookimpl
def tt_spaces() -> list[Entry]:
    return [
        Entry(
            "sketch",
            "tt_space.sketch:Sketch",
            "MetaSchedule's sketches with their own sampling decisions as knobs",
            "Ansor 2020; MetaSchedule 2022",
        ),
        Entry(
            "template",
            "tt_space.both:Template",
            "register-tiled programs over packed weights, Winograd; sketches where there is no template",
            "Georganas 2018; Lavin 2016",
        ),
        Entry("both", "tt_space.both:Both", "templates and sketches in one space, compared by the search"),
    ]
