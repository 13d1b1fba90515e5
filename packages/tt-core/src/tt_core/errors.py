"""Mistakes that users can mend: one line each, never a traceback."""

from __future__ import annotations

import re

__all__ = [
    "FileError",
    "ModelError",
    "OptionError",
    "RunError",
    "TargetError",
    "UserError",
    "VerificationError",
    "summary",
]


class UserError(Exception):
    """Something the user can mend; the message says the rule, what came and what to do."""

    exit_code = 2


class OptionError(UserError):
    """An option, recipe or piece that does not exist or does not fit."""


class ModelError(UserError):
    """A model that cannot be read or imported."""

    exit_code = 3


class TargetError(UserError):
    """A target that is unknown, or that this machine cannot run."""

    exit_code = 4


class VerificationError(UserError):
    """A tuned program computes something else; the message names the operator."""

    exit_code = 5


class FileError(UserError):
    """A history or an output that cannot be read or written."""

    exit_code = 6


class RunError(UserError):
    """The run broke off, or found no valid program."""

    exit_code = 7


def summary(e: BaseException) -> str:
    """A foreign exception in one line: its type and the first line of its message, at most 300 characters."""
    lines = [re.sub(r"\s+", " ", x).strip() for x in str(e).splitlines() if x.strip()]
    return f"{type(e).__name__}: {lines[0][:300]}" if lines else type(e).__name__
