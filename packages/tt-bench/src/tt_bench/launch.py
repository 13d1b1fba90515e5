"""`tt` as a process of its own, for programs that drive it, and these programs as commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tt_spec import UserError, child

from tt_bench.errors import BenchError

__all__ = ["LaunchError", "program", "tt", "tuned"]

COMMAND = tuple(child.command("tt_core"))


class LaunchError(BenchError):
    """A command that ended with an error, whose exit code this one has."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def tt(*arguments: str) -> None:
    """Run `tt` with its output shown. Raises `LaunchError` if it fails."""
    code = subprocess.run([*COMMAND, *arguments], check=False).returncode
    if code:
        raise LaunchError(f"tt {' '.join(arguments)}: exit code {code}", code)


def tuned(model: str, *options: str) -> dict[str, Any]:
    """The result of `tt tune MODEL --json` with these options, its progress not shown. Raises `LaunchError`."""
    command = [*COMMAND, "tune", model, "--json", *options]
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise LaunchError(f"tt tune {model}: exit code {done.returncode}\n{said}", done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def program(main: Callable[[], None]) -> None:
    """Call a program's `main`; a mistake that its user can fix is a line and an exit code, not a traceback."""
    try:
        main()
    except UserError as e:
        print(e, file=sys.stderr)
        sys.exit(e.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
