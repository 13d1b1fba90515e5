"""A reader that stops reading is noticed, and is no failure."""

from __future__ import annotations

import pytest
from tt_core.cli.reader import Reader


class Prints:
    def __init__(self, error: type[Exception] | None = None) -> None:
        self.error, self.heard = error, []

    def tt_run_started(self, run: str) -> None:
        self.heard.append(run)
        if self.error is not None:
            raise self.error


def test_it_passes_on_what_it_hears():
    reader = Reader(Prints())
    reader.tt_run_started(run="r")
    assert reader.listener.heard == ["r"] and not reader.gone
    assert not hasattr(reader, "tt_run_stopped")


def test_a_closed_pipe_is_remembered_and_other_failures_go_on():
    reader = Reader(Prints(BrokenPipeError))
    reader.tt_run_started(run="r")
    assert reader.gone
    with pytest.raises(KeyError):
        Reader(Prints(KeyError)).tt_run_started(run="r")
