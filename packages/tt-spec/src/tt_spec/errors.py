"""Mistakes that people can fix: one family, each class with the exit code of a command that ends with it.

The message is one line that says the rule, what came and what to do; whoever shows it adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "ORIGIN",
    "FileError",
    "FormatError",
    "OptionError",
    "PieceError",
    "PieceFailure",
    "PluginError",
    "ProgramError",
    "StoreError",
    "UserError",
    "one_line",
    "summary",
    "whose",
]

ORIGIN = "tt_origin"
"""Attribute of a built piece: what to call it in a message. Text, so that the piece stays picklable."""


class UserError(Exception):
    """Something the user can fix.

    Args:
        message: One line.
        details: Further lines for the terminal, each a fact of its own.
    """

    exit_code = 2

    def __init_subclass__(cls, exit_code: int | None = None) -> None:
        cls.exit_code = cls.exit_code if exit_code is None else exit_code

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = tuple(details)


class OptionError(UserError):
    """An option, recipe or piece that does not exist or does not fit."""


class FileError(UserError, exit_code=6):
    """A history or an output that cannot be read or written."""


class PluginError(UserError):
    """A plug-in or a piece cannot be used."""


class PieceError(UserError, exit_code=7):
    """A piece cannot do its work."""


class ProgramError(PieceError):
    """A program failed at its work: it crashed, hung or raised, and whoever ran it is well.

    Args:
        error: Its kind, as a measurement has it: "run" or "run-timeout".
    """

    def __init__(self, message: str, error: str = "run") -> None:
        super().__init__(message)
        self.error = error


class StoreError(PieceError):
    """A store cannot be read or written; the message names it."""


class FormatError(UserError, exit_code=6):
    """A file of exchanged histories cannot be read or written; the message names it, and its line or column."""


class PieceFailure(PieceError):
    """A piece failed at its work; the message names it, its distribution and what went wrong.

    Args:
        piece: The piece, or what stands for it.
        what: The exception that it raised, which also becomes `__cause__`, or a text where that lives elsewhere.
    """

    def __init__(self, role: str, piece: Any, what: BaseException | str) -> None:
        text = summary(what) if isinstance(what, BaseException) else what
        super().__init__(f"{whose(role, piece)} failed: {text}")


def one_line(text: str) -> str:
    """The text with every run of white space or unprintable characters as one blank."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def summary(e: BaseException) -> str:
    """Any exception in one line: its type and 300 characters of its message; of our own, which say all, the message."""
    text = " ".join(str(e).split())
    if isinstance(e, UserError):
        return text
    return f"{type(e).__name__}: {text[:300]}" if text else type(e).__name__


def whose(role: str, piece: Any) -> str:
    """The name of a piece in messages: "searcher 'anneal' of tt-search 0.1.0" if `Plugins` built it, else its class."""
    known = getattr(piece, ORIGIN, None)
    return known if isinstance(known, str) else f"{role} {type(piece).__module__}.{type(piece).__qualname__}"
