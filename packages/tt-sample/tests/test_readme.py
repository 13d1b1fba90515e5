from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def test_example_runs(tmp_path):
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert found, "the README must have a python example"
    for example in found:
        assert len(example.splitlines()) <= 20
        done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
