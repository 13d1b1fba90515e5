"""The protocol `/v1` as typed data: what passes between server, agents and clients; see docs/protocol.md.

Plain JSON, every field typed: no pickle and no tags, so that an agent can be written in any language. Arrays of floats
are base64 of little-endian float64. A number that is not finite is null.
"""

from __future__ import annotations

import base64
import binascii
import math
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    GetCoreSchemaHandler,
    StrictBool,
    StrictInt,
    StrictStr,
)
from tt_spec import Bar, Knob, Limit, Measurement, Noise, Realised, Space, Statements, Task, Trial
from tt_spec.types import ERRORS

__all__ = [
    "OLDEST",
    "PROTOCOL",
    "Answer",
    "AgentIn",
    "AgentOut",
    "AgentSeen",
    "AskIn",
    "Asked",
    "Counted",
    "EventOut",
    "Events",
    "FeaturesWire",
    "Heartbeat",
    "HeartbeatOut",
    "Hello",
    "Historic",
    "JobIn",
    "JobOut",
    "JudgeIn",
    "JudgeOut",
    "PieceWire",
    "RaceIn",
    "RealisedWire",
    "RecipeOut",
    "Release",
    "TaskWire",
    "Tell",
    "TrialWire",
]

PROTOCOL, OLDEST = 1, 1
"""The version that this program speaks, and the oldest that it still understands."""

