"""`tt history …`, and without a compiler `tt-history …`."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer
from tt_spec import Plugins, StoreError, Task, logfiles
from tt_spec.roles import Writes, capabilities

from tt_history import exchange, maintenance
from tt_history.errors import HistoryError
from tt_history.sqlite import SqliteStore, whole

__all__ = ["COMMANDS", "compact", "export", "import_", "merge", "nearest", "prune", "stats", "tasks", "vacuum"]

HistoryArgument = Annotated[Path, typer.Argument(help="The database")]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output")]
FileArgument = Annotated[Path, typer.Argument(help="The file, or for some formats the folder")]
FormatOption = Annotated[str, typer.Option("--format", help="jsonl, csv, parquet, ... (tt plugins lists all)")]
HistoryOption = Annotated[Path, typer.Option(help="The database")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before records are removed")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing")]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def stats(history: HistoryArgument = Path("tt.db"), as_json: JsonOption = False) -> None:
    """Count what a history holds: rows, doubles, failures, devices, ages and bytes."""
    with _opened(history) as store:
        found = maintenance.stats(store)
        if as_json:
            print(json.dumps(found))
            return
        size = found["bytes"]
        failures = ", ".join(f"{n:,} {kind}" for kind, n in found["failures"].items()) or "none"
        each = "" if size["record"] is None else f", {size['record']:.0f} bytes a record"
        tasks = f"{found['tasks']:,} tasks in {found['runs']:,} runs"
        print(f"{found['rows']:,} records of {tasks} (schema {found['schema']})")
        print(f"measured again: {found['doubles']:,}")
        print(f"failures: {failures}")
        for device, n in found["devices"].items():
            print(f"device {_plain(device or 'unknown')}: {n:,}")
        if found["rows"]:
            ages = ", ".join(f"{n:,} younger than {age}" for age, n in found["ages"].items())
            print(f"ages: from {_age(found['newest_s'])} to {_age(found['oldest_s'])}; {ages}")
        print(f"file {_size(size['file'])}, of which {_size(size['free'])} free, log {_size(size['log'])}{each}")


def tasks(history: HistoryArgument = Path("tt.db"), as_json: JsonOption = False) -> None:
    """List every task of a history with its rows, devices and best."""
    with _opened(history) as store:
        found = _tasks(store)
        if as_json:
            print(json.dumps(found))
            return
        _table(
            ("task", "key", "op", "shapes", "rows", "failed", "device", "best"),
            (
                (
                    t["name"] or "",
                    t["key"],
                    t["op"] or "",
                    t["shapes"] or "",
                    t["rows"],
                    t["failed"],
                    d["device"],
                    _latency(d),
                )
                for t in found
                for d in t["devices"] or [{"device": "", "best_s": None}]
            ),
        )


def nearest(
    ctx: typer.Context,
    what: Annotated[
        str, typer.Argument(metavar="MODEL", help="A task in the history, by name or key; or with tt, as for tt tune")
    ],
    history: Annotated[Path, typer.Option(help="The database")] = Path("tt.db"),
    target: Annotated[str, typer.Option(help='Of a model: "native", a TVM target string or JSON')] = "native",
    n: Annotated[int, typer.Option("--most", min=1, help="Neighbours of each task")] = 5,
    as_json: JsonOption = False,
) -> None:
    """List the tasks of a history that are most like a model's, with their distances in doublings, and their rows."""
    with _opened(history) as store:
        asked = [
            Task(
                t["key"], t["name"], t["op"], t["target"], (), t["flops"], t["weight"], b"", t["shapes"], t["workload"]
            )
            for t in store.tasks()
            if t["key"] == what or fnmatchcase(t["name"], what)
        ]
        if not asked and ctx.obj is None:
            raise HistoryError(f"{history} has no task {what!r} (see tt-history tasks); with tt-core it may be a model")
        asked = asked or ctx.obj.prepare(what, target=target).tasks
        found = {t.key: (t, store.nearest(t, n)) for t in asked}
    if as_json:
        rows = [
            {"task": t.name, "key": t.key, "op": t.op, "shapes": t.shapes, "nearest": [asdict(x) for x in near]}
            for t, near in found.values()
        ]
        print(json.dumps(rows))
        return
    for t, near in found.values():
        print(f"{t.name} ({t.op}, {t.shapes})" + ("" if near else ": no other task of its kind"))
        _table(
            ("", "distance", "rows", "task", "key", "shapes"),
            (("", f"{x.distance:.2f}", x.rows, x.name, x.key, x.shapes) for x in near),
        )


