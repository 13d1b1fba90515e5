"""The nouns of the house: tasks, measurements, predictions, and what passes between roles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tt_spec.space import Space, tokens

if TYPE_CHECKING:
    from tt_spec.clock import Clock

__all__ = [
    "ERRORS",
    "IMPORT",
    "Bar",
    "Batch",
    "Context",
    "Foreign",
    "Group",
    "Measurement",
    "Noise",
    "Prediction",
    "Proposal",
    "RunRecord",
    "Selection",
    "Slot",
    "Statements",
    "Task",
    "TaskState",
    "Timing",
    "Trial",
    "concat_statements",
    "labels",
]

ERRORS = ("invalid", "build", "build-timeout", "run", "run-timeout", "wrong-result")
"""Why a candidate has no time. `invalid` rows were never built and cost no trial."""


IMPORT = "import"
"""First word of the origin of records that came from a file: "import search, them.csv, 2026-11-22". They guide a search
and never ship: what ships was timed and verified here."""


@dataclass(frozen=True)
class Task:
    """One operator to tune on one target.

    Args:
        key: Stable hash of workload and target, the same in every process.
        name: For people; unique in a model.
        op: Kind of operator, e.g. "conv2d"; similar tasks share it.
        target: The target's canonical text.
        spaces: Where candidates come from; the first is searched.
        flops: Floating-point operations of one execution.
        weight: How often the model runs it.
        payload: Bytes from which a worker or a remote agent rebuilds the workload.
        shapes: Shapes of inputs and outputs, for people.
        workload: Stable hash of the workload without the target, so that other targets' rows are found; "" is unknown.
    """

    key: str
    name: str
    op: str
    target: str
    spaces: tuple[Space, ...]
    flops: float
    weight: float = 1.0
    payload: bytes = b""
    shapes: str = ""
    workload: str = ""

    @property
    def space(self) -> Space:
        """The space that is searched."""
        return self.spaces[0]


@dataclass(frozen=True)
class Noise:
    """The machine's state while a candidate was timed, see `tt_spec.windows`.

    Args:
        windows: Windows of time that the estimate rests on.
        discarded: Windows left out because the machine was slower or faster than in its reference state.
        slowdown: Seconds of the probe beside the windows that count over those in the reference state: about 1, more
            where no better window was to be had.
        vain_s: Seconds spent on waiting and on windows that were left out.
    """

    windows: int
    discarded: int
    slowdown: float
    vain_s: float


@dataclass(frozen=True)
class Trial:
    """The outcome of trying one row. A failed candidate is data.

    Args:
        config: The row asked.
        seconds: Timed runs, seconds per execution; empty if and only if `error` is set.
        runs: Executions made in all, warm-up included.
        error: One of `ERRORS`, or None.
        why: The error's message, or what the evaluator says of its choice of runs.
        cost: Seconds spent in "apply", "build" and "run".
        noise: The machine's state meanwhile; None where nothing tells.
    """

    config: tuple[int, ...]
    seconds: tuple[float, ...] = ()
    runs: int = 0
    error: str | None = None
    why: str = ""
    cost: dict[str, float] = field(default_factory=dict)
    noise: Noise | None = None

    def __post_init__(self) -> None:
        _check_verdict(self.seconds, self.error)

    @property
    def latency_s(self) -> float:
        """Median of the timed runs in seconds; inf for a failed candidate."""
        return _median(self.seconds)


@dataclass(frozen=True)
class Measurement:
    """A trial with all that identifies it: what stores keep. `Measurement.of` makes one from a `Trial`.

    Args:
        config: The canonical row.
        knobs: Decoded values, so that a record outlives its space.
        seconds, runs, error, why, cost, noise: See `Trial`.
        origin: Who proposed it, e.g. "search", "random".
        device: Fingerprint of the machine.
        at: Seconds since the epoch, by the run's clock.
    """

    task_key: str
    space_key: str
    config: tuple[int, ...]
    knobs: dict[str, Any] = field(default_factory=dict)
    seconds: tuple[float, ...] = ()
    runs: int = 0
    error: str | None = None
    why: str = ""
    cost: dict[str, float] = field(default_factory=dict)
    origin: str = "search"
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    at: float = 0.0
    run_id: str = ""
    noise: Noise | None = None

    def __post_init__(self) -> None:
        _check_verdict(self.seconds, self.error)

    @classmethod
    def of(cls, trial: Trial, task: Task, **about: Any) -> Measurement:
        """The trial of a row of the task's space.

        Args:
            about: `origin`, `device`, `versions`, `at`, `run_id`.
        """
        return cls(
            task.key,
            task.space.key,
            trial.config,
            task.space.decode(trial.config),
            trial.seconds,
            trial.runs,
            trial.error,
            trial.why,
            trial.cost,
            noise=trial.noise,
            **about,
        )

    @property
    def latency_s(self) -> float:
        """Median of the timed runs in seconds; inf for a failed candidate."""
        return _median(self.seconds)

    @property
    def imported(self) -> bool:
        """Whether it came from a file, and nothing here has seen it run."""
        return self.origin.split(" ", 1)[0] == IMPORT


@dataclass(frozen=True)
class RunRecord:
    """A run as stores keep it.

    Args:
        started, ended: Seconds since the epoch; `ended` and `reason` are None until it ended.
        info: What `begin_run` was told: options, seed, recipe, versions, device.
    """

    id: str
    started: float
    ended: float | None = None
    reason: str | None = None
    info: dict[str, Any] = field(default_factory=dict)


def _check_verdict(seconds: tuple[float, ...], error: str | None) -> None:
    if error is not None and error not in ERRORS:
        raise ValueError(f"error must be one of {', '.join(ERRORS)} or None, got {error!r}")
    if bool(seconds) == (error is not None):
        raise ValueError(f"seconds must be empty if and only if error is set; got {len(seconds)} with error={error!r}")
    if seconds and min(seconds) > 0 and math.isfinite(sum(seconds)):  # nearly always, and ten times as quick
        return
    if any(not (math.isfinite(s) and s > 0) for s in seconds):
        raise ValueError(f"seconds must be finite and positive, got {seconds}")


def _median(seconds: tuple[float, ...]) -> float:
    times = sorted(seconds)  # numpy's median of a few numbers takes twenty times as long
    half = len(times) // 2
    if not times:
        return math.inf
    return float(times[half] if len(times) % 2 else (times[half - 1] + times[half]) / 2)


@dataclass(frozen=True)
class Prediction:
    """A model's belief about labels, `(n,)` each; `std` is zero where the model has no doubt to offer."""

    mean: np.ndarray
    std: np.ndarray


