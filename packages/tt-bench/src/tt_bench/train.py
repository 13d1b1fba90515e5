"""`tt train`: a cost model learns from measured rows of many operators and is written with a card.

It ends early on operators that are kept apart, and what stands in the file is the round that ranked those best; or,
with `refit`, a new training of as many rounds on all operators. A checkpoint beside the file lets the same command go
on after it was stopped or killed.
"""

from __future__ import annotations

import json
import math
import platform
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import PluginError, Plugins
from tt_spec.faults import blame, checked_prediction
from tt_spec.roles import Pretrains, Progress, Saves, Surrogate, missing

from tt_bench import atomic, lessons, ranking
from tt_bench.errors import BenchError
from tt_bench.held_out import held_out
from tt_bench.lessons import Lesson
from tt_bench.ranking import Ranked

__all__ = ["Trained", "Training", "checkpoint_of", "figure", "rank", "train"]

SHARE = 0.2
"""Of the operators that are kept apart where none are named."""

EVERY_S = 20.0
"""Seconds between two checkpoints, at least; the first round has one."""

State = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Training:
    """A training to do.

    Args:
        folders: Where the data are; see `tt_bench.lessons.read`.
        model: Name of the piece.
        out: File of the weights.
        options: Of the piece.
        seed: Of the split and of the training.
        hold_out: Patterns of names of operators that are kept apart; none draws a fifth of them.
        patience: Rounds without a better one after which it ends.
        with_held_out: Also learn from operators on which shipped weights are judged (`tt_bench.held_out`).
        refit: In the end learn anew from all, those kept apart among them, as many rounds as were best.
    """

    folders: tuple[str, ...]
    model: str
    out: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    hold_out: tuple[str, ...] = ()
    patience: int = 10
    with_held_out: bool = False
    refit: bool = False


@dataclass(frozen=True)
class Trained:
    """A training that is over.

    Args:
        card: Plain data: see `train`.
        stopped: Whether it was interrupted; then there is a checkpoint and no file.
    """

    card: dict[str, Any]
    stopped: bool = False


def train(
    what: Training,
    plugins: Plugins | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
    halt: Callable[[], str | None] = lambda: None,
    data: Sequence[Lesson] | None = None,
) -> Trained:
    """Train and write `out` with the card inside, and the card as `out`.md; goes on from a checkpoint.

    Operators that are held out of all weights are left out, with a line, unless `what.with_held_out`.

    The card holds the data's hash, operators, rows and CPUs, the split, the figures on what was kept apart, in all and
    by kind of operator, options, rounds and versions.

    Args:
        halt: Asked after every round; a text stops there, and the same call goes on.
        data: Instead of what lies in `what.folders`.

    Raises `PluginError` for a model that cannot be trained, `BenchError` for data and files.
    """
    plugins = plugins or Plugins()
    model = _built(what, plugins)
    _check_out(what.out)
    known = lessons.read(what.folders, model.inputs) if data is None else list(data)
    known = known if what.with_held_out else _allowed(known, say)
    school, apart = lessons.split(known, what.hold_out, fnmatch, SHARE, what.seed)
    if what.hold_out and not apart:
        names = ", ".join(sorted({x.name for x in known})[:4])
        raise BenchError(f"--hold-out {','.join(what.hold_out)} matches no operator (known: {names}, …)")
    if not school:
        raise BenchError("every operator is held out: nothing is left to learn from")
    versions = _versions(plugins.find("surrogate", what.model).distribution)
    about = _about(what, versions, known, school, apart)
    say(f"{what.model} learns from {about['split']['trained']}; kept apart: {about['split']['apart']}")
    course = _Course(what, model, apart, about["identity"], say, halt)
    course.run([x.group(model.inputs) for x in school])
    if course.stopped:
        return Trained({}, True)
    judged = rank(model, apart)
    card = _card(about, course, judged, rank(model, school)) | {"kinds": _kinds(known, apart, judged)}
    if what.refit:
        model = _built(what, plugins)
        last = _refit(course, model, [x.group(model.inputs) for x in known])
        if last.stopped:
            return Trained({}, True)
        card["training"]["refit"] = {"rounds": last.best[0], "learned": _counted(known)}
    with blame("surrogate", model):
        model.save(what.out, card)
    atomic.write(what.out.with_name(what.out.name + ".md"), _page(card), f"the weights are in {what.out}")
    for out in (what.out, _again(what.out)):
        checkpoint_of(out).unlink(missing_ok=True)
    return Trained(card)


