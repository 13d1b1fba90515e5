"""Agents: who they are, what work they get, and how they tell what came of it."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field, FiniteFloat, StrictBool, StrictInt, StrictStr
from tt_spec import Bar

from tt_service.wire.finals import RaceIn
from tt_service.wire.hello import PROTOCOL
from tt_service.wire.results import FailedWire, FaultWire, FeaturesWire, RealisedWire, TrialWire
from tt_service.wire.values import Key, Kind, Name, Rows, Seconds, Text, Why, Wire

__all__ = [
    "AgentIn",
    "AgentOut",
    "AgentSeen",
    "Answer",
    "AskIn",
    "Asked",
    "BarWire",
    "Counted",
    "Heartbeat",
    "HeartbeatOut",
    "PieceWire",
    "Release",
    "Tell",
]


class AgentIn(Wire):
    """An agent says who it is and what it can do.

    Args:
        name: Chosen by whoever runs it; one name is one agent, which gets its own lease again when it comes back.
        device: Fingerprint of its machine.
        targets: Texts of the targets that it can run; "*" is any.
        evaluators: Names of the evaluators that it has.
        versions: Of what takes part in a measurement.
    """

    name: Annotated[StrictStr, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9._-]+$")]
    device: Annotated[StrictStr, Field(min_length=1, max_length=500)]
    targets: Annotated[list[Annotated[StrictStr, Field(max_length=4000)]], Field(min_length=1, max_length=100)]
    evaluators: Annotated[list[Name], Field(max_length=100)]
    versions: Annotated[dict[Name, Text], Field(max_length=100)] = {}
    protocol: Annotated[StrictInt, Field(ge=0, le=10**6)] = PROTOCOL
    jobs: Annotated[list[Key], Field(max_length=100)] = []


class AgentOut(Wire):
    """The server's answer: the agent's id for all later calls."""

    id: str
    lease_s: float
    heartbeat_s: float


class AgentSeen(Wire):
    """An agent and how long ago it was heard of, seconds."""

    id: str
    device: str
    targets: list[str]
    seen_s: float


class AskIn(Wire):
    """Ask for work: at most `rows` rows of one task; the answer may take `wait_s`."""

    rows: Annotated[StrictInt, Field(ge=1, le=4096)] = 64
    wait_s: Annotated[FiniteFloat, Field(ge=0, le=60)] = 20.0


class PieceWire(Wire):
    """A piece by name, with plain options."""

    piece: Name
    options: dict[str, Any] = {}


class BarWire(Wire):
    """See `tt_spec.Bar`; `incumbent_s` is null before the first valid program."""

    incumbent_s: Annotated[FiniteFloat, Field(ge=0)] | None = None
    flops: Annotated[FiniteFloat, Field(ge=0)] = 0.0
    cap_s: Annotated[FiniteFloat, Field(gt=0)] = 10.0

    @classmethod
    def of(cls, bar: Bar) -> BarWire:
        finite = math.isfinite(bar.incumbent_s)
        return cls(incumbent_s=bar.incumbent_s if finite else None, flops=bar.flops, cap_s=bar.cap_s)

    def thing(self) -> Bar:
        return Bar(math.inf if self.incumbent_s is None else self.incumbent_s, self.flops, self.cap_s)


class Asked(Wire):
    """Work for an agent: rows of one task under a lease. `task` is fetched by `GET /v1/jobs/{job}/tasks/{task}`."""

    batch: str
    kind: Kind
    job: str
    task: str
    space: str
    evaluator: PieceWire
    rows: Rows
    bar: BarWire = BarWire()
    race: RaceIn | None = None
    lease_s: float
    done: list[int] = []


class Answer(Wire):
    """One row's result: `at` is its place in the batch."""

    at: Annotated[StrictInt, Field(ge=0, le=4096)]
    trial: TrialWire


class Tell(Wire):
    """Results of a batch: `trials` of a part of its rows, or what a batch of another kind asked for."""

    batch: Key
    trials: Annotated[list[Answer], Field(max_length=4096)] = []
    realised: RealisedWire | None = None
    features: FeaturesWire | None = None
    race: Annotated[list[Annotated[list[Seconds], Field(max_length=1000)]], Field(max_length=4097)] | None = None
    check: FaultWire | None = None
    failed: FailedWire | None = None
    done: StrictBool = False


class Counted(Wire):
    """Every result of a tell is counted: new ones now, the others before. `unknown` ones belong to no batch of this
    agent here; keep them, and go on."""

    new: int
    before: int
    unknown: int


class Heartbeat(Wire):
    """The agent lives and works on these batches."""

    batches: Annotated[list[Key], Field(max_length=64)] = []


class HeartbeatOut(Wire):
    """The batches that are the agent's no more: stop working on them. What was measured may still be told."""

    lost: list[str]


class Release(Wire):
    """Give back what is not yet told of a batch. `unable` is why this agent cannot do it, ever, e.g. because it derives
    another space; null where it only stops."""

    batch: Key
    unable: Why | None = None
