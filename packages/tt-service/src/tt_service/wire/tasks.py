"""Tasks with their spaces."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, StrictInt
from tt_spec import Knob, Limit, Space, Task

from tt_service.wire.values import Base64, Choice, Key, Name, Text, Wire, bytes_of, listed, tupled

__all__ = ["KnobWire", "LimitWire", "SpaceWire", "TaskKnown", "TaskWire"]


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
                    choices=[listed(c) for c in k.choices],
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
                tuple(tupled(c) for c in k.choices),
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
        payload = bytes_of(self.payload)
        about = (self.flops, self.weight, payload, self.shapes, self.workload)
        return Task(self.key, self.name, self.op, self.target, spaces, *about)


class TaskKnown(Wire):
    """The part of a task that a history keeps by its key from which a client tells whose key it is."""

    key: Key
    target: Text
    payload: Base64 = ""
    shapes: Text = ""

    @classmethod
    def of(cls, task: Task) -> TaskKnown:
        payload = base64.b64encode(task.payload).decode()
        return cls(key=task.key, target=task.target, payload=payload, shapes=task.shapes)

    def thing(self) -> Task:
        """The task, without spaces. Raises `ValueError` where it is none."""
        return Task(self.key, "", "", self.target, (), 0.0, 1.0, bytes_of(self.payload), self.shapes)
