from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_example_runs(tmp_path):
    pytest.importorskip("onnx")
    found = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert found, "the README must have a python example"
    assert len(found[1].splitlines()) <= 20
    done = subprocess.run([sys.executable, "-c", found[1]], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert '"kind":"llvm"' in done.stdout and "(1, 3, 224, 224)" in done.stdout


def test_the_call_that_is_not_run_has_arguments_that_exist():
    from tt_core import tune
    from tt_core.request import Asked

    found = re.search(r"```text\n(.*?)```", TEXT, re.DOTALL)
    assert found and "tune(" in found[1]
    call = found[1].split("tune(", 1)[1].split(")\n", 1)[0]
    assert set(re.findall(r"(\w+)=", call)) <= {*inspect.signature(tune).parameters, *Asked.__annotations__}
