"""Every row of docs/faults.md names a test that exists."""

from __future__ import annotations

import re

from workspace import ROOT


def unknown(page: str, tests: set[str]) -> list[str]:
    """Rows of the page's table that name no test, or none of these."""
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| fault |")]
    named = {row: re.findall(r"`(test_\w+)`", row.rsplit("|", 2)[1]) for row in rows}
    return [row for row, names in named.items() if not names or not tests.issuperset(names)]


def test_every_fault_has_a_test():
    page = (ROOT / "docs" / "faults.md").read_text()
    files = [*(ROOT / "packages").rglob("tests/test_*.py"), *(ROOT / "integration").glob("test_*.py")]
    tests = {name for f in files for name in re.findall(r"^def (test_\w+)", f.read_text(), re.MULTILINE)}
    assert page.count("\n| ") > 40
    assert unknown(page, tests) == []


def test_the_check_can_fail():
    assert unknown("| a | b | `test_gone` |\n| c | d | |\n| e | f | `test_here` |", {"test_here"}) == [
        "| a | b | `test_gone` |",
        "| c | d | |",
    ]
