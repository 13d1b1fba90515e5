"""The parts that the composed tests share: the command in a real process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

collect_ignore = ["third_party"]  # a distribution of its own: test_third_party installs it and runs its tests


@pytest.fixture
def tt(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `tt` in `tmp_path`; fails with its output unless it exits with `code`."""

    def run(
        *args: str, code: int = 0, timeout: float = 300, traceback: bool = False
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "tt_core", *args], cwd=tmp_path, capture_output=True, text=True, timeout=timeout
        )
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert ("Traceback" in done.stderr) == traceback
        return done

    return run


def events(text: str) -> list[dict[str, Any]]:
    """The JSON lines of `tt tune --json`."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