def compact(
    by: Annotated[str, typer.Option(help="date: the newest record stays; mean: one with the mean of all latencies")],
    history: HistoryArgument = Path("tt.db"),
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Leave one record of each row on a device. Recordings of tt record are left alone."""
    if by not in ("date", "mean"):
        raise typer.BadParameter(f"--by is date or mean, got {by!r}")
    with _opened(history) as store:
        _removing(lambda dry: maintenance.compact(store, by, dry), history, yes, dry_run, as_json)


def prune(
    history: HistoryArgument = Path("tt.db"),
    older_than: Annotated[str | None, typer.Option(help="Age: 90d, 12h, 2w")] = None,
    device: Annotated[str | None, typer.Option(help="Pattern of devices, as in a shell")] = None,
    task: Annotated[str | None, typer.Option(help="Name or key of a task, or a pattern of them")] = None,
    origin: Annotated[
        str | None, typer.Option(help="import: what came from files; search, random, ...: who proposed it")
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="Who measured it for a tuning service: KEY/AGENT or AGENT, or a pattern of them")
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only failures, with their rows' earlier records")] = False,
    keep_best: Annotated[
        int | None, typer.Option(min=0, help="So many of the fastest rows of each task and device stay")
    ] = None,
    runs: Annotated[
        bool, typer.Option("--runs", help="Event logs of runs instead, by --older-than (90d) and --keep-mb (1000)")
    ] = False,
    keep_mb: Annotated[
        float | None, typer.Option(min=0, help="With --runs: so many megabytes of the newest logs stay")
    ] = None,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove the records that fit all that is given. Recordings of tt record are left alone."""
    age = None if older_than is None else _seconds(older_than)
    if runs:
        if device or task or origin or agent or failed or keep_best is not None:
            raise typer.BadParameter("--runs goes with --older-than and --keep-mb alone: logs are files, no records")
        _prune_logs(history, age, keep_mb, yes, dry_run, as_json)
        return
    if keep_mb is not None:
        raise typer.BadParameter("--keep-mb goes with --runs; records are kept by --keep-best")
    try:
        unwanted = maintenance.Unwanted(age, device, task, origin, failed, keep_best, agent)
    except ValueError as e:
        raise typer.BadParameter(
            f"{e} (--older-than, --device, --task, --origin, --agent, --failed, --keep-best)"
        ) from e
    with _opened(history) as store:
        _removing(lambda dry: maintenance.prune(store, unwanted, dry), history, yes, dry_run, as_json)


def merge(
    histories: Annotated[list[Path], typer.Argument(help="The databases, which are only read")],
    into: Annotated[Path, typer.Option(help="The database that gets all; made if missing")],
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make one history of several; a record that is in more than one counts once."""
    for path in histories:
        _exists(path)
    sources = [SqliteStore(path) for path in histories]
    target = SqliteStore(into)
    try:
        with whole(" or ".join(s.name for s in sources)):
            done = maintenance.merge(sources, target, dry_run)
    except StoreError as e:
        raise HistoryError(str(e)) from e
    finally:
        for store in (*sources, target):
            store.close()
    if as_json:
        print(json.dumps({**done, "dry_run": dry_run}))
        return
    would = "would have" if dry_run else "has"
    print(f"{into} {would} {done['rows']:,} records, {done['added']:,} of them new; {done['doubles']:,} counted once")
    if others := done["others"]:
        print(f"{others:,} left out: of operators whose key is another one's in an earlier history")


def vacuum(
    history: HistoryArgument = Path("tt.db"), dry_run: DryRunOption = False, as_json: JsonOption = False
) -> None:
    """Check a history's integrity, take in its log and give free space back."""
    with _opened(history) as store:
        done = maintenance.vacuum(store, dry_run)
    if as_json:
        print(json.dumps({**done, "dry_run": dry_run}))
        return
    size = done["bytes"]
    now = f"{_size(size['free'])} could be given back" if dry_run else f"{_size(done['bytes_before'])} before"
    print(f"integrity: {done['integrity']}; file {_size(size['file'])}, log {_size(size['log'])}; {now}")


def export(
    file: FileArgument,
    form: FormatOption,
    history: HistoryOption = Path("tt.db"),
    as_json: JsonOption = False,
) -> None:
    """Write a history's tasks, runs and records in a format that others read."""
    piece = _format(form)
    if Writes not in capabilities("format", piece):
        raise HistoryError(f"format {form!r} can be read, not written")
    with _opened(history) as store, _shown("written") as told:
        done = exchange.export(store, piece, file, told)
    if as_json:
        print(json.dumps(done))
        return
    print(f"{file}: {done['written']:,} of {done['rows']:,} records, {done['tasks']:,} tasks, {done['runs']:,} runs")
    _reasons(done["left_out"])


def import_(
    file: FileArgument,
    form: FormatOption,
    history: Annotated[Path, typer.Option(help="The database; made if missing")] = Path("tt.db"),
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Bring records of a file into a history, marked as imported: they guide searches, and never ship as they are."""
    store = SqliteStore(history)
    try:
        with _shown("read") as told:
            done = exchange.take(store, _format(form), file, dry_run, told=told)
    except StoreError as e:
        raise HistoryError(str(e)) from e
    finally:
        store.close()
    if as_json:
        print(json.dumps({**done, "dry_run": dry_run}))
        return
    would = "would get" if dry_run else "has"
    print(
        f"{history} {would} {done['added']:,} of {done['records']:,} records as import; {done['tasks']:,} tasks are new"
    )
    if there := done["known"]:
        print(f"{there:,} are there already")
    if here := done["measured_here"]:
        print(f"{here:,} left out: of rows that this history has measured itself")
    _reasons(done["left_out"])


def _format(name: str) -> Any:
    return Plugins().build("format", name)


def _reasons(left_out: dict[str, int]) -> None:
    for why, n in sorted(left_out.items(), key=lambda x: -x[1]):
        print(f"{n:,} left out: {_plain(why)}")


@contextmanager
def _shown(verb: str) -> Iterator[Callable[[int], None]]:
    """Progress on a terminal's stderr."""
    shown = sys.stderr.isatty()

    def told(n: int) -> None:
        if shown:
            print(f"\r{n:,} records {verb}", end="", file=sys.stderr, flush=True)

    try:
        yield told
    finally:
        if shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


COMMANDS: dict[str, Callable[..., None]] = {
    "stats": stats,
    "tasks": tasks,
    "nearest": nearest,
    "compact": compact,
    "prune": prune,
    "merge": merge,
    "vacuum": vacuum,
    "export": export,
    "import": import_,
}
"""By the name that follows `tt history` or `tt-history`."""


def _tasks(store: SqliteStore) -> list[dict[str, Any]]:
    """One per task, those without a name too: what is known of it, `rows`, `failed`, and its `devices`."""
    found = {t["key"]: {**t, "rows": 0, "failed": 0, "devices": []} for t in store.tasks()}
    unknown = dict.fromkeys(("name", "op", "target", "shapes", "flops", "weight"))
    for s in store.summary():
        empty = {"key": s["task_key"], **unknown, "workload": "", "rows": 0, "failed": 0, "devices": []}
        t = found.setdefault(s["task_key"], empty)
        t["rows"] += s["trials"]
        t["failed"] += s["failed"]
        t["devices"].append({k: s[k] for k in ("device", "trials", "failed", "invalid", "best_s", "last")})
    return list(found.values())


def _removing(work: Callable[[bool], dict[str, Any]], history: Path, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Ask before records go, unless told to; then say what went."""
    if not yes and not dry_run:
        planned = work(True)
        text = f"{history}: {planned['removed']:,} of {planned['rows']:,} records would go"
        if planned["removed"]:
            if as_json or not sys.stdin.isatty():
                raise HistoryError(f"{text}; nobody can be asked here: add --yes, or --dry-run to be told only")
            if not typer.confirm(f"{text}; remove them?"):
                print("nothing was changed")
                return
    done = work(dry_run)
    if as_json:
        print(json.dumps({**done, "dry_run": dry_run}))
        return
    averaged = f", {done['averaged']:,} became the mean of theirs" if done.get("averaged") else ""
    verb = "would go" if dry_run else "removed"
    print(f"{done['removed']:,} of {done['rows']:,} records {verb}{averaged}")


def _prune_logs(
    history: Path, age: float | None, keep_mb: float | None, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Remove old event logs; those of the last day stay unless an age is given."""
    where = logfiles.folder(history)
    if where is None or not os.path.isdir(where):
        raise HistoryError(f"no event logs beside {history}: tt tune writes them to {where or 'tt.runs'}")
    most = logfiles.MOST_BYTES if keep_mb is None else 1e6 * keep_mb
    oldest, young = (logfiles.OLDEST_S, logfiles.YOUNG_S) if age is None else (age, min(age, logfiles.YOUNG_S))
    plan = logfiles.prune(where, oldest, most, dry_run=True, young_s=young)
    if plan.removed and not yes and not dry_run:
        text = f"{where}: {plan.removed:,} of {plan.logs:,} event logs ({_size(plan.removed_bytes)}) would go"
        if as_json or not sys.stdin.isatty():
            raise HistoryError(f"{text}; nobody can be asked here: add --yes, or --dry-run to be told only")
        if not typer.confirm(f"{text}; remove them?"):
            print("nothing was changed")
            return
    done = plan if dry_run else logfiles.prune(where, oldest, most, young_s=young)
    if as_json:
        print(json.dumps({**asdict(done), "dry_run": dry_run}))
        return
    verb = "would go" if dry_run else "removed"
    print(f"{done.removed:,} of {done.logs:,} event logs ({_size(done.removed_bytes)} of {_size(done.bytes)}) {verb}")


def _exists(path: Path) -> None:
    if not os.path.exists(path):  # unlike pathlib's, it takes any text
        raise HistoryError(f"no history {path}: tt tune writes one")


@contextmanager
def _opened(path: Path) -> Iterator[SqliteStore]:
    _exists(path)
    store = SqliteStore(path)
    try:
        with whole(store.name):
            yield store
    except StoreError as e:
        raise HistoryError(str(e)) from e
    finally:
        store.close()


def _seconds(age: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", age.strip())
    if found is None:
        raise typer.BadParameter(f"--older-than is a number and s, m, h, d or w, e.g. 90d, got {age!r}")
    return float(found[1]) * _UNITS[found[2]]


def _table(headings: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> None:
    texts = [headings, *(tuple(map(_plain, row)) for row in rows)]
    if len(texts) == 1:
        return
    wide = [max(len(t[i]) for t in texts) for i in range(len(headings))]
    for t in texts:
        print("  ".join(cell.ljust(w) for cell, w in zip(t, wide, strict=True)).rstrip())


def _plain(value: object) -> str:
    """A text in which nothing acts in a terminal."""
    return "".join(c if c.isprintable() else " " for c in str(value))


def _latency(s: dict[str, Any]) -> str:
    best = s["best_s"]
    if best is None or not math.isfinite(best):
        return "-"
    return f"{best * 1e6:.1f} us" if best < 1e-3 else f"{best * 1e3:.3f} ms"


def _age(seconds: float) -> str:
    return f"{seconds / 86400:.1f} d" if seconds >= 86400 else f"{max(0.0, seconds) / 3600:.1f} h"


def _size(n: int) -> str:
    return f"{n / 1e6:.1f} MB" if n >= 1e6 else f"{n / 1e3:.1f} kB"
