"""The study: which options were tried and what came of them, in a file that outlives the process.

The file is Optuna's journal, a line of JSON for each step; `optuna-dashboard FILE --storage-class JournalFileStorage`
shows it. A step is kept when the file has its line: whatever ends the process, the trial in hand is lost at most.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tt_spec import Plugins, UserError

from tt_history.errors import HistoryError
from tt_history.suggestion.options import Option, options_of, tried
from tt_history.suggestion.paired import needs
from tt_history.suggestion.plays import GOAL, Pair, Plays

__all__ = ["FORMAT", "Found", "Limits", "Study", "TooShort", "opened"]

FORMAT = 1
"""Of studies in a file: another one means other figures."""

_MARK = "tt_suggest"


class TooShort(HistoryError):
    """The time was over before one trial was."""


@dataclass(frozen=True)
class Limits:
    """When to stop trying.

    Args:
        trials: Of the study, those of earlier calls among them.
        over: Says why to stop now, or None.
    """

    trials: int
    over: Callable[[], str | None]


@dataclass(frozen=True)
class Found:
    """What a study came to.

    Args:
        content: Of the best recipe's file.
        unchanged: Its name if it is one of the given recipes as it is; then there is nothing to judge.
        cost, default_cost: Mean over all pairs, of the best and of the default; see `Score.cost`.
        complete, pruned, failed: Trials by what became of them.
        reason: Why trying ended, where it did so before all trials were made.
    """

    content: dict[str, Any]
    unchanged: str
    cost: float
    default_cost: float
    complete: int
    pruned: int
    failed: int
    reason: str | None


class Study:
    """Tries options of recipes on pairs of task and seed.

    Source: Akiba et al. (2019), Optuna; Bergstra et al. (2011), tree-structured Parzen estimators; a trial ends early
    where Wilcoxon's test over the pairs so far says that it is worse than the best (Optuna's `WilcoxonPruner`).

    Args:
        bases: Contents of recipes by name, the default first. Each is played as it is before anything is tried.
        pairs: Each step of a trial is one of them.
    """

    def __init__(self, storage: Any, about: str, bases: Mapping[str, Mapping[str, Any]], pairs: Sequence[Pair]) -> None:
        self.storage, self.about, self.bases, self.pairs = storage, about, dict(bases), list(pairs)
        plugins = Plugins()
        self.options: dict[str, list[Option]] = {n: options_of(c, plugins) for n, c in self.bases.items()}
        self.whole = any(o.role == "stopper" for options in self.options.values() for o in options)

    @property
    def name(self) -> str:
        """Of the study in its file: a hash stands for all that its figures depend on."""
        tasks = [(p.playable.digest, p.playable.task_key, p.seed) for p in self.pairs]
        ranges = [[o.key, o.range.as_dict()] for options in self.options.values() for o in options]
        text = json.dumps([FORMAT, self.bases, ranges, tasks], sort_keys=True, default=str)
        return f"{self.about}, {hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def search(self, plays: Plays, limits: Limits, seed: int, say: Callable[[str], None]) -> Found:
        """Make the trials that are missing."""
        import optuna
        from optuna.trial import TrialState

        study = self._study(seed)
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            study.tell(trial.number, state=TrialState.FAIL)  # of a process that was killed
        reason = None
        while reason is None and len(_tried(study, TrialState)) < limits.trials:
            reason = limits.over()
            if reason is None:
                trial = study.ask()
                reason = self._try(study, trial, plays, limits, optuna)
                if reason is None:
                    self._report(study, trial.number, say)
        return self._found(study, reason, optuna)

    def _study(self, seed: int) -> Any:
        import optuna

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what Optuna calls experimental
            known = {s.study_name for s in optuna.get_all_study_summaries(self.storage, include_best_trial=False)}
            done = 0
            if self.name in known:
                done = len(optuna.load_study(study_name=self.name, storage=self.storage).get_trials(deepcopy=False))
            study = optuna.create_study(
                storage=self.storage,
                study_name=self.name,
                load_if_exists=True,
                sampler=optuna.samplers.TPESampler(seed=seed + 7919 * done, multivariate=True, group=True),
                pruner=optuna.pruners.WilcoxonPruner(p_threshold=0.1),
            )
        if self.name not in known:
            study.set_user_attr(_MARK, FORMAT)
        asked = {t.user_attrs.get("as_is") for t in study.get_trials(deepcopy=False)}
        for name in self.bases:
            if name not in asked:
                study.enqueue_trial({}, user_attrs={"as_is": name})
        if "near" not in {k for t in study.get_trials(deepcopy=False) for k in t.user_attrs}:
            study.enqueue_trial(self._near(), user_attrs={"near": True})
        return study

    def _near(self) -> dict[str, Any]:
        """Options as the default recipe and its pieces have them, where they say a value."""
        plugins, name = Plugins(), next(iter(self.bases))
        found: dict[str, Any] = {"recipe": name} if len(self.bases) > 1 else {}
        for o in self.options[name]:
            value = o.value if o.value is not None else _default(plugins, o)
            if o.range.holds(value):
                found[o.key] = value
        return found

    def _try(self, study: Any, trial: Any, plays: Plays, limits: Limits, optuna: Any) -> str | None:
        """One trial, pair by pair; returns why trying must end, and then the trial is none."""
        state = optuna.trial.TrialState
        content, as_is = self._content(trial), "as_is" in trial.user_attrs
        trial.set_user_attr("content", json.dumps(content))
        costs: list[float] = []
        try:
            for step, score in enumerate(plays.scores(plays.file(content), self.pairs, 1.0 if self.whole else GOAL)):
                costs.append(score.cost(self.whole))
                trial.report(costs[-1] + _untied(trial.number, step), step)
                if not as_is and trial.should_prune():
                    study.tell(trial, state=state.PRUNED)
                    return None
                if len(costs) < len(self.pairs) and (reason := limits.over()) is not None:
                    study.tell(trial, state=state.FAIL)
                    return reason
        except UserError as e:  # options that do not go together, say
            trial.set_user_attr("why", str(e))
            study.tell(trial, state=state.FAIL)
            if as_is and trial.user_attrs["as_is"] == next(iter(self.bases)):
                raise
            return None
        study.tell(trial, sum(costs) / len(costs))
        return None

    def _content(self, trial: Any) -> dict[str, Any]:
        if "as_is" in trial.user_attrs:
            return dict(self.bases[trial.user_attrs["as_is"]])
        names = list(self.bases)
        name = trial.suggest_categorical("recipe", names) if len(names) > 1 else names[0]
        return tried(self.bases[name], self.options[name], trial)

    def _report(self, study: Any, number: int, say: Callable[[str], None]) -> None:
        trial, best = study.get_trials(deepcopy=False)[number], study.best_trial.number
        steps = len(trial.intermediate_values)
        if number == best or number % 10 == 0:
            end = f"{trial.state.name.lower()} after {steps} of {len(self.pairs)} plays"
            say(f"{self.about}: trial {number} {end}; the best is {best}")

    def _found(self, study: Any, reason: str | None, optuna: Any) -> Found:
        state = optuna.trial.TrialState
        done = study.get_trials(deepcopy=False)
        complete = [t for t in done if t.state == state.COMPLETE]
        if not any("as_is" in t.user_attrs for t in complete):
            plays = f"one trial of {len(self.pairs)} plays"
            raise TooShort(f"{self.about}: too little time for {plays}: give more --minutes")
        default = next(t for t in complete if t.user_attrs.get("as_is") == next(iter(self.bases)))
        best = min(complete, key=lambda t: (t.value, t.number))
        return Found(
            json.loads(best.user_attrs["content"]),
            best.user_attrs.get("as_is", ""),
            best.value,
            default.value,
            len(complete),
            sum(t.state == state.PRUNED for t in done),
            sum(t.state == state.FAIL for t in done),
            reason,
        )


def _untied(trial: int, step: int) -> float:
    """Far less than what counts. SciPy's exact test without ties takes a millisecond, with ties, and trials that play
    alike have them, seconds: it then tries all permutations."""
    return 1e-9 * ((7919 * trial + 104729 * step) % 10007) / 10007


def _tried(study: Any, state: Any) -> list[Any]:
    """Trials that are over, but for those that were lost."""
    over = (state.COMPLETE, state.PRUNED)
    return [t for t in study.get_trials(deepcopy=False) if t.state in over or "why" in t.user_attrs]


def _default(plugins: Plugins, option: Option) -> Any:
    import inspect

    if not option.piece:
        return None
    parameter = inspect.signature(plugins.factory(option.role, option.piece)).parameters.get(option.name)
    return None if parameter is None else parameter.default


# -- the file ---------------------------------------------------------------------------------------------------------


class _NoLock:
    """Optuna's own lock outlives a process that is killed; `opened` holds one that does not."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        return None


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Optuna's storage in a file, made if missing, for this process alone. Raises `HistoryError`."""
    needs("optuna")
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with _alone(path):
        _mend(path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                storage = JournalStorage(JournalFileBackend(str(path), lock_obj=_NoLock()))  # type: ignore[arg-type]
                marks = [s.user_attrs.get(_MARK) for s in optuna.get_all_study_summaries(storage, False)]
        except OSError as e:
            raise HistoryError(f"study {path}: {e.strerror or e}") from e
        except Exception as e:  # whatever Optuna makes of lines that are none of its own
            raise _damaged(path, f"{type(e).__name__}: {' '.join(str(e).split())[:100]}") from e
        if any(m != FORMAT for m in marks):
            other = next(m for m in marks if m != FORMAT)
            what = "is not of tt suggest" if other is None else f"is of format {other}, this tt-history reads {FORMAT}"
            raise HistoryError(f"study {path}: it {what}; move it away, or name another one with --study")
        yield storage


def _damaged(path: Path, why: str) -> HistoryError:
    return HistoryError(f"study {path}: damaged ({why}); move it away, and what it holds is tried again")


def _mend(path: Path) -> None:
    """Cut off a last line that a kill has left unfinished; refuse a file with any other line that is no JSON."""
    if not os.path.exists(path):
        return
    try:
        if not os.path.isfile(path):
            raise HistoryError(f"study {path}: a file is wanted, this is none")
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            if not whole and not content.startswith(b'{"op_code"'):
                raise _damaged(path, "no journal of Optuna's")
            with path.open("r+b") as file:
                file.truncate(whole)
    except OSError as e:
        raise HistoryError(f"study {path}: {e.strerror or e}") from e
    for number, line in enumerate(content[:whole].splitlines(), 1):
        try:
            if not isinstance(json.loads(line), dict):
                raise ValueError("no object")
        except (ValueError, RecursionError) as e:
            raise _damaged(path, f"line {number}") from e


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Nobody else works on the study meanwhile; a lock of the kernel's, which ends with its process."""
    try:
        import fcntl
    except ImportError:  # not on this system
        yield
        return
    try:
        lock = open(f"{path}.lock", "wb")  # noqa: SIM115
    except OSError as e:
        raise HistoryError(f"study {path}: {e.strerror or e}; name another one with --study") from e
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            busy = "another tt suggest works on it; wait for it, or name another --study"
            raise HistoryError(f"study {path}: {busy}") from e
        yield
