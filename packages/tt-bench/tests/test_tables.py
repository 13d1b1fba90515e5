"""Tables for people and for programs."""

from __future__ import annotations

import re
import sys

from tt_bench import tables

LONG = "1x64x56x56, 64x64x3x3 -> 1x64x56x56 [template] " * 6
ROWS = [(LONG, "tt", "0.981 [0.97, 0.99]"), ("short", "[bold]autotvm[/]", "—")]


def test_without_a_terminal_each_row_is_a_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    tables.show(("unit", "recipe", "area"), ROWS)
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["unit", "recipe", "area"]
    assert [line.split("  ")[0].strip() for line in lines] == [LONG.strip(), "short"]
    assert all(cell.strip() in line for line, row in zip(lines, ROWS, strict=True) for cell in row)
    assert "\x1b" not in "".join(lines)


def test_columns_stand_below_each_other():
    assert tables.plain(("name", "s"), [("a", "1.5"), ("long", "10")], text=1) == [
        "name    s",
        "a     1.5",
        "long   10",
    ]
    assert tables.plain(("name", "s"), []) == ["name  s"]


def test_a_terminal_has_folded_cells(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    tables.show(("unit", "recipe", "area"), ROWS)
    out = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    assert len(out.splitlines()) > 6 and max(map(len, out.splitlines())) <= 60
    assert "[bold]" in out, "names are no markup"
