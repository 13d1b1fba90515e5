"""tt-history's pieces."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tt_spec.hooks import Entry, hookimpl

_F = "tt_history.formats"


@hookimpl
def tt_stores() -> list[Entry]:
    return [Entry("sqlite", "tt_history.sqlite:SqliteStore", "one SQLite file, shared by processes", "sqlite.org/wal")]


@hookimpl
def tt_formats() -> list[Entry]:
    return [
        Entry("csv", f"{_F}.csv_format:CsvFormat", "one row per record, tasks and runs beside it", "RFC 4180"),
        Entry(
            "parquet",
            f"{_F}.parquet_format:ParquetFormat",
            "one row per record, tasks and runs beside it",
            "parquet.apache.org",
            requires="tt-history[parquet]",
        ),
    ]


@hookimpl
def tt_transfers() -> list[Entry]:
    return [
        Entry(
            "history",
            "tt_history.transfer:FromHistory",
            "rows of other devices, near tasks and this run's others train a first cost model",
            "Chen et al. 2018, AutoTVM; Chen et al. 2024, adaptive workflow",
        )
    ]


@hookimpl
def tt_commands() -> list[Entry]:
    return [
        Entry("history stats", lambda: _command("stats"), "Count rows, doubles, failures, devices, ages and bytes"),
        Entry("history tasks", lambda: _command("tasks"), "List every task with rows, devices and best"),
        Entry("history nearest", lambda: _command("nearest"), "List the tasks that are most like a model's"),
        Entry("history compact", lambda: _command("compact"), "Leave one record of each row, by date or mean"),
        Entry("history prune", lambda: _command("prune"), "Remove records by age, device, task or failure"),
        Entry("history merge", lambda: _command("merge"), "Make one history of several"),
        Entry("history export", lambda: _command("export"), "Write a history in a format that others read"),
        Entry("history import", lambda: _command("import_"), "Bring records of a file into a history"),
        Entry("suggest", _suggest, "Suggest a recipe for a model's operators, from past runs and replays"),
        Entry("history vacuum", lambda: _command("vacuum"), "Check the file and give free space back"),
    ]


def _suggest() -> Any:
    return import_module("tt_history.suggest_command").suggest


def _command(name: str) -> Any:
    return getattr(import_module("tt_history.commands"), name)
