"""Mistakes that users can mend: one line each, never a traceback."""

from __future__ import annotations

__all__ = ["ModelError", "OptionError", "TargetError", "UserError", "VerificationError"]


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
