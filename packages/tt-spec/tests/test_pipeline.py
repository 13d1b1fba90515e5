"""Ask and tell."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tt_spec import (
    Knob,
    Measurement,
    Noise,
    Pipeline,
    Prediction,
    Proposal,
    Realised,
    Selection,
    Space,
    Trial,
    VirtualClock,
    draw,
)
from tt_spec.cost_models import CostModels
from tt_spec.pieces.null_surrogate import NullSurrogate
from tt_spec.pieces.random_searcher import RandomSearcher
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.pieces.top_sampler import TopSampler
from tt_spec.pipeline import _Chosen
from tt_spec.repeats import Repeats
from tt_spec.testing import mixed_task, tiny_task, wide_task


class Half(RandomSearcher):
    """Random rows and a wish for random ones."""

    def __init__(self, share=0.5, many=1):
        self.share, self.many, self.told, self.seen_by_tell = share, many, [], []

    def propose(self, ctx, n):
        self.ctx = ctx
        codes = draw(ctx.space, ctx.seen, self.many * n, ctx.rng)
        return Proposal(codes, np.arange(len(codes), dtype=float), self.share, {"mine": 1})

    def tell(self, ctx, rows, y):
        self.told.append((rows, y))
        self.seen_by_tell.append(ctx.rng.random())


class Recorder(NullSurrogate):
    """Remembers what it was fitted on."""

    def __init__(self, inputs: Any = "knobs", shared=False):
        self.inputs, self.shared, self.fits, self.asked = inputs, shared, [], []

    def fit(self, groups, rng):
        super().fit(groups, rng)
        self.fits.append([(t.key, len(X), len(y)) for t, X, y in groups])

    def predict(self, task, X):
        self.asked.append(len(X))
        return Prediction(np.linspace(0, 1, len(X)), np.zeros(len(X)))


class Fake(SyntheticMeasurer):
    """Programs of which some are another row's and some do not exist; counts what it realised."""

    def __init__(self, refuse=lambda row: False, becomes=lambda row: row, **options):
        super().__init__(**options)
        self.refuse, self.becomes, self.realised, self.featured = refuse, becomes, 0, 0

    def realise(self, task, codes):
        self.realised += len(codes)
        out = np.stack([self.becomes(r.copy()) for r in codes])
        return Realised(out, tuple("refused on the way" if self.refuse(r) else None for r in codes))

    def features(self, task, codes):
        self.featured += len(codes)
        return super().features(task, codes)


def pipeline(task=None, searcher=None, surrogate=None, **options) -> Any:
    options.setdefault("clock", VirtualClock())
    return Pipeline(task or wide_task(), surrogate or NullSurrogate(), searcher or Half(), TopSampler(), **options)


def measure(p, codes, measurer=None):
    return list((measurer or SyntheticMeasurer(noise=0)).measure(p.task, codes, None))


def turn(p, n=8):
    batch = p.ask(n)
    p.tell(batch.id, measure(p, batch.codes))
    return batch


def test_first_batch_is_random_and_the_next_are_searched():
    p = pipeline()
    first, second = turn(p), turn(p)
    assert set(first.origin) == {"random"} and np.isnan(first.predicted).all()
    assert second.origin.count("search") == 4 and np.isfinite(second.predicted).all()
    assert second.info["mine"] == 1 and second.info["proposed"] == 8


@pytest.mark.parametrize(
    ("share", "n", "places"), [(0.0, 8, 0), (0.05, 10, 1), (0.25, 10, 3), (0.5, 7, 4), (1.0, 8, 8), (7.0, 8, 8)]
)
def test_random_rows_fill_their_share_after_the_sampler(share, n, places):
    p = pipeline(searcher=Half(share, many=4))
    turn(p)
    batch = turn(p, n)
    assert batch.origin.count("random") == places and len(batch.codes) == n
    assert batch.origin == ("search",) * (n - places) + ("random",) * places


class Few(TopSampler):
    """Says that three rows are enough, whatever is asked for."""

    def select(self, ctx, proposal, n):
        return Selection(proposal.codes[: min(n, 3)], complete=True)


@pytest.mark.parametrize(("share", "n", "places"), [(0.0, 8, 0), (0.25, 8, 1), (0.5, 20, 3), (0.5, 5, 3), (1.0, 8, 8)])
def test_a_complete_selection_makes_the_batch_smaller(share, n, places):
    p = pipeline(searcher=Half(share, many=4))
    p.sampler = Few()
    turn(p)
    batch = turn(p, n)
    assert batch.origin.count("random") == places and batch.origin.count("search") == min(3, n - places)


