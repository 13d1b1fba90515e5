"""The reader of what a run prints, who may stop reading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tt_spec import Batch, Listener, Measurement, RunInfo, TaskState

from tt_core.cli.progress import Shown

__all__ = ["Reader"]


class Reader(Listener):
    """A listener that prints, for a reader at the other end of a pipe; `gone` says whether that has closed it.

    Args:
        listener: Prints; hears everything that this hears.
    """

    def __init__(self, listener: Shown) -> None:
        self.listener, self.gone = listener, False

    def tt_run_started(self, run: RunInfo) -> None:
        self._tell(self.listener.tt_run_started, run)

    def tt_batch_measured(self, run: RunInfo, state: TaskState, batch: Batch, results: list[Measurement]) -> None:
        self._tell(self.listener.tt_batch_measured, run, state, batch, results)

    def tt_task_finished(self, run: RunInfo, state: TaskState) -> None:
        self._tell(self.listener.tt_task_finished, run, state)

    def tt_run_stopped(self, run: RunInfo, states: list[TaskState], reason: str) -> None:
        self._tell(self.listener.tt_run_stopped, run, states, reason)

    def note(self, text: str) -> None:
        self._tell(self.listener.note, text)

    def stage(self, name: str, began: float, seconds: float, work: Sequence[Sequence[Any]] = ()) -> None:
        self._tell(self.listener.stage, name, began, seconds, work)

    def emit(self, event: str, **what: Any) -> None:
        """Tell an event of whatever name, for programs."""
        self._tell(self.listener.emit, event, **what)

    def _tell(self, method: Callable[..., None], *args: Any, **what: Any) -> None:
        try:
            method(*args, **what)
        except BrokenPipeError:
            self.gone = True
