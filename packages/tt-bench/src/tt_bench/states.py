"""The machine's states during a run, as a section of its page."""

from __future__ import annotations

from collections.abc import Iterable

from tt_spec import Measurement
from tt_spec.windows import SHARE

from tt_bench.markup import section, table

__all__ = ["section_states"]


def section_states(measured: Iterable[Measurement]) -> str:
    """How often timings met the machine in another state than the one that counts; empty where nothing tells."""
    seen = [m.noise for m in measured if m.noise is not None]
    if not seen:
        return ""
    windows, discarded = sum(n.windows for n in seen), sum(n.discarded for n in seen)
    away = [n.slowdown for n in seen if abs(n.slowdown - 1) > SHARE]
    rows = [
        ("windows of time left out", f"{discarded} of {windows + discarded}, {discarded / (windows + discarded):.0%}"),
        ("seconds in vain", f"{sum(n.vain_s for n in seen):.1f}"),
        ("candidates that met no window that counts", f"{len(away)} of {len(seen)}, {len(away) / len(seen):.0%}"),
    ]
    note = "A probe of 0.1 ms beside every window of time tells whether the machine was as fast as ever."
    if away:
        note += f" Those {len(away)} timings are corrected by the probe's slowdown, {min(away):.2f} to {max(away):.2f}."
    return section("The machine meanwhile", table(("timings", "in this run"), rows), note)
