"""A plug-in whose pieces work for a while and then break: `test_failing_plugins` puts this folder on the path."""

import numpy as np
from tt_history.sqlite import SqliteStore
from tt_measure import WorkerPool
from tt_spec import Entry, Selection, Slot, hookimpl
from tt_spec.pieces.null_surrogate import NullSurrogate
from tt_spec.pieces.once_evaluator import OnceEvaluator

KEPT = []
"""A worker pool that outlives its runs, once one was asked for: starting workers takes most of a short run."""


class Bang(RuntimeError):
    pass


class Searcher:
    def propose(self, ctx, n):
        raise Bang


class Surrogate(NullSurrogate):
    def score(self, prediction, best):
        return np.full(len(prediction.mean), np.nan)


class Sampler:
    def select(self, ctx, proposal, n):
        return Selection(proposal.codes[:, :1])


class Scheduler:
    def next(self, states, clock):
        if states[0].trials:
            raise Bang
        return Slot(0, trials=6)


class Stopper:
    scope = "run"

    def stop(self, state, clock):
        if state.trials == 5:
            raise Bang


class Evaluator:
    done = 0

    def evaluate(self, run, bar, rng):
        self.done += 1
        if self.done > 3:
            raise Bang
        return OnceEvaluator().evaluate(run, bar, rng)


class Store(SqliteStore):
    stored = 0

    def append(self, batch):
        self.stored += sum(m.error != "invalid" for m in batch)
        if self.stored > 4:
            raise Bang
        super().append(batch)


class Measurer(WorkerPool):
    def measure(self, task, codes, bar):
        for i, m in enumerate(super().measure(task, codes, bar)):
            if i == 4:
                raise Bang
            yield m


class Kept(WorkerPool):
    def close(self):
        pass


def kept(**options):
    KEPT[:] = KEPT or [Kept(**options)]
    return KEPT[0]


@hookimpl
def tt_searchers():
    return [Entry("bang", Searcher)]


@hookimpl
def tt_surrogates():
    return [Entry("bang", Surrogate)]


@hookimpl
def tt_samplers():
    return [Entry("bang", Sampler)]


@hookimpl
def tt_schedulers():
    return [Entry("bang", Scheduler)]


@hookimpl
def tt_stoppers():
    return [Entry("bang", Stopper)]


@hookimpl
def tt_evaluators():
    return [Entry("bang", Evaluator)]


@hookimpl
def tt_stores():
    return [Entry("bang", Store)]


@hookimpl
def tt_measurers():
    return [Entry("bang", Measurer), Entry("kept", kept)]


@hookimpl
def tt_warm_start(task):
    raise Bang


@hookimpl
def tt_batch_measured(results):
    raise Bang
