"""tt-schedule's pieces."""

from __future__ import annotations

from tt_spec.hooks import Entry, hookimpl


@hookimpl
def tt_schedulers() -> list[Entry]:
    return [
        Entry("round-robin", "tt_schedule.round_robin:RoundRobin", "equal trials for every task"),
        Entry("gradient", "tt_schedule.gradient:Gradient", "where the model gains most", "Ansor, Zheng 2020"),
    ]


@hookimpl
def tt_stoppers() -> list[Entry]:
    return [
        Entry("patience", "tt_schedule.patience:Patience", "ends a task that no longer gains 1 %"),
        Entry("minutes", "tt_schedule.minutes:Minutes", "a budget of time"),
    ]
