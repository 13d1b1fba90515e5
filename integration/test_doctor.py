"""`tt doctor` on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

DOCUMENTED = (Path(__file__).parents[1] / "docs" / "doctor.md").read_text()


@pytest.mark.slow
def test_this_machine(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tt_core", "doctor", "--json"], cwd=tmp_path, capture_output=True, text=True
    )
    data = json.loads(done.stdout)
    assert done.returncode == (8 if data["status"] == "failure" else 0)
    found = {c["name"]: c for c in data["checks"]}
    assert found["tvm"]["facts"]["apache-tvm-ffi"] == version("apache-tvm-ffi")
    noise = found["noise"]["facts"]
    assert noise["timings"] >= 20 and 0 < noise["p10_s"] <= noise["median_s"] <= noise["p90_s"]
    assert noise["cv"] > 0
    for name, check in found.items():
        (row,) = (line for line in DOCUMENTED.splitlines() if line.startswith(f"| `{name}` |"))
        if name != "versions":  # whose keys are distributions
            assert check["facts"] and all(f"`{key}`" in row for key in check["facts"]), f"{row}: {check['facts']}"
