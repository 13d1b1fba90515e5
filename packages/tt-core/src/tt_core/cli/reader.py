"""Whoever reads what a run prints, and may stop reading."""

from __future__ import annotations

from typing import Any

__all__ = ["Reader"]


class Reader:
    """A listener that prints, for a reader at the other end of a pipe; `gone` says whether that has closed it."""

    def __init__(self, listener: Any) -> None:
        self.listener, self.gone = listener, False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.listener, name)

        def tell(*args: Any, **what: Any) -> Any:
            try:
                return method(*args, **what)
            except BrokenPipeError:
                self.gone = True

        return tell
