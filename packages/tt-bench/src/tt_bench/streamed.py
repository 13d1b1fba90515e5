"""A large JSON object in a file, element by element."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tt_spec.errors import FormatError
from tt_spec.exchange import LINE, opened

__all__ = ["Member", "fault", "members"]

_CHUNK = 1 << 16

_LARGEST = 512 << 20
"""Characters of a value that is read whole; those of elements are at most `LINE`."""

_BLANK = " \t\r\n"

_DECODER = json.JSONDecoder()


class Member(NamedTuple):
    """A member of the object, or an element of one.

    Args:
        element: Its place in the member, from 1; 0 for a member that was read whole.
        key: Of an element of an object; empty in an array.
        line: Where it begins.
    """

    name: str
    element: int
    key: str
    value: Any
    line: int


def fault(e: Exception) -> str:
    """What is wrong with a value, in a line of 200 characters."""
    if isinstance(e, RecursionError):
        return "nested too deeply"
    return f"{e.args[0]!r} is missing" if isinstance(e, KeyError) else " ".join(str(e).split())[:200]


def members(path: Path, apart: frozenset[str], unclosed: bool = False) -> Iterator[Member]:
    """The members of the object that a file holds, those named in `apart` element by element.

    Memory holds an element at a time. What is no JSON, or goes on after the object, is a `FormatError` with its line.

    Args:
        unclosed: A file that ends between two elements of one of `apart` is whole.
    """
    with opened(path) as stream:
        text = _Text(stream)
        try:
            text.take("{")
            if text.peek() == "}":
                text.take("}")
            else:
                yield from _members(text, apart, unclosed)
            if text.peek():
                raise ValueError("the file goes on after the end of its object")
        except (RecursionError, ValueError) as e:
            raise FormatError(f"{path}, line {text.line}: {fault(e)}") from e


def _members(text: _Text, apart: frozenset[str], unclosed: bool) -> Iterator[Member]:
    seen: set[str] = set()
    while True:
        name = text.name()
        if name in seen:
            raise ValueError(f"{name[:40]!r} is there twice")
        seen.add(name)
        if name in apart:
            yield from _elements(text, name, unclosed)
            if unclosed and not text.peek():
                return
        else:
            text.peek()
            line = text.line
            yield Member(name, 0, "", text.value(_LARGEST), line)
        if text.take(",}") == "}":
            return


def _elements(text: _Text, name: str, unclosed: bool) -> Iterator[Member]:
    end = "]" if text.take("[{") == "[" else "}"
    number = 0
    while not (text.peek() == end and not number) and not (unclosed and not text.peek()):
        number += 1
        line = text.line
        key = text.name() if end == "}" else ""
        yield Member(name, number, key, text.value(LINE), line)
        if (unclosed and not text.peek()) or text.take("," + end) == end:
            return
    if text.peek():
        text.take(end)


class _Text:
    """A file's text, of which the part in hand is kept.

    Args:
        line: Of what is read next.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.line = 1
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at, self._over = "", 0, False

    def peek(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _BLANK:
                self.line += self._text[self._at] == "\n"
                self._at += 1
            if self._at < len(self._text) or self._over:
                return self._text[self._at : self._at + 1]
            self._more(_CHUNK)

    def take(self, wanted: str) -> str:
        """The next character, which must be one of these."""
        found = self.peek()
        if not found or found not in wanted:
            raise ValueError(f"{' or '.join(wanted)} is wanted, got {found!r}" if found else "the file ends too early")
        self._at += 1
        return found

    def name(self) -> str:
        """A name and the colon behind it."""
        if self.peek() != '"':
            self.take('"')
        name = self.value(LINE)
        self.take(":")
        return name

    def value(self, most: int) -> Any:
        """The next value, of at most so many characters."""
        self.peek()
        more = _CHUNK
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                if end < len(self._text) or self._over:  # the digits of a number may go on
                    break
            except json.JSONDecodeError as e:
                if self._over:
                    self._pass(e.pos)
                    raise ValueError(f"no JSON, or cut off: {e.msg}") from e
            if len(self._text) - self._at > most:
                raise ValueError(f"longer than {most >> 20} MB, or no JSON")
            self._more(more)
            more *= 2
        self._pass(end)
        return value

    def _pass(self, end: int) -> None:
        self.line += self._text.count("\n", self._at, end)
        self._at = end

    def _more(self, n: int) -> None:
        data = self._stream.read(n)
        self._over = not data
        self._text = self._text[self._at :] + self._decoder.decode(data, final=self._over)
        self._at = 0
