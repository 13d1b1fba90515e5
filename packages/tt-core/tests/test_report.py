"""Tables that commands print, in terminals of any width."""

import dataclasses
import re

import pytest
from tt_core.cli import tables as report
from tt_spec.pieces.synthetic import synthetic_task

LONG = "conv2d_add_maximum_minimum_12"


@pytest.fixture
def printed(monkeypatch, capsys):
    """What is shown of three tasks in a terminal of some width."""

    def show(width):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        task = dataclasses.replace(synthetic_task(LONG), op="depthwise_conv2d", shapes="1x56x56x64, 4x3x3x64x16 -> x")
        tasks = [dataclasses.replace(task, name=f"{LONG}{c}", flops=f) for c, f in (("a", 1e6), ("b", 1e9), ("c", 0))]
        report.show_tasks(tasks, [0.1, 0.9, 0.0])
        return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)

    return show


@pytest.mark.parametrize("width", [60, 80, 150])
def test_names_are_whole_and_no_line_is_wider_than_the_terminal(printed, width):
    text = printed(width)
    for word in (f"{LONG}a", f"{LONG}b", f"{LONG}c", "depthwise_conv2d", "synthetic", "1000.00", "90.0%", "4096"):
        assert word in text
    body = text.splitlines()[:-1]
    assert max(map(len, body)) <= max(width, 80)
    assert ("┃" in text) == (width == 150)
