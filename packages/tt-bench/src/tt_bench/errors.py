"""Mistakes that users can fix."""

from __future__ import annotations

from tt_spec import PluginError

__all__ = ["BenchError"]


class BenchError(PluginError):
    """One line that says what came and what to do; `tt` prints it and exits with `exit_code`."""

    exit_code = 6