@dataclass(frozen=True)
class Statements:
    """Ragged features of programs: one row per memory store.

    Args:
        values: `(total, 164)` float, rows of all programs one after the other.
        offsets: `(n + 1,)` int; program i owns `values[offsets[i]:offsets[i + 1]]`.
        operator: `(n, 10)` float, the operator's own features; zeros if unknown.
    """

    values: np.ndarray
    offsets: np.ndarray
    operator: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: np.ndarray | slice | Sequence[int]) -> Statements:
        index = np.arange(len(self))[rows]
        parts = [self.values[self.offsets[i] : self.offsets[i + 1]] for i in index]
        lengths = [len(p) for p in parts]
        values = np.concatenate(parts) if parts else self.values[:0]
        return Statements(values, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), self.operator[index])


def concat_statements(parts: Sequence[Statements]) -> Statements:
    """One `Statements` of all programs in `parts`, in order."""
    if not parts:
        return Statements(np.zeros((0, 164)), np.zeros(1, dtype=np.int64), np.zeros((0, 10)))
    lengths = np.concatenate([np.diff(p.offsets) for p in parts])
    return Statements(
        np.concatenate([p.values for p in parts]),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.concatenate([p.operator for p in parts]),
    )


Group = tuple[Task, Any, np.ndarray]
"""One task's training data: the task, its features (`(n, p)` or `Statements`) and labels `(n,)`."""


