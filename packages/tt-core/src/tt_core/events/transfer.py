"""Lines about what a search learns from other tasks and devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tt_spec import Batch, Listener, Measurement, RunInfo, TaskState

__all__ = ["TransferNotes"]


class TransferNotes(Listener):
    """Says once per task where its first cost model comes from, and why one was dropped; and once what a cost model
    learned beforehand.

    Args:
        say: Told each line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self._said: set[str] = set()

    def tt_batch_measured(self, run: RunInfo, state: TaskState, batch: Batch, results: list[Measurement]) -> None:
        about, name = batch.info.get("transfer", {}), state.task.name
        if (where := batch.info.get("weights")) is not None:
            other = "" if run.options.get("device") in where.split(", ") else ", another machine than this one"
            weights = _weights(run.options.get("recipe", {}))
            self._once(f"first batches are chosen by {weights}, learned beforehand on {where}{other}")
        if "tasks" in about:
            sources = ", ".join(f"{rows} of {task}" for task, rows in about["tasks"].items())
            self._once(f"{name}: its first cost model learned from {about['rows']} foreign rows ({sources})")
        for task, why in about.get("failed", {}).items():
            self._once(f"{name}: programs of {task} could not be made and are left out: {why}")
        for which, why in about.get("dropped", {}).items():
            self._once(f"{name}: the foreign {which} was dropped: it {why}")

    def _once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(text)


def _weights(recipe: Mapping[str, Any]) -> str:
    """The weights that a described recipe names, those that came with tt as such."""
    named = (str(recipe.get(role, {}).get("weights") or "none") for role in ("draft", "surrogate"))
    kinds = ["the weights that ship with tt" if n == "shipped" else f"the weights in {n}" for n in named if n != "none"]
    return " and ".join(dict.fromkeys(kinds)) or "a cost model"
