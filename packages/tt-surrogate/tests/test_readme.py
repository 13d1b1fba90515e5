"""The README's example runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_example_runs(tmp_path):
    code = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)[0]
    assert len(code.splitlines()) <= 20
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found, possible = map(float, re.findall(r"([\d.]+) ms", done.stdout))
    assert found <= 1.25 * possible
