"""Contracts pass good pieces and catch broken ones."""

import copy
import itertools
import json
import math
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tt_spec import (
    Bar,
    Foreign,
    Knob,
    Measurement,
    Plugins,
    Prediction,
    Proposal,
    Realised,
    Selection,
    Slot,
    Space,
    Timing,
    draw,
    from_json,
)
from tt_spec.errors import UserError
from tt_spec.pieces.jsonl_format import JsonlFormat
from tt_spec.pieces.memory_store import MemoryStore
from tt_spec.pieces.null_surrogate import NullSurrogate
from tt_spec.pieces.once_evaluator import OnceEvaluator
from tt_spec.pieces.random_searcher import RandomSearcher
from tt_spec.pieces.same_space_transfer import SameSpaceTransfer
from tt_spec.pieces.sequential_scheduler import SequentialScheduler
from tt_spec.pieces.synthetic import SyntheticMeasurer
from tt_spec.pieces.synthetic_replay import SyntheticReplay
from tt_spec.pieces.top_sampler import TopSampler
from tt_spec.pieces.trials_stopper import TrialsStopper
from tt_spec.roles import CAPABILITIES, Progress, Work, capabilities
from tt_spec.testing import CONTRACTS, SearcherContract, cases, check, contract_for


class Knobs:
    """A workload without a compiler: a schedule is the row itself, odd rows have none."""

    space = Space((Knob("tile", "choice", tuple(range(6))), Knob("deep", "choice", (0, 1), active_if=(0, (2,)))))

    def apply(self, row):
        if not self.space.in_range(np.asarray(row)[None])[0] or row[0] % 2:
            raise ValueError("no such program")
        return tuple(row)

    def read(self, schedule, row):
        return self.space.canonical(np.asarray(schedule, dtype=np.int64)[None])[0]

    def features(self, schedules):
        return [np.ones((2, 164)) for _ in schedules]

    def repack(self, row):
        return "packed" if row[0] == 4 else None


class Builder:
    def __init__(self, work=Knobs, legalizers=None):
        self.work, self.how = work, legalizers or {"relax.add": print}

    def open(self, mod, target):
        return self.work()

    def legalizers(self, target):
        return self.how


class Hasty(Builder):
    """Opens another space once it has started."""

    def prestart(self):
        self.work = lambda: Named("another")


class Forgets(Builder):
    """Reopens one space whatever it is given."""

    def reopen(self, mod, target, space):
        return Named("another")


class Shifts(Builder):
    """Reopens the space with other programs behind its rows."""

    def reopen(self, mod, target, space):
        return type("Works", (Knobs,), {"read": lambda self, schedule, row: np.zeros(2, dtype=np.int64)})()


class Able(SyntheticMeasurer):
    """Does everything that a measurer may."""

    def prestart(self):
        pass

    expected = ()

    def expect(self, task, codes):
        self.expected = [*self.expected, *map(tuple, codes.tolist())]

    def begin(self, task, codes, bar):
        pass

    def measure(self, task, codes, bar):
        began = time.monotonic()
        yield from super().measure(task, codes, bar)
        self.done = [*self.done, (began, time.monotonic() - began)]

    done = ()

    def trace(self):
        done, self.done, now = self.done, (), time.monotonic()
        return [Work(0, "time", now - began, seconds) for began, seconds in done]

    def retime(self, task, codes):
        yield from self.measure(task, codes, Bar())

    def prepare(self, wanted):
        pass

    def rescaled(self, task):
        return 1.0

    def race(self, task, codes, rounds=10, min_ms=10.0, untuned=False, cold=0):
        return [[1e-3] * rounds for _ in range(len(codes) + untuned)]

    def check(self, task, row):
        return None

    def doubts(self, task, row):
        return []

    def race_models(self, paths, inputs, seconds=6.0, rounds=10):
        return [[1e-3] * rounds for _ in paths]

    def profile_models(self, paths, inputs, seconds=6.0, rounds=10):
        return [{"matmul": [1e-3] * rounds} for _ in paths]

    def run_model(self, path, inputs):
        return list(inputs.values())

    def nudge_model(self, path, inputs, share, seeds):
        return [[(a * (1 + share / (1 + seed))).astype(a.dtype) for a in inputs.values()] for seed in seeds]

    def start_model(self, path, inputs, share, seeds):
        return lambda: (self.run_model(path, inputs), self.nudge_model(path, inputs, share, seeds))


class Keeps(MemoryStore):
    """Does everything that a store may."""

    def __init__(self):
        super().__init__()
        self.tasks = {}

    def remember(self, tasks):
        self.tasks |= {t.key: t for t in tasks}

    def task(self, key):
        return self.tasks.get(key)

    def lend(self, task, device, rows):
        latest = {}
        for m in self.query():
            if m.task_key in self.tasks and (m.task_key, m.device) != (task.key, device):
                latest.setdefault((m.task_key, m.device), {})[m.config] = m.latency_s
        found = []
        for (key, _), known in sorted(latest.items(), key=lambda x: x[0][0] != task.key):
            codes, seconds = np.array(list(known))[:rows], np.array(list(known.values()))[:rows]
            found += [Foreign(self.tasks[key], codes, seconds, "device" if key == task.key else "near")][: len(codes)]
            rows -= len(codes)
        return found

    def runs(self):
        return [{"id": k, "started": 0.0, "reason": r.get("reason"), "info": r} for k, r in self._runs.items()]

    def bests(self):
        found = {}
        for m in self.query():
            if m.error is None and m.origin != "again":
                key = m.run_id, m.task_key
                found[key] = min(m.latency_s, found.get(key, math.inf))
        return found

    def summary(self):
        found = {}
        for m in self.query():
            found.setdefault((m.task_key, m.device), []).append(m)
        return [
            {
                "task_key": key,
                "device": device,
                "name": None,
                "op": None,
                "trials": len(rows),
                "failed": sum(m.error is not None for m in rows),
                "best_s": min(m.latency_s for m in rows),
            }
            for (key, device), rows in found.items()
        ]


