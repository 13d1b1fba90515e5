"""Runs of the untuned program: those that were begun count once they are asked for, others are made."""

from __future__ import annotations

import numpy as np
import pytest
from tt_core.deploy import untuned
from tt_core.deploy.untuned import QUICK_S, UntunedRuns


class Runs:
    """A measurer that only runs."""

    def __init__(self):
        self.made = []

    def run_model(self, path, inputs):
        self.made.append("run")
        return [2 * a for a in inputs.values()]


class Nudges(Runs):
    def nudge_model(self, path, inputs, share, seeds):
        self.made.append(tuple(seeds))
        return [[(2 + seed) * a for a in inputs.values()] for seed in seeds]


class Starts(Nudges):
    def start_model(self, path, inputs, share, seeds):
        plain, nudged = self.run_model(path, inputs), self.nudge_model(path, inputs, share, seeds)
        self.made.append("begun")
        return lambda: (plain, nudged)


FIRST, INPUTS = (0, 1), {"x": np.ones(2, np.float32)}


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "untuned.so"
    path.write_bytes(b"0123")
    return path


def test_what_was_begun_is_not_made_again(library):
    measurer = Starts()
    runs = UntunedRuns(library, measurer, INPUTS, 1e-6, QUICK_S)
    assert measurer.made == ["run", FIRST, "begun"]
    nudged = runs.nudged(dict(INPUTS))
    assert nudged is not None and runs.run(dict(INPUTS))[0].tolist() == [2, 2]
    assert [nudged((seed,))[0][0].tolist() for seed in FIRST] == [[2, 2], [3, 3]]
    assert nudged(FIRST[::-1])[0][0].tolist() == [3, 3]
    assert measurer.made == ["run", FIRST, "begun"]
    assert nudged((7,))[0][0].tolist() == [9, 9] and measurer.made[3:] == [(7,)], "a seed that was not begun"


def test_of_slow_runs_a_second_nudged_one_waits_until_it_is_needed(library):
    measurer = Starts()
    runs = UntunedRuns(library, measurer, INPUTS, 1e-6, 2 * QUICK_S)
    nudged = runs.nudged(INPUTS)
    assert nudged is not None and nudged((0,))[0][0].tolist() == [2, 2] and nudged((1,))[0][0].tolist() == [3, 3]
    assert measurer.made == ["run", (0,), "begun", (1,)]


def test_other_inputs_are_run_when_asked(library):
    measurer = Starts()
    runs = UntunedRuns(library, measurer, INPUTS, 1e-6, QUICK_S)
    other = {"x": 3 * INPUTS["x"]}
    nudged = runs.nudged(other)
    assert nudged is not None and runs.run(other)[0].tolist() == [6, 6] and nudged((0,))[0][0].tolist() == [6, 6]
    assert measurer.made == ["run", FIRST, "begun", "run", (0,)]


def test_a_library_that_takes_much_memory_is_not_begun(library, monkeypatch):
    monkeypatch.setattr(untuned, "SOON_BYTES", 3)
    measurer = Starts()
    runs = UntunedRuns(library, measurer, INPUTS, 1e-6, QUICK_S)
    assert measurer.made == [] and runs.run(INPUTS)[0].tolist() == [2, 2] and measurer.made == ["run"]


@pytest.mark.parametrize(("measurer", "nudges"), [(Runs(), False), (Nudges(), True)])
def test_a_measurer_that_begins_nothing_runs_when_asked(library, measurer, nudges):
    runs = UntunedRuns(library, measurer, INPUTS, 1e-6, QUICK_S)
    assert measurer.made == [] and runs.run(INPUTS)[0].tolist() == [2, 2]
    assert (runs.nudged(INPUTS) is not None) == nudges
