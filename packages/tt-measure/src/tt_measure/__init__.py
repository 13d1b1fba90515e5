"""Measuring candidates: persistent worker processes, exclusive timing, and evaluators."""

from tt_measure.adaptive import Adaptive
from tt_measure.fixed import Fixed
from tt_measure.lock import TimingLock
from tt_measure.pool import WorkerPool
from tt_measure.process import WorkerError
from tt_measure.racing import Racing

__all__ = ["Adaptive", "Fixed", "Racing", "TimingLock", "WorkerError", "WorkerPool"]
