"""The command `tt-server`: serving, keys and jobs where no compiler is installed."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence

import typer
from tt_spec import UserError

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
        text, code = f"{said()} (see tt-server --help)", 2
    print(f"tt-server: {' '.join(text.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
