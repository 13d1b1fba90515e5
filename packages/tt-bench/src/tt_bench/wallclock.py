"""Where a run's wall clock went: shares, workers over time, and why nothing was built or timed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tt_spec.spent import OWN, Did, Spent

from tt_bench import pictures
from tt_bench.markup import section, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["MOST_IDLE", "PART_NAMES", "Clocked", "section_time"]

PART_NAMES = {
    "start": "reading the model and compiling it untuned",
    "think": "thinking: models, searching, making programs",
    "build": "building candidates",
    "run": "timing them",
    "wait": "waiting",
    "finish": "finishing: re-timing, compiling, verifying, writing",
}

MOST_IDLE = 0.15
"""Share of the loop in which nothing is built or timed, above which the page says why."""

CAUSES = {
    "ask": "thinking before batches (cost models and searching)",
    "decide": "the scheduler's decisions",
    "realise": "making programs of rows",
    "features": "extracting features of programs",
    "start": "workers that start",
    "lock": "other processes of tt that build or time here (the timing lock)",
}
"""Kinds of work that stand in the way of building and timing, in words."""


DRAWN = {
    "think": "thinking",
    "build": "building",
    "run": "timing",
    "start": "starting, loading and other calls",
    "lock": "waiting for other processes of tt",
}
"""Colours of the picture, in words."""


@dataclass(frozen=True)
class Clocked:
    """What the section tells.

    Args:
        stages: `name`, `began` and `seconds` of each, with `work` where it was traced.
        decided_s: What the scheduler's choices took.
    """

    spent: Spent
    stages: Sequence[dict[str, Any]]
    decided_s: float = 0.0

    @property
    def began(self) -> float:
        """When the search began, by the run's clock."""
        return self.spent.spans[0].at - self.spent.spans[0].seconds

    @property
    def ended(self) -> float:
        return self.spent.spans[-1].at

    def lane(self, stage: dict[str, Any]) -> str | None:
        """Whether a stage is of the start or the finish; None for the search."""
        if stage["name"] == "tuning":
            return None
        return "start" if stage["began"] < self.began else "finish" if stage["began"] >= self.ended else None

    def stages_s(self, lane: str) -> float:
        return sum(s["seconds"] for s in self.stages if self.lane(s) == lane)


def section_time(clocked: Clocked) -> str:
    """The section; empty where nothing was measured."""
    spent = clocked.spent
    if not spent.total_s:
        return ""
    parts = {"start": clocked.stages_s("start"), **spent.parts, "finish": clocked.stages_s("finish")}
    total = sum(parts.values())
    rows = [(PART_NAMES[k], f"{v:.1f} s", f"{v / total:.0%}") for k, v in parts.items() if v > 0]
    rows += [(f"— of these: {name}", f"{s:.1f} s", f"{s / total:.0%}") for name, s in _ends(clocked)]
    how = "Builds are divided by the cores that build at once."
    if spent.work:
        hidden, lone = spent.hidden_s, spent.lone_s
        rows.append(("hidden: thinking beside building or timing", f"{hidden:.1f} s", f"{hidden / total:.0%}"))
        rows.append(("building while another worker had nothing to build", f"{lone:.1f} s", f"{lone / total:.0%}"))
        how = "As the workers were seen at work; the last two lines lie within others."
    drawn = _workers(clocked) if spent.work else _lanes(clocked)
    body = f'<div class="wide">{pictures.svg(drawn, "time")}</div>' + table(("part", "seconds", "share"), rows)
    return section("Where the time went", body, how + _idle(clocked))


def _ends(clocked: Clocked) -> list[tuple[str, float]]:
    """The stages of the finish that took time, with their seconds."""
    return [(s["name"], s["seconds"]) for s in clocked.stages if clocked.lane(s) == "finish" and s["seconds"] >= 0.05]


def _idle(clocked: Clocked) -> str:
    """A remark on an idle share that is too large, with its cause."""
    spent = clocked.spent
    if spent.idle <= MOST_IDLE:
        return ""
    causes = _traced_causes(spent) if spent.work else _estimated_causes(clocked)
    cause = max(causes, key=lambda k: causes[k])
    share = causes[cause] / max(spent.idle * spent.total_s, 1e-9)
    return (
        f" Nothing was built or timed for {spent.idle:.0%} of the search, most of all because of {cause}"
        f" ({min(share, 1.0):.0%} of that)."
    )


def _estimated_causes(clocked: Clocked) -> dict[str, float]:
    spent = clocked.spent
    longest = max(span.parts["think"] for span in spent.spans)
    return {
        f"thinking before batches, {longest:.1f} s at most": spent.parts["think"] - clocked.decided_s,
        "waiting for workers, the machine's lock or the store": spent.parts["wait"],
        "the scheduler's decisions": clocked.decided_s,
    }


