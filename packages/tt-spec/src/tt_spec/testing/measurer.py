"""The contract of measurers, and of what some of them can do beside."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.rng import draw
from tt_spec.roles import (
    Begins,
    Checks,
    Doubts,
    Expects,
    NudgesModels,
    Prepares,
    Prestarts,
    ProfilesModels,
    Races,
    RacesModels,
    Recalibrates,
    Retimes,
    RunsModels,
    StartsModels,
    Traces,
    Work,
    capabilities,
)
from tt_spec.types import Bar, Task, Trial

__all__ = ["MeasurerContract"]


class MeasurerContract:
    """Subclass it and override `piece`, `task` if the measurer cannot time `synthetic_task()`, and `library` if it runs
    deployed libraries."""

    @pytest.fixture
    def piece(self) -> Any:
        """A fresh measurer; close it after `yield` if it holds processes."""
        raise NotImplementedError("override the fixture `piece`")

    @pytest.fixture
    def task(self) -> Task:
        """A task of at least six rows that this measurer can measure."""
        return synthetic_task()

    @pytest.fixture
    def library(self) -> tuple[str, dict[str, np.ndarray]] | None:
        """Path of a deployed library and inputs for it; needed only by a measurer that runs or races models."""
        return None

    def test_yields_one_trial_per_row(self, piece: Any, task: Task) -> None:
        codes = _rows(piece, task, 5)
        for batch in (codes[:3], codes[3:], codes[:1]):
            _check(task, batch, list(piece.measure(task, batch, Bar(cap_s=1.0))))

    def test_measures_no_row_at_all(self, piece: Any, task: Task) -> None:
        none = np.empty((0, len(task.space.knobs)), dtype=np.int64)
        assert list(piece.measure(task, none, Bar())) == []

    def test_closing_early_leaves_it_usable(self, piece: Any, task: Task) -> None:
        codes = _rows(piece, task, 5)
        stream = iter(piece.measure(task, codes[:4], Bar(cap_s=1.0)))
        first = next(stream)
        assert first.config in _configs(codes), "config must be a row that was asked"
        assert isinstance(stream, Generator), "measure must be a generator, so that the loop can abandon it"
        stream.close()
        _check(task, codes[4:], list(piece.measure(task, codes[4:], Bar(cap_s=1.0))))

    def test_a_hard_row_is_a_trial(self, piece: Any, task: Task) -> None:
        codes = np.concatenate([_rows(piece, task, 2), np.asarray(task.space.shape)[None] - 1])
        codes = np.unique(codes, axis=0)
        found = list(piece.measure(task, codes, Bar(incumbent_s=1e-9, cap_s=1e-6)))
        _check(task, codes, found)
        beyond = np.asarray(task.space.shape)[None] + 7
        _check(task, beyond, list(piece.measure(task, beyond, Bar(cap_s=1.0))))

    def test_realise_reads_rows_back(self, piece: Any, task: Task) -> None:
        codes = task.space.sample(6, np.random.default_rng(3))
        real = piece.realise(task, codes)
        assert real.codes.shape == codes.shape, f"realise returns {codes.shape}, got {real.codes.shape}"
        assert len(real.why) == len(codes), "realise says of each row why it has no program, or None"
        assert all(w is None or (isinstance(w, str) and w) for w in real.why), "why is None or text"
        ok = np.array([w is None for w in real.why])
        assert ok.any(), "at least one row of the task must have a program"
        good = real.codes[ok]
        assert task.space.in_range(good).all(), "rows read back must be in range"
        assert np.array_equal(task.space.canonical(good), good), "rows read back must be canonical"
        again = piece.realise(task, good)
        assert np.array_equal(again.codes, good) and not any(again.why), "realising a canonical row must not change it"
        assert piece.realise(task, codes[:0]).codes.shape == (0, codes.shape[1]), "realising no rows gives no rows"

    def test_features_are_aligned(self, piece: Any, task: Task) -> None:
        codes = _rows(piece, task, 3)
        for asked in (codes, codes[:0]):
            found, ok = piece.features(task, asked)
            assert np.shape(ok) == (len(asked),), f"one bool per row, got {np.shape(ok)}"
            n = int(np.sum(ok))
            assert len(found) == n, f"{n} rows have features, {len(found)} programs came"
            assert found.values.ndim == 2 and found.values.shape[1] == 164, f"(total, 164), got {found.values.shape}"
            assert found.operator.shape == (n, 10), f"operator must be ({n}, 10), got {found.operator.shape}"
            assert found.offsets[0] == 0 and found.offsets[-1] == len(found.values), "offsets span the values"
            assert (np.diff(found.offsets) >= 0).all(), "offsets must not fall"
            assert np.isfinite(found.values).all() and np.isfinite(found.operator).all(), "features must be finite"

    def test_starts_early(self, piece: Any, task: Task) -> None:
        if Prestarts in capabilities("measurer", piece):
            assert piece.prestart() is None and piece.prestart() is None, "prestart may be called twice"
        codes = _rows(piece, task, 1)
        _check(task, codes, list(piece.measure(task, codes, Bar(cap_s=1.0))))

    def test_what_is_expected_is_measured_once(self, piece: Any, task: Task) -> None:
        if Expects not in capabilities("measurer", piece):
            return
        codes = _rows(piece, task, 5)
        assert piece.expect(task, codes[:4]) is None and piece.expect(task, codes[:0]) is None
        assert piece.expect(task, codes[1:3]) is None, "rows may be told again"
        for batch in (codes[2:3], codes[4:], codes[:2]):  # in another order, unexpected ones among them, and not all
            _check(task, batch, list(piece.measure(task, batch, Bar(cap_s=1.0))))

    def test_what_is_begun_is_measured_once(self, piece: Any, task: Task) -> None:
        if Begins not in capabilities("measurer", piece):
            return
        codes, bar = _rows(piece, task, 6), Bar(cap_s=1.0)
        assert piece.begin(task, codes[:3], bar) is None and piece.begin(task, codes[:0], bar) is None
        _check(task, codes[:3][::-1], list(piece.measure(task, codes[:3][::-1], bar)))
        piece.begin(task, codes[3:5], bar)
        piece.begin(task, codes[3:5], bar)
        _check(task, codes[4:], list(piece.measure(task, codes[4:], bar)))  # one that was begun, one that was not
        _check(task, codes[3:4], list(piece.measure(task, codes[3:4], bar)))
        _check(task, codes[:2], list(piece.measure(task, codes[:2], bar)))

    def test_traces_its_work_once(self, piece: Any, task: Task) -> None:
        if Traces not in capabilities("measurer", piece):
            return
        began = time.monotonic()
        list(piece.measure(task, _rows(piece, task, 3), Bar(cap_s=1.0)))
        told = time.monotonic()
        found, passed = piece.trace(), time.monotonic() - began
        assert isinstance(found, list) and all(isinstance(w, Work) for w in found), f"a list of Work, got {found!r}"
        assert {"build", "time"} & {w.what for w in found}, f"measuring is building and timing, got {found}"
        for w in found:
            assert w.who >= 0 and w.seconds >= 0 and w.ago_s >= w.seconds - 1e-6, f"work lies in the past, got {w}"
            assert w.ago_s <= passed + 1e-3, f"it cannot have begun {w.ago_s} s ago, {passed} s after the first call"
        again, passed = piece.trace(), time.monotonic() - told
        assert all(w.ago_s <= passed for w in again), f"what was told is not told again, got {again}"

    def test_times_again_what_it_holds(self, piece: Any, task: Task) -> None:
        if Retimes not in capabilities("measurer", piece):
            return
        codes = _rows(piece, task, 4)
        first = {m.config for m in piece.measure(task, codes[:3], Bar(cap_s=1.0)) if m.error is None}
        again = list(piece.retime(task, codes))
        assert all(isinstance(m, Trial) and m.error is None for m in again), "retime yields valid trials"
        configs = [m.config for m in again]
        assert len(set(configs)) == len(configs), f"each row once, got {configs}"
        assert set(configs) <= first | set(_configs(codes[3:])), f"rows that were asked, got {configs}"
        assert set(configs) & first, "at least the fastest program of the last batch is still held"
        assert list(piece.retime(task, codes[:0])) == [], "no rows, no work"

    def test_builds_for_a_race(self, piece: Any, task: Task) -> None:
        if Prepares not in capabilities("measurer", piece):
            return
        codes = _rows(piece, task, 3)
        piece.prepare([(task, codes), (task, codes[:1])])
        assert len(list(piece.measure(task, codes, Bar(cap_s=1.0)))) == 3, "what was prepared is measured as ever"
        piece.prepare([(task, codes[:0])])
        piece.prepare(())
        assert len(list(piece.measure(task, codes, Bar(cap_s=1.0)))) == 3, "and so is what is held no more"

    def test_tells_changes_of_its_scale(self, piece: Any, task: Task) -> None:
        if Recalibrates not in capabilities("measurer", piece):
            return
        assert piece.rescaled(task) == 1, "nothing was told before"
        list(piece.measure(task, _rows(piece, task, 3), Bar(cap_s=1.0)))
        assert 0 < piece.rescaled(task) < math.inf, "a factor"
        assert piece.rescaled(task) == 1, "nothing was told since the last call"

    def test_races_in_turns(self, piece: Any, task: Task) -> None:
        if Races not in capabilities("measurer", piece):
            return
        codes = _rows(piece, task, 3)
        for untuned in (False, True):
            found = piece.race(task, codes, 4, 0.5, untuned)
            assert len(found) == 3 + untuned, f"one list per program, {3 + untuned} in all, got {len(found)}"
            assert all(len(one) == 4 for one in found[:3]), f"four rounds each, got {[len(one) for one in found]}"
            assert len(found[-1]) in (1, 4), "the untuned program's list is whole, or has one entry"
            assert all(np.isfinite(s) and s > 0 for one in found for s in one), "seconds must be finite and positive"
        assert [len(one) for one in piece.race(task, codes, 4, 0.5, False, 1 << 20)] == [4] * 3, (
            "with cold constants, too"
        )

    def test_checks_a_row(self, piece: Any, task: Task) -> None:
        if Checks in capabilities("measurer", piece):
            wrong = piece.check(task, _rows(piece, task, 1)[0])
            assert wrong is None or (isinstance(wrong, str) and wrong), f"None or what is wrong, got {wrong!r}"

    def test_says_what_a_check_did_not_tell(self, piece: Any, task: Task) -> None:
        if Doubts in capabilities("measurer", piece):
            found = piece.doubts(task, _rows(piece, task, 1)[0])
            assert isinstance(found, list) and all(isinstance(x, str) and x for x in found), f"texts, got {found!r}"

    def test_runs_a_library(self, piece: Any, library: tuple[str, dict[str, np.ndarray]] | None) -> None:
        if RunsModels in capabilities("measurer", piece):
            assert library is not None, "override the fixture `library`"
            first, again = (piece.run_model(*library) for _ in range(2))
            assert first and all(isinstance(a, np.ndarray) for a in first), "the outputs are arrays"
            assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True)), "same inputs, other outputs"

    def test_nudges_a_library(self, piece: Any, library: tuple[str, dict[str, np.ndarray]] | None) -> None:
        if NudgesModels in capabilities("measurer", piece):
            assert library is not None, "override the fixture `library`"
            found, again = (piece.nudge_model(*library, 1e-3, (1, 2)) for _ in range(2))
            whole = piece.nudge_model(*library, 0.0, (1,))[0]
            assert len(found) == 2 and all(len(run) == len(whole) for run in found), "the outputs, once for each seed"
            runs = [(a, b) for x, y in zip(found, again, strict=True) for a, b in zip(x, y, strict=True)]
            assert all(np.array_equal(a, b) for a, b in runs), "a seed says what is changed"
            floats = [i for i, a in enumerate(whole) if a.dtype.kind == "f" and np.any(a)]
            for run in found if floats else ():
                assert any(not np.array_equal(run[i], whole[i]) for i in floats), "nothing was nudged"
                assert all(np.abs(run[i] - whole[i]).max() < np.abs(whole[i]).max() for i in floats), "far too much was"

    def test_runs_a_library_beside_its_caller(
        self, piece: Any, library: tuple[str, dict[str, np.ndarray]] | None
    ) -> None:
        if StartsModels in capabilities("measurer", piece):
            assert library is not None, "override the fixture `library`"
            wait = piece.start_model(*library, 1e-3, (1, 2))
            want, nudged = piece.run_model(*library), piece.nudge_model(*library, 1e-3, (1, 2))
            for _ in range(2):
                plain, runs = wait()
                assert len(runs) == 2, f"one run for each seed, got {len(runs)}"
                pairs = zip([plain, *runs], [want, *nudged], strict=True)
                same = [np.array_equal(a, b) for x, y in pairs for a, b in zip(x, y, strict=True)]
                assert all(same), "the outputs are those of `run_model` and `nudge_model`"

    def test_races_libraries(self, piece: Any, library: tuple[str, dict[str, np.ndarray]] | None) -> None:
        if RacesModels in capabilities("measurer", piece):
            assert library is not None, "override the fixture `library`"
            path, inputs = library
            found = piece.race_models([path, path], inputs, 0.2, 3)
            assert len(found) == 2 and all(found), f"a list of seconds per library, got {found}"
            assert all(np.isfinite(s) and s > 0 for one in found for s in one), "seconds must be finite and positive"

    def test_profiles_libraries(self, piece: Any, library: tuple[str, dict[str, np.ndarray]] | None) -> None:
        if ProfilesModels in capabilities("measurer", piece):
            assert library is not None, "override the fixture `library`"
            path, inputs = library
            found = piece.profile_models([path, path], inputs, 0.2, 3)
            assert len(found) == 2 and all(found), f"functions and their seconds per library, got {found}"
            assert found[0].keys() == found[1].keys(), "a library has the same functions each time"
            rounds = [seconds for one in found for seconds in one.values()]
            assert len({len(seconds) for seconds in rounds}) == 1, "as many seconds of each function as rounds"
            assert all(np.isfinite(s) and s >= 0 for seconds in rounds for s in seconds), "seconds must be finite"

    def test_closes_twice(self, piece: Any, task: Task) -> None:
        codes = _rows(piece, task, 2)
        _check(task, codes, list(piece.measure(task, codes, Bar(cap_s=1.0))))
        piece.close()
        piece.close()

    def test_closes_unused(self, piece: Any) -> None:
        piece.close()


def _rows(piece: Any, task: Task, n: int) -> np.ndarray:
    """Distinct rows as the pipeline would ask them."""
    real = piece.realise(task, draw(task.space, set(), 4 * n, np.random.default_rng(0)))
    kept = real.codes[[w is None for w in real.why]]
    _, first = np.unique(kept, axis=0, return_index=True)
    codes = kept[np.sort(first)][:n]
    assert len(codes) == n, f"the task must have at least {n} rows with a program, {len(codes)} were found"
    return codes


def _configs(codes: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(int(c) for c in row) for row in codes]


def _check(task: Task, codes: np.ndarray, found: list[Trial]) -> None:
    for m in found:
        assert isinstance(m, Trial), f"measure yields Trials, got {type(m).__name__}"
        assert m.error is None or m.why, f"a failed trial says why, {m.error!r} came alone"
        assert m.error is not None or m.runs >= len(m.seconds), "runs counts all executions"
    got, asked = sorted(m.config for m in found), sorted(_configs(codes))
    assert got == asked, f"one trial per row: {asked} were asked, {got} came"
