"""Foreign rows guide a search and are never taken for its own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tt_spec import Foreign, Guidance, Measurement, Pipeline, Prediction, VirtualClock, labels
from tt_spec.errors import PieceFailure
from tt_spec.pieces.null_surrogate import NullSurrogate
from tt_spec.pieces.random_searcher import RandomSearcher
from tt_spec.pieces.same_space_transfer import SameSpaceTransfer
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.pieces.top_sampler import TopSampler
from tt_spec.rng import draw
from tt_spec.space import tokens
from tt_spec.statements import KeptStatements
from tt_spec.types import Proposal, Statements

TRUTH = SyntheticMeasurer(noise=0)
TASK, OTHER = synthetic_task("own"), synthetic_task("other")


class Nearest:
    """The label of the nearest known row."""

    inputs, shared = "knobs", False

    def __init__(self):
        self.fits = []

    def fit(self, groups, rng):
        self.fits.append([(t.key, len(y)) for t, _, y in groups])
        self.known = [(X, y) for _, X, y in groups]

    def predict(self, task, X):
        if not getattr(self, "known", []):
            return Prediction(np.zeros(len(X)), np.zeros(len(X)))
        K, y = (np.concatenate([k[i] for k in self.known]) for i in (0, 1))
        near = ((X[:, None] - K[None]) ** 2).sum(axis=2).argmin(axis=1)
        return Prediction(y[near], np.zeros(len(X)))

    def score(self, prediction, best):
        return prediction.mean


class Wide(RandomSearcher):
    """The best by score of many random rows."""

    def propose(self, ctx, n):
        codes = draw(ctx.space, ctx.seen, 500, ctx.rng)
        return Proposal(codes, ctx.score(codes))


class Distrusts(SameSpaceTransfer):
    def useless(self, predicted, y):
        return "knows nothing" if len(y) >= 8 and np.corrcoef(predicted, y)[0, 1] < 0.5 else None


def lent(n=400, task=OTHER, turned=False, source="near"):
    rows = draw(task.space, set(), n, np.random.default_rng(3))
    seconds = TRUTH.seconds(TASK, rows)
    return Foreign(task, rows, 1e-6 / seconds if turned else seconds, source)


def guided(*foreign, piece=None, model=Nearest, made=None, **options):
    def models(which):
        if which == "draft":
            return None
        found = model()
        if made is not None:
            made.append(found)
        return found

    guidance = Guidance(piece or SameSpaceTransfer(), TASK, lambda: foreign, models)
    return pipeline(guidance=guidance, **options)


def pipeline(task=TASK, surrogate=None, **options):
    return Pipeline(task, surrogate or Nearest(), Wide(), TopSampler(), clock=VirtualClock(), **options)


def turn(p, n=8):
    batch = p.ask(n)
    p.tell(batch.id, list(TRUTH.measure(p.task, batch.codes, None)))
    return batch


def quality(p, batch):
    return float(np.median(TRUTH.seconds(p.task, batch.codes)))


def test_the_first_batch_is_guided_and_keeps_its_random_share():
    alone, helped = pipeline(), guided(lent())
    first, second = alone.ask(16), helped.ask(16)
    assert set(first.origin) == {"random"}
    assert second.origin[0] == "transfer" and second.origin.count("random") == 4 and "search" in second.origin
    assert np.isfinite(second.predicted).all() and np.isnan(first.predicted).all()
    assert quality(helped, second) < 0.8 * quality(alone, first)
    assert second.info["transfer"] == {"weight": 1.0, "tasks": {"other (near)": 400}, "rows": 400}


def test_foreign_rows_are_no_rows_of_the_task():
    p = guided(lent())
    p.ask(8)
    assert len(p.rows) == p.known_trials() == 0 and math.isinf(p.best_s) and p.incumbents() == []
    assert p.top(5) == [] and p.models.lent() is None and not p.errors()


def test_their_say_fades_and_ends():
    p = guided(lent())
    weights = [turn(p, 32).info["transfer"]["weight"] for _ in range(12)]
    assert weights[:3] == [1.0, 2**-0.5, 0.5]
    assert weights[10:] == [0.0, 0.0] and p.guidance.model("surrogate") is None


def test_both_models_are_mixed_by_weight():
    p = guided(lent())
    turn(p, 64)
    p.ask(1)
    codes = draw(TASK.space, set(), 20, np.random.default_rng(5))
    X = TASK.space.encode(codes)
    own, foreign = p.surrogate.predict(TASK, X).mean, p.guidance.model("surrogate").predict(TASK, X).mean
    assert np.allclose(p.models.predict(p.surrogate, codes).mean, (own + foreign) / 2)
    assert not np.allclose(own, foreign)


def test_a_model_with_next_to_no_say_is_not_asked():
    piece = SameSpaceTransfer()
    piece.trust = lambda predicted, y: 0.05  # of a weight of one half: below 1/32
    p = guided(lent(), piece=piece)
    turn(p, 64)
    p.ask(1)
    codes = draw(TASK.space, set(), 20, np.random.default_rng(5))
    assert p.guidance.model("surrogate") is not None and p.guidance.heard("surrogate", alone=False) is None
    own = p.surrogate.predict(TASK, TASK.space.encode(codes)).mean
    assert np.array_equal(p.models.predict(p.surrogate, codes).mean, own)


def test_both_models_read_the_same_features(monkeypatch):
    p = guided(lent())
    turn(p, 16)
    p.ask(1)
    read, kind, encode = [], type(TASK.space), type(TASK.space).encode
    monkeypatch.setattr(kind, "encode", lambda space, codes: read.append(len(codes)) or encode(space, codes))
    p.models.predict(p.surrogate, draw(TASK.space, set(), 20, np.random.default_rng(5)))
    assert p.guidance.heard("surrogate", alone=False) is not None and read == [20]


def test_a_foreign_model_is_fitted_once_and_never_by_the_tasks_own_rows():
    made: list[Nearest] = []
    own = Nearest()
    p = guided(lent(100), made=made, surrogate=own)
    for _ in range(4):
        turn(p)
    assert [m.fits for m in made] == [[[(TASK.key, 100)]]], "one model, fitted once, on what was lent"
    assert [len(f) for f in own.fits] == [0, 1, 1, 1], "the own model learns from own rows alone"


def test_a_shared_model_learns_foreign_tasks_as_they_are():
    class Shared(Nearest):
        shared = True

    made: list[Nearest] = []
    p = guided(lent(50), made=made, model=Shared, surrogate=Shared())
    p.ask(4)
    assert made[0].fits == [[(OTHER.key, 50)]]


def test_a_model_that_misleads_is_dropped_and_says_why():
    p = guided(lent(turned=True), piece=Distrusts())
    turn(p, 8)
    batch = turn(p, 8)
    assert batch.info["transfer"]["dropped"] == {"surrogate": "knows nothing"}
    assert p.guidance.model("surrogate") is None
    kept = guided(lent(), piece=Distrusts())
    turn(kept, 16)
    assert "dropped" not in turn(kept, 8).info["transfer"]


def test_a_dropped_model_does_not_come_back():
    other = pipeline(OTHER)
    p = guided(lent(8, turned=True), piece=Distrusts(), peers=[other])
    p.peers.append(p)
    turn(p, 16)
    assert "dropped" in turn(p, 8).info["transfer"]
    for _ in range(5):
        turn(other, 16)
    turn(p, 8)
    assert p.guidance.model("surrogate") is None


def test_what_this_run_measures_of_other_tasks_is_learned_when_it_has_doubled():
    made: list[Nearest] = []
    peers = []
    other, stranger = pipeline(OTHER, peers=peers), pipeline(synthetic_task("third", knobs=3), peers=peers)
    p = guided(made=made, peers=peers)
    peers += [other, stranger, p]
    assert set(turn(p, 8).origin) == {"random"} and made == [], "nobody knows anything"
    for rows, fits in ((8, 1), (8, 2), (8, 2), (8, 3)):
        turn(other, rows)
        batch = turn(p, 1)
        assert len(made) == fits
    assert batch.info["transfer"]["tasks"] == {"other (model)": 32}
    assert made[-1].fits == [[(TASK.key, 32)]], "a space without a common knob teaches nothing"


def test_rows_that_this_run_measured_are_learned_once_though_the_history_lends_them_too():
    made: list[Nearest] = []
    peers = []
    other = pipeline(OTHER, peers=peers)
    turn(other, 8)
    elsewhere = lent(5)
    rows, seconds = np.concatenate([other.rows, elsewhere.rows]), np.concatenate([np.ones(8), elsewhere.seconds])
    p = guided(Foreign(OTHER, rows, seconds, "near"), made=made, peers=peers)
    peers += [other, p]
    batch = p.ask(4)
    assert batch.info["transfer"]["tasks"] == {"other (model)": 8, "other (near)": 5}
    assert made[-1].fits == [[(TASK.key, 13)]]


def test_statements_of_foreign_programs_are_made_once_by_the_measurer():
    class Programs(SyntheticMeasurer):
        def __init__(self):
            super().__init__(noise=0)
            self.asked = []

        def features(self, task, codes):
            self.asked.append((task.key, len(codes)))
            return super().features(task, codes)

    class Reads(NullSurrogate):
        inputs = "statements"

        def fit(self, groups, rng):
            assert all(isinstance(X, Statements) for _, X, _ in groups)
            self.seen = [len(y) for *_, y in groups]

        def predict(self, task, X):
            return Prediction(np.linspace(0, 1, len(X)), np.zeros(len(X)))

    programs, kept, asked = Programs(), KeptStatements(), []
    for seed in (0, 1):
        guidance = Guidance(SameSpaceTransfer(), TASK, lambda: [lent(40)], lambda which: Reads(), kept=kept)
        p = pipeline(surrogate=Reads(), programs=programs, guidance=guidance, seed=seed)
        p.ask(4)
        asked.append(programs.asked.count((OTHER.key, 40)))
    assert asked == [1, 1], "the second pipeline finds them made"


def test_programs_of_this_runs_other_tasks_are_read_once():
    class Programs(SyntheticMeasurer):
        def features(self, task, codes):
            asked.extend((task.key, row) for row in tokens(codes))
            return super().features(task, codes)

    class Reads(NullSurrogate):
        inputs = "statements"

        def fit(self, groups, rng):
            learned.append({task.key: len(y) for task, _, y in groups})

    asked, learned, peers, programs = [], [], [], Programs(noise=0)
    other = pipeline(OTHER, Reads(), peers=peers, programs=programs)
    guidance = Guidance(SameSpaceTransfer(), TASK, lambda: [], lambda which: None if which == "draft" else Reads())
    p = pipeline(surrogate=Reads(), peers=peers, programs=programs, guidance=guidance)
    peers += [other, p]
    turn(other, 16)
    turn(other, 16)
    p.ask(8)
    assert {TASK.key: 32} in learned, "the other task's rows, as this one's"
    assert len(asked) == len(set(asked)), "none was read twice"


def test_foreign_programs_that_cannot_be_made_are_left_out():
    class Forgetful(SyntheticMeasurer):
        def features(self, task, codes):
            if task.key == OTHER.key:
                raise RuntimeError("payload of an older version")
            return super().features(task, codes)

    class Reads(NullSurrogate):
        inputs = "statements"

    p = guided(lent(40), model=Reads, surrogate=Reads(), programs=Forgetful(noise=0))
    batch = p.ask(4)
    assert set(batch.origin) == {"random"}
    assert "payload of an older version" in batch.info["transfer"]["failed"]["other"]


def test_the_same_seed_gives_the_same_rows_with_guidance():
    runs = []
    for _ in range(2):
        p = guided(lent())
        runs.append(np.concatenate([turn(p, 8).codes for _ in range(4)]))
    assert np.array_equal(*runs)


def test_rows_restored_from_the_own_history_count_as_trials():
    p = guided(lent())
    rows = draw(TASK.space, set(), 128, np.random.default_rng(1))
    p.restore([Measurement.of(t, TASK) for t in TRUTH.measure(TASK, rows, None)])
    assert p.ask(4).info["transfer"]["weight"] == 0.25


def test_a_broken_transfer_is_named():
    class Bang(SameSpaceTransfer):
        def weight(self, trials):
            return 2.0

    with pytest.raises(PieceFailure, match=r"transfer.*weight must be in \[0, 1\], got 2"):
        guided(lent(), piece=Bang()).ask(4)

    class Wild(SameSpaceTransfer):
        def rows(self, task, lent, rng):
            return np.full((1, 4), 99)

    with pytest.raises(PieceFailure, match="rows that the space allows"):
        guided(lent(), piece=Wild()).ask(4)


def test_labels_of_foreign_rows_are_relative_to_their_own_best():
    class Looks(Nearest):
        def fit(self, groups, rng):
            self.y = groups[0][2]
            super().fit(groups, rng)

    made: list[Looks] = []
    fast, slow = lent(30), lent(20)
    slow = Foreign(slow.task, slow.rows, 1000 * slow.seconds)
    guided(fast, slow, made=made, model=Looks).ask(4)
    assert np.allclose(made[0].y, np.concatenate([labels(fast.seconds), labels(slow.seconds)]))
