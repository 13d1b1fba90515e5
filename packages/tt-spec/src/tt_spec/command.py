"""A command line carried out, to its exit code: whatever goes wrong is one line on stderr.

The framework that reads the words, typer for one, is the caller's: its exceptions come in as an argument.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tt_spec.errors import OptionError, UserError, one_line

__all__ = ["Framework", "exit_code", "mistake"]

Explain = Callable[[Exception], tuple[str, Sequence[str], int]]
"""The message of an exception, further lines and the exit code."""


@dataclass(frozen=True)
class Framework:
    """Exceptions by which a framework ends a command.

    Args:
        exit: Has an `exit_code`; `typer.Exit`.
        abort: Given up by the user; `typer.Abort`.
        usage: A mistake in the words, of any kind, with a method `format_message`; `click.ClickException`, of which
            typer's own copy has no public name: `typer.BadParameter.__mro__[2]`.
    """

    exit: type[BaseException]
    abort: type[BaseException]
    usage: type[Exception]


def mistake(e: Exception) -> tuple[str, Sequence[str], int]:
    """A mistake that the user can fix, explained; a defect is raised again."""
    if isinstance(e, UserError):
        return str(e), e.details, e.exit_code
    raise e


def exit_code(name: str, act: Callable[[], object], framework: Framework, explain: Explain = mistake) -> int:
    """The exit code that `act`, the command called `name`, ends with.

    Args:
        act: Returns the exit code; what is no number is 0.
        explain: Of what `act` raises, other than by the framework.
    """
    try:
        code = act()
        return code if isinstance(code, int) else 0
    except framework.exit as e:
        left: Any = e
        return left.exit_code
    except (framework.abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except framework.usage as e:
        said: Any = e
        wrong = OptionError(f"{said.format_message()} (see {name} --help)")
        wrong.__cause__ = e
        text, details, code = explain(wrong)
    except Exception as e:
        text, details, code = explain(e)
    print("\n  ".join([f"{name}: {one_line(text)}", *map(one_line, details)]), file=sys.stderr)
    return code