def labels(seconds: np.ndarray) -> np.ndarray:
    """`best / seconds` in [0, 1]; failures (inf) are 0."""
    seconds = np.asarray(seconds, dtype=np.float64)
    finite = seconds[np.isfinite(seconds)]
    if not len(finite):
        return np.zeros(len(seconds))
    return np.where(np.isfinite(seconds), finite.min() / seconds, 0.0)


@dataclass(frozen=True)
class Foreign:
    """Rows of another task, device or space that may guide a task's search, and are never its own results.

    Args:
        task: Theirs, with the rows' space as its only one.
        rows: `(n, d)` rows of `task.space`, each once; rows that never had a program are omitted.
        seconds: Medians, `(n,)`; inf for failures.
        source: "device" (this workload, measured elsewhere or in another space), "near" (another task of a history) or
            "model" (another task of this run).
    """

    task: Task
    rows: np.ndarray
    seconds: np.ndarray
    source: str = "near"


@dataclass(frozen=True)
class Bar:
    """The bar that a candidate must clear.

    Args:
        incumbent_s: Best latency of the task so far in seconds; inf at first.
        flops: Of one execution.
        cap_s: The longest time the evaluation may take, seconds.
    """

    incumbent_s: float = math.inf
    flops: float = 0.0
    cap_s: float = 10.0


@dataclass(frozen=True)
class Timing:
    """An evaluator's verdict: seconds per execution of each repeat, executions made, and why it stopped. `noise` is
    filled in by whoever ran it."""

    seconds: tuple[float, ...]
    runs: int
    why: str = ""
    noise: Noise | None = None


@dataclass(frozen=True)
class Proposal:
    """A searcher's answer: rows `(n, d)`, scores `(n,)` (higher is better), the share of the batch to fill with
    random rows, and remarks for the event log."""

    codes: np.ndarray
    scores: np.ndarray
    random_share: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Selection:
    """A sampler's answer.

    Args:
        codes: Rows `(n, d)`.
        info: Remarks for the event log.
        complete: Whether these rows and the random ones that go with them are the whole batch; else random rows take
            the places that are left of what was asked for.
    """

    codes: np.ndarray
    info: dict[str, Any] = field(default_factory=dict)
    complete: bool = False


@dataclass(frozen=True)
class Batch:
    """Rows that the pipeline asks to be measured.

    Args:
        id: Unique in its pipeline.
        codes: `(n, d)` canonical rows, none asked before.
        origin: "search", "random", "warm" or "transfer", one per row.
        predicted: The model's score of each row `(n,)`; NaN where no model was fitted.
        invalid: `(m, d)` rows that the backend refused on the way; they cost no trial.
        info: Remarks of the pieces, for the event log.
    """

    id: int
    codes: np.ndarray
    origin: tuple[str, ...]
    predicted: np.ndarray
    invalid: np.ndarray
    info: dict[str, Any] = field(default_factory=dict)


