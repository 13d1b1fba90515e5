"""Exit codes of mistakes, and Ctrl-C."""

import os
import signal
import subprocess
import sys

import pytest
import tt_spec.errors
import tvm_ffi
from tt_core import errors
from tt_core.cli.app import run
from tt_core.host import Host
from tt_core.interrupt import listen
from tt_spec import PluginError


def test_every_kind_has_the_code_that_is_documented():
    family = [getattr(m, name) for m in (errors, tt_spec.errors) for name in m.__all__ if name.endswith("Error")]
    kinds = {kind.exit_code for kind in family}
    assert kinds == {2, 3, 4, 5, 6, 7, 8}, "UserError and OptionError share one"
    assert kinds < errors.EXIT_CODES.keys()

    class Own(errors.ModelError):
        """Of somebody's source."""

    assert errors.explained(Own("x"))[2] == 3 and errors.explained(errors.RunError("x", ["y"])) == ("x", ("y",), 7)
    assert errors.explained(PluginError("x"))[2] == 2 and errors.explained(KeyError("x"))[2] == 70


def test_the_first_ctrl_c_is_told_and_the_second_ends(capsys):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Host().interruptible() as halt:
        assert halt() is None
        os.kill(os.getpid(), signal.SIGINT)
        assert halt() == "interrupted" and "again to leave" in capsys.readouterr().err
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_what_fails_by_a_signal_is_no_defect(capsys, monkeypatch):
    """TVM calls back while it reads a model, and tells of the signal that came meanwhile as of an error of its own."""

    def prepare(*_, **__):
        tvm_ffi.convert(lambda: signal.raise_signal(signal.SIGTERM))()

    monkeypatch.setattr("tt_core.prepared.prepare", prepare)
    monkeypatch.setattr("sys.unraisablehook", sys.unraisablehook)
    heard = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    listen()
    try:
        with pytest.raises(KeyboardInterrupt) as broken_off:
            run(["tasks", "op:matmul:8,8,8"])
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)
    assert isinstance(broken_off.value.__cause__, RuntimeError)
    assert not capsys.readouterr().err
    monkeypatch.undo()
    assert run(["tasks", "op:no-such"]) == 3, "what fails later fails by itself"


def test_a_signal_where_nothing_can_be_broken_off_comes_again():
    """Importing ends a module's lock in the callback of a weak reference, and Python drops what is raised there;
    when it comes again it ends whatever the main thread waits for."""
    program = """
import signal, time, weakref
from tt_core.interrupt import Interrupt, interruptions, listen

class Lock: pass

listen()
lock = Lock()
held = weakref.ref(lock, lambda _: signal.raise_signal(signal.SIGTERM))
try:
    del lock
    time.sleep(3600)
except Interrupt:
    print(interruptions())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_a_full_disk_is_no_defect_wherever_it_is_met():
    for number in (28, 122, 27):  # ENOSPC, EDQUOT, EFBIG on Linux
        text, details, code = errors.explained(OSError(number, os.strerror(number)))
        assert code == 6 and not details and "TMPDIR" in text and os.strerror(number) in text
    assert errors.explained(OSError(5, "Input/output error"))[2] == 70
