"""tools/suite.py: what runs together and every package alone, side by side; either can fail it."""

import sys

import pytest
from workspace import ROOT, program

suite = program(ROOT / "tools" / "suite.py")


def said(text: str, code: int) -> tuple[str, ...]:
    """A command that says its arguments after `text` and ends with `code`."""
    return (sys.executable, "-c", f"import sys; print({text!r}, *sys.argv[1:], flush=True); sys.exit({code})")


@pytest.mark.parametrize(("together", "apart", "code"), [(0, 0, 0), (1, 0, 1), (0, 1, 1), (-9, 0, 1)])
def test_both_run_whatever_the_other_says(together, apart, code, monkeypatch, capfd):
    monkeypatch.setattr(suite, "PYTEST", said("tests", together))
    monkeypatch.setattr(suite, "ALONE", said("packages", apart))
    assert suite.main([]) == code
    first, second = capfd.readouterr().out.splitlines()
    assert first == "tests --together" and second.startswith("packages --jobs ")


def test_with_arguments_it_is_pytest(monkeypatch, capfd):
    monkeypatch.setattr(suite, "PYTEST", said("tests", 3))
    assert suite.main(["packages/tt-space", "-k", "x"]) == 3
    assert capfd.readouterr().out.split() == ["tests", "packages/tt-space", "-k", "x"]
