"""Mistakes that users can fix: one line each, never a traceback; and the exit code of each kind."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Sequence
from typing import Any

from tt_spec import UserError, summary
from tt_spec.errors import FileError, one_line

__all__ = [
    "EXIT_CODES",
    "InstallationError",
    "ModelError",
    "RunError",
    "TargetError",
    "UserError",
    "VerificationError",
    "explained",
    "one_line",
    "printable",
    "summary",
]

EXIT_CODES = {
    0: "done",
    2: "a command line, recipe, piece, option or file of weights that cannot be used",
    3: "a model or library that cannot be read, imported or compiled",
    4: "a target that is unknown, or that this machine cannot run",
    5: "the model computes something else than its peer, no file was written",
    6: "a history or output that cannot be read or written",
    7: "the run broke off (the best so far was written) or no chosen task has a valid program (no file was)",
    8: "this installation cannot tune, tt doctor says why",
    9: "a server that cannot be reached, or that refuses what it was asked",
    70: "a defect of tt, run it again with --debug and report it",
    130: "Ctrl-C, SIGTERM or SIGHUP, the best so far was written",
    141: "nobody reads the output any more",
}
"""The exit codes of the command `tt`; there are no others."""


class ModelError(UserError, exit_code=3):
    """A model or deployed library that cannot be read or imported."""


class TargetError(UserError, exit_code=4):
    """A target that is unknown, or that this machine cannot run."""


class VerificationError(UserError, exit_code=5):
    """A tuned program computes something else; the message names the operator."""


class RunError(UserError, exit_code=7):
    """The run broke off, or found no valid program."""


class InstallationError(UserError, exit_code=8):
    """An installation that cannot tune."""


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A disk, quota or limit that is full, wherever that was met."""


def explained(e: Exception) -> tuple[str, Sequence[str], int]:
    """The message for the user, further lines and the exit code of any exception."""
    if isinstance(e, UserError):
        return str(e), e.details, e.exit_code
    if isinstance(e, OSError) and e.errno in _FULL:
        where = f"{e.filename}: " if e.filename else ""
        about = f"free some space there and in {tempfile.gettempdir()}, which TMPDIR chooses; what was measured is kept"
        return f"{where}{e.strerror}; {about}", (), FileError.exit_code
    return f"internal error, {summary(e)}; run it again with --debug to see where, and report it", (), 70


def printable(value: object) -> Any:
    """A JSON document with blanks for the unprintable characters of all its texts: what a foreign file says must not
    act in a terminal."""
    if isinstance(value, str):
        return value if value.isprintable() else "".join(c if c.isprintable() else " " for c in value)
    if isinstance(value, dict):
        return {printable(k): printable(v) for k, v in value.items()}
    return [printable(v) for v in value] if isinstance(value, list) else value
