"""A reader that stops reading is noticed, and is no failure."""

from __future__ import annotations

import inspect

import pytest
from tt_core.cli.progress import Shown
from tt_core.cli.reader import Reader
from tt_spec import Listener, RunInfo


class Prints(Shown):
    def __init__(self, error: type[Exception] | None = None) -> None:
        self.error, self.heard = error, []

    def tt_run_started(self, run: RunInfo) -> None:
        self.heard.append(run)
        if self.error is not None:
            raise self.error


def test_it_passes_on_what_it_hears():
    prints, run = Prints(), RunInfo("r", ())
    reader = Reader(prints)
    reader.tt_run_started(run=run)
    assert prints.heard == [run] and not reader.gone


def test_it_forwards_everything_that_a_listener_hears():
    heard = []

    class Hears(Shown):
        def __getattribute__(self, name):
            heard.append(name)
            return super().__getattribute__(name)

    reader = Reader(Hears())
    methods = [name for name in vars(Listener) if not name.startswith("_")]
    for name in [*methods, "emit"]:
        arguments = len(inspect.signature(getattr(reader, name)).parameters) - (name == "emit")
        getattr(reader, name)(*["x"] * arguments)
    assert heard == [*methods, "emit"]


def test_a_closed_pipe_is_remembered_and_other_failures_go_on():
    reader = Reader(Prints(BrokenPipeError))
    reader.tt_run_started(run=RunInfo("r", ()))
    assert reader.gone
    with pytest.raises(KeyError):
        Reader(Prints(KeyError)).tt_run_started(run=RunInfo("r", ()))
