"""Networks over statements: learning, fine-tuning, weights. A model adds its layers."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from tt_spec.roles import Progress
from tt_spec.types import Group, Prediction, Statements, Task

from tt_surrogate import weights as files
from tt_surrogate.layers import Drop, drawn, shape_of_linear
from tt_surrogate.losses import LOSSES, LossName, mean_loss
from tt_surrogate.programs import Programs, column_maxima, pad, scaled, slates, usable
from tt_surrogate.ranges import Ranges
from tt_surrogate.training import Adam, Plan, train
from tt_surrogate.weights import OPERATOR, STATEMENT, Weights, WeightsError

__all__ = ["Network"]

Parameters = Mapping[str, Any]
CHUNK = 2048
"""Programs scored at once."""


@dataclass(eq=False)
class Network:
    """A network over a program's statements; a model gives `shapes` and `summary`.

    Source: Bai et al. (2023), ATFormer, EMNLP; TenSet (Zheng et al. 2021). Settings of training: appendix A.2.

    A statement is its 164 features and its operator's 10, each divided by the column's largest magnitude in training
    (they are log2 values already). A program's score is linear in `summary`, by default the sum over its statements
    of what the layers make of each.

    `pretrain` learns from many tasks; `fit` then fine-tunes on the run's rows, each time from what was learned
    beforehand. Without either, `fit` learns from nothing. Predicting needs no PyTorch, nor does fine-tuning of the last
    layer (`freeze = "body"`); all other learning does (extra `[torch]`).

    `Prediction.mean` is in units of labels for "squared"; ranks are mapped by `tt_surrogate.ranges`. `std` is 0.

    Args:
        weights: A file that `tt train` wrote, "shipped", those of that model which come with the package, or "none";
            options of the layers are the file's. (default: "none")
        loss: "logistic" (equation 4), "lambda" or "squared". (default: "logistic")
        epochs: Passes over the data. (default: 50, as the paper)
        batch: Programs of a step. (default: 512, as the paper)
        slate: Programs of one task that are compared with each other, at most. (default: 64)
        rate, last_rate: Adam's step at first and at last. (default: 7e-4 and 1e-6, as the paper)
        decay: L2 penalty. (default: 1e-6, as TenSet)
        clip: Largest norm of a gradient. (default: 0.5, as TenSet)
        dropout: Share of units left out while learning. (default: 0)
        operator: Whether the operator's features follow each statement's (the paper's hierarchical features).
            (default: True)
        mask: Whether padding is left out; else programs are padded with zeros to the longest in training, which count
            as statements. (default: True)
        freeze: Layers that fine-tuning leaves alone: "none", "embedding", or "body" (all but the last).
            (default: "body")
        tune_steps: Steps of fine-tuning, each on all rows, or on a batch if more layers learn. (default: 60)
        tune_rate: Adam's step while fine-tuning; 0 means 0.02 for the last layer alone, 3e-4 for more. (default: 0)
        anchor: Draws what is fine-tuned to what was learned beforehand, which 16 rows would spoil: the last layer by
            this penalty over the number of rows n; where more learn, n / (n + anchor) of the way is gone (weights
            averaged as by Wortsman et al. (2022), Robust fine-tuning of zero-shot models, CVPR). (default: 200)
        momentum: A fit goes on from a copy of the weights that follows what fits find: of the copy it keeps this share,
            the rest is the fit's. 1: the copy stays what was learned beforehand. (default: 1; Qiao et al. (2025),
            Pruner, ASPLOS: 0.99)
        seconds: `fit` ends after so long, with what it has learned; a run whose fits are that long is not repeatable.
            (default: 10)
        threads: Of PyTorch; 0 means all. (default: 1, so that timing on the same machine is not disturbed)
    """

    name: ClassVar[str]
    inputs: ClassVar[Literal["statements"]] = "statements"
    shared: ClassVar[bool] = True
    layer_options: ClassVar[tuple[str, ...]] = ()
    """Options that the parameters' shapes depend on, beside `mask`, `operator` and `loss`."""

    weights: str | Path | None = "none"
    loss: LossName = "logistic"
    epochs: int = 50
    batch: int = 512
    slate: int = 64
    rate: float = 7e-4
    last_rate: float = 1e-6
    decay: float = 1e-6
    clip: float = 0.5
    dropout: float = 0.0
    operator: bool = True
    mask: bool = True
    freeze: Literal["none", "embedding", "body"] = "body"
    tune_steps: int = 60
    tune_rate: float = 0.0
    anchor: float = 200.0
    momentum: float = 1.0
    seconds: float = 10.0
    threads: int = 1
    base_: _Learned | None = field(default=None, init=False, repr=False)
    fitted_: _Learned | None = field(default=None, init=False, repr=False)
    slow_: _Learned | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.weights = None if self.weights == "none" else self.weights
        if self.loss not in LOSSES:
            raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {self.loss!r}")
        if self.freeze not in ("none", "embedding", "body"):
            raise ValueError(f"freeze must be 'none', 'embedding' or 'body', got {self.freeze!r}")
        if min(self.epochs, self.batch, self.slate) < 1 or self.tune_steps < 0:
            raise ValueError("epochs, batch and slate must be positive, tune_steps not negative")
        if not 0.0 <= self.momentum <= 1.0:
            raise ValueError(f"momentum is a share, from 0 to 1, got {self.momentum}")
        if self.weights is None or self.freeze != "body":
            _need_torch()  # here, not after the first measured batch

    # -- layers, which a model gives ----------------------------------------------------------------------------------

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameters by name, "embed." first; those of the last layer, "out.", are added."""
        raise NotImplementedError

    def summary(self, P: Parameters, Z: Any, keep: Any, xp: Any, drop: Drop) -> tuple[Any, Any]:
        """H `(n, d)` and c `(n,)` of padded programs; their scores are H w + c b.

        Args:
            Z: `(n, L, width)` float32.
            keep: `(n, L)` bool: what is no padding.
            xp: numpy or torch.
        """
        raise NotImplementedError

    @property
    def units(self) -> int:
        """d."""
        raise NotImplementedError

    def all_shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        """Shapes of all parameters, for statements of so many columns."""
        own = {k: tuple(width if n == -1 else n for n in shape) for k, shape in self.shapes().items()}
        return own | shape_of_linear("out", self.units, 1)

    def begun(self, width: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Parameters to begin with."""
        return drawn(self.all_shapes(width), rng)

    def moved(self, name: str) -> bool:
        """Whether `summary` itself changes that parameter while it learns, so that no gradient may."""
        return False

    # -- the role -----------------------------------------------------------------------------------------------------

    def prestart(self) -> None:
        """Read the weights: a file that cannot be used ends a run before anything is measured."""
        self._base()

    def foreknows(self, task: Task) -> str | None:
        base = self._base()
        return base.where if base is not None and task.op in base.ops else None

    def fit(self, groups: Sequence[Group], rng: np.random.Generator) -> None:
        base, seed, groups = self._base(), int(rng.integers(2**31)), usable(groups)
        self.fitted_ = base
        if not groups:
            return
        if base is None:
            self.fitted_ = self._learn(groups, seed, self._plan(), None) if _has_torch() else None
        elif self.tune_steps:
            slow = self.slow_ or base
            self.fitted_ = self._tune(slow, groups, seed)
            if self.momentum < 1.0:
                keep, found = np.float32(self.momentum), self.fitted_.P
                self.slow_ = replace(base, P={k: keep * v + (1 - keep) * found[k] for k, v in slow.P.items()})

    def predict(self, task: Task, X: Any) -> Prediction:
        learned = self.fitted_ or self._base()
        std = np.zeros(len(X))
        if learned is None:
            return Prediction(std.copy(), std)
        raw = self._raw(learned, X)
        return Prediction(raw if self.loss == "squared" else learned.ranges.map(task.key, raw), std)

    def score(self, prediction: Prediction, best: float) -> np.ndarray:
        return prediction.mean

    def pretrain(
        self,
        groups: Sequence[Group],
        rng: np.random.Generator,
        report: Callable[[Progress], bool],
        start: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        _need_torch()
        seed, groups = int(rng.integers(2**31)), usable(groups)
        self.weights, self.base_, self.fitted_, self.slow_ = None, None, None, None
        if not groups:
            return

        def told(progress: Progress, learned: _Learned) -> bool:
            self.base_ = learned
            return report(progress)

        self.base_ = self._learn(groups, seed, self._plan(math.inf), told, start)

    def save(self, path: Path, card: Mapping[str, Any]) -> None:
        base = self._base()
        if base is None:
            raise WeightsError(f"{path}: {self.name!r} has learned nothing yet: tt train, with rows of some task")
        tensors = {f"p.{k}": v for k, v in base.P.items()}
        tensors |= {"maxima": base.maxima, "range": np.array(base.ranges.overall), "length": np.array(base.length)}
        options = {k: getattr(self, k) for k in (*self.layer_options, "mask", "operator", "loss")}
        options["ops"] = sorted(base.ops)
        files.write(path, Weights(self.name, options, tensors, dict(card), len(base.maxima)))

    # -- learning -----------------------------------------------------------------------------------------------------

    def forward(self, P: Parameters, Z: Any, keep: Any, xp: Any, drop: Drop = lambda x: x) -> Any:
        """Scores `(n,)` of padded programs."""
        H, c = self.summary(P, Z, keep, xp, drop)
        return H @ P["out.weight"][:, 0] + c * P["out.bias"][0]

    def _plan(self, seconds: float | None = None) -> Plan:
        names = ("loss", "epochs", "batch", "slate", "rate", "last_rate", "decay", "clip", "dropout", "threads")
        own = {name: getattr(self, name) for name in names}
        return Plan(**own, seconds=self.seconds if seconds is None else seconds)

    def _learn(
        self,
        groups: list[Group],
        seed: int,
        plan: Plan,
        report: Callable[[Progress, _Learned], bool] | None,
        start: Mapping[str, np.ndarray] | None = None,
    ) -> _Learned:
        """From nothing, or from where a training was stopped."""
        maxima = column_maxima(groups, OPERATOR if self.operator else STATEMENT)
        data = Programs.of(groups, maxima)
        length = 1 if self.mask else int(np.diff(data.offsets).max(initial=1))
        P = self.begun(len(maxima), np.random.default_rng([seed, 0]))

        ops = frozenset(task.op for task, _, _ in groups)

        def learned(P: Parameters) -> _Learned:
            return self._ranged(_Learned(dict(P), maxima, length, ops), groups, data)

        def told(progress: Progress, P: dict[str, np.ndarray]) -> bool:
            return report is None or report(progress, learned(P))

        plan = Plan(**{**asdict(plan), "length": length})
        frozen = [k for k in P if self.moved(k)]
        return learned(train(P, self._forward, data, plan, seed, frozen, told, start))

    def _tune(self, base: _Learned, groups: list[Group], seed: int) -> _Learned:
        """The network learned beforehand, or its slow copy, adapted to rows of this run."""
        data = Programs.of(groups, base.maxima)
        if self.freeze == "body":
            P = self._tune_head(base, data)
        else:
            frozen = [k for k in base.P if self.moved(k) or (self.freeze == "embedding" and k.startswith("embed."))]
            steps = -(-sum(data.sizes) // self.batch)
            plan = {**asdict(self._plan()), "length": base.length}
            plan["rate"] = plan["last_rate"] = self.tune_rate or 3e-4
            plan["epochs"] = max(1, self.tune_steps // steps)
            found = train(base.P, self._forward, data, Plan(**plan), seed, frozen)
            share = len(data.y) / (len(data.y) + self.anchor)
            P = base.P | {
                k: base.P[k] + np.float32(share) * (v - base.P[k]) for k, v in found.items() if k not in frozen
            }
        return self._ranged(replace(base, P=P), groups, data)

    def _tune_head(self, base: _Learned, data: Programs) -> dict[str, np.ndarray]:
        """The last layer alone, in numpy: scores are linear in it."""
        H, c = self._summaries(base, data.X, data.offsets)
        w, b = base.P["out.weight"][:, 0].astype(np.float64), float(base.P["out.bias"][0])
        F, spread = H @ w + c * b, H.std(axis=0)
        unit = float(F.std()) or 1.0
        even = np.where(spread > 1e-3 * spread.max(initial=0.0), 1.0 / np.maximum(spread, 1e-30), 0.0)
        often = 1.0 / max(1.0, float(c.mean()))
        Z = unit * np.column_stack([H * even, c * often, F / unit])  # steps of one size in every direction
        order = slates(data.sizes, self.slate, np.random.default_rng(0))
        index, sizes = np.concatenate(order), [len(s) for s in order]
        step = {"v": np.zeros(Z.shape[1])}
        adam = Adam(step)
        for _ in range(self.tune_steps):
            _, grad = mean_loss(self.loss, (F + Z @ step["v"])[index], data.y[index], sizes)
            pull = self.anchor / len(F) * step["v"]
            adam.step(step, {"v": Z[index].T @ grad + pull}, self.tune_rate or 0.02)
        v, level, stretch = step["v"][:-2], step["v"][-2], step["v"][-1]
        w, b = w * (1 + stretch) + unit * even * v, b * (1 + stretch) + unit * often * level
        return {**base.P, "out.weight": w[:, None].astype(np.float32), "out.bias": np.array([b], np.float32)}

    def _forward(self, P: Parameters, Z: Any, keep: Any, xp: Any, drop: Drop) -> Any:
        return self.forward(P, Z, self._kept(keep, xp), xp, drop)

    def _kept(self, keep: Any, xp: Any) -> Any:
        return keep if self.mask else xp.ones_like(keep)

    # -- scores -------------------------------------------------------------------------------------------------------

    def _raw(self, learned: _Learned, X: Statements) -> np.ndarray:
        """Scores `(n,)` in the network's own unit."""
        return self._raw_of(learned, scaled(X, learned.maxima), X.offsets)

    def _raw_of(self, learned: _Learned, X: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        H, c = self._summaries(learned, X, offsets)
        return H @ learned.P["out.weight"][:, 0].astype(np.float64) + c * float(learned.P["out.bias"][0])

    def _summaries(self, learned: _Learned, X: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """H and c of programs, `(n, d)` and `(n,)` float64; those of one length go together, so that no program is
        padded for its neighbours."""
        counts = np.diff(offsets)
        H, c = np.zeros((len(counts), self.units)), np.zeros(len(counts))
        for count in np.unique(counts):
            same = np.flatnonzero(counts == count)
            for index in np.split(same, range(CHUNK, len(same), CHUNK)):
                Z, keep = pad(X, offsets, index, learned.length)
                H[index], c[index] = self.summary(learned.P, Z, self._kept(keep, np), np, lambda x: x)
        return H, c

    def _ranged(self, learned: _Learned, groups: list[Group], data: Programs) -> _Learned:
        if self.loss != "squared":
            ends = np.cumsum(data.sizes)[:-1]
            raw = np.split(self._raw_of(learned, data.X, data.offsets), ends)
            learned.ranges = Ranges.of((task.key, r) for (task, _, _), r in zip(groups, raw, strict=True))
        return learned

    def _base(self) -> _Learned | None:
        """The network learned beforehand; read from the file when first asked for."""
        if self.base_ is None and self.weights is not None:
            try:
                self.base_ = self._read(files.file_of(self.weights, self.name))
            except WeightsError as e:
                files.forgive(self.weights, e)
                self.weights = None
        return self.base_

    def _read(self, path: str | Path) -> _Learned:
        found = files.read(path, self.name, (STATEMENT, OPERATOR))
        known = (*self.layer_options, "mask", "operator", "loss")
        same = all(type(found.options.get(k)) is type(getattr(self, k)) for k in known)
        if not same or not isinstance(found.options.get("ops"), list):
            raise WeightsError(f"weights {path} lack one of {', '.join((*known, 'ops'))}: train them again")
        for option in known:
            setattr(self, option, found.options[option])
        self.__post_init__()
        shapes = {f"p.{k}": s for k, s in self.all_shapes(found.width).items()}
        shapes |= {"maxima": (found.width,), "range": (2,), "length": ()}
        have = {k: v.shape for k, v in found.tensors.items()}
        if have != shapes or found.width != (OPERATOR if self.operator else STATEMENT):
            odd = sorted(k for k in {*have, *shapes} if have.get(k) != shapes.get(k))
            raise WeightsError(
                f"weights {path} are not of this network ({', '.join(odd[:3])} differ): train them again"
            )
        P = {k.removeprefix("p."): v.astype(np.float32) for k, v in found.tensors.items() if k.startswith("p.")}
        low, high = (float(v) for v in found.tensors["range"])
        length = max(1, min(int(found.tensors["length"]), 4096))
        maxima, ops = found.tensors["maxima"].astype(np.float32), frozenset(map(str, found.options["ops"]))
        return _Learned(P, maxima, length, ops, str(found.card.get("device", path)), Ranges({}, (low, high)))


@dataclass
class _Learned:
    """Parameters, and everything else that a score needs.

    Args:
        P: By name.
        maxima: Of columns.
        length: Statements that a program is padded to, at least.
        ops: Kinds of operator that it learned from.
        where: The CPU on which those were measured.
    """

    P: dict[str, np.ndarray]
    maxima: np.ndarray
    length: int
    ops: frozenset[str]
    where: str = "this run"
    ranges: Ranges = field(default_factory=Ranges)


def _has_torch() -> bool:
    """It may be missing where shipped weights turned out to be unreadable: then all rows are alike to the network."""
    return importlib.util.find_spec("torch") is not None


def _need_torch() -> None:
    if not _has_torch():
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
