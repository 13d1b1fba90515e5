"""The command `tt-history`: upkeep of histories where no compiler is installed."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence

import typer
from tt_spec import UserError

from tt_history.commands import COMMANDS
from tt_history.suggest_command import suggest

__all__ = ["app", "main", "run"]

app = typer.Typer(
    name="tt-history",
    help="Look after a history of tuning: what tt measured, in one SQLite file.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    epilog="Exit codes: 0 done; 2 an option that cannot be used; 6 a history that cannot be read or written.",
)
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
app.command("suggest")(suggest)


def main() -> None:
    """Entry point of the command."""
    warnings.formatwarning = lambda message, *_, **__: f"tt-history: warning: {message}\n"
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """One command; returns its exit code. A mistake is one line on stderr."""
    try:
        code = app(list(arguments), standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.Exit as e:
        return e.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except UserError as e:
        text, code = str(e), e.exit_code
    except Exception as e:
        said = getattr(e, "format_message", None)  # typer's usage errors, of no public type
        if said is None:
            raise
        text, code = f"{said()} (see tt-history --help)", 2
    plain = "".join(c if c.isprintable() else " " for c in text)  # of a stranger's file, say
    print(f"tt-history: {' '.join(plain.split())}", file=sys.stderr)
    return code
