"""The worker's end, without a process: its answers where a backend, an evaluator or a candidate breaks its promises."""

import math
import os
import pickle
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tt_measure import worker as module
from tt_measure.fixed import Fixed
from tt_measure.kept import Program
from tt_measure.rules import Terms
from tt_measure.worker import Worker
from tt_spec import Bar, Realised, Statements, Timing
from tt_spec.testing.examples import wide_task

TASK, ROWS = wide_task(), np.zeros((3, 4), dtype=np.int64)


class Told:
    """A connection that keeps what is sent."""

    def __init__(self) -> None:
        self.said = []

    def send_bytes(self, blob: bytes) -> None:
        self.said.append(pickle.loads(blob))


@dataclass
class Programs:
    """Candidates and rows of one length."""

    seconds: float = 1e-3
    rows: int = 3
    unopened: str = ""

    apply_s = 0.0

    def open(self, task):
        if self.unopened:
            raise RuntimeError(self.unopened)

    def build(self, task, row):
        return self

    def run(self, n):
        return self.seconds

    def check(self):
        return None

    def realise(self, task, codes):
        return Realised(codes[: self.rows], (None,) * self.rows)

    def features(self, task, codes):
        values = np.arange(self.rows, dtype=float)[:, None] * np.ones((1, 164))
        found = Statements(values, np.arange(self.rows + 1), np.zeros((self.rows, 10)))
        return found, np.array([True, False, True])

    def gauge(self, task):
        return 1e-4


class Empty:
    def evaluate(self, run, bar, rng):
        run(1)
        return Timing((), 1)


def asked(kind, *args, backend=None, evaluator=None, held=False):
    """The verdict and value of one request to a worker that has opened the task."""
    told: Any = Told()
    w = Worker(told)
    w.backend, w.evaluator, w.open_s = backend or Programs(), evaluator or Fixed(), 60.0
    w.tasks["h"] = pickle.dumps(TASK)
    if held:
        w.held[1] = w.backend
    w.answer(1, kind, pickle.dumps(args))
    job, verdict, (over, value) = told.said[-1]
    assert job == 1 and over > 0
    return verdict, value, [topic for _, topic, _ in told.said[:-1]]


def test_rows_and_programs_are_counted():
    assert asked("realise", "h", ROWS, 9.0)[0] == "done"
    verdict, text, _ = asked("realise", "h", ROWS, 9.0, backend=Programs(rows=2))
    assert (verdict, text) == ("raised", "ValueError: the backend realised 2 rows of 3")
    verdict, text, _ = asked("features", "h", ROWS, 9.0, backend=Programs(rows=1))
    assert text == "ValueError: the backend gave features of 1 programs and 3 flags, 3 rows"


def test_features_of_all_rows_or_of_the_good_ones_are_those_of_the_good_ones():
    for rows, kept in ((3, [0.0, 2.0]), (2, [0.0, 1.0])):
        verdict, (found, ok), _ = asked("features", "h", ROWS, 9.0, backend=Programs(rows=rows))
        assert verdict == "done" and ok.tolist() == [True, False, True]
        assert found.values[:, 0].tolist() == kept


TERMS = Terms(True, 9.0, 9.0)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, -1.0])
def test_a_run_without_a_time_is_the_candidates_fault(seconds):
    verdict, text, _ = asked("time", "h", 1, Bar(), [0], TERMS, backend=Programs(seconds), held=True)
    assert verdict == "raised" and text.startswith("ValueError: a run takes a positive number of seconds, this one")


def test_a_timing_without_a_time_is_the_evaluators_fault():
    verdict, text, _ = asked("time", "h", 1, Bar(), [0], TERMS, evaluator=Empty(), held=True)
    assert verdict == "undecided" and "a timing is one or more positive numbers of seconds, got ()" in text


def test_a_task_that_cannot_be_opened_is_nobodys_fault():
    verdict, text, stages = asked("build", "h", ROWS[0], 9.0, backend=Programs(unopened="no such workload"))
    assert (verdict, text, stages) == ("unopened", "RuntimeError: no such workload", ["stage"])


def test_programs_that_are_held_are_timed_again_beside_the_probe():
    for reference, windows in ((1e-4, True), (None, False)):
        w = Worker(Told())  # type: ignore[arg-type]
        w.backend, w.evaluator, w.open_s = Programs(), Fixed(), 60.0
        w.tasks["h"] = pickle.dumps(TASK)
        w.kept.offer("h", Program(7, Programs(2e-3), 2e-3, True), math.inf)
        terms = Terms(True, 9.0, 9.0, reference)
        found = w.do_retime(1, lambda stage, seconds: None, "h", [7, 8], 9.0, terms)
        assert list(found) == [7], "the other is held no more"
        timing, run_s, seen = found[7]
        assert float(np.median(timing.seconds)) == pytest.approx(2e-3) and run_s > 0
        assert (seen is not None) == windows == (timing.noise is not None)


class Slow(Programs):
    """A machine that stays in a state in which the probe takes twice as long, and programs 2.5 times."""

    def __init__(self, slow: bool = True) -> None:
        super().__init__(1e-3 * (2.5 if slow else 1.0))
        self.slow, self.runs = slow, 0

    def run(self, n):
        self.runs += n
        return self.seconds

    def gauge(self, task):
        return 1e-4 * (2.0 if self.slow else 1.0)


