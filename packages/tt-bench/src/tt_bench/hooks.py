"""tt-bench's sub-commands, and its replay."""

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
        Entry("dataset record", lambda: _of_datasets("record"), "Measure rows of a list of operators, for cost models"),
        Entry("dataset add", lambda: _of_datasets("add"), "Take the rows of tuning histories into a data set"),
        Entry("dataset features", lambda: _of_datasets("features"), "Compute the statements of a data set's programs"),
        Entry("dataset show", lambda: _of_datasets("show"), "Say what a data set holds and what can be learned of it"),
        Entry("train", _train, "Train a cost model beforehand, on measured rows of many operators"),
    ]


@hookimpl
def tt_replays() -> list[Entry]:
    return [Entry("recordings", "tt_bench.playing:Player", "recordings of tt record, and models of other histories")]


@hookimpl
def tt_formats() -> list[Entry]:
    return [
        Entry("t4", "tt_bench.t4_format:T4Format", "results as tuners exchange them, JSON", "TuningSchema T4 1.0.0"),
        Entry("kernel-tuner", "tt_bench.kernel_tuner:KernelTunerFormat", "cache files, read only", "Kernel Tuner"),
    ]


def _train() -> Any:
    return import_module("tt_bench.train_command").train


def _command(name: str) -> Any:
    return getattr(import_module("tt_bench.commands"), name)


def _of_datasets(name: str) -> Any:
    return getattr(import_module("tt_bench.dataset_commands"), name)
