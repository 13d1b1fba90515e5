"""`lint-imports` holds the rooms of tt-core and the star of distributions (pyproject.toml); it can fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from workspace import PACKAGES, ROOT


@pytest.fixture
def house(tmp_path):
    """A copy of all sources, and the check on it."""
    for package in PACKAGES:
        shutil.copytree(package / "src", tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))

    def check() -> tuple[int, str]:
        command = [Path(sys.executable).parent / "lint-imports", "--no-cache", "--config", ROOT / "pyproject.toml"]
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        return done.returncode, done.stdout

    return tmp_path, check


def test_the_house_is_in_order(house):
    code, said = house[1]()
    assert code == 0 and "0 broken" in said, said


@pytest.mark.parametrize(
    ("module", "statement", "said"),
    [
        (
            "tt_core/compiler/fold.py",
            "import tt_core.tuning",
            "tt_core.compiler is not allowed to import",
        ),
        ("tt_core/models/ops.py", "from tt_core.deploy import library", "tt_core.models is not allowed to import"),
        ("tt_core/events/log.py", "from tt_core.cli import progress", "tt_core.events is not allowed to import"),
        ("tt_core/attic.py", "", "attic"),
        ("tt_search/best.py", "import tt_sample.diverse", "tt_search is not allowed to import tt_sample"),
        ("tt_spec/clock.py", "import tt_history", "tt_spec is not allowed to import tt_history"),
    ],
)
def test_an_import_upwards_is_found(house, module, statement, said):
    path = house[0] / module
    path.write_text((path.read_text() if path.exists() else "") + f"\n{statement}\n")
    code, found = house[1]()
    assert code == 1 and said in found, found