def _refit(course: _Course, model: Any, groups: list[Any]) -> _Course:
    """A course of as many rounds as were best, of a new model that learns from what was kept apart, too."""
    what = replace(course.what, out=_again(course.what.out))
    again = _Course(what, model, [], course.identity, course.say, course.halt, most=course.best[0])
    course.say(f"learns anew from all {len(groups)} groups of rows, {course.best[0]} rounds")
    again.run(groups)
    return again


def _again(out: Path) -> Path:
    """Where the checkpoint of what learns anew belongs."""
    return out.with_name(out.name + ".refit")


def _allowed(known: list[Lesson], say: Callable[[str], None]) -> list[Lesson]:
    """Without the operators held out of all weights, which are told."""
    kept = [x for x in known if not held_out(x.task)]
    if not kept:
        told = "every operator of the data is one on which weights are judged (tt_bench/held_out.txt)"
        raise BenchError(f"{told}: give other data, or --with-held-out for weights that are not judged on them")
    if len(kept) < len(known):
        left = [x for x in known if held_out(x.task)]
        names = sorted({x.name for x in left})
        shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        many = _many(len({x.operator for x in left}))
        say(f"left out, because weights are judged on them: {many} ({shown}); see --with-held-out")
    return kept


def checkpoint_of(out: Path) -> Path:
    """The checkpoint of a training that writes `out`."""
    return out.with_name(out.name + ".checkpoint")


def rank(model: Surrogate, some: Sequence[Lesson]) -> list[Ranked]:
    """Rows of operators by a model's scores, none of its own rows known to it."""
    found = []
    for x in some:
        with blame("surrogate", model):
            prediction = checked_prediction(model.predict(x.task, x.features(model.inputs)), len(x.seconds))
            scores = np.asarray(model.score(prediction, 1.0), dtype=np.float64)
        found.append(Ranked(x.name, scores, x.seconds, x.task.weight))
    return found


def _built(what: Training, plugins: Plugins) -> Any:
    try:
        model = plugins.build("surrogate", what.model, **what.options)
    except (TypeError, ValueError) as e:
        if isinstance(e, PluginError):
            raise
        raise PluginError(f"surrogate {what.model!r}: {e}") from e
    lacks = missing(model, Pretrains, Saves)
    if lacks:
        able = "capabilities Pretrains and Saves of tt_spec.roles"
        raise PluginError(
            f"surrogate {what.model!r} cannot be trained beforehand: it lacks {', '.join(lacks)} ({able})"
        )
    if model.weights is not None:
        raise PluginError("--set weights is for tt tune; a training writes weights and begins with none")
    return model


def _check_out(out: Path) -> None:
    if out.is_dir() or not out.parent.is_dir():
        raise BenchError(f"--out {out}: {'is a folder' if out.is_dir() else 'its folder does not exist'}; give a file")


# -- the course --------------------------------------------------------------------------------------------------------


