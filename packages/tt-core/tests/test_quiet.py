"""C++'s stderr is hidden, and shown when something unexpected happens."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tt_core.compiler.quiet import quiet
from tt_core.errors import UserError


def test_what_c_writes_is_hidden_and_stderr_is_back_afterwards(capfd):
    with quiet():
        os.write(2, b"a warning of C++\n")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_what_python_writes_is_hidden_too():
    script = (
        "import sys, warnings; from tt_core.compiler.quiet import quiet\n"
        "with quiet(): warnings.warn('noise'); print('noise', file=sys.stderr)\n"
        "print('after', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "after\n")


def test_stdout_is_left_alone(capfd):
    with quiet():
        os.write(1, b"a result\n")
    assert capfd.readouterr().out == "a result\n"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_it_is_shown_when_the_block_raises_anything_unexpected(capfd, error):
    with pytest.raises(error), quiet():
        os.write(2, b"why it failed\n")
        raise error
    assert "why it failed" in capfd.readouterr().err


def test_it_stays_hidden_for_what_the_user_can_mend(capfd):
    with pytest.raises(UserError, match="no such model"), quiet():
        os.write(2, b"noise\n")
        raise UserError("no such model")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"


def test_only_the_end_of_much_is_shown(capfd):
    with pytest.raises(ValueError), quiet():
        os.write(2, b"x" * 20_000 + b"the end\n")
        raise ValueError
    err = capfd.readouterr().err
    assert err.endswith("the end\n") and len(err) == 4000


def test_blocks_nest_and_leave_no_file_open(capfd):
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    for _ in range(3):
        with quiet(), quiet():
            os.write(2, b"hidden\n")
    assert capfd.readouterr().err == ""
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_without_stderr_runs_the_block(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    ran = []
    with quiet():
        ran.append(1)
    assert ran == [1]
