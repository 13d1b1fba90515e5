"""How denormal numbers are treated: an environment variable says it, which the workers inherit. Needs no TVM."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["MODES", "VARIABLE", "denormals", "denormals_as"]

VARIABLE = "TT_DENORMALS"
MODES = ("flush", "keep")
"""As zero, the default, or as the IEEE's standard has them."""


def denormals() -> str:
    """The mode in force: the variable's, "flush" where it says nothing known."""
    said = os.environ.get(VARIABLE)
    return said if said in MODES else MODES[0]


@contextmanager
def denormals_as(mode: str | None) -> Iterator[None]:
    """Meanwhile the mode is this one, in processes that are started as well; None leaves it as it is."""
    if mode is None:
        yield
        return
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = mode
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