@dataclass
class Context:
    """Everything that a searcher or sampler may look at.

    Args:
        rows: Measured rows `(n, d)`, failures included.
        y: Their labels `(n,)`: best / seconds, failures 0.
        errors: Their errors, None for the valid.
        pending: Rows asked and not yet told `(m, d)`.
        best_s: The incumbent's seconds; inf at first.
        predict: `(n, d) -> Prediction` by the fitted model.
        score: `(n, d) -> (n,)`, higher is better; zeros before there is a model.
        fitted: Whether a model stands behind `score`.
        seen: `token`s of all rows that were measured, refused or asked.
        timed: The timed runs of each of `rows`, seconds, none for failures; empty where nobody kept them.
        costs: Seconds that each of `rows` took to build and to time, `(n, 2)`, NaN where nobody told; `(0, 2)` where
            nobody kept them.
        share: Part of a full batch that is asked for, where scores are dear because the model reads statements: whoever
            scores a number of rows that does not follow from the batch may score that part of it. 1 where scores are
            cheap.
    """

    task: Task
    space: Space
    rows: np.ndarray
    y: np.ndarray
    errors: list[str | None]
    pending: np.ndarray
    best_s: float
    predict: Callable[[np.ndarray], Prediction]
    score: Callable[[np.ndarray], np.ndarray]
    rng: np.random.Generator
    clock: Clock
    fitted: bool = False
    seen: frozenset[bytes] = frozenset()
    timed: Sequence[tuple[float, ...]] = ()
    costs: np.ndarray = field(default_factory=lambda: np.empty((0, 2)))
    share: float = 1.0

    def fresh(self, codes: np.ndarray) -> np.ndarray:
        """The rows that were neither measured, refused nor asked, `(n,)` bool; repeats inside `codes` count once."""
        known = set(self.seen)
        out = np.zeros(len(codes), dtype=bool)
        for i, name in enumerate(tokens(codes)):
            if name not in known:
                known.add(name)
                out[i] = True
        return out


@dataclass(frozen=True)
class Slot:
    """A scheduler's decision: which task (by index), for how many trials or seconds, and the gain it expects."""

    task: int
    trials: int | None = None
    seconds: float | None = None
    gain_s: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)


@dataclass
class TaskState:
    """One task's progress as schedulers and stoppers see it.

    Args:
        curve: `(trials, t, best_s)` after each batch; t by the run's clock.
        incumbents: `(trial, best_s)` of every result that beat all before it; restored trials come first.
        latencies: Seconds of this run's trials in order of completion; inf for a failure.
        restored: Trials that came from the store, not from this run.
        errors: How often each kind of error occurred.
        row_s: What a row of the last batch took, searching included, seconds; 0 before the first.
        finished: Why it left the race, or None.
    """

    task: Task
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    incumbents: list[tuple[int, float]] = field(default_factory=list)
    batches: int = 0
    trials: int = 0
    restored: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    finished: str | None = None
    best_s: float = math.inf
    last_gain_trial: int = 0
    row_s: float = 0.0
    latencies: list[float] = field(default_factory=list)

    @property
    def weight(self) -> float:
        """Number of times that the model runs the task."""
        return self.task.weight

    @property
    def flops(self) -> float:
        """Floating-point operations of one execution."""
        return self.task.flops

    @property
    def op(self) -> str:
        """Kind of operator."""
        return self.task.op

    def correct(self, best_s: float, incumbents: list[tuple[int, float]]) -> None:
        """Take the best and its history from timings that were made again: a lucky leader loses its place."""
        self.best_s, self.incumbents = best_s, incumbents

    def rescale(self, factor: float, incumbents: list[tuple[int, float]]) -> None:
        """Multiply all seconds so far: the machine's are those of another state from now on."""
        self.best_s, self.incumbents = factor * self.best_s, incumbents
        self.latencies = [factor * s for s in self.latencies]

    def record(self, m: Measurement) -> None:
        """Count a result of this run: trials, errors, and the incumbent where it is beaten.

        An invalid row was never built and costs no trial; a gain of less than 1 % is not news (`last_gain_trial`).
        """
        if m.error != "invalid":
            self.trials += 1
            self.latencies.append(m.latency_s)
        if m.error is not None:
            self.errors[m.error] = self.errors.get(m.error, 0) + 1
        elif m.latency_s < self.best_s:
            if m.latency_s < 0.99 * self.best_s or not math.isfinite(self.best_s):
                self.last_gain_trial = self.trials
            self.best_s = m.latency_s
            self.incumbents.append((self.restored + self.trials, m.latency_s))
