"""Mistakes that users can mend."""

from __future__ import annotations

from tt_spec import UserError

__all__ = ["HistoryError"]


class HistoryError(UserError, exit_code=6):
    """A history cannot be read or written; one line that says what came and what to do."""
