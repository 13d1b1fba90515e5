"""One task's surrogate, searcher and sampler behind ask and tell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tt_spec.clock import Clock, WallClock
from tt_spec.cost_models import CostModels
from tt_spec.errors import StoreError
from tt_spec.faults import blame, checked_proposal, checked_realised, checked_selection
from tt_spec.guidance import Guidance
from tt_spec.repeats import Repeats
from tt_spec.rng import draw, in_turn, rng_for, untried
from tt_spec.roles import Foreknows, Learns, ProgramSource, Sampler, Searcher, Surrogate
from tt_spec.space import Space, token, tokens
from tt_spec.told import Told
from tt_spec.types import Batch, Context, Measurement, Proposal, Task, Trial, labels

__all__ = ["Pipeline"]


class Pipeline:
    """Ask for rows to measure, tell what they did.

    It owns visited, pending and failed rows, and fills `round(random_share * n)` places of a batch with fresh random
    rows after the sampler, so that exploration is never filtered out by a greedy pick.

    Args:
        task: What is tuned; rows belong to `task.space`.
        surrogate: Cost model; `inputs` says what it reads.
        searcher: Proposes rows.
        sampler: Picks among them.
        programs: Turns rows into programs: canonical rows and statement features. None: rows are taken as they are,
            and the surrogate must read knobs.
        draft: A cheap cost model over knobs that guides the searcher where `surrogate` reads statements, which are
            dear; `surrogate` then ranks only what the searcher hands over, and beside a draft that learned beforehand
            only once the task has `CostModels.SETTLED` rows. (Draft-then-verify: Pruner, ASPLOS 2025.)
        verify: How many rows the searcher hands over for a full batch when there is a draft. (default: 256)
        batch: Rows of a full batch; a smaller one is chosen among as many fewer. (default: 64)
        seed: Root of all randomness.
        peers: Pipelines whose data a `shared` surrogate learns from, this one among them.
        warm: Rows to measure first, `(n, d)`.
        guidance: Lets rows of other tasks and devices have a say; see `tt_spec.guidance`.
        surcharge: Seconds that the program of a row `(d,)` takes longer in a network than alone, as by weights that
            come from memory there. Models learn seconds with it, searchers are told them, and they say which rows lead;
            those that are kept and shown are without.
    """

    OPENING = {"knobs": 1024, "statements": 256}
    """Random rows among which a model that learned beforehand chooses a task's first ones, by what it reads; of
    statements, which are dear, as many fewer as the batch is smaller than a full one."""

    def __init__(
        self,
        task: Task,
        surrogate: Surrogate,
        searcher: Searcher,
        sampler: Sampler,
        *,
        programs: ProgramSource | None = None,
        draft: Surrogate | None = None,
        verify: int = 256,
        batch: int = 64,
        seed: int = 0,
        clock: Clock | None = None,
        peers: list[Pipeline] | None = None,
        warm: np.ndarray | None = None,
        guidance: Guidance | None = None,
        surcharge: Callable[[np.ndarray], float] = lambda row: 0.0,
    ) -> None:
        self.task, self.space = task, task.space
        self.surrogate, self.draft, self.searcher, self.sampler = surrogate, draft, searcher, sampler
        self.programs, self.verify, self.batch = programs, verify, batch
        self.seed, self.clock = seed, clock or WallClock()
        self.peers = peers if peers is not None else [self]
        self.guidance = guidance
        self._warm = np.empty((0, len(self.space.knobs)), dtype=np.int64) if warm is None else warm
        self._told = Told(len(self.space.knobs), surcharge)
        self._repeats = Repeats(self._told)
        self._seen: set[bytes] = set()
        self._pending: dict[bytes, tuple[int, np.ndarray]] = {}
        self._batches = 0
        self._why: dict[bytes, str] = {}
        self._refused: set[bytes] = set()
        self.models = CostModels(
            task,
            surrogate,
            draft,
            self._told,
            programs=programs,
            guidance=guidance,
            peers=lambda: [p.models for p in self.peers],
            seed=seed,
        )

    # -- what is known ------------------------------------------------------------------------------------------

    @property
    def rows(self) -> np.ndarray:
        """All told rows, `(n, d)`, failures included; to be read only."""
        return self._told.rows

    @property
    def best_s(self) -> float:
        """The incumbent's seconds; inf before the first valid result."""
        return self._told.best_s

    def errors(self) -> Counter[str | None]:
        """Number of rows by error; the valid ones count under None."""
        return self._told.counts()

    def incumbents(self) -> list[tuple[int, float]]:
        """`(trial, seconds)` of every told result that beat all before it; refused rows are no trials."""
        return self._told.incumbents()

    def known_trials(self) -> int:
        """Told rows that cost a trial: all but the refused ones."""
        return self._told.trials

    def why_invalid(self, row: np.ndarray) -> str:
        """The backend's message for a row that it refused."""
        return self._why.get(token(row), "")

    def top(self, n: int) -> list[tuple[np.ndarray, float]]:
        """The `n` best valid rows with their seconds, best first."""
        return self._told.top(n)

    def restore(self, measurements: Iterable[Measurement]) -> int:
        """Learn what a store knows of this task and space; returns how many rows were new. Of a row that was measured
        more than once, by two processes or again before it shipped, the latest verdict counts.

        Raises `StoreError` for a row that the space does not have.
        """
        before = len(self._told)
        for m in measurements:
            if m.task_key == self.task.key and m.space_key == self.space.key:
                row = self._row(m)
                name = token(row)
                if name not in self._seen:
                    self._seen.add(name)
                    self._told.add(row, m.latency_s, m.error, m.seconds, m.cost)
                elif (i := self._told.at.get(name)) is not None:
                    self._told.change(i, m.latency_s, m.error, m.seconds)
        return len(self._told) - before

    def _row(self, m: Measurement) -> np.ndarray:
        shape = self.space.shape
        whole = all(isinstance(c, int | np.integer) for c in m.config) and len(m.config) == len(shape)
        if not whole or not all(0 <= c < n for c, n in zip(m.config, shape, strict=True)):
            raise StoreError(
                f"the history has a row of task {self.task.name!r} that its space does not have, {list(m.config)}:"
                " was the file edited by hand? Choose another history"
            )
        return np.asarray(m.config, dtype=np.int64)

    def doubtful(self, results: Sequence[Measurement]) -> np.ndarray:
        """Rows `(n, d)` that deserve another timing after these results of a batch: see `tt_spec.repeats`."""
        return self._repeats.due(results)

    def rescale(self, factor: float) -> None:
        """Multiply all seconds, and doubt the rows near the front as if none had been timed again: the factor is what
        the task's programs suffer on average from another state of the machine."""
        self._told.rescale(factor)
        self.models.forget()
        self._repeats.begin_again()

    def levelled(self, trials: Sequence[Trial]) -> tuple[list[Trial], dict[str, Any]]:
        """Later timings on the scale of what is known, and remarks: by which factor the batch's seconds were `levelled`
        to those before, or by which `factor` the `corrections` of rows `configs` were; see `tt_spec.repeats`."""
        found, level = self._repeats.levelled(trials)
        if level is None:
            return found, {}
        self._told.rescale(level.factor, level.places)
        self.models.forget()
        if level.of == "levelled":
            return found, {"levelled": level.factor}
        return found, {"corrections": {"factor": level.factor, "configs": self._told.rows[level.places].tolist()}}

    def joined(self, trial: Trial) -> Trial:
        """A later timing of a row together with the one before it: see `tt_spec.repeats`."""
        return self._repeats.joined(trial)

    def correct(self, m: Measurement) -> None:
        """Take a later timing of a row that is known: it counts from now on."""
        name = token(m.config)
        if (i := self._told.at.get(name)) is None or m.error is not None:
            raise ValueError(f"row {list(m.config)} has no valid result that could be corrected")
        self._told.change(i, m.latency_s, self._told.errors[i], m.seconds)
        self._repeats.settle(m)

    # -- ask and tell -------------------------------------------------------------------------------------------

    def ask(self, n: int) -> Batch:
        """Up to `n` rows that were never asked; none when the space is exhausted."""
        if n < 1:
            raise ValueError(f"ask for at least one row, got {n}")
        turn = len(self._told) + len(self._pending)
        self.models.asked(sum(p._batches for p in self.peers))
        info: dict[str, Any] = {}
        chosen, invalid = _Chosen(), []
        guided = self.models.guide()
        self._admit(self._warm, "warm", chosen, invalid, n)
        self._warm = np.array([w for w in self._warm if _token(self.space, w) not in self._seen])
        if guided is not None and not self._batches:
            self._admit(guided.rows(), "transfer", chosen, invalid, n)
        if self.models.has_valid:
            self._admit(self._untried(n - len(chosen.rows), turn), "random", chosen, invalid, n)
        if (guided is not None or self.models.has_valid) and len(chosen.rows) < n:
            codes, info, wanted = self._propose(n - len(chosen.rows), turn)
            n = len(chosen.rows) + wanted
            self._admit(codes, "search", chosen, invalid, n)
        elif len(chosen.rows) < n:
            codes, info = self._opening(n - len(chosen.rows), turn)
            self._admit(codes, "weights", chosen, invalid, n)
        rng = rng_for(self.seed, self.task.key, "random", turn)
        for tries in range(16):  # a backend may refuse most rows: ask for more each time
            if len(chosen.rows) >= n:
                break
            wanted = max(n - len(chosen.rows), min((n - len(chosen.rows)) << tries, 512))
            if not self._admit(draw(self.space, self._seen, wanted, rng), "random", chosen, invalid, n):
                break
        codes = np.stack(chosen.rows) if chosen.rows else np.empty((0, len(self.space.knobs)), dtype=np.int64)
        predicted = np.full(len(codes), np.nan)
        if info and len(codes) and "weights" not in info and self.models.ranks:
            predicted = self.models.score(self.surrogate, codes)
        if self.guidance is not None and self.guidance.info:
            info["transfer"] = dict(self.guidance.info)
        self._batches += 1
        for name, row in zip(tokens(codes), codes, strict=True):
            self._pending[name] = (self._batches, row)
        dropped = np.stack(invalid) if invalid else codes[:0]
        return Batch(self._batches, codes, tuple(chosen.origin), predicted, dropped, info)

    def tell(self, batch_id: int, results: Sequence[Measurement | Trial]) -> None:
        """Report some or all results of a batch; the rest stay pending."""
        told: set[bytes] = set()
        for m in results:  # all are checked before any is learned
            name = token(m.config)
            pending = self._pending.get(name, (0,))[0] == batch_id
            if name in told or not (pending or (m.error == "invalid" and name in self._refused)):
                raise ValueError(f"batch {batch_id} has no pending row {list(m.config)}: tell each asked row once")
            told.add(name)
        places = []
        for m in results:
            row = np.asarray(m.config, dtype=np.int64)
            self._told.add(row, m.latency_s, m.error, m.seconds, m.cost)
            if self._pending.pop(token(row), None) is None:
                self._refused.discard(token(row))
                continue
            places.append(self._told.at[token(row)])
        if places and isinstance(self.searcher, Learns):
            y = labels(self._told.expected)[places]
            with blame("searcher", self.searcher):
                self.searcher.tell(self._context("tell", len(self._told)), self.rows[places], y)

    def refused(self, asked: Batch) -> list[Trial]:
        """The trials of the rows that the backend refused on the way to this batch."""
        return [Trial(tuple(int(c) for c in row), error="invalid", why=self.why_invalid(row)) for row in asked.invalid]

    def measured(self, trial: Trial, **about: Any) -> Measurement:
        """The trial as what stores keep; `about` as in `Measurement.of`."""
        return Measurement.of(trial, self.task, **about)

    # -- inside -------------------------------------------------------------------------------------------------

    def _opening(self, n: int, turn: int) -> tuple[np.ndarray, dict[str, Any]]:
        """The task's first rows, best first by what models learned beforehand, and remarks; no rows without such a
        model. The draft chooses those that the surrogate ranks, if both know the task. Algorithms take turns as among
        random rows, and one row in two is a spare: a backend may refuse some."""
        rows, info = np.empty((0, len(self.space.knobs)), dtype=np.int64), {}
        for model in (self.draft, self.surrogate):
            if not isinstance(model, Foreknows):
                continue
            with blame("surrogate", model):
                where = model.foreknows(self.task)
            if where is None:
                continue
            if not info:
                rng, among = rng_for(self.seed, self.task.key, "opening", turn), self.OPENING[model.inputs]
                if model.inputs == "statements":
                    among = max(2 * n, math.ceil(among * self._share(n)))
                rows = np.unique(self.space.sample(among, rng), axis=0)
                rows = rows[[name not in self._seen for name in tokens(rows)]]
            best = np.argsort(-self.models.by(model, rows).mean, kind="stable")
            most = max(2 * n, math.ceil(self.verify * self._share(n)))
            rows, info = in_turn(self.space, self._seen, rows[best], most), {"weights": where}
        return rows[: 2 * n], info

    def _share(self, n: int) -> float:
        """How much of a full batch `n` rows are."""
        return min(1.0, n / self.batch)

    def _untried(self, n: int, turn: int) -> np.ndarray:
        """A row of each algorithm whose turn has come and that was never tried, the draft's favourite: a model cannot
        want what it knows nothing of. They are half of the batch at most."""

        def liked() -> np.ndarray:
            rows = self.space.sample(self.OPENING["knobs"], rng_for(self.seed, self.task.key, "untried", turn))
            if self.draft is None:
                return rows
            return rows[np.argsort(-self.models.by(self.draft, rows).mean, kind="stable")]

        return untried(self.space, self._seen, n, liked)[: n // 2]

    def _propose(self, n: int, turn: int) -> tuple[np.ndarray, dict[str, Any], int]:
        """Rows to measure, remarks, and how many rows the batch should have with the random ones, at most `n`."""
        self.models.fit(turn)
        ctx = self._context("searcher", turn)
        if self.draft is None and self.surrogate.inputs == "statements":
            ctx.share = self._share(n)
        with blame("searcher", self.searcher):
            most = max(n, math.ceil(self.verify * self._share(n))) if self.draft else n
            asked = self.searcher.propose(ctx, most)
            proposal = checked_proposal(asked, self.space, self.searcher)
            info = dict(proposal.info)
        if self.draft is not None and len(proposal.codes) and self.models.ranks:
            ctx.score = lambda codes: self.models.score(self.surrogate, codes)
            proposal = Proposal(proposal.codes, ctx.score(proposal.codes), proposal.random_share, proposal.info)
        share = min(max(proposal.random_share, 0.0), 1.0)
        if self.guidance is not None and not self.models.has_valid:
            share = max(share, self.guidance.random_share)
        greedy = n - int(round_half_up(share * n))
        ctx.rng = rng_for(self.seed, self.task.key, "sampler", turn)
        with blame("sampler", self.sampler):
            selection = checked_selection(self.sampler.select(ctx, proposal, greedy), self.space, self.sampler)
            info.update(selection.info)
        info.update(proposed=len(proposal.codes), selected=len(selection.codes), random_share=share)
        codes = selection.codes[:greedy]
        if selection.complete and 0 < len(codes) < greedy:
            n = int(round_half_up(len(codes) / (1.0 - share)))
        return codes, info, n

    def _context(self, role: str, turn: int = 0) -> Context:
        guide = self.draft or self.surrogate
        pending = [row for _, row in self._pending.values()]
        fitted = self.models.fitted
        return Context(
            task=self.task,
            space=self.space,
            rows=self.rows,
            y=labels(self._told.expected),
            errors=list(self._told.errors),
            timed=tuple(self._told.timed),
            costs=self._told.costs,
            pending=np.stack(pending) if pending else self.rows[:0],
            best_s=float(self._told.expected.min(initial=math.inf)),
            predict=lambda codes: self.models.predict(guide, codes),
            score=(lambda codes: self.models.score(guide, codes)) if fitted else (lambda codes: np.zeros(len(codes))),
            rng=rng_for(self.seed, self.task.key, role, turn),
            clock=self.clock,
            fitted=fitted,
            seen=frozenset(self._seen),
        )

    def _admit(self, codes: np.ndarray, origin: str, chosen: _Chosen, invalid: list[np.ndarray], n: int) -> int:
        """Realise rows, at first as many as there are places, and take the new ones; returns how many there were to
        choose from, so that callers can stop."""
        if not len(codes):
            return 0
        codes = self.space.canonical(codes)
        codes = codes[self.space.allowed(codes)]
        asked = [row.copy() for name, row in zip(tokens(codes), codes, strict=True) if name not in self._seen]
        start, size = 0, n - len(chosen.rows)
        while start < len(asked) and len(chosen.rows) < n:
            self._take(asked[start : start + size], origin, chosen, invalid, n)
            start, size = start + size, 4 * size  # a backend that refuses some may refuse most
        return len(asked)

    def _take(self, asked: list[np.ndarray], origin: str, chosen: _Chosen, invalid: list[np.ndarray], n: int) -> None:
        """Realise these rows and take the new ones, until `n` are chosen."""
        real = None
        if self.programs is not None:
            rows = np.stack(asked)
            with blame("measurer", self.programs):
                real = checked_realised(self.programs.realise(self.task, rows), rows, self.space)
        for i, row in enumerate(asked):
            if len(chosen.rows) >= n:
                break
            name = token(row)
            if name in self._seen:  # asked for twice, or another row became this one
                continue
            self._seen.add(name)
            why = real.why[i] if real is not None else None
            if why is not None:
                self._why[name] = why
                self._refused.add(name)
                invalid.append(row)
                continue
            if real is not None:
                row, canonical = real.codes[i], token(real.codes[i])
                if canonical != name:
                    if canonical in self._seen:
                        continue
                    self._seen.add(canonical)
            chosen.rows.append(row)
            chosen.origin.append(origin)


class _Chosen:
    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self.origin: list[str] = []


def _token(space: Space, row: np.ndarray) -> bytes:
    return token(space.canonical(np.asarray(row, dtype=np.int64)[None])[0])


def round_half_up(x: float) -> float:
    """`round` that sends halves up, so that 5 % of 10 rows is one row and not none."""
    return math.floor(x + 0.5)