class Schooled(NullSurrogate):
    """Does everything that a cost model may: a linear model of a program's mean statement, by gradient descent."""

    inputs, shared, weights, rounds = "statements", True, None, 3

    def prestart(self):
        pass

    def pretrain(self, groups, rng, report, start=None):
        X = np.concatenate([_means(X) for _, X, _ in groups] or [np.zeros((0, 164))])
        y = np.concatenate([y for _, _, y in groups] or [np.zeros(0)])
        self.learned_, seed = np.zeros(164), int(rng.integers(2**31))
        if start is not None:
            self.learned_ = start["w"].copy()
        for done in range(0 if start is None else int(start["done"]), self.rounds + 1):
            if done and (start is None or done > int(start["done"])):
                rows = np.random.default_rng([seed, done]).permutation(len(y))[:20]
                self.learned_ -= 1e-3 * X[rows].T @ (X[rows] @ self.learned_ - y[rows]) / max(1, len(rows))
            if done and not report(Progress(done, self.rounds, 0.0, lambda d=done: self.state(d))):
                return

    def state(self, done):
        return {"w": self.learned_.copy(), "done": np.array(done)}

    def foreknows(self, task):
        return "a school" if getattr(self, "learned_", np.zeros(1)).any() else None

    def save(self, path, card):
        path.write_text(json.dumps({"w": list(self.learned_), "card": dict(card)}))

    def predict(self, task, X):
        if self.weights is not None:
            try:
                self.learned_ = np.array(json.loads(Path(self.weights).read_text())["w"])
            except (OSError, ValueError) as e:
                raise UserError(f"{self.weights}: {e}") from e
        return Prediction(_means(X) @ getattr(self, "learned_", np.zeros(164)), np.zeros(len(X)))


def _means(X):
    sums = np.stack([X.values[a:b].mean(axis=0) for a, b in itertools.pairwise(X.offsets)] or [np.zeros(164)])
    return sums[: len(X)]


TRIVIAL = {
    "evaluator": OnceEvaluator,
    "measurer": SyntheticMeasurer,
    "surrogate": NullSurrogate,
    "searcher": RandomSearcher,
    "sampler": TopSampler,
    "transfer": SameSpaceTransfer,
    "scheduler": SequentialScheduler,
    "stopper": TrialsStopper,
    "store": MemoryStore,
    "format": JsonlFormat,
    "replay": SyntheticReplay,
    "space": Builder,
}
NAMES = Path(__file__).parent / "data" / "synthetic.txt"
FIXTURES = {"replay": {"recordings": [NAMES]}}
LIBRARY = ("model.so", {"x": np.arange(3.0)})


@pytest.mark.parametrize(("role", "test"), [(r, t) for r in CONTRACTS for t in cases(contract_for(r))])
def test_the_trivial_piece_passes(role, test):
    check(role, TRIVIAL[role], only=test, **FIXTURES.get(role, {}))


@pytest.mark.parametrize("test", cases(contract_for("measurer")))
def test_a_measurer_of_every_capability_passes(test):
    assert set(capabilities("measurer", Able())) == set(CAPABILITIES["measurer"])
    check("measurer", Able, only=test, library=LIBRARY)


@pytest.mark.parametrize("test", cases(contract_for("surrogate")))
def test_a_surrogate_of_every_capability_passes(test):
    assert set(capabilities("surrogate", Schooled())) == set(CAPABILITIES["surrogate"])
    check("surrogate", Schooled, only=test)


@pytest.mark.parametrize("test", cases(contract_for("store")))
def test_a_store_of_every_capability_passes(test):
    assert set(capabilities("store", Keeps())) == set(CAPABILITIES["store"])
    check("store", Keeps, only=test)


class TestAsAPluginAuthorWouldWriteIt(SearcherContract):
    @pytest.fixture
    def piece(self):
        return RandomSearcher()


class NotCanonical(RandomSearcher):
    """Leaves inactive knobs as drawn."""

    def propose(self, ctx, n):
        codes = ctx.rng.integers(0, ctx.space.shape, size=(8 * n, len(ctx.space.knobs)))
        codes = codes[ctx.space.allowed(codes) & ctx.fresh(codes)][:n]
        return Proposal(codes, np.zeros(len(codes)))


class NotAllowed(RandomSearcher):
    """Ignores the space's limits."""

    def propose(self, ctx, n):
        codes = ctx.space.canonical(ctx.rng.integers(0, ctx.space.shape, size=(8 * n, len(ctx.space.knobs))))
        codes = codes[ctx.fresh(codes)][:n]
        return Proposal(codes, np.zeros(len(codes)))


class Repeats(RandomSearcher):
    """Draws with replacement."""

    def propose(self, ctx, n):
        codes = draw(ctx.space, ctx.seen, n, ctx.rng)
        codes = codes[ctx.rng.integers(0, len(codes), size=n)] if len(codes) else codes
        return Proposal(codes, np.zeros(len(codes)))


class Stale(RandomSearcher):
    """Proposes what was measured."""

    def propose(self, ctx, n):
        codes = np.unique(ctx.space.sample(n, ctx.rng), axis=0)
        if len(ctx.rows):
            codes = np.unique(np.concatenate([codes, ctx.rows[:1]]), axis=0)
        return Proposal(codes, np.zeros(len(codes)))


class AsksPending(RandomSearcher):
    """Forgets what was asked and not told."""

    def propose(self, ctx, n):
        codes = draw(ctx.space, {r.tobytes() for r in ctx.rows}, n, ctx.rng)
        codes = np.unique(np.concatenate([codes, ctx.pending]), axis=0)
        return Proposal(codes, np.zeros(len(codes)))


class OwnRandomness(RandomSearcher):
    """Draws from the system's entropy."""

    def propose(self, ctx, n):
        codes = draw(ctx.space, ctx.seen, n, np.random.default_rng())
        return Proposal(codes, np.zeros(len(codes)))


class NeedsAModel(RandomSearcher):
    """Cannot start without scores."""

    def propose(self, ctx, n):
        p = super().propose(ctx, n)
        return Proposal(p.codes, p.scores / np.ptp(ctx.y))


class NeedsSuccess(RandomSearcher):
    """Walks from the best row, which is missing when all failed."""

    def propose(self, ctx, n):
        if len(ctx.rows):
            [i for i, y in enumerate(ctx.y) if y > 0][0]  # noqa: RUF015
        return super().propose(ctx, n)


class Misaligned(RandomSearcher):
    def propose(self, ctx, n):
        p = super().propose(ctx, n)
        return Proposal(p.codes, np.zeros(n + 1))


class NotFinite(RandomSearcher):
    def propose(self, ctx, n):
        p = super().propose(ctx, n)
        return Proposal(p.codes, np.full(len(p.codes), -np.inf))


class OnlyPlain(RandomSearcher):
    """Takes every knob for a number."""

    def propose(self, ctx, n):
        [float(k.choices[0]) for k in ctx.space.knobs]
        return super().propose(ctx, n)


class ChangesLabels(RandomSearcher):
    def propose(self, ctx, n):
        ctx.y *= 0.5
        return super().propose(ctx, n)


class Lazy(RandomSearcher):
    def propose(self, ctx, n):
        return super().propose(ctx, 0)


class Chatty(RandomSearcher):
    def propose(self, ctx, n):
        p = super().propose(ctx, n)
        return Proposal(p.codes, p.scores, 0.0, {"space": object()})


