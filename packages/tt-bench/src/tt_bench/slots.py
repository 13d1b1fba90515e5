"""The slots of a run: whose each was, what was expected of it, and what it brought."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tt_spec import Batch, TaskState

from tt_bench import pictures
from tt_bench.markup import section, table

__all__ = ["Given", "add", "section_slots"]


@dataclass
class Given:
    """One slot.

    Args:
        number: Counted in the run, from 1.
        ended: By the run's clock, after its last batch.
        expected_s, realised_s: How much faster the model was to become, and became; the latter None where the slot
            brought the operator's first program.
        decided_s: Seconds that choosing took.
        why, belief: The scheduler's words about the choice, and about how its prediction was found.
    """

    number: int
    task: str
    trials: int
    ended: float
    expected_s: float
    realised_s: float | None
    decided_s: float
    why: str = ""
    belief: str = ""


def add(slots: list[Given], state: TaskState, batch: Batch, trials: int) -> None:
    """Gather a batch into its slot; batches without a numbered slot are omitted."""
    about = batch.info.get("slot") or {}
    if "number" not in about:
        return
    if not slots or slots[-1].number != about["number"]:
        why, belief = str(about.get("why", "")), str(about.get("belief", ""))
        decided_s = about.get("decided_s", 0.0)
        slots.append(Given(about["number"], state.task.name, 0, 0.0, about["gain_s"], None, decided_s, why, belief))
    slot = slots[-1]
    slot.trials, slot.ended = slot.trials + trials, state.curve[-1][1]
    if "realised_s" in about:
        slot.realised_s = (slot.realised_s or 0.0) + about["realised_s"]


def section_slots(slots: Sequence[Given], tasks: Sequence[str], seconds: float) -> str:
    """Slots over operators and time, with the gains.

    Args:
        tasks: Names, those that cost the model most first.
        seconds: Of the run.
    """
    if not slots:
        return ""
    made, (ax,) = pictures.grid(1, 7.5, max(2.0, 0.16 * len(tasks) + 0.9))
    row = {name: i for i, name in enumerate(tasks)}
    shown = [s for s in slots if s.task in row]
    # less than nothing where a lucky leader lost its place
    gains = np.array([1e3 * max(s.realised_s or 0.0, 0.0) for s in shown])
    size = 12 + 90 * gains / max(gains.max(initial=0.0), 1e-12)
    (dots,) = [ax.scatter([s.number for s in shown], [row[s.task] for s in shown], s=size, color="#0072B2", alpha=0.7)]
    dots.set_gid("slots")
    ax.set_yticks(range(len(tasks)), tasks, fontsize=6)
    ax.invert_yaxis()
    ax.set_xlabel("slot; the larger the dot, the more the model gained", fontsize=8)
    drawn = f'<div class="wide">{pictures.svg(made, "slots")}</div>'
    return section("Schedule", drawn + _gains(slots) + _numbers(slots), _note(slots, seconds))


def _gains(slots: Sequence[Given]) -> str:
    """Expected beside realised gain, where the scheduler expected anything."""
    known = [s for s in slots if s.expected_s > 0 and s.realised_s is not None]
    if not known:
        return ""
    made, (ax,) = pictures.grid(1, 7.5, 2.2)
    x = [s.number for s in known]
    for gains, label, colour in (
        ([s.expected_s for s in known], "expected", "#D55E00"),
        ([s.realised_s or 0.0 for s in known], "realised", "#0072B2"),
    ):
        (line,) = ax.step(x, 1e3 * np.cumsum(gains), where="post", color=colour, label=label)
        line.set_gid(f"gain-{label}")
    ax.set_xlabel("slot", fontsize=8)
    ax.set_ylabel("ms gained in all", fontsize=8)
    ax.legend(frameon=False, fontsize=8)
    return f'<div class="wide">{pictures.svg(made, "gains")}</div>'


def _numbers(slots: Sequence[Given]) -> str:
    rows = []
    for name, n in Counter(s.task for s in slots).most_common():
        own = [s for s in slots if s.task == name]
        expected = sum(s.expected_s for s in own)
        realised = sum(s.realised_s or 0.0 for s in own)
        rows.append((name, str(n), str(sum(s.trials for s in own)), f"{1e3 * expected:.3g}", f"{1e3 * realised:.3g}"))
    return table(("operator", "slots", "trials", "expected, ms", "realised, ms"), rows)


def _note(slots: Sequence[Given], seconds: float) -> str:
    reasons = ", ".join(f"{n} {why}" for why, n in Counter(s.why for s in slots if s.why).most_common())
    decided = sum(s.decided_s for s in slots)
    note = f"{len(slots)} slots{f' ({reasons})' if reasons else ''}; choosing took {decided:.2f} s"
    note += f", {decided / seconds:.1%} of the run." if seconds > 0 else "."
    least = Counter(s.belief for s in slots if s.belief.startswith("least squares"))
    if least:
        why = "; ".join(f"{n} times {text.removeprefix('least squares: ')}" for text, n in least.most_common(3))
        note += f" {sum(least.values())} predictions fell back to the least-squares fit: {why}."
    return note + " Gains are of the whole model; a first program has none."
