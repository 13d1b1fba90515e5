"""A command ends with its exit code, and whatever went wrong is one line on stderr."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tt_spec import UserError
from tt_spec.command import Framework, exit_code


class Left(Exception):
    exit_code = 4


class GivenUp(Exception):
    pass


class Misread(Exception):
    def format_message(self):
        return "no option\n--x"


class Missing(UserError, exit_code=6):
    pass


FRAMEWORK = Framework(Left, GivenUp, Misread)


def ends(error):
    def act():
        raise error

    return exit_code("toy", act, FRAMEWORK)


def test_what_a_command_returns_is_its_exit_code_if_it_is_one(capsys):
    assert [exit_code("toy", lambda r=r: r, FRAMEWORK) for r in (None, "text", 0, 3)] == [0, 0, 0, 3]
    assert [ends(Left()), ends(GivenUp()), ends(KeyboardInterrupt())] == [4, 130, 130]
    assert capsys.readouterr() == ("", "")


def test_a_mistake_is_one_line_with_its_code_and_a_defect_is_raised(capsys):
    assert ends(Misread()) == 2
    assert capsys.readouterr().err == "toy: no option --x (see toy --help)\n"
    assert ends(Missing("no\x1b[2J\nfile", ["a fact"])) == 6
    assert capsys.readouterr().err == "toy: no [2J file\n  a fact\n"
    with pytest.raises(ZeroDivisionError):
        ends(ZeroDivisionError())


def test_whoever_explains_gets_every_exception_with_the_misread_one_as_cause(capsys):
    got = []

    def explain(e):
        got.append(e)
        return "why", (), 70

    for error in (ZeroDivisionError(), Misread()):
        with_it = lambda error=error: (_ for _ in ()).throw(error)  # noqa: E731
        assert exit_code("toy", with_it, FRAMEWORK, explain) == 70
    assert isinstance(got[0], ZeroDivisionError) and isinstance(got[1].__cause__, Misread)
    assert capsys.readouterr().err == "toy: why\n" * 2


def test_a_reader_that_goes_away_ends_it_with_141():
    program = "from tt_spec.command import *\nimport sys\nF = Framework(MemoryError, MemoryError, MemoryError)\n"
    program += "sys.exit(exit_code('toy', lambda: [print('x' * 99) for _ in range(9999)], F))"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert (process.wait(60), process.stderr.read()) == (141, b"")
    process.stderr.close()
