"""The README's example runs and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_example(capsys):
    found = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    code = found.group(1)
    exec(compile(code, str(README), "exec"), {"__name__": "readme"})
    promised = [line.split(")  # ")[1] for line in code.splitlines() if line.startswith("print")]
    assert len(promised) == 2 and capsys.readouterr().out.splitlines() == promised
