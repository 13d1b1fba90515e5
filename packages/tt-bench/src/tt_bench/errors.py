"""Mistakes that users can fix."""

from __future__ import annotations

from tt_spec import UserError

__all__ = ["BenchError"]


class BenchError(UserError, exit_code=6):
    """A recording or a comparison that cannot be read, written or used."""
