"""The command `tt-server`: serving, keys and jobs where no compiler is installed."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import typer
from tt_spec.command import Framework, exit_code

from tt_service.commands import JOBS, serve
from tt_service.key_commands import COMMANDS as KEYS

__all__ = ["app", "main", "run"]

app = typer.Typer(
    name="tt-server",
    help="Tuning as a service: think for jobs, and hand their rows to agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    epilog="Exit codes: 0 done; 2 an option that cannot be used; 6 and 7 a file that cannot be read or written;"
    " 9 a server that cannot be reached, or that refuses.",
)
app.command("serve")(serve)
_keys = typer.Typer(help="Keys of a server", no_args_is_help=True)
_jobs = typer.Typer(help="Jobs of a server", no_args_is_help=True)
for _name, _command in KEYS.items():
    _keys.command(_name)(_command)
for _name, _command in JOBS.items():
    _jobs.command(_name)(_command)
app.add_typer(_keys, name="key")
app.add_typer(_jobs, name="jobs")


def main() -> None:
    """Entry point of the command."""
    warnings.formatwarning = lambda message, *_, **__: f"tt-server: warning: {' '.join(str(message).split())}\n"
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """One command; returns its exit code. A mistake is one line on stderr."""
    framework = Framework(typer.Exit, typer.Abort, typer.BadParameter.__mro__[2])
    return exit_code("tt-server", lambda: app(list(arguments), standalone_mode=False), framework)


if __name__ == "__main__":
    main()
