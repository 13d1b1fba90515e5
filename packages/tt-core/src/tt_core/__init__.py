"""tt-core: models in, tasks out, tuning, deployment, the command `tt`.

The runner stands here (`tuning`, `planning`, `prepared`, `assembly`, `host`, …); below it the rooms `deploy`,
`models` and `compiler`, beside it `events`, above it `doctor` and `cli`. Imports go downwards only
(docs/architecture.md).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tt_core.compiler import target
    from tt_core.events import retell
    from tt_core.planning import Plan, plan
    from tt_core.result import Result
    from tt_core.tuning import tune

__all__ = ["Plan", "Result", "plan", "retell", "target", "tune"]

_HOME = {
    "Plan": "planning:Plan",
    "Result": "result:Result",
    "plan": "planning:plan",
    "retell": "events.retell",
    "target": "compiler.target",
    "tune": "tuning:tune",
}


def __getattr__(name: str) -> Any:
    """Import the runner, and TVM with it, only when it is used."""
    if name in _HOME:
        module, _, attribute = _HOME[name].partition(":")
        found = importlib.import_module(f"tt_core.{module}")
        return getattr(found, attribute) if attribute else found
    raise AttributeError(f"module 'tt_core' has no attribute {name!r}")
