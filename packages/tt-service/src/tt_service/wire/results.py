"""What comes of work: trials, rows read back, features, and measurements as the history keeps them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, FiniteFloat, StrictBool, StrictInt
from tt_spec import Measurement, Noise, Realised, Statements, Trial
from tt_spec.types import ERRORS

from tt_service.wire.values import (
    AnyConfig,
    Base64,
    Name,
    Rows,
    Why,
    Wire,
    base64_of,
    floats_of,
    listed,
    tupled,
)

__all__ = ["FailedWire", "FaultWire", "FeaturesWire", "Historic", "NoiseWire", "RealisedWire", "TrialWire"]


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
            values=base64_of(found.values),
            offsets=[int(x) for x in found.offsets],
            operator=base64_of(found.operator),
            ok=[bool(x) for x in ok],
        )

    def thing(self) -> tuple[Statements, np.ndarray]:
        offsets = np.array(self.offsets, dtype=np.int64)
        values, operator = floats_of(self.values, 164), floats_of(self.operator, 10)
        ok = np.array(self.ok, dtype=bool)
        if offsets[0] or offsets[-1] != len(values) or (np.diff(offsets) < 0).any():
            raise ValueError("features: offsets must begin with 0, not fall, and end with the number of statements")
        if len(operator) != len(offsets) - 1 or int(ok.sum()) != len(operator):
            raise ValueError("features: as many programs as rows that are ok")
        if not (np.isfinite(values).all() and np.isfinite(operator).all()):
            raise ValueError("features must be finite")
        return Statements(values, offsets, operator), ok


class FaultWire(Wire):
    """The outcome of a check: what is wrong, or null."""

    fault: Why | None = None


class FailedWire(Wire):
    """Work that the agent could not do: "run" or "run-timeout", and why."""

    error: Literal["run", "run-timeout"] = "run"
    why: Why


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
            knobs={k: listed(v) for k, v in m.knobs.items()},
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
            {k: tupled(v) for k, v in self.knobs.items()},
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


assert set(ERRORS) == {"invalid", "build", "build-timeout", "run", "run-timeout", "wrong-result"}
