"""Python processes of our own that do not import what lies in the current folder.

`python -m` and `python -c` look there first: a stray or hostile `numpy.py` beside a model would run.
"""

from __future__ import annotations

import os
import sys

__all__ = ["command", "path"]

_RUN = "import sys, runpy; del sys.path[0]; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def command(module: str, *options: str) -> list[str]:
    """The command line that runs a module as a program, `python -m module` without the current folder.

    Args:
        options: Of the interpreter.
    """
    if sys.version_info >= (3, 11):
        return [sys.executable, *options, "-P", "-m", module]
    return [sys.executable, *options, "-c", _RUN, module]


def path() -> list[str]:
    """This process's `sys.path` for a process that it starts: without the current folder, unless a script that lies
    there runs or PYTHONPATH names it."""
    here = os.path.realpath(os.getcwd())
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    wanted = [os.path.dirname(os.path.abspath(script))] if script else []
    wanted += [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if here in map(os.path.realpath, wanted):
        return [p or here for p in sys.path]
    return [p for p in sys.path if p and os.path.realpath(p) != here]
