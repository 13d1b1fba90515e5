"""MetaSchedule's databases: folders with `database_workload.json` and `database_tuning_record.json`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tt_spec import Content, FormatError, Item, LeftOut, child, from_json
from tt_spec.exchange import guarded, kind_of
from tt_spec.pieces.jsonl_format import JsonlFormat

__all__ = ["RECORDS", "WORKLOADS", "MetaScheduleFormat"]

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"


class MetaScheduleFormat:
    """A folder that stock MetaSchedule of the installed TVM loads and writes (`JSONDatabase`).

    Read, a record is a row of the sketch space where its trace reads back as the same row; other traces are left out,
    by reason. A record has no date, no machine but its target's CPU, and of a failure no more than that it failed.
    Written, a record is a trace that applies to the plain workload; rows that take constants in another form, or whose
    trace does not say it all, are left out.

    Source: Shao et al. (2022), Tensor program optimization with probabilistic programs, NeurIPS.
    """

    def read(self, path: Path) -> Iterator[tuple[str, Item]]:
        kind_of(path, folder=True)
        for name in (WORKLOADS, RECORDS):
            kind_of(path / name)
        with closing(_worker(path, "read", str(path))) as said:
            for message in said:
                yield message["where"], from_json(message["item"]) if "item" in message else LeftOut(message["why"])

    def write(self, path: Path, content: Content) -> dict[str, int]:
        left: dict[str, int] = {}
        with guarded(path), tempfile.TemporaryDirectory(prefix="tt-") as folder:
            JsonlFormat().write(Path(folder) / "rows", content)
            path.mkdir(parents=True, exist_ok=True)
            with _beside(path) as parts, closing(_worker(path, "write", f"{folder}/rows", *parts.values())) as said:
                for message in said:
                    left.update(message["left"])
        return left


@contextmanager
def _beside(path: Path) -> Iterator[dict[str, str]]:
    """Files to write, by the names that they get at the end of the block. The records go first and come last, so that
    there are never some of them with others' workloads."""
    parts = {name: str(path / f".{name}.{os.getpid()}.part") for name in (WORKLOADS, RECORDS)}
    try:
        yield parts
        with suppress(FileNotFoundError):
            (path / RECORDS).unlink()
        for name, part in parts.items():
            os.replace(part, path / name)
    finally:
        for part in parts.values():
            with suppress(OSError):
                os.unlink(part)


def _worker(path: Path, *arguments: str) -> Generator[dict[str, Any], None, None]:
    """What the worker says, message by message. Raises `FormatError` for its mistakes and its death."""
    ours, theirs = os.pipe()
    asked = [*child.command("tt_core.exchange.worker"), str(theirs), *arguments]
    with open(ours, "rb") as said, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                asked, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, pass_fds=(theirs,)
            )
        finally:
            os.close(theirs)
        at, done = "", False
        try:
            for line in said:
                message = json.loads(line)
                at = message.get("at", at)
                done = "done" in message
                if "error" in message:
                    raise FormatError(message["error"])
                if "where" in message or "left" in message:
                    yield message
            code = process.wait()
        finally:
            process.kill()
            process.wait()
        if code or not done:
            raise FormatError(f"{path}{', ' * bool(at)}{at}: {_end(code, errors)}")


def _end(code: int, errors: IO[bytes]) -> str:
    if code == -signal.SIGALRM:
        return "TVM took more than two minutes over it"
    if code < 0:
        return f"TVM crashed ({signal.Signals(-code).name})"
    errors.seek(max(0, errors.tell() - 2000))
    last = errors.read().decode("utf-8", "replace").strip().splitlines()[-1:]
    return f"TVM failed (exit code {code}): {''.join(last)[:200]}"
