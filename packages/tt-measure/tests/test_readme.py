import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_example_runs(tmp_path):
    block = re.search(r"```python\n(.*?)```", README.read_text(), re.S)
    assert block is not None and len(block[1].splitlines()) <= 20
    out = subprocess.check_output([sys.executable, "-c", block[1]], text=True, cwd=tmp_path, timeout=60)
    assert len(out.splitlines()) >= 8
