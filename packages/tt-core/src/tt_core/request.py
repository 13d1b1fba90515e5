"""A request: everything that a run is asked for, each default in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from tt_spec.errors import OptionError
from tt_spec.serial import JsonObject

from tt_core.compiler.mode import MODES, denormals

if TYPE_CHECKING:
    from tt_spec import Plugins
    from tt_spec.roles import Stopper
    from tvm.target import Target

    from tt_core.models.model import Fixed

__all__ = ["Asked", "Request"]

MOST_MINUTES = 525_600


class Asked(TypedDict, total=False):
    """The keywords of `tt_core.tune` and `tt_core.plan`: the fields of `Request` but for the model, `sets` as `set`."""

    target: str | JsonObject | Target
    recipe: str
    set: Sequence[str]
    minutes: float | None
    trials: int | None
    tasks: str | Sequence[str]
    skip: str | Sequence[str]
    only_heavy: bool
    shapes: Mapping[str, Sequence[int]] | None
    fix: Fixed | None
    precision: str
    denormals: str | None
    history: str | Path | None
    out: str | Path | None
    seed: int
    untrusted: bool
    server: str | None
    agent: bool
    private: bool
    key_file: str | Path | None
    insecure: bool
    wait: bool
    device: str | None


@dataclass(frozen=True)
class Request:
    """A run as it is asked for.

    Args:
        model: A file, a name of the zoo, "op:…", or an object: whatever `tt_core.models.load` takes.
        target: "native", a target string, JSON, dict or TVM target.
        recipe: Name or TOML file; "suggested" is what the newest suggestion of the history says (`tt suggest`).
        sets: Overrides of the recipe: "searcher.population=256", "scheduler=round-robin".
        minutes: Of the whole run, from reading the model to writing the library; with neither this nor `trials`, 5.
        trials: Rows measured in this run, all tasks together.
        tasks: Patterns of task names or operators, as in a shell; commas may join several.
        skip: The same, for tasks to leave out. They ship with their best program from the history, or untuned.
        only_heavy: Only the fewest tasks that hold 95 % of the model's latency.
        shapes: Fixed input shapes by name.
        fix: Values of inputs by name, which are no inputs any more; of ONNX models.
        precision: "exact", a quantised model's own arithmetic, or "float32"; of ONNX models.
        denormals: "flush" takes numbers under 1.2e-38 for zero, in candidates and file, "keep" leaves them; None: as
            the environment variable TT_DENORMALS says, else "flush".
        history: File that every measurement goes to and that a repeated run continues from; None: in memory.
        out: File for the tuned library; its sidecar is `out` + ".json".
        seed: Root of all randomness.
        untrusted: Nobody vouches for the model's file: it is read in a process of its own that may do little.
        server: URL of a tuning service that searches; None searches here. Of the recipe its pieces count, and of the
            other fields these are about it:
        agent: Whether this machine measures for the server.
        private: Whether the rows are for this user alone.
        key_file: Holds the key; None is TT_KEY or ~/.config/tt/key.
        insecure: Whether the key may cross a network in plain text.
        wait: Whether to wait for agents where none is there.
        device: Of the agents that measure, as a shell pattern, where several devices could.
    """

    model: object
    target: Any = "native"
    recipe: str = "tt"
    sets: Sequence[str] = ()
    minutes: float | None = None
    trials: int | None = None
    tasks: str | Sequence[str] = "*"
    skip: str | Sequence[str] = ()
    only_heavy: bool = False
    shapes: Mapping[str, Sequence[int]] | None = None
    fix: Fixed | None = None
    precision: str = "exact"
    denormals: str | None = None
    history: str | Path | None = "tt.db"
    out: str | Path | None = None
    seed: int = 0
    untrusted: bool = False
    server: str | None = None
    agent: bool = True
    private: bool = False
    key_file: str | Path | None = None
    insecure: bool = False
    wait: bool = False
    device: str | None = None

    @classmethod
    def of(cls, model: object, asked: Asked) -> Request:
        """The request for a model with these keywords; their `set` is `sets` here, which shadows nothing."""
        named: JsonObject = {"sets" if name == "set" else name: value for name, value in asked.items()}
        return cls(model, **named)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise OptionError(f"the seed must be a whole number, at least 0, got {self.seed}")
        about = {"--no-agent": not self.agent, "--private": self.private, "--wait": self.wait}
        about |= {"--key-file": self.key_file, "--insecure": self.insecure, "--device": self.device}
        if self.server is None and (given := [name for name, value in about.items() if value]):
            raise OptionError(f"{', '.join(given)}: only with --server URL")
        if self.denormals not in (None, *MODES):
            raise OptionError(f"--denormals is {' or '.join(MODES)}, got {self.denormals!r}")
        minutes, trials = self.minutes, self.trials
        if (minutes is not None and not 0 < minutes <= MOST_MINUTES) or (trials is not None and trials < 1):
            raise OptionError(
                f"the budget must be positive, and minutes at most {MOST_MINUTES},"
                f" got minutes={minutes}, trials={trials}"
            )

    @property
    def limit_minutes(self) -> float | None:
        """Minutes of the whole run; None where only `trials` bounds it."""
        return 5.0 if self.minutes is None and self.trials is None else self.minutes

    @property
    def path(self) -> Path | None:
        """The library's file, None without one."""
        return None if self.out is None else Path(self.out)

    def budget(self, plugins: Plugins, apart_s: float = 0.0, first_s: float = 0.0) -> list[Stopper]:
        """The stoppers of the run's budget, `apart_s` of whose minutes are not the search's, and which waits `first_s`
        longer for operators that were not measured at all."""
        stoppers = []
        if self.trials is not None:
            stoppers.append(plugins.build("stopper", "trials", trials=self.trials))
        if (minutes := self.limit_minutes) is not None:
            apart = {"apart_s": apart_s, "first_s": first_s}
            stoppers.append(plugins.build("stopper", "minutes", minutes=minutes, **apart))
        return stoppers

    def options(self) -> JsonObject:
        """The options as a run's record keeps them."""
        return {
            "minutes": self.limit_minutes,
            "trials": self.trials,
            "tasks": self.tasks,
            "skip": self.skip,
            "only_heavy": self.only_heavy,
            "precision": self.precision,
            "denormals": self.denormals or denormals(),
            "untrusted": self.untrusted,
            **({} if self.server is None else {"server": self.server}),
            "history": str(self.history),
            "out": self.out and str(self.out),
        }
