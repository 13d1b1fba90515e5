"""The maximum of trials of each operator, as a stopper that adapts it remarked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tt_bench import pictures
from tt_bench.markup import section, table

__all__ = ["section_stops"]

PANELS = 12


def section_stops(remarks: Mapping[str, Sequence[tuple[int, Mapping[str, Any]]]], tasks: Sequence[str]) -> str:
    """The maximum `im` over trials, and r and Add of each block.

    Args:
        remarks: `(trials, info)` after each batch by operator; `info` as `AdaptiveStop` has it: `im` and `blocks`,
            `[r, Add, im]` of each.
        tasks: Names, those that cost the model most first.
    """
    shown = [name for name in tasks if remarks.get(name)][:PANELS]
    if not shown:
        return ""
    made, axes = pictures.grid(len(shown), 3.6, 2.2)
    for ax, name in zip(axes, shown, strict=True):
        trials, most = [n for n, _ in remarks[name]], [about["im"] for _, about in remarks[name]]
        (line,) = ax.step(trials, most, where="post", color="#D55E00", label="at most")
        line.set_gid(f"stop-{name}")
        ax.plot(trials, trials, color="#999999", linewidth=0.8, linestyle=":", label="measured")
        ax.set_ylim(0, None)
        ax.set_title(name, fontsize=8)
        ax.tick_params(labelsize=7)
    axes[0].legend(frameon=False, fontsize=7)
    axes[-1].set_xlabel("trials", fontsize=8)
    rows = []
    for name in shown:
        blocks = remarks[name][-1][1].get("blocks") or []
        rows += [
            (name if i == 0 else "", str(i + 1), "" if r is None else f"{r:.3f}", f"{add:+g}", f"{im:g}")
            for i, (r, add, im) in enumerate(blocks)
        ]
    drawn = f'<div class="wide">{pictures.svg(made, "stops")}</div>'
    if rows:
        drawn += table(("operator", "block", "r", "Add", "at most, trials"), rows)
    note = (
        "The most trials of each operator, which a stopper moves after each block; it ends where its trials meet it."
        " r is the speed of a block's best row by the best before it, Add the change of the maximum."
    )
    return section("Trials at most", drawn, note)