def timed_beside(anchor, slow=True, reference=1e-4, before=None, incumbent_s=1e-4):
    w = before or Worker(Told())  # type: ignore[arg-type]
    w.backend, w.evaluator, w.open_s = Slow(slow), Fixed(), 60.0
    w.tasks["h"] = pickle.dumps(TASK)
    w.held[1] = w.backend
    if before is None:
        w.kept.offer("h", Program(7, anchor, 2e-3, True, reference), math.inf)
    note = lambda stage, seconds: None  # noqa: E731
    w.opened("h", note)
    return w, w.do_time(1, note, "h", 1, Bar(incumbent_s), [0], Terms(False, 9.0, 9.0, 1e-4, 1.0, 0.0))


def test_in_another_state_a_known_program_tells_how_much_programs_suffer():
    anchor = Slow()
    anchor.seconds = 5e-3  # 2 ms in the state that counts
    w, verdict = timed_beside(anchor)
    assert float(np.median(verdict.timing.seconds)) == pytest.approx(1e-3)
    assert verdict.seen is not None and not verdict.seen.met
    assert verdict.seen.sensitivity == pytest.approx(math.log(2.5) / math.log(2))
    runs = anchor.runs
    _, verdict = timed_beside(anchor, before=w)
    assert float(np.median(verdict.timing.seconds)) == pytest.approx(1e-3)
    assert anchor.runs == runs, "it was asked a moment ago"


def test_who_would_be_the_fastest_by_a_correction_takes_turns_with_a_known_program():
    """The probe is slow, and programs are not: what was seen a moment ago, that they take twice as long, is over."""
    anchor = Slow(slow=False)
    anchor.seconds = 2e-3
    w, _ = timed_beside(anchor)
    for incumbent_s, expected in ((1.8e-3, 2.5e-3), (1e-3, 1.25e-3)):  # of the second nobody would make a winner
        w.suffering["h", 1e-4] = time.monotonic(), 2e-4, 1.0
        _, verdict = timed_beside(anchor, before=w, incumbent_s=incumbent_s)
        assert float(np.median(verdict.timing.seconds)) == pytest.approx(expected)
        assert verdict.seen is not None and not verdict.seen.met


def test_turns_with_a_known_program_leave_a_series_as_long_and_as_varied_as_it_was():
    """A recording's timings are replayed one by one: how many there are and how they vary is the evaluator's say."""

    class Series:
        def evaluate(self, run, bar, rng):
            return Timing(tuple(run(1) * k for k in (0.8, 1.0, 1.1, 0.9, 1.0, 1.2, 1.0)), 7)

    anchor = Slow(slow=False)
    anchor.seconds = 2e-3
    w, _ = timed_beside(anchor)
    w.held[1], w.evaluator = Slow(), Series()
    w.suffering["h", 1e-4] = time.monotonic(), 2e-4, 1.0
    timing = w.do_time(1, lambda *_: None, "h", 1, Bar(1.8e-3), [0], Terms(False, 9.0, 9.0, 1e-4, 1.0, 0.0)).timing
    assert timing.seconds == pytest.approx([2.5e-3 * k for k in (0.8, 1.0, 1.1, 0.9, 1.0, 1.2, 1.0)])


def test_a_program_that_is_timed_again_in_another_state_takes_turns_with_a_known_one():
    w = Worker(Told())  # type: ignore[arg-type]
    w.backend, w.evaluator, w.open_s = Slow(), Fixed(), 60.0
    w.tasks["h"] = pickle.dumps(TASK)
    w.kept.offer("h", Program(7, Programs(3e-3), 2e-3, True, 1e-4), math.inf)  # 1.5 times as long now
    w.kept.offer("h", Program(8, Programs(1.5e-3), 0.75e-3, False, 1e-4), math.inf)
    terms = Terms(True, 9.0, 9.0, 1e-4, 1.0, 0.0)
    found = w.do_retime(1, lambda stage, seconds: None, "h", [7, 8], 9.0, terms)
    assert float(np.median(found[8][0].seconds)) == pytest.approx(1e-3)
    assert float(np.median(found[7][0].seconds)) == pytest.approx(1.5e-3), "nobody tells it more than the probe"


def test_without_a_known_program_of_that_state_what_others_suffered_counts():
    anchor = Slow()
    _, verdict = timed_beside(anchor, reference=3e-4)
    assert float(np.median(verdict.timing.seconds)) == pytest.approx(2.5e-3 / 2)
    assert anchor.runs == 0


def test_a_known_program_that_fails_now_tells_nothing():
    _, verdict = timed_beside(None)
    assert float(np.median(verdict.timing.seconds)) == pytest.approx(2.5e-3 / 2)


def test_in_the_state_that_counts_nobody_asks_a_known_program():
    anchor = Slow(slow=False)
    _, verdict = timed_beside(anchor, slow=False)
    assert float(np.median(verdict.timing.seconds)) == pytest.approx(1e-3) and anchor.runs == 0
    assert verdict.seen is not None and verdict.seen.met and verdict.seen.sensitivity is None


def test_a_worker_dies_with_its_parent(monkeypatch):
    tied = []
    monkeypatch.setattr(
        "tt_measure.worker.ctypes.CDLL", lambda name: type("C", (), {"prctl": lambda self, *a: tied.append(a)})()
    )
    module._die_with(os.getppid())
    assert tied == [(1, 9)]
    with pytest.raises(SystemExit):
        module._die_with(os.getpid())  # it ended before this one could be tied to it
    monkeypatch.setattr("tt_measure.worker.sys.platform", "other")
    module._die_with(os.getppid())
    assert len(tied) == 2
