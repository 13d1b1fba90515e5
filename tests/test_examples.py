"""Every example runs as it is, in an empty folder, and shows what it promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tt_spec.testing import SearcherContract
from workspace import ROOT, program

EXAMPLES = ROOT / "examples"


def show(name: str, folder: Path) -> str:
    """The output of the example, run in that folder."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_deployed_model_is_served_without_tt(tmp_path):
    shown = show("deploy_a_model.py", tmp_path)
    assert re.search(r"ms untuned, .* ms tuned; agrees with: the untuned program onnxruntime", shown)
    assert "served: (64, 64) without tt: True" in shown
    assert {"model.so", "model.so.json", "tt.db"} <= {p.name for p in tmp_path.iterdir()}


def test_one_piece_finds_a_fast_program_and_goes_on_from_its_history(tmp_path):
    first = show("one_piece.py", tmp_path)
    assert "0 of them measured before" in first and "24 measured, 0 failed" in first
    assert re.search(r"best: \{'rows': .*\} [\d.]+ GFLOP/s", first)
    again = show("one_piece.py", tmp_path)
    assert "48 configurations, 24 of them measured before" in again and "48 measured, 0 failed" in again


def test_a_new_searcher_is_compared_on_two_recordings(tmp_path):
    lines = show("new_searcher.py", tmp_path).splitlines()
    assert len(lines) == 2
    for line in lines:
        found = re.search(r"difference (\S+) to (\S+) over 15 seeds", line)
        assert found, line
        low, high = map(float, found.groups())
        assert low <= high
        assert line.endswith("better" if low > 0 else "worse" if high < 0 else "no difference shown")
    assert lines[1].endswith("better"), "neighbours of good rows of a convolution are good"


class TestSteps(SearcherContract):
    @pytest.fixture
    def piece(self):
        return program(EXAMPLES / "new_searcher.py").Steps()


def test_every_example_is_listed():
    listed = re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text())
    assert sorted(listed) == sorted(p.name for p in EXAMPLES.glob("*.py"))
