"""Mistakes that users can mend."""

from __future__ import annotations

from tt_spec import UserError

__all__ = ["ServiceError"]


class ServiceError(UserError, exit_code=9):
    """A server cannot be reached, refuses what it was asked, or cannot be started; the message says which."""