class Greedy(RandomSearcher):
    def propose(self, ctx, n):
        p = super().propose(ctx, n)
        return Proposal(p.codes, p.scores, 1.5)


class ForgetsRounds(RandomSearcher):
    """Keeps a list of its own and hands it over again."""

    def propose(self, ctx, n):
        if not hasattr(self, "rows_"):
            self.rows_ = super().propose(ctx, n)
        return self.rows_


class Sampled(TopSampler):
    def __init__(self, change):
        self.change = change

    def select(self, ctx, proposal, n):
        return Selection(self.change(ctx, proposal, n, super().select(ctx, proposal, n).codes))


def _scaled(ctx, proposal, n, codes):
    proposal.scores[:] = 0
    return codes


SAMPLERS = {
    "not fresh": lambda ctx, p, n, codes: p.codes[:n],
    "too many": lambda ctx, p, n, codes: p.codes[ctx.fresh(p.codes)][: n + 1],
    "repeats": lambda ctx, p, n, codes: np.repeat(codes[:1], n, axis=0),
    "elsewhere": lambda ctx, p, n, codes: draw(ctx.space, ctx.seen, n, ctx.rng),
    "own randomness": lambda ctx, p, n, codes: codes[np.random.default_rng().permutation(len(codes))],
    "none": lambda ctx, p, n, codes: codes[:0],
    "fails on none": lambda ctx, p, n, codes: codes if len(p.codes) else codes[p.scores.argmax()],
    "fails on n = 0": lambda ctx, p, n, codes: codes[:: max(1, len(codes) // n)],
    "changes scores": _scaled,
    "one dimension": lambda ctx, p, n, codes: codes[0] if len(codes) else codes,
}


class Model(NullSurrogate):
    """The null model with one thing replaced."""

    def __init__(self, **what):
        self.__dict__.update(what)

    def fit(self, groups, rng):
        super().fit(groups, rng)
        getattr(self, "fitting", lambda groups, rng: None)(groups, rng)

    def predict(self, task, X):
        p = super().predict(task, X)
        return getattr(self, "predicting", lambda X, p: p)(X, p)

    def score(self, prediction, best):
        return getattr(self, "scoring", lambda p: p.mean)(prediction)


def _sorts(groups, rng):
    for _, _, y in groups:
        y.sort()


def _divides(groups, rng):
    if not groups or any(np.ptp(y) == 0 for _, _, y in groups if len(y)):
        raise ZeroDivisionError


def _one_width(groups, rng):
    np.concatenate([X for _, X, _ in groups] or [np.zeros(0)])


SURROGATES = {
    "reads pictures": Model(inputs="pictures"),
    "shared?": Model(shared=None),
    "starts once": Model(prestart=lambda: "started"),
    "one number": Model(predicting=lambda X, p: Prediction(np.array(0.5), np.array(0.0))),
    "negative doubt": Model(predicting=lambda X, p: Prediction(p.mean, p.std - 1.0)),
    "NaN": Model(predicting=lambda X, p: Prediction(p.mean * np.nan, p.std)),
    "two columns": Model(predicting=lambda X, p: Prediction(np.zeros((len(X), 2)), p.std)),
    "own randomness": Model(predicting=lambda X, p: Prediction(np.random.default_rng().random(len(X)), p.std)),
    "sorts labels": Model(fitting=_sorts),
    "needs spread": Model(fitting=_divides),
    "lower is better": Model(scoring=lambda p: -p.mean),
    "no scores": Model(scoring=lambda p: p.mean / p.std),
    "one space": Model(shared=True, fitting=_one_width),
}


class Evaluates:
    def __init__(self, evaluate):
        self._evaluate = evaluate

    def evaluate(self, run, bar, rng):
        return self._evaluate(run, bar, rng)


def _sums(run, bar, rng):
    return Timing((run(4) * 4,), 4)


def _undercounts(run, bar, rng):
    run(3)
    return Timing((run(1),), 1)


def _greedy(run, bar, rng):
    return Timing(tuple(run(100) for _ in range(10)), 1000)


def _nothing(run, bar, rng):
    run(1)
    return Timing((), 1)


def _invents(run, bar, rng):
    run(1)
    return Timing((1e-3, 1e-3), 2)


def _swallows(run, bar, rng):
    try:
        return Timing((run(1),), 1)
    except RuntimeError:
        return Timing((1.0,), 1)


def _gives_up(run, bar, rng):
    first = run(1)
    return Timing((first if first < bar.incumbent_s else math.inf,), 1)


def _entropy(run, bar, rng):
    return Timing((run(1) * np.random.default_rng().uniform(0.9, 1.1),), 1)


class Opened:
    """Holds what cannot be pickled."""

    def __init__(self):
        self.lock = threading.Lock()

    def __deepcopy__(self, memo):
        return Opened()

    def evaluate(self, run, bar, rng):
        return Timing((run(1),), 1)


EVALUATORS = {
    "sums": Evaluates(_sums),
    "undercounts": Evaluates(_undercounts),
    "no cap": Evaluates(_greedy),
    "no timing": Evaluates(_nothing),
    "invents": Evaluates(_invents),
    "swallows": Evaluates(_swallows),
    "infinite": Evaluates(_gives_up),
    "own randomness": Evaluates(_entropy),
    "unpicklable": Opened(),
}


class DropsFailures(SyntheticMeasurer):
    def measure(self, task, codes, bar):
        return (m for m in super().measure(task, codes, bar) if m.error is None)


class Raises(SyntheticMeasurer):
    def measure(self, task, codes, bar):
        for row in codes:
            task.space.decode(row)
            yield from super().measure(task, row[None], bar)


class OneAtATime(SyntheticMeasurer):
    """Breaks when a batch is abandoned."""

    busy = False

    def measure(self, task, codes, bar):
        if self.busy:
            raise RuntimeError("busy")
        self.busy = True
        yield from super().measure(task, codes, bar)
        self.busy = False


class ClosesOnce(SyntheticMeasurer):
    closed = False

    def close(self):
        if self.closed:
            raise OSError("closed already")
        self.closed = True


class Rounds(SyntheticMeasurer):
    """Reads a row back as another each time."""

    def realise(self, task, codes):
        return Realised((codes + 1) % task.space.shape, (None,) * len(codes))


class Silent(SyntheticMeasurer):
    def realise(self, task, codes):
        return Realised(codes, ())


class Padded(SyntheticMeasurer):
    """Features of rows that have none."""

    def features(self, task, codes):
        found, ok = super().features(task, codes)
        return found, ok & (np.arange(len(ok)) > 0)


class Listed(SyntheticMeasurer):
    """Measures all before it yields."""

    def measure(self, task, codes, bar):
        return iter(list(super().measure(task, codes, bar)))


class Scheduled:
    """A scheduler from a function."""

    def __init__(self, choose):
        self.choose, self.n = choose, 0

    def next(self, states, clock):
        self.n += 1
        left = [i for i, s in enumerate(states) if s.finished is None]
        return self.choose(self.n, left, states) if left else None


def _changes(n, left, states):
    states[left[0]].curve.append((0, 0.0, 1.0))
    return Slot(left[0])


SCHEDULERS = {
    "finished tasks": Scheduled(lambda n, left, s: Slot(n % len(s))),
    "first only": Scheduled(lambda n, left, s: Slot(0) if 0 in left else None),
    "gives up": Scheduled(lambda n, left, s: Slot(left[0]) if n < 3 else None),
    "no trials": Scheduled(lambda n, left, s: Slot(left[0], trials=0)),
    "no seconds": Scheduled(lambda n, left, s: Slot(left[0], seconds=0.0)),
    "infinite gain": Scheduled(lambda n, left, s: Slot(left[0], gain_s=1e-3 - s[left[0]].best_s)),
    "entropy": Scheduled(lambda n, left, s: Slot(int(np.random.default_rng().choice(left)))),
    "a number": Scheduled(lambda n, left, s: left[0]),
    "changes states": Scheduled(_changes),
    "counts restored": Scheduled(
        lambda n, left, s: next((Slot(i) for i in left if s[i].trials + s[i].restored < 400), None)
    ),
}


class NeverNone:
    def next(self, states, clock):
        return Slot(0)


class Wasteful(SequentialScheduler):
    """Knows the budget and gives all of it to the first task."""

    def budget(self, rows):
        pass


class Stops:
    def __init__(self, stop, scope="task"):
        self._stop, self.scope, self.n = stop, scope, 0

    def stop(self, state, clock):
        self.n += 1
        return self._stop(self, state)


class NoRoom(TrialsStopper):
    def room(self, state):
        return 0


class LessRoom(TrialsStopper):
    def room(self, state):
        return 10 + state.trials


class SpentAtOnce(TrialsStopper):
    def left_s(self, state, clock):
        return 0.0


class Bounded:
    scope = "task"

    def stop(self, state, clock):
        return None

    def rows_left(self, state):
        return 100 - state.trials


class Grows(Bounded):
    def rows_left(self, state):
        return 100 + state.trials


class Arrays(Bounded):
    def rows_left(self, state):
        return 1000

    def info(self, state):
        return {"rows": np.zeros(3)}


class Timeless(TrialsStopper):
    def left_s(self, state, clock):
        return 300.0


STOPPERS = {
    "at once": Stops(lambda me, s: "now"),
    "on restored": Stops(lambda me, s: "enough" if s.trials + s.restored > 1000 else None),
    "counts its calls": Stops(lambda me, s: "enough" if me.n > 30 and me.n % 2 == 0 else None),
    "true": Stops(lambda me, s: s.trials > 100),
    "empty": Stops(lambda me, s: "" if s.trials > 100 else None),
    "scope": Stops(lambda me, s: None, scope="world"),
    "fails on failures": Stops(lambda me, s: None if not s.trials else f"{int(s.best_s)}"),
    "changes": Stops(lambda me, s: s.errors.update(seen=1)),
    "no rows left": Bounded(),
    "more rows left": Grows(),
    "arrays": Arrays(),
    "no room": NoRoom(),
    "growing room": LessRoom(),
    "no time": SpentAtOnce(),
    "timeless": Timeless(),
}


def transfers(**methods):
    """The trivial transfer but for some methods."""
    return type("Transfers", (SameSpaceTransfer,), methods)()


TRANSFERS = {
    "asks for nothing": transfers(most=0),
    "grows": transfers(weight=lambda self, n: min(1.0, 0.1 + n / 1000)),
    "for ever": transfers(weight=lambda self, n: 0.5),
    "invents": transfers(
        choose=lambda self, task, lent, inputs: [Foreign(f.task, f.rows + 1, f.seconds) for f in lent],
    ),
    "learns nothing": transfers(choose=lambda self, task, lent, inputs: []),
    "own columns": transfers(encode=lambda self, task, f: (np.ones((len(f.rows), 2)), np.ones(len(f.rows), bool))),
    "illegal": transfers(rows=lambda self, task, lent, rng: np.full((len(lent), len(task.space.knobs)), 99)),
    "dice": transfers(rows=lambda self, task, lent, rng: task.space.sample(4, np.random.default_rng())),
    "doubts": transfers(trust=lambda self, predicted, y: 0.5),
    "trusts twice": transfers(trust=lambda self, predicted, y: 2.0),
    "distrusts": transfers(useless=lambda self, predicted, y: "never seen" if len(y) else None),
    "true": transfers(useless=lambda self, predicted, y: np.std(predicted) == 0),
    "sorts": transfers(choose=lambda self, task, lent, inputs: [f for f in lent if f.seconds.sort() is None]),
}


class ValidOnly(MemoryStore):
    def append(self, batch):
        super().append([m for m in batch if m.error is None])


class LatestOnly(MemoryStore):
    def append(self, batch):
        for m in batch:
            self._all = [x for x in self._all if x.config != m.config] + [m]


class Newest(MemoryStore):
    def query(self, task_key=None, space_key=None, device=None):
        return list(super().query(task_key, space_key, device))[::-1]


class Minimum(MemoryStore):
    def best(self, task_key, device=None):
        valid = [m for m in self.query(task_key, device=device) if m.error is None]
        return min(valid, key=lambda m: min(m.seconds), default=None)


class AnyDevice(MemoryStore):
    def query(self, task_key=None, space_key=None, device=None):
        return super().query(task_key, space_key)


class Listy(MemoryStore):
    """Tuples become lists, as in plain JSON."""

    def append(self, batch):
        import dataclasses

        plain = [{k: list(v) if isinstance(v, tuple) else v for k, v in m.knobs.items()} for m in batch]
        super().append([dataclasses.replace(m, knobs=k) for m, k in zip(batch, plain, strict=True)])


class OneRun(MemoryStore):
    def begin_run(self, info):
        return "run"


class Rounding(JsonlFormat):
    def read(self, path):
        for where, item in super().read(path):
            yield where, replace(item, at=round(item.at)) if isinstance(item, Measurement) else item


class Untyped(JsonlFormat):
    def read(self, path):
        for where, item in super().read(path):
            yield where, replace(item, config=list(item.config)) if isinstance(item, Measurement) else item


class Valid(JsonlFormat):
    def write(self, path, content):
        return super().write(path, replace(content, records=(m for m in content.records if m.error is None)))


class Halfway(JsonlFormat):
    def write(self, path, content):
        kept, path_ = super().write, path
        with path.open("ab") as out:
            out.write(b"begun")
        return kept(path_, content)


class Trusting(JsonlFormat):
    def read(self, path):
        for number, line in enumerate(path.read_bytes().splitlines()):
            yield f"line {number}", from_json(line)


class Blind(JsonlFormat):
    def read(self, path):
        return super().read(path) if path.is_file() else iter(())


class Deaf(SyntheticReplay):
    def playables(self, paths):
        return super().playables([p for p in paths if p.exists()])


class Twice(SyntheticReplay):
    def playables(self, paths):
        return 2 * super().playables(paths)


class Stuck(SyntheticReplay):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Percent(SyntheticReplay):
    def play(self, host, playable, recipe, seed, *, trials, goal=1.0):
        p = super().play(host, playable, recipe, seed, trials=trials, goal=goal)
        return replace(p, quality=tuple(100 * q for q in p.quality))


class Seedless(SyntheticReplay):
    def play(self, host, playable, recipe, seed, *, trials, goal=1.0):
        return super().play(host, playable, recipe, 0, trials=trials, goal=goal)


class Dice(SyntheticReplay):
    def play(self, host, playable, recipe, seed, *, trials, goal=1.0):
        return super().play(host, playable, recipe, time.perf_counter_ns(), trials=trials, goal=goal)


class EndsEarly(SyntheticReplay):
    def play(self, host, playable, recipe, seed, *, trials, goal=1.0):
        p = super().play(host, playable, recipe, seed, trials=trials, goal=goal)
        return p if goal == 1.0 else replace(p, t=p.t[:1], quality=p.quality[:1])


REPLAYS = {
    "deaf": (Deaf, "a_file_that_is_not_there_is_named_in_one_line"),
    "twice": (Twice, "playables_are_distinct_and_travel_to_other_processes"),
    "stuck": (Stuck, "playables_are_distinct_and_travel_to_other_processes"),
    "percent": (Percent, "a_play_is_a_curve"),
    "seedless": (Seedless, "the_same_seed_draws_the_same_rows"),
    "dice": (Dice, "the_same_seed_draws_the_same_rows"),
    "ends early": (EndsEarly, "a_play_ends_at_its_goal"),
}
FORMATS = {
    "rounds": (Rounding, "reads_what_it_wrote"),
    "untyped": (Untyped, "reads_what_it_wrote"),
    "leaves out silently": (Valid, "reads_what_it_wrote"),
    "half a file": (Halfway, "writes_all_or_nothing"),
    "an OSError": (Halfway, "an_unwritable_place_is_named_in_one_line"),
    "a ValueError": (Trusting, "rubbish_is_refused_in_one_line"),
    "a ValueError of a part": (Trusting, "a_cut_file_ends_in_one_line_or_in_fewer_items"),
    "takes a folder for empty": (Blind, "what_is_no_file_is_refused_in_one_line"),
}


class BestOfFailures(MemoryStore):
    def best(self, task_key, device=None):
        return min(self.query(task_key, device=device), key=lambda m: m.latency_s, default=None)


NUMBERS = itertools.count()


def raises(e):
    def fails(*_):
        raise e

    return fails


class Named(Knobs):
    def __init__(self, name):
        self.space = Space(Knobs.space.knobs, name=name)


class Hoards(Able):
    """Yields what was expected, asked or not."""

    def measure(self, task, codes, bar):
        kept, self.expected = self.expected, ()
        yield from super().measure(task, np.array([*kept, *codes.tolist()]).reshape(-1, len(task.space.knobs)), bar)


class HoardsBegun(Hoards):
    """The same of what was begun."""

    def begin(self, task, codes, bar):
        self.expected = [*self.expected, *map(tuple, codes.tolist())]


class Foretells(SequentialScheduler):
    """Says that it will go through the tasks, and stays with the first."""

    def ahead(self, states, clock, slot, rows):
        return [Slot(i, trials=4) for i in range(slot.task + 1, min(len(states), 3))][: rows // 4]


class Clings(SequentialScheduler):
    """Chooses the task in hand once more."""

    def beside(self, states, clock, slot):
        return Slot(slot.task, trials=4)


class Counts(SequentialScheduler):
    """Asked in vain, it gives longer slots."""

    def beside(self, states, clock, slot):
        self.trials += 1


class Peak(SequentialScheduler):
    """Gives up once it knows the peak."""

    known = False

    def peak(self, flops):
        self.known = True

    def next(self, states, clock):
        return None if self.known else super().next(states, clock)


def able(**methods):
    """A measurer of every capability but for some methods."""
    return type("Able", (Able,), methods)


def schooled(**methods):
    return type("Schooled", (Schooled,), methods)


def _saves_the_fit(self, groups, rng):
    self.learned_ = self.learned_ + 1.0


def _sorts_the_school(self, groups, rng, report, start=None):
    for _, _, y in groups:
        y.sort()
    Schooled.pretrain(self, groups, rng, report, start)


def keeps(**methods):
    return type("Keeps", (Keeps,), methods)


def works(**methods):
    return lambda: Builder(type("Works", (Knobs,), methods))


CAPABLE = {
    ("measurer", "starts once"): (able(prestart=lambda self: "started"), "starts_early"),
    ("measurer", "forgets the untuned"): (
        able(race=lambda self, task, codes, rounds, ms, untuned=False: [[1e-3] * rounds for _ in codes]),
        "races_in_turns",
    ),
    ("measurer", "one round"): (
        able(race=lambda self, task, codes, *_: [[1e-3]] * (len(codes) + bool(_[-1]))),
        "races_in_turns",
    ),
    ("measurer", "says true"): (able(check=lambda self, task, row: True), "checks_a_row"),
    ("measurer", "runs nothing"): (able(run_model=lambda self, path, inputs: []), "runs_a_library"),
    ("measurer", "runs at random"): (
        able(run_model=lambda self, path, inputs: [np.random.default_rng().random(3)]),
        "runs_a_library",
    ),
    ("measurer", "nudges nothing"): (
        able(nudge_model=lambda self, path, inputs, share, seeds: [list(inputs.values()) for _ in seeds]),
        "nudges_a_library",
    ),
    ("measurer", "nudges one"): (
        able(nudge_model=lambda self, path, inputs, share, seeds: [list(inputs.values())]),
        "nudges_a_library",
    ),
    ("measurer", "starts no nudged run"): (
        able(start_model=lambda self, path, inputs, share, seeds: lambda: (list(inputs.values()), [])),
        "runs_a_library_beside_its_caller",
    ),
    ("measurer", "starts another run"): (
        able(
            start_model=lambda self, path, inputs, share, seeds: (
                lambda: (
                    [2 * a for a in inputs.values()],
                    self.nudge_model(path, inputs, share, seeds),
                )
            )
        ),
        "runs_a_library_beside_its_caller",
    ),
    ("measurer", "yields what it expects"): (Hoards, "what_is_expected_is_measured_once"),
    ("measurer", "answers"): (able(expect=lambda self, task, codes: 1), "what_is_expected_is_measured_once"),
    ("measurer", "yields what it began"): (HoardsBegun, "what_is_begun_is_measured_once"),
    ("measurer", "answers when it begins"): (
        able(begin=lambda self, task, codes, bar: 1),
        "what_is_begun_is_measured_once",
    ),
    ("measurer", "traces nothing"): (able(trace=lambda self: []), "traces_its_work_once"),
    ("measurer", "traces it twice"): (
        able(trace=lambda self: [Work(0, "time", time.monotonic() - b, s) for b, s in self.done]),
        "traces_its_work_once",
    ),
    ("measurer", "traces what comes"): (
        able(trace=lambda self: [Work(0, "time", -1.0, s) for _, s in self.done]),
        "traces_its_work_once",
    ),
    ("measurer", "holds nothing"): (able(retime=lambda self, task, codes: iter(())), "times_again_what_it_holds"),
    ("measurer", "times a row twice"): (
        able(retime=lambda self, task, codes: self.measure(task, np.repeat(codes, 2, axis=0), Bar())),
        "times_again_what_it_holds",
    ),
    ("measurer", "shrinks to nothing"): (able(rescaled=lambda self, task: 0.0), "tells_changes_of_its_scale"),
    ("measurer", "begins with a change"): (able(rescaled=lambda self, task: 2.0), "tells_changes_of_its_scale"),
    ("measurer", "races one"): (able(race_models=lambda self, paths, *_: [[1e-3]]), "races_libraries"),
    ("measurer", "profiles another"): (
        able(profile_models=lambda self, paths, *_: [{p + str(i): [1e-3]} for i, p in enumerate(paths)]),
        "profiles_libraries",
    ),
    ("measurer", "profiles nothing"): (
        able(profile_models=lambda self, paths, *_: [{} for _ in paths]),
        "profiles_libraries",
    ),
    ("surrogate", "silent"): (
        schooled(pretrain=lambda self, groups, rng, report, start=None: None),
        "pretrains_on_many_tasks_and_predicts_another",
    ),
    ("surrogate", "sorts the school"): (
        schooled(pretrain=_sorts_the_school),
        "pretrains_on_many_tasks_and_predicts_another",
    ),
    ("surrogate", "never ends"): (
        schooled(
            pretrain=lambda self, groups, rng, report, start=None: Schooled.pretrain(
                self, groups, rng, lambda p: report(p) or True, start
            )
        ),
        "pretraining_ends_when_told",
    ),
    ("surrogate", "starts anew"): (
        schooled(pretrain=lambda self, groups, rng, report, start=None: Schooled.pretrain(self, groups, rng, report)),
        "pretraining_goes_on_from_a_state",
    ),
    ("surrogate", "half a state"): (
        schooled(state=lambda self, done: {"w": np.zeros(164), "done": np.array(done)}),
        "pretraining_goes_on_from_a_state",
    ),
    ("surrogate", "needs a school"): (
        schooled(
            pretrain=lambda self, groups, rng, report, start=None: Schooled.pretrain(
                self, [g for g in groups if np.ptp(g[2])] or [][0], rng, report, start
            )
        ),
        "pretrains_on_nothing_and_on_little",
    ),
    ("surrogate", "just knows"): (schooled(foreknows=lambda self, task: True), "says_what_it_knows_beforehand"),
    ("surrogate", "always knows"): (
        schooled(foreknows=lambda self, task: "a school", pretrain=lambda self, *_: None),
        "says_what_it_knows_beforehand",
    ),
    ("surrogate", "forgets when asked"): (
        schooled(foreknows=lambda self, task: (self.__dict__.pop("learned_", None) is not None and "a school") or None),
        "says_what_it_knows_beforehand",
    ),
    ("surrogate", "saves nothing"): (
        schooled(save=lambda self, path, card: path.write_text('{"w": [0.0]}')),
        "what_it_saves_is_read_again",
    ),
    ("surrogate", "litters"): (
        schooled(save=lambda self, path, card: [Schooled.save(self, p, card) for p in (path, path.with_suffix(".2"))]),
        "what_it_saves_is_read_again",
    ),
    ("surrogate", "saves the fit"): (schooled(fit=_saves_the_fit), "what_it_saves_is_read_again"),
    ("surrogate", "believes any file"): (
        schooled(
            predict=lambda self, task, X: Prediction(
                _means(X) @ getattr(self, "learned_", np.zeros(164)), np.zeros(len(X))
            )
        ),
        "what_it_saves_is_read_again",
    ),
    ("measurer", "doubts in one text"): (
        lambda: type("OneText", (Able,), {"doubts": lambda self, task, row: "it is the same everywhere"})(),
        "says_what_a_check_did_not_tell",
    ),
    ("store", "tasks as rows"): (
        keeps(remember=lambda self, tasks: self._all.extend(tasks)),
        "remembers_tasks",
    ),
    ("store", "another's task"): (
        keeps(task=lambda self, key: next(iter(self.tasks.values()), None) and self.tasks[max(self.tasks)]),
        "recalls_tasks",
    ),
    ("store", "newest first"): (
        keeps(runs=lambda self: Keeps.runs(self)[::-1]),
        "lists_its_runs",
    ),
    ("store", "lends its own"): (
        keeps(lend=lambda self, task, device, rows: Keeps.lend(self, task, "", rows)),
        "lends_what_is_not_the_tasks_own",
    ),
    ("store", "lends without end"): (
        keeps(lend=lambda self, task, device, rows: Keeps.lend(self, task, device, 10**6)),
        "lends_what_is_not_the_tasks_own",
    ),
    ("store", "runs in one"): (
        keeps(bests=lambda self: {(run, "t1"): s for (run, _), s in Keeps.bests(self).items()}),
        "ranks_the_rows_of_each_run",
    ),
    ("store", "one device"): (keeps(summary=lambda self: Keeps.summary(self)[:1]), "summarises_tasks"),
    ("space", "another each time"): (
        lambda: Builder(lambda: Named(str(next(NUMBERS)))),
        "opens_the_same_space_again",
    ),
    ("space", "not canonical"): (
        works(read=lambda self, schedule, row: np.array([row[0], 1])),
        "rows_become_programs_and_rows_again",
    ),
    ("space", "no program"): (works(apply=raises(ValueError("never"))), "rows_become_programs_and_rows_again"),
    ("space", "anything goes"): (works(apply=lambda self, row: tuple(row)), "a_row_outside_is_refused"),
    ("space", "flat features"): (
        works(features=lambda self, schedules: [np.ones(164) for _ in schedules]),
        "features_are_per_statement",
    ),
    ("space", "dreams"): (
        works(interpret=lambda self, codes: [np.zeros((2, 164)) for _ in codes]),
        "interprets_rows_as_their_programs",
    ),
    ("space", "assures all"): (
        works(assured=lambda self, codes: np.ones(len(codes), dtype=bool)),
        "rows_that_it_assures_have_programs",
    ),
    ("space", "assures odd rows"): (
        works(assured=lambda self, codes: self.space.in_range(codes)),
        "rows_that_it_assures_have_programs",
    ),
    ("space", "takes any trace"): (
        works(trace_of=lambda self, schedule: [schedule], row_of=lambda self, trace: np.array([0, 0])),
        "knows_the_rows_of_its_own_traces",
    ),
    ("space", "believes rubbish"): (
        works(
            trace_of=lambda self, schedule: schedule,
            row_of=lambda self, trace: self.read(trace or (0, 0), None),
        ),
        "knows_the_rows_of_its_own_traces",
    ),
    ("space", "moody"): (works(repack=lambda self, row: object()), "says_how_constants_are_repacked"),
    ("space", "starts once"): (lambda: Hasty(), "starts_early"),
    ("space", "another space again"): (lambda: Forgets(), "reopens_the_same_space"),
    ("space", "other programs again"): (lambda: Shifts(), "reopens_the_same_space"),
    ("space", "not callable"): (lambda: Builder(legalizers={"relax.add": 1}), "says_how_operators_are_written"),
    ("scheduler", "foretells"): (Foretells, "foresees_what_it_then_does"),
    ("scheduler", "clings"): (lambda: Clings(), "chooses_beside_a_slot_in_hand"),
    ("scheduler", "counts"): (lambda: Counts(16), "chooses_beside_a_slot_in_hand"),
    ("scheduler", "peak"): (lambda: Peak(), "knowing_the_peak_leaves_it_usable"),
}


@pytest.mark.parametrize(("role", "name"), CAPABLE, ids=" ".join)
def test_a_broken_capability_is_caught(role, name):
    factory, caught_by = CAPABLE[role, name]
    with pytest.raises((Exception, pytest.fail.Exception)):
        check(role, factory, only=f"test_{caught_by}", library=LIBRARY)


BROKEN = [
    *[
        ("searcher", c.__name__, c)
        for c in (
            NotCanonical,
            NotAllowed,
            Repeats,
            Stale,
            AsksPending,
            OwnRandomness,
            NeedsAModel,
            NeedsSuccess,
            Misaligned,
            NotFinite,
            OnlyPlain,
            ChangesLabels,
            Lazy,
            Chatty,
            Greedy,
            ForgetsRounds,
        )
    ],
    *[("sampler", n, lambda c=c: Sampled(c)) for n, c in SAMPLERS.items()],
    *[("transfer", n, lambda t=t: copy.deepcopy(t)) for n, t in TRANSFERS.items()],
    *[("surrogate", n, lambda m=m: copy.deepcopy(m)) for n, m in SURROGATES.items()],
    *[("evaluator", n, lambda e=e: e) for n, e in EVALUATORS.items()],
    *[
        ("measurer", c.__name__, c)
        for c in (DropsFailures, Raises, OneAtATime, ClosesOnce, Rounds, Silent, Padded, Listed)
    ],
    *[("scheduler", n, lambda s=s: Scheduled(s.choose)) for n, s in SCHEDULERS.items()],
    ("scheduler", "never none", NeverNone),
    ("scheduler", "wasteful", Wasteful),
    *[("stopper", n, lambda s=s: s) for n, s in STOPPERS.items()],
    *[("format", n, c) for n, (c, _) in FORMATS.items()],
    *[("replay", n, c) for n, (c, _) in REPLAYS.items()],
    *[
        ("store", c.__name__, c)
        for c in (ValidOnly, LatestOnly, Newest, Minimum, AnyDevice, Listy, OneRun, BestOfFailures)
    ],
]


CAUGHT_BY = {
    ("searcher", "NotCanonical"): "proposes_distinct_fresh_canonical_allowed_rows",
    ("searcher", "NotAllowed"): "proposes_distinct_fresh_canonical_allowed_rows",
    ("searcher", "Repeats"): "proposes_distinct_fresh_canonical_allowed_rows",
    ("searcher", "Stale"): "proposes_distinct_fresh_canonical_allowed_rows",
    ("searcher", "AsksPending"): "proposes_distinct_fresh_canonical_allowed_rows",
    ("searcher", "OwnRandomness"): "same_rng_same_proposal",
    ("searcher", "NeedsAModel"): "works_before_any_model_is_fitted",
    ("searcher", "NeedsSuccess"): "works_when_every_row_failed",
    ("searcher", "Misaligned"): "proposes_distinct_fresh_canonical_allowed_rows",
    ("searcher", "NotFinite"): "proposes_distinct_fresh_canonical_allowed_rows",
    ("searcher", "OnlyPlain"): "proposes_distinct_fresh_canonical_allowed_rows",
    ("searcher", "ChangesLabels"): "leaves_the_context_alone",
    ("searcher", "Lazy"): "proposes_distinct_fresh_canonical_allowed_rows",
    ("searcher", "Chatty"): "proposes_distinct_fresh_canonical_allowed_rows",
    ("searcher", "Greedy"): "proposes_distinct_fresh_canonical_allowed_rows",
    ("searcher", "ForgetsRounds"): "works_when_every_row_failed",
    ("sampler", "not fresh"): "never_selects_a_row_that_is_no_longer_fresh",
    ("sampler", "too many"): "selects_distinct_fresh_rows_of_the_proposal",
    ("sampler", "repeats"): "selects_distinct_fresh_rows_of_the_proposal",
    ("sampler", "elsewhere"): "selects_distinct_fresh_rows_of_the_proposal",
    ("sampler", "own randomness"): "same_rng_same_selection",
    ("sampler", "none"): "selects_distinct_fresh_rows_of_the_proposal",
    ("sampler", "fails on none"): "selects_none_of_none",
    ("sampler", "fails on n = 0"): "selects_none_of_none",
    ("sampler", "changes scores"): "leaves_the_arguments_alone",
    ("sampler", "one dimension"): "selects_distinct_fresh_rows_of_the_proposal",
    ("transfer", "asks for nothing"): "declares_how_much_it_asks_for",
    ("transfer", "grows"): "fades",
    ("transfer", "for ever"): "fades",
    ("transfer", "invents"): "chooses_among_what_is_lent",
    ("transfer", "learns nothing"): "the_same_workload_elsewhere_is_worth_learning_from",
    ("transfer", "own columns"): "encodes_into_the_tasks_columns",
    ("transfer", "illegal"): "first_rows_are_legal",
    ("transfer", "dice"): "first_rows_are_legal",
    ("transfer", "doubts"): "a_perfect_model_is_kept",
    ("transfer", "trusts twice"): "a_verdict_is_text_or_none",
    ("transfer", "distrusts"): "a_perfect_model_is_kept",
    ("transfer", "true"): "a_verdict_is_text_or_none",
    ("transfer", "sorts"): "leaves_its_arguments_alone",
    ("surrogate", "reads pictures"): "declares_what_it_reads",
    ("surrogate", "shared?"): "declares_what_it_reads",
    ("surrogate", "starts once"): "starts_early",
    ("surrogate", "one number"): "predicts_one_finite_label_per_row",
    ("surrogate", "negative doubt"): "predicts_one_finite_label_per_row",
    ("surrogate", "NaN"): "predicts_one_finite_label_per_row",
    ("surrogate", "two columns"): "predicts_one_finite_label_per_row",
    ("surrogate", "own randomness"): "same_rng_same_prediction",
    ("surrogate", "sorts labels"): "leaves_the_data_alone",
    ("surrogate", "needs spread"): "can_be_fitted_on_nothing_and_on_little",
    ("surrogate", "lower is better"): "a_higher_mean_never_scores_lower",
    ("surrogate", "no scores"): "can_be_fitted_on_nothing_and_on_little",
    ("surrogate", "one space"): "a_shared_model_learns_from_several_tasks",
    ("evaluator", "sums"): "times_what_ran",
    ("evaluator", "undercounts"): "counts_every_execution",
    ("evaluator", "no cap"): "stays_within_the_time_allowed",
    ("evaluator", "no timing"): "times_what_ran",
    ("evaluator", "invents"): "times_what_ran",
    ("evaluator", "swallows"): "a_failing_run_is_not_swallowed",
    ("evaluator", "infinite"): "times_what_ran",
    ("evaluator", "own randomness"): "same_rng_same_timing",
    ("evaluator", "unpicklable"): "travels_to_a_worker",
    ("measurer", "DropsFailures"): "a_hard_row_is_a_trial",
    ("measurer", "Raises"): "a_hard_row_is_a_trial",
    ("measurer", "OneAtATime"): "closing_early_leaves_it_usable",
    ("measurer", "ClosesOnce"): "closes_twice",
    ("measurer", "Rounds"): "realise_reads_rows_back",
    ("measurer", "Silent"): "yields_one_trial_per_row",
    ("measurer", "Padded"): "features_are_aligned",
    ("measurer", "Listed"): "closing_early_leaves_it_usable",
    ("scheduler", "finished tasks"): "never_chooses_a_finished_task",
    ("scheduler", "first only"): "gives_every_task_a_slot_and_ends",
    ("scheduler", "gives up"): "gives_every_task_a_slot_and_ends",
    ("scheduler", "no trials"): "gives_every_task_a_slot_and_ends",
    ("scheduler", "no seconds"): "gives_every_task_a_slot_and_ends",
    ("scheduler", "infinite gain"): "gives_every_task_a_slot_and_ends",
    ("scheduler", "entropy"): "same_states_same_slots",
    ("scheduler", "a number"): "gives_every_task_a_slot_and_ends",
    ("scheduler", "changes states"): "leaves_the_states_alone",
    ("scheduler", "counts restored"): "works_with_one_task_and_with_restored_ones",
    ("scheduler", "never none"): "gives_every_task_a_slot_and_ends",
    ("scheduler", "wasteful"): "a_small_budget_reaches_every_task",
    ("stopper", "at once"): "does_not_stop_at_once",
    ("stopper", "on restored"): "does_not_stop_at_once",
    ("stopper", "counts its calls"): "asking_twice_changes_nothing",
    ("stopper", "true"): "does_not_stop_at_once",
    ("stopper", "empty"): "gives_a_reason_or_none",
    ("stopper", "scope"): "declares_its_scope",
    ("stopper", "fails on failures"): "gives_a_reason_or_none",
    ("stopper", "changes"): "leaves_the_state_alone",
    ("stopper", "no rows left"): "rows_left_run_down",
    ("stopper", "more rows left"): "rows_left_run_down",
    ("stopper", "arrays"): "remarks_are_plain_data",
    ("stopper", "no room"): "room_is_a_number_of_rows",
    ("stopper", "growing room"): "room_is_a_number_of_rows",
    ("stopper", "no time"): "the_time_left_runs_down",
    ("stopper", "timeless"): "the_time_left_runs_down",
    **{("format", n): caught for n, (_, caught) in FORMATS.items()},
    **{("replay", n): caught for n, (_, caught) in REPLAYS.items()},
    ("store", "ValidOnly"): "gives_back_what_was_appended",
    ("store", "LatestOnly"): "is_append_only",
    ("store", "Newest"): "gives_back_what_was_appended",
    ("store", "Minimum"): "best_is_the_lowest_median",
    ("store", "AnyDevice"): "filters",
    ("store", "Listy"): "gives_back_what_was_appended",
    ("store", "OneRun"): "runs_have_ids",
    ("store", "BestOfFailures"): "failures_have_no_best",
}
"""The test that must catch it."""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("role", "name", "factory"), BROKEN, ids=[f"{r}-{n}" for r, n, _ in BROKEN])
def test_a_broken_piece_is_caught(role, name, factory):
    with pytest.raises((Exception, pytest.fail.Exception)):
        check(role, factory, only=f"test_{CAUGHT_BY[role, name]}", **FIXTURES.get(role, {}))


def test_a_searcher_that_never_ends_is_caught():
    given_up = threading.Event()

    class Endless(RandomSearcher):
        def propose(self, ctx, n):
            while not given_up.is_set():
                p = super().propose(ctx, n)
                if len(p.codes) == n:
                    return p
                given_up.wait(0.02)
            raise TimeoutError

        def __deepcopy__(self, memo):
            return self

    class Hasty(SearcherContract):
        patience_s = 0.3

    try:
        with pytest.raises(pytest.fail.Exception, match="did not end within"):
            check("searcher", Endless, contract=Hasty)
    finally:
        given_up.set()


def test_a_contract_is_found_by_role():
    assert contract_for("searcher") is SearcherContract
    with pytest.raises(ValueError, match="did you mean 'searcher'"):
        contract_for("sercher")
    assert set(CONTRACTS) <= set(Plugins(installed=False).pieces)
    assert all(len(cases(contract_for(r))) >= 5 for r in CONTRACTS)
