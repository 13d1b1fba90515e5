"""The README's example runs."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_example(tmp_path, monkeypatch, capsys):
    found = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    code = found.group(1)
    assert len(code.splitlines()) <= 20
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(README), "exec"), {"__name__": "readme"})
    promised = [line.split(")  # ")[1] for line in code.splitlines() if ")  # " in line]
    assert promised and capsys.readouterr().out.splitlines() == promised