def test_a_complete_selection_of_nothing_leaves_the_batch_to_chance():
    p = pipeline(searcher=Half(0.0))
    p.sampler = Few()
    p.sampler.select = lambda ctx, proposal, n: Selection(proposal.codes[:0], complete=True)
    turn(p)
    assert turn(p).origin == ("random",) * 8


@pytest.mark.parametrize("task", [wide_task(), mixed_task(), tiny_task()], ids=lambda t: t.name)
def test_no_row_is_asked_twice(task):
    p, asked = pipeline(task), []
    for _ in range(12):
        batch = turn(p)
        asked += [tuple(r) for r in batch.codes]
        assert np.array_equal(task.space.canonical(batch.codes), batch.codes)
        assert task.space.allowed(batch.codes).all()
    assert len(asked) == len(set(asked)) == min(96, task.space.size)


def test_a_sampler_that_repeats_itself_does_not_repeat_a_trial():
    class Repeats:
        def select(self, ctx, proposal, n):
            return Selection(np.repeat(proposal.codes[:1], n, axis=0))

    p = pipeline()
    p.sampler = Repeats()
    turn(p)
    batch = turn(p)
    assert len(np.unique(batch.codes, axis=0)) == len(batch.codes) == 8
    assert batch.origin.count("search") == 1


def test_rows_outside_the_space_are_not_asked():
    class Wild(Half):
        def propose(self, ctx, n):
            return Proposal(np.full((n, 4), 99) + np.arange(n)[:, None], np.zeros(n))

    p = pipeline(searcher=Wild())
    turn(p)
    with pytest.warns(UserWarning, match="Wild gives rows that are not in the space"):
        assert set(turn(p).origin) == {"random"}


def test_partial_tells():
    p = pipeline(searcher=Half(0.0))
    batch = p.ask(8)
    results = measure(p, batch.codes)
    p.tell(batch.id, results[:3])
    assert len(p.rows) == 3
    other = p.ask(8)
    assert len(p.searcher.ctx.pending) == 5
    assert not {tuple(r) for r in other.codes} & {tuple(r) for r in batch.codes}
    p.tell(other.id, measure(p, other.codes[:1]))
    p.tell(batch.id, [])
    p.tell(batch.id, results[3:])
    assert len(p.rows) == 9 and [len(r) for r, _ in p.searcher.told] == [3, 1, 5]


def test_a_wrong_tell_changes_nothing():
    p = pipeline()
    one, two = p.ask(4), p.ask(4)
    good, stranger = measure(p, one.codes), measure(p, two.codes)
    for wrong in (stranger[:1], [good[0], stranger[0]], [good[0], good[0]]):
        with pytest.raises(ValueError, match="tell each asked row once"):
            p.tell(one.id, wrong)
        assert len(p.rows) == 0
    p.tell(one.id, good)
    with pytest.raises(ValueError, match="tell each asked row once"):
        p.tell(one.id, good[:1])
    with pytest.raises(ValueError, match="at least one row"):
        p.ask(0)


def test_failures_are_told_as_label_zero(recwarn):
    p = pipeline()
    batch = p.ask(4)
    p.tell(batch.id, [Measurement(p.task.key, p.space.key, tuple(r), error="build") for r in batch.codes.tolist()])
    assert p.searcher.told[0][1].tolist() == [0, 0, 0, 0] and p.best_s == np.inf
    assert set(turn(p).origin) == {"random"}, "nothing is searched before something worked"
    assert p.searcher.told[1][1].max() == 1.0 and not recwarn.list
    assert len(set(p.searcher.seen_by_tell)) == 2, "every tell has randomness of its own"


class Labelled(NullSurrogate):
    """Remembers the labels that it learned last."""

    def fit(self, groups, rng):
        super().fit(groups, rng)
        self.learned = [y.tolist() for *_, y in groups]


