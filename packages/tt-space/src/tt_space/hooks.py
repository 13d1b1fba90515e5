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
    ]
