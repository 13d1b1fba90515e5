"""Stock MetaSchedule as a fair peer."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["environment"]

PEER = Path(__file__).parent / "peer"


def environment() -> dict[str, str]:
    """Of a process in which MetaSchedule's slow import is taken out; see `peer/sitecustomize.py`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(PEER), *filter(None, [os.environ.get("PYTHONPATH")])])}