@dataclass
class _Course:
    """The rounds of a training: told after each, remembered in a checkpoint, ended early."""

    what: Training
    model: Any
    apart: list[Lesson]
    identity: str
    say: Callable[[str], None]
    halt: Callable[[], str | None]
    most: int | None = None
    history: list[dict[str, float]] = field(default_factory=list)
    best: tuple[int, float] = (0, -math.inf)
    stopped: bool = False
    ended: str = ""
    spent_s: float = 0.0
    _best_state: State = field(default_factory=dict)

    def run(self, groups: list[Any]) -> None:
        """Train, and leave the model as it was in the best round."""
        start = self._restore()
        self._began, self._kept = time.monotonic(), -math.inf
        with blame("surrogate", self.model):
            if start is None or not self.ended:
                self.model.pretrain(groups, self._rng(), self._report, start)
            if self.stopped or not self.history:
                return
            if (self.apart and self.best[0] != self.history[-1]["round"]) or (start is not None and self.ended):
                self.model.pretrain(groups, self._rng(), lambda p: False, self._best_state)

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.what.seed)

    def _report(self, p: Progress) -> bool:
        if self.history and p.done <= self.history[-1]["round"]:  # the round of a checkpoint, reported again
            return True
        pairs = self._pairs()
        self.history.append({"round": p.done, "loss": round(p.loss, 6), "pairs": round(pairs, 6)})
        better = not self.apart or pairs > self.best[1]
        if better:
            self.best, self._best_state = (p.done, pairs), p.state()
        if self.apart and p.done - self.best[0] >= self.what.patience:
            self.ended = f"no better round in {self.what.patience}"
        elif p.done >= self._total(p):
            self.ended = "all rounds done"
        self._tell(p, pairs)
        why = self.halt()
        if why or self.ended or time.monotonic() - self._kept >= EVERY_S:
            self._keep(p.state())
        self.stopped = bool(why) and not self.ended
        return not (self.ended or self.stopped)

    def _pairs(self) -> float:
        """Mean share of pairs in the right order, over operators that are kept apart."""
        if not self.apart:
            return 0.0
        found = [ranking.pair_accuracy(r.scores, r.seconds) for r in rank(self.model, self.apart)]
        known = [f for f in found if not math.isnan(f)]
        return float(np.mean(known)) if known else 0.0

    def _tell(self, p: Progress, pairs: float) -> None:
        each = (self.spent_s + time.monotonic() - self._began) / max(1, len(self.history))
        ranked = f", {pairs:.3f} of pairs kept apart (best {self.best[1]:.3f} in round {self.best[0]})"
        left = (
            f", {each * (self._total(p) - p.done) / 60:.1f} min left at most" if not self.ended else f"; {self.ended}"
        )
        self.say(f"round {p.done} of {self._total(p)}: loss {p.loss:.4f}{ranked if self.apart else ''}{left}")

    def _total(self, p: Progress) -> int:
        """Rounds of this course."""
        return p.total if self.most is None else min(self.most, p.total)

    # -- the checkpoint ------------------------------------------------------------------------------------------------

    def _keep(self, now: State) -> None:
        self.spent_s += time.monotonic() - self._began
        self._began = self._kept = time.monotonic()
        about = {
            "identity": self.identity,
            "history": self.history,
            "best": list(self.best) if self.apart else [self.best[0], 0.0],
            "ended": self.ended,
            "spent_s": self.spent_s,
        }
        path = checkpoint_of(self.what.out)
        part = path.with_name(path.name + ".part")
        arrays = {f"now.{k}": v for k, v in now.items()} | {f"best.{k}": v for k, v in self._best_state.items()}
        try:
            with open(part, "wb") as file:
                np.savez(file, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)  # type: ignore[arg-type]
            part.replace(path)
        except OSError as e:
            raise BenchError(f"{path}: {e.strerror or e}; the training goes on from the checkpoint before") from e
        finally:
            part.unlink(missing_ok=True)

    def _restore(self) -> State | None:
        """The state to go on from, or None."""
        path = checkpoint_of(self.what.out)
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as found:
                arrays = {k: found[k] for k in found.files}
            about = json.loads(arrays.pop("about").tobytes())
            identity, history, best = about["identity"], about["history"], about["best"]
            self.ended, self.spent_s = str(about["ended"]), float(about["spent_s"])
        except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, zipfile.BadZipFile) as e:
            raise BenchError(f"{path}: not readable ({type(e).__name__}): delete it to begin anew") from e
        if identity != self.identity:
            raise BenchError(
                f"{path}: of a training with other data, options or seed: delete it, or give the same command"
            )
        self.history, self.best = history, (int(best[0]), float(best[1]))
        self._best_state = {k.removeprefix("best."): v for k, v in arrays.items() if k.startswith("best.")}
        self.say(f"goes on after round {history[-1]['round']}, from {path}")
        return {k.removeprefix("now."): v for k, v in arrays.items() if k.startswith("now.")}


# -- the card ----------------------------------------------------------------------------------------------------------


def _about(
    what: Training, versions: dict[str, str], known: list[Lesson], school: list[Lesson], apart: list[Lesson]
) -> dict[str, Any]:
    """The card's part that is known beforehand, and the identity that a checkpoint must have."""
    digest = lessons.data_hash(known)
    options = dict(sorted(what.options.items()))
    split = {
        "trained": _counted(school),
        "apart": _counted(apart),
        "hold_out": list(what.hold_out),
        "operators_apart": sorted({x.name for x in apart}),
        "held_out_learned": sorted({x.name for x in school if held_out(x.task)}),
    }
    same = [digest, what.model, options, what.seed, list(what.hold_out), what.patience, versions]
    return {
        "model": what.model,
        "device": ", ".join(sorted({x.device for x in known})),
        "options": options,
        "seed": what.seed,
        "data": {
            "sha256": digest,
            "operators": len({x.operator for x in known}),
            "groups": len(known),
            "rows": sum(len(x.seconds) for x in known),
            "cpus": sorted({x.device for x in known}),
        },
        "split": split,
        "versions": versions,
        "identity": json.dumps(same),
    }