def test_models_and_searchers_go_by_what_rows_take_in_a_network():
    model, rows = Labelled(), np.arange(4)[:, None] * np.ones(len(wide_task().space.knobs), dtype=np.int64)
    p = pipeline(surrogate=model, warm=rows, surcharge=lambda row: 3e-3 * (row[0] == 1))
    batch, seconds = p.ask(4), {0: 2e-3, 1: 1e-3, 3: 4e-3}
    about = {"task_key": p.task.key, "space_key": p.space.key}
    results = [
        Measurement(**about, config=tuple(row), seconds=(seconds[row[0]],))
        if row[0] in seconds
        else Measurement(**about, config=tuple(row), error="run")
        for row in batch.codes.tolist()
    ]
    p.tell(batch.id, results)
    assert batch.codes[:, 0].tolist() == [0, 1, 2, 3]
    assert p.searcher.told[0][1].tolist() == [1.0, 0.5, 0.0, 0.5]
    p.ask(4)
    assert model.learned == [[1.0, 0.5, 0.0, 0.5]] and p.searcher.ctx.y.tolist() == [1.0, 0.5, 0.0, 0.5]
    assert p.searcher.ctx.best_s == 2e-3
    assert [(row[0], s) for row, s in p.top(2)] == [(0, 2e-3), (1, 1e-3)] and p.best_s == 1e-3


class Knows(Recorder):
    """Learned elsewhere that high codes of the last knob are fast."""

    def __init__(self, where: str | None = "a CPU"):
        super().__init__("knobs")
        self.where = where

    def foreknows(self, task):
        return self.where

    def predict(self, task, X):
        return Prediction(X[:, -1] if not self.fits else np.zeros(len(X)), np.zeros(len(X)))


@pytest.mark.parametrize(("n", "opening", "share"), [(1, 4, 1 / 64), (16, 64, 0.25), (64, 256, 1.0)])
def test_dear_statements_are_made_of_as_many_fewer_rows_as_the_batch_is_smaller(n, opening, share):
    model, programs = Knows(), Fake(noise=0)
    model.inputs, model.predict = "statements", lambda task, X: Prediction(np.arange(len(X)) + 0.0, np.zeros(len(X)))
    p = pipeline(surrogate=model, programs=programs, searcher=Half(0.0))
    batch = p.ask(n)
    assert set(batch.origin) == {"weights"} and 0.9 * opening <= programs.featured <= opening
    p.tell(batch.id, measure(p, batch.codes))
    p.ask(n)
    assert p.searcher.ctx.share == share


def test_where_a_draft_guides_the_search_scores_are_cheap():
    p = pipeline(surrogate=Recorder("statements"), draft=Recorder(), programs=Fake(noise=0))
    turn(p, 4)
    turn(p, 4)
    assert p.searcher.ctx.share == 1.0


@pytest.mark.parametrize("role", ["surrogate", "draft"])
def test_a_model_that_learned_elsewhere_chooses_the_first_batch(role):
    p = pipeline(mixed_task(), **{role: Knows()})
    first = turn(p)
    assert set(first.origin) == {"weights"} and first.info == {"weights": "a CPU"}
    assert np.isnan(first.predicted).all(), "what another task's rows say is no prediction of seconds here"
    best = p.space.encode(p.space.sample(2000, np.random.default_rng(0)))[:, -1].max()
    assert (p.space.encode(first.codes)[:, -1] == best).all()
    second = turn(p)
    assert "weights" not in second.origin and "search" in second.origin
    blind = turn(pipeline(mixed_task(), **{role: Knows(None)}))
    assert set(blind.origin) == {"random"}


def test_a_draft_and_a_dear_model_that_both_learned_elsewhere_choose_together():
    draft, dear = Knows("draft's CPU"), Knows("dear's CPU")
    dear.predict = lambda task, X: Prediction(-X[:, 0], np.zeros(len(X)))
    p = pipeline(mixed_task(), draft=draft, surrogate=dear, verify=64, batch=8)
    first = p.ask(8)
    assert first.info == {"weights": "dear's CPU"}
    X = p.space.encode(first.codes)
    assert (X[:, -1] == X[:, -1].max()).all(), "the draft chose those that the dear model ranked"
    assert X[:, 0].max() <= np.median(p.space.encode(p.space.sample(500, np.random.default_rng(1)))[:, 0])


def test_algorithms_take_turns_in_a_batch_that_was_chosen_beforehand():
    parts = Knob("space", "choice", ("a", "b"), prior=(3.0, 1.0))
    space = Space((parts, Knob("k", "choice", tuple(range(64)))), name="a+b")
    chosen = turn(pipeline(replace(mixed_task(), spaces=(space,)), Half(), Knows()), 8).codes
    assert (chosen[:, 0] == 0).sum() == 6 and sorted(chosen[chosen[:, 0] == 0, 1]) == list(range(58, 64))
    assert sorted(chosen[chosen[:, 0] == 1, 1]) == [62, 63]


