"""The command `tt-history`: upkeep of histories where no compiler is installed."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import typer
from tt_spec.command import Framework, exit_code

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
    framework = Framework(typer.Exit, typer.Abort, typer.BadParameter.__mro__[2])
    return exit_code("tt-history", lambda: app(list(arguments), standalone_mode=False), framework)
