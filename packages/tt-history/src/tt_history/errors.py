"""Mistakes that users can mend."""

from __future__ import annotations

from tt_spec import PluginError

__all__ = ["HistoryError"]


class HistoryError(PluginError):
    """One line that says what came and what to do; the command ends with `exit_code`."""

    exit_code = 6