class OnlyThe(RandomSearcher):
    """A searcher whose model wants one algorithm."""

    def propose(self, ctx, n):
        codes = draw(ctx.space, ctx.seen, 8 * n, ctx.rng)
        codes = codes[codes[:, 0] == 0][:n]
        return Proposal(codes, np.arange(len(codes), dtype=float), 0.0)


def test_an_algorithm_that_was_never_tried_has_its_turn_in_the_next_batch():
    """Of nine rows five, three and one are due, by D'Hondt: the second one's first is the second, the third's the
    ninth."""
    parts = Knob("space", "choice", ("a", "b", "c"), prior=(5.0, 3.0, 1.0))
    space = Space((parts, Knob("k", "choice", tuple(range(64)))), name="a+b+c")
    p = pipeline(replace(mixed_task(), spaces=(space,)), OnlyThe(), draft=Recorder())
    batches = [turn(p, n) for n in (1, 4, 4, 4)]
    assert [sorted(b.codes[:, 0].tolist()) for b in batches] == [[0], [0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 0, 0]]
    assert [b.origin.count("random") for b in batches[1:]] == [1, 1, 0]
    tried = batches[1].codes[batches[1].codes[:, 0] == 1][0, 1]
    assert tried >= 32, "of those that were drawn it is one that the draft likes"


def test_each_form_of_an_algorithm_that_was_never_tried_has_its_turn():
    """Of nine rows five, one and a half twice, and one are due: both forms of the second one are among the first five,
    the third's is among the first nine."""
    parts = Knob("space", "choice", ("a", "b", "c"), prior=(5.0, 3.0, 1.0))
    forms = Knob("b.form", "choice", (2, 4), active_if=(0, (1,)), prior=(1.0, 1.0))
    space = Space((parts, forms, Knob("k", "choice", tuple(range(64)))), name="a+b+c")
    p = pipeline(replace(mixed_task(), spaces=(space,)), OnlyThe(), draft=Recorder())
    batches = [turn(p, n).codes for n in (1, 4, 4, 4)]
    assert [sorted(codes[:, 0].tolist()) for codes in batches] == [[0], [0, 0, 1, 1], [0, 0, 0, 2], [0, 0, 0, 0]]
    assert sorted(batches[1][batches[1][:, 0] == 1, 1]) == [0, 1]


def test_refused_rows_of_the_first_batch_give_way_to_the_next_best():
    p = pipeline(mixed_task(), programs=Fake(refuse=lambda r: r[0] == 0), draft=Knows())
    batch = p.ask(8)
    assert len(batch.codes) == 8 and (batch.codes[:, 0] != 0).all()
    failed = [Measurement(p.task.key, p.space.key, tuple(r), error="run", why="crash") for r in batch.codes.tolist()]
    p.tell(batch.id, failed)
    assert "weights" in p.ask(8).origin, "as long as nothing ran, there is nothing else to go by"


def test_refused_rows_are_reported_and_others_take_their_place():
    p = pipeline(mixed_task(), programs=Fake(refuse=lambda r: r[6] < 3))
    batch = p.ask(16)
    assert len(batch.codes) == 16 and len(batch.invalid) > 5
    assert (batch.codes[:, 6] == 3).all() and (batch.invalid[:, 6] < 3).all()
    assert p.why_invalid(batch.invalid[0]) == "refused on the way"
    lost = [
        Measurement(p.task.key, p.space.key, tuple(r), error="invalid", why="refused") for r in batch.invalid.tolist()
    ]
    p.tell(batch.id, lost)
    assert p.errors()["invalid"] == len(lost) and not p.searcher.told
    with pytest.raises(ValueError, match="tell each asked row once"):
        p.tell(batch.id, lost[:1])
    again = p.ask(16)
    known = {tuple(r) for r in (*batch.codes, *batch.invalid)}
    assert not known & {tuple(r) for r in (*again.codes, *again.invalid)}


def test_a_backend_that_refuses_nearly_all_does_not_look_like_an_exhausted_space():
    p = pipeline(programs=Fake(refuse=lambda r: r[0] != 3 or r[2] != 5))
    for _ in range(8):
        assert len(p.ask(1).codes) == 1


def test_one_program_is_asked_once_however_many_rows_it_has():
    def even(row):
        row[0] -= row[0] % 2
        row[1] = 0
        return row

    p, asked = pipeline(synthetic_task("few", knobs=2), programs=Fake(becomes=even)), []
    for _ in range(4):
        asked += [tuple(r) for r in turn(p, 16).codes]
    assert sorted(asked) == [(0, 0), (2, 0), (4, 0), (6, 0)]
    assert len(p.ask(2).codes) == 0, "all 64 rows are these four programs"


