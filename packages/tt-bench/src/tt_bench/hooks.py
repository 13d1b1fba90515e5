"""tt-bench's sub-commands."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tt_spec.hooks import Entry, hookimpl


@hookimpl
def tt_commands() -> list[Entry]:
    return [
        Entry("record", lambda: _command("record"), "Measure a model's candidates once, for replay"),
        Entry("bench", lambda: _command("bench"), "Compare recipes on recordings, over seeds"),
        Entry("report", lambda: _command("report"), "Draw a tuning run, or a comparison of tt bench, as a page"),
        Entry("train", _train, "Train a cost model beforehand, on measured rows of many operators"),
    ]


def _train() -> Any:
    return import_module("tt_bench.train_command").train


def _command(name: str) -> Any:
    return getattr(import_module("tt_bench.commands"), name)
