"""tt-schedule's pieces."""

from __future__ import annotations

from tt_spec.hooks import Entry, hookimpl
from tt_spec.ranges import Float, Integer


@hookimpl
def tt_schedulers() -> list[Entry]:
    return [
        Entry("round-robin", "tt_schedule.round_robin:RoundRobin", "equal trials for every task"),
        Entry("random", "tt_schedule.random_turns:RandomTurns", "slots by lot", "DynaTune, Zhang 2021"),
        Entry("linear", "tt_schedule.linear:Linear", "trials in proportion to FLOP", "DynaTune, Zhang 2021"),
        Entry("gradient", "tt_schedule.gradient:Gradient", "where the model gains most", "Ansor, Zheng 2020"),
        Entry(
            "dynatune",
            "tt_schedule.dynatune:DynaTune",
            "UCB over a Bayesian belief about every operator's future",
            "DynaTune, Zhang 2021",
            requires="tt-schedule[mcmc]",
        ),
    ]


@hookimpl
def tt_stoppers() -> list[Entry]:
    return [
        Entry(
            "adaptive-stop",
            "tt_schedule.adaptive_stop:AdaptiveStop",
            "a maximum of trials that follows what each block brings",
            "adaptive workflow, Chen 2024",
            ranges={
                "im": Integer(32, 800, log=True),
                "ir": Float(0.25, 8.0, log=True),
                "dr": Float(0.1, 4.0, log=True),
                "fr": Float(0.0, 0.5),
                "ub": Float(8.0, 256.0, log=True),
                "lb": Float(-128.0, -4.0),
                "plan_size": Integer(8, 128, log=True),
            },
        ),
        Entry("patience", "tt_schedule.patience:Patience", "ends a task that no longer gains 1 %"),
        Entry("minutes", "tt_schedule.minutes:Minutes", "a budget of time"),
    ]