def test_all_warm_rows_are_asked_once_and_first():
    task = wide_task()
    warm = draw(task.space, set(), 11, np.random.default_rng(0))
    p = pipeline(task, warm=np.concatenate([warm, warm[:3], [[99, 0, 0, 0]]]))
    first, second = turn(p), turn(p)
    assert first.origin == ("warm",) * 8 and second.origin[:3] == ("warm",) * 3 and "warm" not in second.origin[3:]
    assert np.array_equal(np.concatenate([first.codes, second.codes[:3]]), warm)
    assert "warm" not in turn(p).origin


def test_restored_rows_are_known_and_not_asked():
    a = pipeline()
    for _ in range(3):
        turn(a)
    told = [Measurement(a.task.key, a.space.key, tuple(r.tolist()), seconds=(s,)) for r, s in a.top(24)]
    strangers = [Measurement("other", a.space.key, (0, 0, 0, 0), error="run")]
    b = pipeline()
    assert b.restore(told + strangers) == 24 and b.restore(told) == 0
    assert b.best_s == a.best_s
    batch = turn(b)
    assert "search" in batch.origin, "what the store knows guides the first batch"
    assert not {tuple(r) for r in batch.codes} & {tuple(r) for r in a.rows}
    again = Measurement(a.task.key, a.space.key, told[0].config, error="wrong-result")
    assert b.restore([again]) == 0 and b.best_s > a.best_s, "the latest verdict on a row counts"


def test_a_shared_model_learns_from_its_peers():
    model, peers = Recorder(shared=True), []
    for task in (wide_task(), synthetic_task("other", knobs=3)):
        peers.append(pipeline(task, surrogate=model, peers=peers))
    for _ in range(2):
        for p in peers:
            turn(p)
    keys = [[k for k, _, _ in fit] for fit in model.fits]
    assert keys[-1] == [p.task.key for p in peers]
    assert [n for _, n, _ in model.fits[-1]] == [16, 8]
    alone = Recorder()
    p = pipeline(surrogate=alone, peers=peers)
    turn(p)
    turn(p)
    assert [len(f) for f in alone.fits] == [1], "one task's model sees one task"


def test_a_model_of_many_tasks_is_not_fitted_for_each_few_rows_of_one():
    """Of 400 known rows an eighth is 50, of the 200 of the task that asks 25."""
    model, peers = Recorder(shared=True), []
    for i in range(2):
        peers.append(pipeline(synthetic_task(f"task {i}", knobs=4), surrogate=model, peers=peers, batch=4))
    for p in peers:
        turn(p, 200)
    peers[0].ask(1)
    fits = len(model.fits)
    turn(peers[0], 24)
    peers[0].ask(1)
    assert len(model.fits) == fits, "24 of its own are few"
    turn(peers[0], 1)
    peers[0].ask(1)
    assert len(model.fits) == fits + 1, "25 are not"
    turn(peers[0], 27)
    turn(peers[1], 24)
    peers[1].ask(1)
    assert len(model.fits) == fits + 1, "51 of 425, 24 of its own"
    turn(peers[0], 3)
    peers[1].ask(1)
    assert len(model.fits) == fits + 2, "54 of 425"


def test_a_model_of_many_tasks_is_fitted_for_16_rows_of_a_task_that_has_few():
    model, peers = Recorder(shared=True), []
    for i in range(2):
        peers.append(pipeline(synthetic_task(f"task {i}", knobs=4), surrogate=model, peers=peers, batch=4))
    for p, rows in zip(peers, (16, 384), strict=True):
        turn(p, rows)
    peers[0].ask(1)
    fits = len(model.fits)
    for rows, more in ((15, 0), (1, 1)):
        turn(peers[0], rows)
        peers[0].ask(1)
        assert len(model.fits) == fits + more


def test_rows_are_realised_as_there_are_places_and_more_where_they_are_refused():
    programs = Fake()
    p = pipeline(programs=programs)
    p.ask(8)
    assert programs.realised == 8
    p._admit(p.space.sample(40, np.random.default_rng(1)), "search", chosen := _Chosen(), [], 5)
    assert len(chosen.rows) == 5 and programs.realised == 13, "none of the 35 that come later"
    hard = Fake(refuse=lambda row: row[0] % 2 == 0)
    p = pipeline(programs=hard)
    assert len(p.ask(8).codes) == 8 and hard.realised > 8


