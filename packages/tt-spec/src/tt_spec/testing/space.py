"""The contract of space builders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tt_spec.rng import draw
from tt_spec.roles import Assures, Interprets, Prestarts, ReadsTraces, Reopens, capabilities
from tt_spec.space import Space

__all__ = ["SpaceContract"]


class SpaceContract:
    """Subclass it and override `piece` and `operator`."""

    @pytest.fixture
    def piece(self) -> Any:
        """A builder."""
        raise NotImplementedError("override the fixture `piece`")

    @pytest.fixture
    def operator(self) -> tuple[Any, Any]:
        """The arguments of `open`: a module with one function "main", and a target."""
        raise NotImplementedError("override the fixture `operator`")

    def test_opens_the_same_space_again(self, piece: Any, operator: tuple[Any, Any]) -> None:
        spaces = [piece.open(*operator).space for _ in range(2)]
        assert all(isinstance(s, Space) for s in spaces), f"open(...).space is a Space, got {type(spaces[0]).__name__}"
        assert spaces[0].key == spaces[1].key, "a worker must derive the space that the task was made with"

    def test_rows_become_programs_and_rows_again(self, piece: Any, operator: tuple[Any, Any]) -> None:
        work = piece.open(*operator)
        made = 0
        for row in draw(work.space, set(), 8, np.random.default_rng(0)):
            try:
                schedule = work.apply(row)
            except ValueError as e:
                assert str(e), "a row without a program says why"
                continue
            made += 1
            found = work.read(schedule, row)
            assert found.shape == row.shape and work.space.in_range(found[None])[0], f"read gives a row, got {found}"
            assert np.array_equal(work.space.canonical(found[None])[0], found), "rows read back must be canonical"
            again = work.read(work.apply(found), found)
            assert np.array_equal(again, found), "reading back must not change a row again"
        assert made, "at least one of eight rows must have a program"

    def test_a_row_outside_is_refused(self, piece: Any, operator: tuple[Any, Any]) -> None:
        work = piece.open(*operator)
        with pytest.raises(ValueError):
            work.apply(np.asarray(work.space.shape))

    def test_features_are_per_statement(self, piece: Any, operator: tuple[Any, Any]) -> None:
        work = piece.open(*operator)
        schedules = []
        for row in draw(work.space, set(), 8, np.random.default_rng(1)):
            try:
                schedules.append(work.apply(row))
            except ValueError:
                continue
        found = work.features(schedules[:2])
        assert len(found) == len(schedules[:2]), "features of each program"
        shapes = [f.shape for f in found]
        assert all(len(shape) == 2 and shape[1] == 164 for shape in shapes), f"(statements, 164), got {shapes}"

    def test_interprets_rows_as_their_programs(self, piece: Any, operator: tuple[Any, Any]) -> None:
        work = piece.open(*operator)
        rows = draw(work.space, set(), 8, np.random.default_rng(3))
        able: Any = work
        if not isinstance(able, Interprets):
            return
        found = able.interpret(rows)
        assert len(found) == len(rows), f"features or None for each of {len(rows)} rows, got {len(found)}"
        for row, mine in zip(rows, found, strict=True):
            if mine is not None:
                (theirs,) = work.features([work.apply(row)])
                assert mine.shape == theirs.shape, f"features of shape {theirs.shape}, got {mine.shape}"
                assert np.allclose(mine, theirs, rtol=1e-5, atol=1e-6), f"row {row}: not its program's features"

    def test_rows_that_it_assures_have_programs(self, piece: Any, operator: tuple[Any, Any]) -> None:
        work = piece.open(*operator)
        able: Any = work
        if not isinstance(able, Assures):
            return
        rows = draw(work.space, set(), 8, np.random.default_rng(6))
        outside = np.asarray(work.space.shape)[None]
        sure = able.assured(np.concatenate([rows, outside]))
        assert sure.shape == (len(rows) + 1,) and sure.dtype == bool, f"a bool for each row, got {sure!r}"
        assert not sure[-1], "a row outside the space has no program"
        for row in rows[sure[:-1]]:
            assert np.array_equal(_read(work, row), row), f"row {row} is assured, and its program is of another or none"

    def test_knows_the_rows_of_its_own_traces(self, piece: Any, operator: tuple[Any, Any]) -> None:
        work = piece.open(*operator)
        able: Any = work
        if not isinstance(able, ReadsTraces):
            return
        for row in draw(work.space, set(), 8, np.random.default_rng(4)):
            try:
                schedule = work.apply(row)
            except ValueError:
                continue
            mine = work.read(schedule, row)
            found = able.row_of(able.trace_of(work.apply(mine)))
            assert np.array_equal(found, mine), f"the trace of row {mine} is of row {found}"
        for rubbish in (None, [], [[], []], {"a": 1}):
            with pytest.raises((ValueError, TypeError)):
                able.row_of(rubbish)

    def test_says_how_constants_are_repacked(self, piece: Any, operator: tuple[Any, Any]) -> None:
        work = piece.open(*operator)
        for row in draw(work.space, set(), 8, np.random.default_rng(2)):
            how = work.repack(row)
            assert how is None or how == work.repack(row), "the same row, the same form"

    def test_starts_early(self, piece: Any, operator: tuple[Any, Any]) -> None:
        if Prestarts in capabilities("space", piece):
            before = piece.open(*operator).space.key
            assert piece.prestart() is None and piece.prestart() is None, "prestart may be called twice"
            assert piece.open(*operator).space.key == before, "starting early must not change the space"

    def test_reopens_the_same_space(self, piece: Any, operator: tuple[Any, Any]) -> None:
        if Reopens not in capabilities("space", piece):
            return
        first = piece.open(*operator)
        again = piece.reopen(*operator, first.space)
        assert again.space.key == first.space.key, "reopen gives the workload of the space that it is given"
        for row in draw(first.space, set(), 8, np.random.default_rng(5)):
            mine, theirs = _read(first, row), _read(again, row)
            assert np.array_equal(mine, theirs), (
                f"row {row} of what was opened is {mine}, of what was reopened {theirs}"
            )

    def test_says_how_operators_are_written(self, piece: Any, operator: tuple[Any, Any]) -> None:
        found = piece.legalizers(operator[1])
        assert all(isinstance(name, str) and callable(how) for name, how in found.items()), f"got {found!r}"


def _read(work: Any, row: np.ndarray) -> np.ndarray:
    """The row of a row's program; one of -1 where it has none."""
    try:
        return np.asarray(work.read(work.apply(row), row))
    except ValueError:
        return np.full(len(row), -1)
