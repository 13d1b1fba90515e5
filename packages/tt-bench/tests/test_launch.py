"""`tt` as a process, and programs as commands."""

from __future__ import annotations

import sys

import pytest
from tt_bench import launch
from tt_bench.errors import BenchError


@pytest.fixture
def python(monkeypatch):
    """Takes the place of `tt`: `tt("x")` runs this program with the argument "x"."""

    def takes(source: str) -> None:
        monkeypatch.setattr(launch, "COMMAND", (sys.executable, "-c", source))

    return takes


def test_tt_runs_and_shows_its_output(capfd):
    launch.tt("recipes")
    assert "adatune" in capfd.readouterr().out


def test_a_failure_has_the_exit_code_of_the_command(python):
    python("import sys; sys.exit(7)")
    with pytest.raises(launch.LaunchError, match="tt tune resnet18: exit code 7") as e:
        launch.tt("tune", "resnet18")
    assert e.value.exit_code == 7


def test_the_result_is_the_last_line(python):
    python("import sys, json; print('working'); print(json.dumps(sys.argv[1:]))")
    assert launch.tuned("m.onnx", "--minutes", "1") == ["tune", "m.onnx", "--json", "--minutes", "1"]


def test_a_failed_run_says_why(python):
    python("import sys; print('tt: no such model', file=sys.stderr); sys.exit(3)")
    with pytest.raises(launch.LaunchError, match="exit code 3\ntt: no such model"):
        launch.tuned("m.onnx")


def test_a_mistake_is_a_line_and_an_exit_code(capsys):
    def main() -> None:
        raise BenchError("no recording x.db: tt record writes one")

    with pytest.raises(SystemExit) as e:
        launch.program(main)
    assert e.value.code == BenchError.exit_code
    assert capsys.readouterr().err == "no recording x.db: tt record writes one\n"


def test_a_defect_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        launch.program(lambda: print(1 / 0))