def test_a_draft_guides_and_the_dear_model_verifies():
    draft, dear, programs = Recorder(), Recorder("statements"), Fake()
    p = pipeline(searcher=Half(0.0), surrogate=dear, draft=draft, programs=programs, verify=40, batch=8)
    turn(p)
    programs.featured = 0
    batch = turn(p)
    assert len(draft.fits) == len(dear.fits) == 1
    assert batch.info["proposed"] == 40 and len(batch.codes) == 8
    assert programs.featured == 48, "features are made of 8 rows to learn from and 40 to rank, once each"
    p.searcher.ctx.predict(batch.codes)
    assert draft.asked[-1] == 8
    assert dear.asked[0] == 40
    assert p.ask(2).info["proposed"] == 10, "a quarter of a batch is chosen among a quarter of the rows"


def test_one_row_teaches_nothing_so_the_draft_alone_ranks():
    """What a row is compared with is the task's best, which it is itself."""
    dear, programs, peers = Recorder("statements", shared=True), Fake(), []
    for i in range(2):
        task = synthetic_task(f"task {i}", knobs=4)
        options = {"draft": Recorder(), "programs": programs, "verify": 40, "batch": 8, "peers": peers}
        peers.append(pipeline(task, Half(0.0), dear, **options))
    for p in peers:
        turn(p, 1)
    for p in peers:
        batch = turn(p, 4)
        assert dear.fits == [] and dear.asked == [] and programs.featured == 0 and np.isnan(batch.predicted).all()
    batch = turn(peers[0], 4)
    assert [k for k, *_ in dear.fits[-1]] == [p.task.key for p in peers] and np.isfinite(batch.predicted).all()
    assert dear.asked == [20, 4], "half a batch is chosen among half the rows"


@pytest.mark.parametrize(("where", "least"), [("a CPU", CostModels.SETTLED), (None, CostModels.LEAST)])
def test_a_draft_that_learned_beforehand_ranks_alone_while_the_task_has_few_rows(where, least):
    programs = Fake()
    options = {"draft": Knows(where), "programs": programs, "verify": 16, "batch": 4}
    p = pipeline(searcher=Half(0.0), surrogate=Recorder("statements"), **options)
    while len(p.rows) < least:
        batch = turn(p, 4)
        assert programs.featured == 0 and np.isnan(batch.predicted).all()
    known, batch = len(p.rows), turn(p, 4)
    assert programs.featured == known + 16 and np.isfinite(batch.predicted).all()


def test_models_that_cannot_work_are_refused():
    with pytest.raises(ValueError, match="needs `programs`"):
        pipeline(surrogate=Recorder("statements"))
    with pytest.raises(ValueError, match="must read knobs"):
        pipeline(draft=Recorder("statements"))


def test_rows_without_features_rank_last():
    class Some(Fake):
        def features(self, task, codes):
            found, _ = super().features(task, codes)
            ok = codes[:, 0] % 2 == 0
            return found[ok], ok

    p = pipeline(surrogate=Recorder("statements"), programs=Some())
    turn(p)
    turn(p)
    codes = p.space.sample(20, np.random.default_rng(0))
    odd = codes[:, 0] % 2 == 1
    scores = p.searcher.ctx.score(codes)
    assert scores[odd].max() < scores[~odd].min()
    assert len(p.searcher.ctx.score(codes[:0])) == 0


def test_a_curve_depends_on_the_seed_and_not_on_the_schedule():
    def rows(seed, order):
        tasks = {t.name: t for t in (wide_task(), mixed_task())}
        pipes = {name: pipeline(t, Half(0.25), seed=seed) for name, t in tasks.items()}
        for name in order:
            turn(pipes[name])
        return {name: p.rows.tolist() for name, p in pipes.items()}

    together = rows(1, ["wide", "mixed"] * 3)
    assert together == rows(1, ["wide"] * 3 + ["mixed"] * 3) == rows(1, ["mixed"] * 3 + ["wide"] * 3)
    other = rows(2, ["wide", "mixed"] * 3)
    assert other["wide"] != together["wide"] and other["mixed"] != together["mixed"]


def test_training_data_stay_bounded():
    p = pipeline(surrogate=Recorder())
    p.models.FIT_ROWS = 20
    for _ in range(6):
        turn(p)
    assert max(n for fit in p.surrogate.fits for _, n, _ in fit) <= 20


def told(p, seconds, noise=None):
    """A batch of which row i took `seconds[i]`; its results."""
    batch = p.ask(len(seconds))
    results = [
        Measurement.of(Trial(tuple(map(int, row)), (s,), 1, noise=noise), p.task)
        for row, s in zip(batch.codes, seconds, strict=True)
    ]
    p.tell(batch.id, results)
    return results