def _counted(some: list[Lesson]) -> str:
    return f"{sum(len(x.seconds) for x in some)} rows of {_many(len({x.operator for x in some}))}"


def _many(operators: int) -> str:
    return f"{operators} operator{'' if operators == 1 else 's'}"


def _card(about: dict[str, Any], course: _Course, apart: list[Ranked], school: list[Ranked]) -> dict[str, Any]:
    card = {k: v for k, v in about.items() if k != "identity"}
    card["training"] = {
        "rounds": int(course.history[-1]["round"]) if course.history else 0,
        "best_round": course.best[0],
        "ended": course.ended,
        "history": course.history,
    }
    card["metrics"] = {"apart": ranking.summary(apart), "trained": ranking.summary(school)}
    return card


def _kinds(known: list[Lesson], apart: list[Lesson], judged: list[Ranked]) -> dict[str, dict[str, float]]:
    """Of each kind of operator how many there are, how many of them were kept apart, and the share of pairs in the
    right order among those, if there are any."""
    found: dict[str, dict[str, float]] = {}
    for op in sorted({x.task.op for x in known}):
        pairs = [
            ranking.pair_accuracy(r.scores, r.seconds) for x, r in zip(apart, judged, strict=True) if x.task.op == op
        ]
        told = [p for p in pairs if not math.isnan(p)]
        found[op] = {
            "operators": len({x.operator for x in known if x.task.op == op}),
            "apart": len({x.operator for x in apart if x.task.op == op}),
            **({"pairs": round(float(np.mean(told)), 4)} if told else {}),
        }
    return found


def _versions(distribution: str) -> dict[str, str]:
    """Of what takes part, the model's own distribution among it."""
    found = {"python": platform.python_version()}
    libraries = ("numpy", "torch", "xgboost", "lightgbm", "pytorch-tabnet2", "safetensors")
    for name in (*libraries, "tt-spec", "tt-bench", distribution):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _page(card: dict[str, Any]) -> str:
    """The card as Markdown."""
    data, split, training = card["data"], card["split"], card["training"]
    lines = [
        f"# Weights of `{card['model']}`",
        "",
        f"- Data: {data['rows']} rows of {data['operators']} operators, SHA-256 `{data['sha256']}`.",
        f"- CPUs: {', '.join(f'`{c}`' for c in data['cpus'])}. Other CPUs are unknown to these weights.",
        f"- Learned from {split['trained']}; kept apart: {split['apart']}. The best round was chosen on what was kept",
        "  apart, so that its figures are slightly too good.",
        *_anew(training.get("refit")),
        f"- Rounds: {training['rounds']}, the best is {training['best_round']} ({training['ended']}).",
        f"- Options: `{json.dumps(card['options'])}`, seed {card['seed']}.",
        f"- Versions: {', '.join(f'{k} {v}' for k, v in card['versions'].items())}.",
        "",
        "| | kept apart | learned from |",
        "|---|---|---|",
    ]
    apart, school = card["metrics"]["apart"], card["metrics"]["trained"]
    for name in school:
        lines.append(f"| {name} | {figure(apart.get(name))} | {figure(school[name])} |")
    lines += ["", "| kind of operator | operators | kept apart | pairs of those |", "|---|---|---|---|"]
    for op, of in card["kinds"].items():
        lines.append(f"| {op} | {of['operators']} | {of['apart']} | {figure(of.get('pairs'))} |")
    names = split["operators_apart"]
    if split["held_out_learned"]:
        lines += ["", "Learned from operators on which weights are judged: do not judge these weights on them."]
    lines += ["", "Means over operators with 95 % intervals over operators; top-k is TenSet's score.", ""]
    lines += ["Kept apart:", "", *(f"- {n}" for n in names)] if names else ["Nothing was kept apart."]
    return "\n".join(lines) + "\n"


def _anew(refit: dict[str, Any] | None) -> list[str]:
    if refit is None:
        return []
    return [
        f"- Then it learned anew, {refit['rounds']} rounds, from {refit['learned']}, what was kept apart among them:",
        "  these are the weights in the file. All figures are of the training before, which did not know that part.",
    ]


def figure(value: float | list[float] | None) -> str:
    """A figure of the card, with its interval if it has one."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return f"{value[0]:.3f} ({value[1]:.3f} to {value[2]:.3f})"
    return f"{value:g}"