Name = Annotated[StrictStr, Field(min_length=1, max_length=200)]
Text = Annotated[StrictStr, Field(max_length=4000)]
Key = Annotated[StrictStr, Field(min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")]
Config = Annotated[list[Annotated[StrictInt, Field(ge=0, lt=2**31)]], Field(min_length=1, max_length=512)]
AnyConfig = Annotated[list[Annotated[StrictInt, Field(ge=-(2**31), lt=2**31)]], Field(min_length=1, max_length=512)]
Rows = Annotated[list[AnyConfig], Field(max_length=4096)]
Seconds = Annotated[FiniteFloat, Field(ge=0)]
Choice = StrictBool | StrictInt | FiniteFloat | StrictStr | list[Any]
Kind = Literal["measure", "expect", "realise", "features", "retime", "race", "check"]
Why = Annotated[StrictStr, Field(max_length=20_000)]
Base64 = Annotated[StrictStr, Field(max_length=48 * 2**20, pattern=r"^[A-Za-z0-9+/]*={0,2}$")]


def _fail_fast(schema: Any) -> None:
    """Let every list in a schema, at any depth, end at its first error."""
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "tuple"):
            schema["fail_fast"] = True
        schema = list(schema.values())
    if isinstance(schema, list | tuple):
        for inner in schema:
            _fail_fast(inner)


class Wire(BaseModel):
    """An object of the protocol: it has these fields and no others. Of a list only the first wrong entry is told: all
    of them, of a body of 4 MB, would take gigabytes."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        schema = handler(source)
        _fail_fast(schema)
        return schema


# -- versions and recipes ----------------------------------------------------------------------------------------------


class Hello(Wire):
    """The server, first of all: which protocols it speaks, and what it can do."""

    protocol: int
    oldest: int
    version: str
    capabilities: list[str]
    lease_s: float
    heartbeat_s: float
    body_bytes: int
    job_bytes: int


class RecipeOut(Wire):
    """A recipe of the server; `pieces` has a name and its options by role, `unusable` says why it cannot be used."""

    name: str
    summary: str
    pieces: dict[str, Any]
    unusable: str | None = None


# -- tasks -------------------------------------------------------------------------------------------------------------


class KnobWire(Wire):
    """See `tt_spec.Knob`. Choices of a tile are lists of factors."""

    name: Name
    kind: Literal["tile", "choice", "location"]
    choices: Annotated[list[Choice], Field(min_length=1, max_length=100_000)]
    active_if: tuple[StrictInt, list[StrictInt]] | None = None
    prior: list[FiniteFloat] | None = None


class LimitWire(Wire):
    """See `tt_spec.Limit`."""

    factors: Annotated[list[tuple[StrictInt, StrictInt]], Field(max_length=512)]
    at_most: StrictInt | FiniteFloat
    why: Text


class SpaceWire(Wire):
    """See `tt_spec.Space`; `key` must be what its knobs hash to."""

    key: Key
    name: Name
    version: Name
    knobs: Annotated[list[KnobWire], Field(min_length=1, max_length=512)]
    limits: Annotated[list[LimitWire], Field(max_length=512)] = []

    @classmethod
    def of(cls, space: Space) -> SpaceWire:
        return cls(
            key=space.key,
            name=space.name,
            version=space.version,
            knobs=[
                KnobWire(
                    name=k.name,
                    kind=k.kind,
                    choices=[_listed(c) for c in k.choices],
                    active_if=None if k.active_if is None else (k.active_if[0], list(k.active_if[1])),
                    prior=None if k.prior is None else [float(p) for p in k.prior],
                )
                for k in space.knobs
            ],
            limits=[
                LimitWire(factors=[(int(a), int(b)) for a, b in x.factors], at_most=x.at_most, why=x.why)
                for x in space.limits
            ],
        )

    def thing(self) -> Space:
        """The space. Raises `ValueError` where it is none, or is not what its key says."""
        for k in self.knobs:
            if k.kind == "tile" and not all(isinstance(c, list) for c in k.choices):
                raise ValueError(f"knob {k.name!r}: the choices of a tile are lists of factors")
        knobs = tuple(
            Knob(
                k.name,
                k.kind,
                tuple(_tupled(c) for c in k.choices),
                None if k.active_if is None else (k.active_if[0], tuple(k.active_if[1])),
                None if k.prior is None else tuple(k.prior),
            )
            for k in self.knobs
        )
        limits = tuple(Limit(tuple(map(tuple, x.factors)), x.at_most, x.why) for x in self.limits)  # pyright: ignore[reportArgumentType]
        space = Space(knobs, self.version, limits, self.name)
        if space.key != self.key:
            raise ValueError(f"space {self.name!r}: its knobs hash to {space.key}, its key is {self.key}")
        for i, k in enumerate(knobs):
            _check_knob(i, k, knobs)
        for x in limits:
            for knob, factor in x.factors:
                if not (0 <= knob < len(knobs) and knobs[knob].kind == "tile"):
                    raise ValueError(f"space {self.name!r}: a limit names knob {knob}, which is no tile")
                if not 0 <= factor < len(knobs[knob].choices[0]):
                    raise ValueError(f"space {self.name!r}: a limit names factor {factor} of knob {knob}")
        return space


def _check_knob(i: int, k: Knob, knobs: tuple[Knob, ...]) -> None:
    """Refuse a knob that would raise where it is used."""
    if k.kind == "tile" and not all(
        isinstance(c, tuple) and c and all(type(f) is int and f > 0 for f in c) for c in k.choices
    ):
        raise ValueError(f"knob {k.name!r}: the choices of a tile are lists of positive whole factors")
    if k.kind != "tile" and any(isinstance(c, tuple) for c in k.choices):
        raise ValueError(f"knob {k.name!r}: only a tile's choices are lists")
    if k.active_if is not None:
        of, codes = k.active_if
        if not all(0 <= c < len(knobs[of].choices) for c in codes):
            raise ValueError(f"knob {k.name!r}: active_if names codes that knob {of} does not have")


class TaskWire(Wire):
    """See `tt_spec.Task`. `payload` is base64; an agent that knows the compiler rebuilds the workload from it."""

    key: Key
    name: Name
    op: Name
    target: Text
    spaces: Annotated[list[SpaceWire], Field(min_length=1, max_length=8)]
    flops: Annotated[FiniteFloat, Field(ge=0)]
    weight: Annotated[FiniteFloat, Field(gt=0)] = 1.0
    payload: Base64 = ""
    shapes: Text = ""
    workload: Text = ""

    @classmethod
    def of(cls, task: Task) -> TaskWire:
        return cls(
            key=task.key,
            name=task.name,
            op=task.op,
            target=task.target,
            spaces=[SpaceWire.of(s) for s in task.spaces],
            flops=float(task.flops),
            weight=float(task.weight),
            payload=base64.b64encode(task.payload).decode(),
            shapes=task.shapes,
            workload=task.workload,
        )

    def thing(self) -> Task:
        """The task. Raises `ValueError` where it is none."""
        spaces = tuple(s.thing() for s in self.spaces)
        payload = _bytes(self.payload)
        about = (self.flops, self.weight, payload, self.shapes, self.workload)
        return Task(self.key, self.name, self.op, self.target, spaces, *about)


# -- jobs --------------------------------------------------------------------------------------------------------------


class KnownIn(Wire):
    """A row that the client knows, with its latest verdict: `seconds` per execution, or null and an `error`."""

    task: Key
    config: Config
    seconds: Annotated[FiniteFloat, Field(gt=0)] | None = None
    error: Literal["invalid", "build", "build-timeout", "run", "run-timeout", "wrong-result"] | None = None
    at: FiniteFloat = 0.0

    @classmethod
    def of(cls, m: Measurement) -> KnownIn:
        seconds = m.latency_s if m.error is None else None
        return cls(task=m.task_key, config=[int(c) for c in m.config], seconds=seconds, error=m.error, at=m.at)  # pyright: ignore[reportArgumentType]

    def thing(self, task: Task, device: str) -> Measurement:
        """The measurement. Raises `ValueError` for a row that the task's space does not have."""
        row = np.array(self.config, dtype=np.int64)
        if len(row) != len(task.space.knobs) or not task.space.in_range(row[None]).all():
            raise ValueError(f"known: {self.config} is no row of task {task.name!r}")
        trial = Trial(tuple(self.config), () if self.seconds is None else (self.seconds,), 1, self.error)
        return Measurement.of(trial, task, origin="known", at=self.at, run_id="", device=device, versions={})


class JobIn(Wire):
    """A job as a client asks for it.

    Args:
        recipe: Name of a recipe of the server, or `toml` the text of one. `sets` change both, as `--set` does.
        device: Fingerprint of the machine whose figures are wanted: only agents of that device get rows. "" is any.
        trials, minutes: The budget; at least one of them.
        private: Its rows are for this user alone.
        peak_flops: Of the device, FLOP/s; null is unknown.
        known: What the client's own history has of the tasks on this device: none of it is asked for again. It serves
            this job alone.
    """

    name: Name
    tasks: Annotated[list[TaskWire], Field(min_length=1, max_length=1000)]
    recipe: Name = "tt"
    toml: Annotated[StrictStr, Field(max_length=100_000)] | None = None
    sets: Annotated[list[Text], Field(max_length=100)] = []
    device: Annotated[StrictStr, Field(max_length=500)] = ""
    versions: Annotated[dict[Name, Text], Field(max_length=100)] = {}
    seed: Annotated[StrictInt, Field(ge=0, lt=2**63)] = 0
    trials: Annotated[StrictInt, Field(ge=1, le=10**8)] | None = None
    minutes: Annotated[FiniteFloat, Field(gt=0, le=525_600)] | None = None
    only_heavy: StrictBool = False
    private: StrictBool = False
    peak_flops: Annotated[FiniteFloat, Field(gt=0)] | None = None
    known: Annotated[list[KnownIn], Field(max_length=20_000)] = []

    @cached_property
    def by_key(self) -> dict[str, TaskWire]:
        """Its tasks by their keys."""
        return {t.key: t for t in self.tasks}


class JobOut(Wire):
    """A job as the server tells of it. `state`: "running", "paused", "done", "failed" or "cancelled"."""

    id: str
    name: str
    owner: str
    state: Literal["running", "paused", "done", "failed", "cancelled"]
    reason: str
    recipe: str
    device: str
    trials: int
    best_s: dict[str, float | None]
    tasks: list[str]
    created: float
    ended: float | None
    waiting: str
    agents: list[str]
    events: int


class EventOut(Wire):
    """One event of a job. "rows": `results` were measured; "batch": a batch is over, `results` are the rows without a
    program that were met on the way; "state": `text` is the job's new state; "note": a task left the race."""

    number: int
    what: Literal["rows", "batch", "state", "note"]
    text: str = ""
    task: str = ""
    batch: dict[str, Any] = {}
    results: list[Historic] = []


class Events(Wire):
    """Events after the number that was asked for, and the job's state at this moment."""

    events: list[EventOut]
    job: JobOut


# -- agents ------------------------------------------------------------------------------------------------------------


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


class RaceIn(Wire):
    """The terms of a race; see `tt_spec.roles.Races`."""

    rounds: Annotated[StrictInt, Field(ge=1, le=1000)] = 10
    min_ms: Annotated[FiniteFloat, Field(gt=0, le=60_000)] = 10.0
    untuned: StrictBool = False


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


class NoiseWire(Wire):
    """See `tt_spec.Noise`."""

    windows: Annotated[StrictInt, Field(ge=0)]
    discarded: Annotated[StrictInt, Field(ge=0)]
    slowdown: FiniteFloat
    vain_s: FiniteFloat


class TrialWire(Wire):
    """The outcome of one row, see `tt_spec.Trial`: `seconds` is empty if and only if `error` is set."""

    config: AnyConfig
    seconds: Annotated[list[Annotated[FiniteFloat, Field(gt=0)]], Field(max_length=10_000)] = []
    runs: Annotated[StrictInt, Field(ge=0)] = 0
    error: Literal["invalid", "build", "build-timeout", "run", "run-timeout", "wrong-result"] | None = None
    why: Why = ""
    cost: Annotated[dict[Name, Annotated[FiniteFloat, Field(ge=0)]], Field(max_length=20)] = {}
    noise: NoiseWire | None = None

    @classmethod
    def of(cls, trial: Trial) -> TrialWire:
        return cls(
            config=[int(c) for c in trial.config],
            seconds=[float(s) for s in trial.seconds],
            runs=int(trial.runs),
            error=trial.error,  # pyright: ignore[reportArgumentType]
            why=trial.why[:20_000],
            cost={k: float(v) for k, v in trial.cost.items()},
            noise=None if trial.noise is None else NoiseWire(**vars(trial.noise)),
        )

    def thing(self) -> Trial:
        """The trial. Raises `ValueError` where seconds and error contradict each other."""
        noise = None if self.noise is None else Noise(**self.noise.model_dump())
        return Trial(tuple(self.config), tuple(self.seconds), self.runs, self.error, self.why, dict(self.cost), noise)


class RealisedWire(Wire):
    """See `tt_spec.Realised`: a row and None, or why it has no program, for each row that was asked."""

    rows: Rows
    why: Annotated[list[Why | None], Field(max_length=4096)]

    @classmethod
    def of(cls, found: Realised) -> RealisedWire:
        return cls(rows=[[int(c) for c in row] for row in found.codes], why=[w and w[:20_000] for w in found.why])

    def thing(self, knobs: int) -> Realised:
        if len(self.rows) != len(self.why) or any(len(r) != knobs for r in self.rows):
            raise ValueError("realised: a row and a reason or null for each row that was asked")
        codes = np.array(self.rows, dtype=np.int64).reshape(-1, knobs)
        return Realised(codes, tuple(self.why))


class FeaturesWire(Wire):
    """Statement features of the rows that have a program, see `tt_spec.Statements`.

    Args:
        values: base64 of `(total, 164)` float64.
        offsets: `(n + 1)`; program i owns `values[offsets[i]:offsets[i + 1]]`.
        operator: base64 of `(n, 10)` float64.
        ok: For each row that was asked whether it has a program.
    """

    values: Base64
    offsets: Annotated[list[Annotated[StrictInt, Field(ge=0)]], Field(min_length=1, max_length=4097)]
    operator: Base64
    ok: Annotated[list[StrictBool], Field(max_length=4096)]

    @classmethod
    def of(cls, found: Statements, ok: np.ndarray) -> FeaturesWire:
        return cls(
            values=_base64(found.values),
            offsets=[int(x) for x in found.offsets],
            operator=_base64(found.operator),
            ok=[bool(x) for x in ok],
        )

    def thing(self) -> tuple[Statements, np.ndarray]:
        offsets = np.array(self.offsets, dtype=np.int64)
        values, operator = _floats(self.values, 164), _floats(self.operator, 10)
        ok = np.array(self.ok, dtype=bool)
        if offsets[0] or offsets[-1] != len(values) or (np.diff(offsets) < 0).any():
            raise ValueError("features: offsets must begin with 0, not fall, and end with the number of statements")
        if len(operator) != len(offsets) - 1 or int(ok.sum()) != len(operator):
            raise ValueError("features: as many programs as rows that are ok")
        if not (np.isfinite(values).all() and np.isfinite(operator).all()):
            raise ValueError("features must be finite")
        return Statements(values, offsets, operator), ok


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


class Answer(Wire):
    """One row's result: `at` is its place in the batch."""

    at: Annotated[StrictInt, Field(ge=0, le=4096)]
    trial: TrialWire


class FailedWire(Wire):
    """Work that the agent could not do: "run" or "run-timeout", and why."""

    error: Literal["run", "run-timeout"] = "run"
    why: Why


class FaultWire(Wire):
    """The outcome of a check: what is wrong, or null."""

    fault: Why | None = None


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


class Historic(Wire):
    """A measurement as the history keeps it; see `tt_spec.Measurement`."""

    task: str
    space: str
    config: list[int]
    knobs: dict[str, Any]
    seconds: list[float]
    runs: int
    error: str | None
    why: str
    cost: dict[str, float]
    noise: NoiseWire | None
    origin: str
    device: str
    versions: dict[str, str]
    at: float
    run: str

    @classmethod
    def of(cls, m: Measurement) -> Historic:
        return cls(
            task=m.task_key,
            space=m.space_key,
            config=[int(c) for c in m.config],
            knobs={k: _listed(v) for k, v in m.knobs.items()},
            seconds=list(m.seconds),
            runs=m.runs,
            error=m.error,
            why=m.why,
            cost=dict(m.cost),
            noise=None if m.noise is None else NoiseWire(**vars(m.noise)),
            origin=m.origin,
            device=m.device,
            versions=dict(m.versions),
            at=m.at,
            run=m.run_id,
        )

    def thing(self) -> Measurement:
        return Measurement(
            self.task,
            self.space,
            tuple(self.config),
            {k: _tupled(v) for k, v in self.knobs.items()},
            tuple(self.seconds),
            self.runs,
            self.error,
            self.why,
            dict(self.cost),
            self.origin,
            self.device,
            dict(self.versions),
            self.at,
            self.run,
            None if self.noise is None else Noise(**self.noise.model_dump()),
        )


EventOut.model_rebuild()
Events.model_rebuild()
assert set(ERRORS) == {"invalid", "build", "build-timeout", "run", "run-timeout", "wrong-result"}


# -- values ------------------------------------------------------------------------------------------------------------


def _listed(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_listed(v) for v in value]
    return value.item() if isinstance(value, np.generic) else value


def _tupled(value: Any) -> Any:
    return tuple(_tupled(v) for v in value) if isinstance(value, list) else value


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f8").tobytes()).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as e:
        raise ValueError(f"not base64: {e}") from e


def _floats(text: str, columns: int) -> np.ndarray:
    data = _bytes(text)
    if len(data) % (8 * columns):
        raise ValueError(f"features: rows of {columns} float64")
    return np.frombuffer(data, dtype="<f8").reshape(-1, columns).astype(np.float64)