def configs(rows):
    return {tuple(map(int, row)) for row in rows}


def test_the_leader_and_who_is_close_are_timed_until_they_are_known():
    p = pipeline(wide_task())
    results = told(p, [1.0, 1.04, 1.2, 1.03, 2.0])
    close = {results[i].config for i in (0, 1, 3)}
    assert configs(p.doubtful(results)) == close  # a second timing
    assert configs(p.doubtful([])) == close  # a third
    assert not len(p.doubtful([]))
    new = told(p, [1.01])
    assert configs(p.doubtful(new)) == close | {new[0].config}
    anchors = {results[i].config for i in (0, 3)}
    assert configs(p.doubtful(told(p, [3.0]))) == close | {new[0].config}, "the new one needs a third timing"
    assert configs(p.doubtful(told(p, [3.0]))) == {results[0].config, new[0].config} != anchors, "two who lead, always"


def test_a_lucky_leader_loses_its_place():
    p = pipeline(wide_task())
    results = told(p, [1.0, 1.04])
    p.correct(replace(results[0], seconds=(1.3,)))
    assert p.best_s == 1.04 and p.incumbents() == [(1, 1.3), (2, 1.04)]
    assert [s for _, s in p.top(2)] == [1.04, 1.3]
    with pytest.raises(ValueError, match="no valid result that could be corrected"):
        p.correct(replace(results[0], config=(0, 0, 0, 0), seconds=(1.3,)))


def test_two_later_timings_of_a_row_are_one_without_the_first():
    p = pipeline(wide_task())
    first, other = told(p, [1.0, 1.04])
    again = p.joined(Trial(first.config, (1.3, 1.2, 1.4), 9))
    assert again.seconds == (1.3, 1.2, 1.4) and again.runs == 9
    third = p.joined(Trial(first.config, (1.1, 1.0, 1.5), 9))
    assert third.seconds == (1.3, 1.2, 1.4, 1.1, 1.0, 1.5) and third.latency_s == pytest.approx(1.25)
    assert third.runs == 18
    fourth = p.joined(Trial(first.config, (1.6, 1.7, 1.8), 9))
    assert fourth.seconds == (1.1, 1.0, 1.5, 1.6, 1.7, 1.8) and fourth.runs == 18, "bounded, and of lately"
    assert p.joined(Trial(other.config, (1.0,), 1)).seconds == (1.0,)


def test_after_a_change_of_scale_seconds_are_multiplied_and_the_front_is_timed_again_by_itself():
    p = pipeline(wide_task())
    results = told(p, [1.0, 1.02, 1.3, 1.9, 1.4])
    while len(p.doubtful([])):
        pass
    p.joined(Trial(results[0].config, (1.1,), 1))
    p.rescale(3.0)
    assert p.best_s == pytest.approx(3.0) and [s for _, s in p.incumbents()] == [pytest.approx(3.0)]
    again = configs(p.doubtful([]))
    assert {results[0].config, results[1].config} <= again and results[3].config not in again
    assert p.joined(Trial(results[0].config, (3.3,), 1)).seconds == (3.3,)


def test_rows_that_met_no_state_that_counts_get_a_second_look_where_they_may_be_good():
    p = pipeline(wide_task())
    first = told(p, [1.0, 3.0, 3.0])
    assert not len(p.doubtful(first)), "of so few the fastest need not be the luckiest"
    told(p, [3.0])
    while len(p.doubtful([])):
        pass
    slow = told(p, [1.4, 1.3, 1.2, 1.9], Noise(3, 0, 1.8, 0.03))
    assert configs(p.doubtful(slow)) == {slow[2].config, slow[1].config} | {m.config for m in first[:2]}, "who led, too"
    steady = told(p, [1.4, 1.3], Noise(3, 5, 1.02, 0.03))
    anchors = {first[0].config, slow[2].config}
    assert configs(p.doubtful(steady)) == {slow[1].config} | anchors, "the state may have changed meanwhile"
    p.correct(replace(slow[2], noise=Noise(3, 0, 1.01, 0.0)))
    assert configs(p.doubtful([])) == {slow[1].config, slow[0].config}, "what is known now makes room"
    while len(p.doubtful([])):
        pass
    p.doubtful(told(p, [1.4] * 3 * Repeats.UNSURE, Noise(3, 0, 1.8, 0.03)))
    assert len(p._repeats._unsure) <= Repeats.UNSURE, "few are kept in mind, however many there are"


