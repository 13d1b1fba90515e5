"""`tt key …`, and without a compiler `tt-server key …`: run where the server's history lies."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from tt_spec.errors import OptionError

from tt_service.database import path_of
from tt_service.keys import SCOPES, Key, Keys

__all__ = ["COMMANDS", "add", "list_", "revoke"]

HistoryOption = Annotated[Path, typer.Option(help="The server's history; keys are in a file beside it")]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_FOREVER_S = 100 * 365 * 86400.0


def add(
    name: Annotated[str, typer.Argument(help="The user; all keys of one name are one user's")],
    scope: Annotated[str, typer.Option(help=f"What it is for, joined by commas: {', '.join(SCOPES)}")] = "jobs,agent",
    history: HistoryOption = Path("tt.db"),
    expires: Annotated[str, typer.Option(help="When it ends, e.g. 90d; s, m, h, d or w")] = "",
) -> None:
    """Make a key and print it, once: the server keeps only its hash."""
    keys, scopes = Keys(path_of(history)), [s.strip() for s in scope.split(",") if s.strip()]
    print(keys.add(name, scopes, _seconds(expires)))
    keys.close()
    what = ", ".join(sorted(set(scopes)))
    about = f"for {what}, in {path_of(history)}; it is not shown again: put it into TT_KEY or a file of mode 0600"
    print(f"key of {name} {about}", file=sys.stderr)


def list_(
    history: HistoryOption = Path("tt.db"),
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output")] = False,
) -> None:
    """List the keys by their public ids, with what they are for and whether they are valid."""
    keys = _known(history)
    found, now = keys.listed(), keys.clock.now()
    keys.close()
    if as_json:
        print(json.dumps([{**asdict(k), "state": k.state(now)} for k in found]))
        return
    rows = [("id", "name", "scopes", "made", "expires", "state"), *(_row(k, now) for k in found)]
    wide = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    for r in rows if found else []:
        print("  ".join(cell.ljust(w) for cell, w in zip(r, wide, strict=True)).rstrip())


def revoke(
    which: Annotated[str, typer.Argument(help="A key's id, or a name: all its keys")],
    history: HistoryOption = Path("tt.db"),
) -> None:
    """Revoke keys; a running server refuses them within a second."""
    keys = _known(history)
    done = keys.revoke(which)
    keys.close()
    for k in done:
        print(f"revoked {k.id} of {k.name}")
    if not done:
        print(f"{which} was revoked before")


COMMANDS = {"add": add, "list": list_, "revoke": revoke}


def _known(history: Path) -> Keys:
    """The keys of a server that has some."""
    if not path_of(history).exists():
        raise OptionError(
            f"{path_of(history)}: no keys are here; --history names the server's, tt key add makes the first"
        )
    return Keys(path_of(history))


def _seconds(text: str) -> float | None:
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])", text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= _FOREVER_S:
        raise OptionError(f"--expires is a number and s, m, h, d or w, at most 100 years, e.g. 90d, got {text[:40]!r}")
    return seconds


def _row(k: Key, now: float) -> tuple[str, ...]:
    days = [
        "never" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) for at in (k.created, k.expires)
    ]
    return (k.id, k.name, ",".join(k.scopes), *days, k.state(now))
