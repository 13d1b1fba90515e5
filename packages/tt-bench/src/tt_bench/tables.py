"""Tables that commands print."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["plain", "show"]


def show(head: Sequence[str], rows: Sequence[Sequence[str]], text: int = 2) -> None:
    """Print a table: drawn and folded to the width of a terminal, `plain` for a file or a pipe.

    Args:
        text: How many columns, from the left, hold words; the others hold numbers.
    """
    if not sys.stdout.isatty():
        print("\n".join(plain(head, rows, text)))
        return
    table = Table()
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if i < text else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


def plain(head: Sequence[str], rows: Sequence[Sequence[str]], text: int = 2) -> list[str]:
    """A line for the headings and one for each row, however long, columns two blanks apart."""
    columns = []
    for i, column in enumerate(zip(head, *rows, strict=True)):
        width = max(map(len, column))
        columns.append([cell.ljust(width) if i < text else cell.rjust(width) for cell in column])
    return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