def retimed(p, results, *seconds, noise=None):
    """Level by these seconds of the anchors `results`; the seconds that the trials then say, and the remarks."""
    trials = [Trial(m.config, (s,), 1, noise=noise) for m, s in zip(results, seconds, strict=True)]
    found, remarks = p.levelled(trials)
    return [t.latency_s for t in found], remarks


def known(p):
    return [float(s) for s in p._told.seconds]


ELSEWHERE = Noise(3, 0, 1.6, 0.03)
COUNTS = Noise(3, 0, 1.01, 0.0)


def test_a_batch_that_met_another_machine_is_brought_to_what_is_known():
    p = pipeline(wide_task())
    p.doubtful(first := told(p, [1.0, 2.0, 4.0, 5.0]))
    batch = told(p, [3.0, 1.2])
    assert configs(p.doubtful(batch)) >= {first[0].config, first[1].config}
    seconds, remarks = retimed(p, first[:2], 2.1, 4.0)  # the machine takes 2.0 or 2.1 times as long
    assert remarks == {"levelled": pytest.approx(0.5)} and seconds == pytest.approx([1.05, 2.0])
    assert known(p) == pytest.approx([1.0, 2.0, 4.0, 5.0, 1.5, 0.6]) and p.best_s == pytest.approx(0.6)
    assert p._told.timed[-1] == pytest.approx((0.6,))


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ((1.5, 2.0), "a leader that was lucky is no machine"),
        ((1.5, 1.6), "one says slower, the other faster"),
        ((1.1, 2.2), "timings of one state differ by so much"),
        ((3.0,), "one alone may have been lucky"),
        ((), "nobody holds the leaders any more"),
    ],
)
def test_nothing_is_levelled_where_leaders_do_not_agree_that_the_machine_is_another(now, why):
    p = pipeline(wide_task())
    p.doubtful(first := told(p, [1.0, 2.0, 4.0, 5.0]))
    p.doubtful(told(p, [3.0, 1.2]))
    seconds, remarks = retimed(p, first[: len(now)], *now)
    assert not remarks and seconds == pytest.approx(list(now)), why
    assert known(p) == pytest.approx([1.0, 2.0, 4.0, 5.0, 3.0, 1.2]), why


@pytest.mark.parametrize("now", [(1.5, 3.2), (1.5,)])
def test_what_was_corrected_is_brought_to_timings_that_count(now):
    p = pipeline(wide_task())
    p.doubtful(first := told(p, [1.0, 2.0, 4.0, 5.0], ELSEWHERE))
    p.doubtful(told(p, [2.5], COUNTS))
    p.doubtful(told(p, [3.0, 1.2], COUNTS))
    seconds, remarks = retimed(p, first[: len(now)], *now, noise=COUNTS)
    guesses = [list(m.config) for m in first]
    assert remarks == {"corrections": {"factor": pytest.approx(1.5), "configs": guesses}}
    assert seconds == pytest.approx(list(now))
    assert known(p) == pytest.approx([1.5, 3.0, 6.0, 7.5, 2.5, 3.0, 1.2]), "the row that had counted stays"
    assert p.joined(Trial(first[0].config, (1.4,), 1)).seconds == (1.4,), "earlier ones of the other scale are left out"


def test_corrections_tell_the_machine_of_nobody_else_where_none_of_them_counts():
    p = pipeline(wide_task())
    p.doubtful(first := told(p, [1.0, 2.0, 4.0, 5.0], ELSEWHERE))
    p.doubtful(told(p, [3.0, 1.2], ELSEWHERE))
    remarks = retimed(p, first[:2], 2.0, 4.0, noise=ELSEWHERE)[1]
    assert remarks == {"levelled": pytest.approx(0.5)}, "the batch, not those before"
    assert known(p) == pytest.approx([1.0, 2.0, 4.0, 5.0, 1.5, 0.6])


@given(st.floats(0.2, 5.0), st.lists(st.floats(0.5, 50.0), min_size=4, max_size=8), st.lists(st.floats(0.5, 50.0)))
def test_a_drift_of_the_machine_cancels(drift, before, after):
    assume(abs(math.log(drift)) > 0.15 and after)
    p = pipeline(wide_task())
    p.doubtful(first := told(p, before))
    p.doubtful(told(p, [drift * s for s in after]))
    leaders = sorted(first, key=lambda m: m.latency_s)[:2]
    retimed(p, leaders, *(drift * m.latency_s for m in leaders))
    assert known(p) == pytest.approx([*before, *after])
