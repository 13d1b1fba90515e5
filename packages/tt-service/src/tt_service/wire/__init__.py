"""The protocol `/v1` as typed data: what passes between server, agents and clients; see docs/protocol.md.

Plain JSON, every field typed: no pickle and no tags, so that an agent can be written in any language. Arrays of floats
are base64 of little-endian float64. A number that is not finite is null.
"""

from __future__ import annotations

from tt_service.wire.agents import (
    AgentIn,
    AgentOut,
    AgentSeen,
    Answer,
    Asked,
    AskIn,
    BarWire,
    Counted,
    Heartbeat,
    HeartbeatOut,
    PieceWire,
    Release,
    Tell,
)
from tt_service.wire.finals import JudgeIn, JudgeOut, RaceIn
from tt_service.wire.hello import OLDEST, PROTOCOL, Hello, RecipeOut
from tt_service.wire.jobs import EventOut, Events, JobIn, JobOut, KnownIn
from tt_service.wire.results import FailedWire, FaultWire, FeaturesWire, Historic, NoiseWire, RealisedWire, TrialWire
from tt_service.wire.tasks import KnobWire, LimitWire, SpaceWire, TaskKnown, TaskWire
from tt_service.wire.values import Key, Wire

__all__ = [
    "AgentIn",
    "AgentOut",
    "AgentSeen",
    "Answer",
    "AskIn",
    "Asked",
    "BarWire",
    "Counted",
    "EventOut",
    "Events",
    "FailedWire",
    "FaultWire",
    "FeaturesWire",
    "Heartbeat",
    "HeartbeatOut",
    "Hello",
    "Historic",
    "JobIn",
    "JobOut",
    "JudgeIn",
    "JudgeOut",
    "Key",
    "KnobWire",
    "KnownIn",
    "LimitWire",
    "NoiseWire",
    "OLDEST",
    "PROTOCOL",
    "PieceWire",
    "RaceIn",
    "RealisedWire",
    "RecipeOut",
    "Release",
    "SpaceWire",
    "TaskKnown",
    "TaskWire",
    "Tell",
    "TrialWire",
    "Wire",
]
