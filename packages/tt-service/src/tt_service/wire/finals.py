"""Finalists that a client cannot run itself: what it asks of agents, and what comes of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, StrictBool, StrictInt

from tt_service.wire.results import FailedWire, FaultWire
from tt_service.wire.values import AnyConfig, Key, Wire

__all__ = ["JudgeIn", "JudgeOut", "RaceIn"]


class RaceIn(Wire):
    """The terms of a race; see `tt_spec.roles.Races`."""

    rounds: Annotated[StrictInt, Field(ge=1, le=1000)] = 10
    min_ms: Annotated[FiniteFloat, Field(gt=0, le=60_000)] = 10.0
    untuned: StrictBool = False
    cold: Annotated[StrictInt, Field(ge=0, lt=1 << 53)] = 0


class JudgeIn(Wire):
    """A client that cannot run a job's target has an agent race or check finalists.

    Args:
        id: Chosen by the client; the same one again is the same question.
        rows: One for a check.
        race: The terms of a race.
        wait_s: How long the answer may take.
    """

    id: Key
    task: Key
    kind: Literal["race", "check"]
    rows: Annotated[list[AnyConfig], Field(max_length=64)]
    race: RaceIn = RaceIn()
    wait_s: Annotated[FiniteFloat, Field(ge=0, le=60)] = 20.0


class JudgeOut(Wire):
    """What came of it, once `done`: seconds per round of each program, the fault of a check, or why it `failed`.

    Args:
        agent, versions: Who did it, with what.
        waiting: Why nobody works on it now; "" where somebody can.
    """

    done: bool
    race: list[list[float]] | None = None
    check: FaultWire | None = None
    failed: FailedWire | None = None
    agent: str = ""
    versions: dict[str, str] = {}
    waiting: str = ""