def _traced_causes(spent: Spent) -> dict[str, float]:
    """Seconds in which nothing was built or timed, by the work that went on meanwhile: a moment counts for the first
    of `CAUSES` but asking, which contains the making of programs."""
    order = ("lock", "start", "realise", "features", "decide", "ask")
    edges = [(x, s, k) for d in spent.work for x, s, k in ((d.began, 1, _kind(d)), (d.ended, -1, _kind(d)))]
    active: dict[str, int] = dict.fromkeys((*order, "busy", "other"), 0)
    found = {CAUSES[k]: 0.0 for k in order}
    nothing = "waiting for the store, or for nothing that the log tells"
    found[nothing] = 0.0
    now = spent.spans[0].at - spent.spans[0].seconds
    for moment, step, kind in sorted([*edges, (spent.spans[-1].at, 0, "busy")]):
        upto = min(max(moment, now), spent.spans[-1].at)
        if not active["busy"]:
            doing = next((k for k in order if active[k]), None)
            found[nothing if doing is None else CAUSES[doing]] += upto - now
        now, active[kind] = upto, active[kind] + step
    return found


def _kind(d: Did) -> str:
    return "busy" if d.part in ("build", "run") else d.what if d.what in CAUSES else "other"


def _workers(clocked: Clocked) -> Figure:
    """Workers over time: a lane each, tt's own process on top."""
    work = list(clocked.spent.work)
    for stage in clocked.stages:
        work += [Did(int(w), str(k), float(b), float(s)) for w, k, b, s in stage.get("work") or ()]
    lanes = [*sorted({d.who for d in work if d.who != OWN}, reverse=True), OWN]
    made = pictures.figure(11.0, 0.9 + 0.42 * (len(lanes) + 1))
    ax = made.subplots()
    for y, who in enumerate(lanes):
        for part in DRAWN:
            bars = [(d.began - clocked.began, d.seconds) for d in work if d.who == who and _drawn(d) == part]
            _bars(ax, y, bars, part, f"worker-{who}-{part}")
    _stages(ax, clocked, len(lanes))
    names = [*("tt itself" if who == OWN else f"worker {who}" for who in lanes), "stages"]
    ax.set_yticks(range(len(lanes) + 1), names, fontsize=8)
    _axis(ax, clocked)
    made.legend(*_legend(), loc="outside upper center", ncols=5, frameon=False, fontsize=8)
    return made


def _stages(ax: Axes, clocked: Clocked, y: int) -> None:
    """A lane of the stages, the long ones with their names."""
    for stage in clocked.stages:
        lane = clocked.lane(stage)
        colour = pictures.PARTS.get(lane or "", "#dddddd")
        at = stage["began"] - clocked.began
        ax.broken_barh([(at, stage["seconds"])], (y - 0.4, 0.8), color=colour, alpha=0.5, edgecolor="white")
        if stage["seconds"] > 0.06 * max(1e-9, clocked.ended - clocked.began):
            ax.text(at + stage["seconds"] / 2, y, stage["name"], ha="center", va="center", fontsize=7)


def _drawn(d: Did) -> str:
    """The key of `DRAWN` that a piece of work has."""
    return "lock" if d.what == "lock" else "start" if d.part == "wait" else d.part


def _legend() -> tuple[list[Any], list[str]]:
    from matplotlib.patches import Patch

    return [Patch(color=pictures.PARTS[p]) for p in DRAWN], list(DRAWN.values())


def _lanes(clocked: Clocked) -> Figure:
    """The parts over time, a lane each, of a log that does not say what the workers did."""
    lanes = ("finish", "run", "build", "think", "start")
    made = pictures.figure(7.5, 2.0)
    ax = made.subplots()
    bars: dict[str, list[tuple[float, float]]] = {lane: [] for lane in lanes}
    for span in clocked.spent.spans:
        at = span.at - span.seconds
        for part in ("think", "build", "run"):
            bars[part].append((at - clocked.began, span.parts[part]))
            at += span.parts[part]
    for stage in clocked.stages:
        if (lane := clocked.lane(stage)) is not None:
            bars[lane].append((stage["began"] - clocked.began, stage["seconds"]))
    for y, lane in enumerate(lanes):
        _bars(ax, y, bars[lane], lane)
    ax.set_yticks(range(len(lanes)), [PART_NAMES[lane].split(":")[0].split(" ")[0] for lane in lanes], fontsize=8)
    _axis(ax, clocked, "; within a batch, parts are drawn one after the other")
    return made


def _bars(ax: Axes, y: int, bars: Iterable[tuple[float, float]], part: str, name: str = "") -> None:
    drawn = ax.broken_barh(list(bars), (y - 0.4, 0.8), color=pictures.PARTS.get(part, "#999999"), linewidth=0)
    drawn.set_gid(name or f"part-{part}")


def _axis(ax: Axes, clocked: Clocked, more: str = "") -> None:
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(labelsize=8)
    ax.set_xlabel(f"seconds since the search began{more}", fontsize=8)
