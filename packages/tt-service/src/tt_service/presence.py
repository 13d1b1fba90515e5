"""Which agents are there for a client that leaves measuring to them."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

from tt_service import wire
from tt_service.errors import ServiceError
from tt_service.http import Http

__all__ = ["device_for"]

GONE_S = 90.0
"""An agent that was silent for so long is not there."""

LOOK_S = 1.0
MOST_TOLD = 5


def device_for(
    http: Http,
    wanted: Callable[[wire.AgentSeen], bool],
    what: str,
    *,
    device: str | None = None,
    wait: bool = False,
    halt: Callable[[], str | None] = lambda: None,
    say: Callable[[str], None] = lambda text: None,
) -> str:
    """The device of the agents that are wanted. Raises `ServiceError` where there is none, or more than one.

    Args:
        what: What such an agent has, to complete "no agent …".
        device: A shell pattern that chooses among several.
        wait: Wait for the first, until `halt` speaks.
    """
    said = False
    while True:
        here = [a for a in http.get_list("/v1/agents", wire.AgentSeen) if a.seen_s < GONE_S]
        able = [a for a in here if wanted(a)]
        found = sorted({a.device for a in able if device is None or fnmatchcase(a.device, device)})
        if len(found) == 1:
            return found[0]
        if found:
            raise ServiceError(f"agents of {len(found)} devices can do it, --device says which: {'; '.join(found)}")
        there = "; ".join(f"{a.id} on {a.device} runs {' or '.join(a.targets)}" for a in here[:MOST_TOLD])
        there = f"there: {there}" if here else "none is there"
        if not wait:
            like = "" if device is None else f" on a device like {device!r}"
            raise ServiceError(f"no agent of {http.url} {what}{like} ({there}); --wait waits for one")
        if not said:
            say(f"waiting for an agent that {what} ({there})")
            said = True
        if halt() is not None:
            raise KeyboardInterrupt
        http.sleep(LOOK_S)
