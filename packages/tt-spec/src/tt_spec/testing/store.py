"""The contract of stores, and of what some of them can do beside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.roles import Lends, ListsRuns, RanksRuns, Recalls, Remembers, Summarises, capabilities
from tt_spec.types import ERRORS, Measurement, Task, Trial

__all__ = ["StoreContract"]


class StoreContract:
    """Subclass it and override `piece`."""

    @pytest.fixture
    def piece(self) -> Any:
        """An empty store."""
        raise NotImplementedError("override the fixture `piece`")

    def test_an_empty_store_has_nothing(self, piece: Any) -> None:
        assert list(piece.query()) == []
        assert piece.best("nothing") is None
        piece.append([])
        assert list(piece.query()) == [], "appending nothing adds nothing"

    def test_gives_back_what_was_appended(self, piece: Any) -> None:
        given = [_valid(0), *_failures(), _valid(9, seconds=(1e-9, 3.25, 0.1 + 0.2))]
        piece.append(given)
        found = list(piece.query())
        assert len(found) == len(given), f"{len(given)} were appended, {len(found)} came back (failures are data)"
        for a, b in zip(given, found, strict=True):
            assert a == b, f"a measurement must come back as it was: {a} became {b}"

    def test_keeps_the_order_of_arrival(self, piece: Any) -> None:
        given = [_valid(i, at=100.0 - i) for i in (3, 1, 2)]
        piece.append(given[:2])
        piece.append(given[2:])
        assert [m.config for m in piece.query()] == [m.config for m in given], "query is in the order of arrival"

    def test_is_append_only(self, piece: Any) -> None:
        a, b = _valid(1, seconds=(1.0,), at=1.0), _valid(1, seconds=(2.0,), at=2.0)
        piece.append([a])
        piece.append([b])
        assert list(piece.query()) == [a, b], "one row measured twice is two measurements"

    def test_filters(self, piece: Any) -> None:
        given = [
            _valid(0, task="t1", space="s1", device="d1"),
            _valid(1, task="t1", space="s2", device="d1"),
            _valid(2, task="t2", space="s1", device="d2"),
        ]
        piece.append(given)
        for wanted, rows in (
            ({"task_key": "t1"}, [0, 1]),
            ({"space_key": "s1"}, [0, 2]),
            ({"device": "d2"}, [2]),
            ({"task_key": "t1", "space_key": "s1", "device": "d1"}, [0]),
            ({"task_key": "t1", "device": "d2"}, []),
            ({"task_key": "T1"}, []),
        ):
            found = [m.config[0] for m in piece.query(**wanted)]
            assert found == rows, f"query({wanted}) must give rows {rows}, got {found}"

    def test_best_is_the_lowest_median(self, piece: Any) -> None:
        piece.append([*_failures(), _valid(1, seconds=(1e-3, 9e-3, 9e-3)), _valid(2, seconds=(5e-3, 5e-3, 5e-3))])
        piece.append([_valid(3, seconds=(6e-3,)), _valid(4, task="other", seconds=(1e-6,))])
        piece.append([_valid(5, device="d2", seconds=(4e-3,))])
        for device, row in (("d1", 2), ("d2", 5), (None, 5), ("d3", None)):
            best = piece.best("t1", device)
            got = None if best is None else best.config[0]
            assert got == row, f"best of device {device!r} must be row {row} (median of the timed runs), got {got}"

    def test_the_latest_verdict_on_a_row_counts(self, piece: Any) -> None:
        piece.append([_valid(1, seconds=(1e-3,)), _valid(2, seconds=(2e-3,)), _valid(3, seconds=(4e-3,))])
        piece.append([_valid(3, seconds=(3e-3,)), _valid(1, space="s2", seconds=(9e-3,))])
        wrong = Measurement("t1", "s1", _valid(1).config, error="wrong-result", why="too large by 1", device="d1")
        piece.append([wrong])
        best = piece.best("t1")
        got = None if best is None else best.config[0]
        assert got == 2, f"row 1 was found wrong later, so the best is row 2, got {got}"
        piece.append([_valid(2, seconds=(5e-3,))])
        best = piece.best("t1")
        got = None if best is None else best.latency_s
        assert got == 3e-3, f"row 2 was measured again at 5 ms, so the best is row 3 with its later 3 ms, got {got}"

    def test_failures_have_no_best(self, piece: Any) -> None:
        piece.append(_failures())
        assert piece.best("t1") is None, "a failed candidate is never the best"

    def test_runs_have_ids(self, piece: Any) -> None:
        info = {"seed": 1, "recipe": {"searcher": "random"}, "versions": {"tvm": "0"}, "device": "d1", "started": 1.5}
        one, two = piece.begin_run(info), piece.begin_run({})
        assert isinstance(one, str) and one and isinstance(two, str), "begin_run returns the run's id as text"
        assert one != two, "every run has an id of its own"
        piece.append([_valid(0, run=one)])
        piece.end_run(one, "every task is finished")
        piece.end_run(two, "failed: OSError: disk full")
        assert [m.run_id for m in piece.query()] == [one], "a measurement keeps its run"

    def test_remembers_tasks(self, piece: Any) -> None:
        if Remembers not in capabilities("store", piece):
            return
        tasks = [synthetic_task("a"), synthetic_task("b")]
        piece.remember([])
        piece.remember(tasks)
        piece.remember(tasks[:1])
        assert list(piece.query()) == [], "a task is no measurement"

    def test_recalls_tasks(self, piece: Any) -> None:
        if Recalls not in capabilities("store", piece):
            return
        task, other = replace(synthetic_task("a"), payload=b"its workload"), synthetic_task("b")
        assert piece.task(task.key) is None, "None where a task was never remembered"
        piece.remember([task, other])
        found = piece.task(task.key)
        assert found is not None and (found.key, found.payload) == (task.key, task.payload), "a task as it was kept"

    def test_lists_its_runs(self, piece: Any) -> None:
        if ListsRuns not in capabilities("store", piece):
            return
        one, two = piece.begin_run({"seed": 1}), piece.begin_run({"model": "m"})
        piece.end_run(one, "5 trials are spent")
        runs = piece.runs()
        assert [r["id"] for r in runs] == [one, two], "runs are listed in their order"
        assert [r["reason"] for r in runs] == ["5 trials are spent", None], "None while a run is unfinished"
        assert runs[0]["info"]["seed"] == 1 and runs[1]["info"]["model"] == "m", "info is what begin_run was told"
        assert all(isinstance(r["started"], int | float) for r in runs), "started is in seconds since the epoch"

    def test_ranks_the_rows_of_each_run(self, piece: Any) -> None:
        if RanksRuns not in capabilities("store", piece):
            return
        assert piece.bests() == {}, "an empty store has no best"
        one, two = piece.begin_run({}), piece.begin_run({})
        piece.append([_valid(0, seconds=(3e-3,), run=one), _valid(1, seconds=(2e-3,), run=one), *_failures()])
        piece.append([_valid(2, task="t2", seconds=(5e-3,), run=one), _valid(3, seconds=(4e-3,), run=two)])
        piece.append([replace(_valid(3, seconds=(1e-3,), run=two), origin="again")])
        expected = {(one, "t1"): 2e-3, (one, "t2"): 5e-3, (two, "t1"): 4e-3}
        got = {key: s for key, s in piece.bests().items() if key[0] in (one, two)}
        assert got == expected, f"the fastest of each run and task, those timed again apart, got {got}"

    def test_summarises_tasks(self, piece: Any) -> None:
        if Summarises not in capabilities("store", piece):
            return
        piece.append([*_failures(), _valid(1, seconds=(2e-3,)), _valid(2, seconds=(1e-3,)), _valid(3, task="t2")])
        found = {(t["task_key"], t["device"]): t for t in piece.summary()}
        assert set(found) == {("t1", "d1"), ("t2", "d1")}, f"an entry per task and device, got {sorted(found)}"
        assert found["t1", "d1"]["best_s"] == 1e-3 and found["t1", "d1"]["trials"] >= 2
        assert found["t1", "d1"]["failed"] >= 1, "failures are counted"
        assert all({"name", "op"} <= set(t) for t in found.values()), "name and op are there, None where unknown"

    def test_lends_what_is_not_the_tasks_own(self, piece: Any) -> None:
        if Lends not in capabilities("store", piece):
            return
        task, other = synthetic_task("a"), synthetic_task("b")
        assert piece.lend(task, "d1", 100) == [], "an empty store lends nothing"
        if Remembers in capabilities("store", piece):
            piece.remember([task, other])
        piece.append([_of(task, i, "d1") for i in range(3)])
        assert piece.lend(task, "d1", 100) == [], "rows of the task's own space on this device are no loan"
        piece.append([_of(task, i, "d2") for i in range(4)])
        piece.append([_of(other, i, "d1") for i in range(5)])
        piece.append([_of(task, 0, "d2", seconds=(9.0,)), _of(task, 1, "d2", seconds=())])
        found = piece.lend(task, "d1", 100)
        assert [(f.task.key, len(f.rows), f.source) for f in found][:1] == [(task.key, 4, "device")], (
            "this workload on another device comes first, each row once"
        )
        assert {f.task.key for f in found} == {task.key, other.key}, "other tasks of the kind come too"
        latest = dict(zip(map(tuple, found[0].rows.tolist()), found[0].seconds.tolist(), strict=True))
        assert latest[0, 0, 0, 0] == 9.0 and latest[1, 0, 0, 0] == float("inf"), "of a row the latest verdict counts"
        assert all(f.task.space.key == task.space.key and np.shape(f.rows)[1] == 4 for f in found)
        assert sum(len(f.rows) for f in piece.lend(task, "d1", 3)) <= 3, "no more rows than were asked for"

    def test_closes(self, piece: Any) -> None:
        piece.append([_valid(0)])
        piece.close()


def _valid(
    row: int,
    task: str = "t1",
    space: str = "s1",
    device: str = "d1",
    seconds: tuple[float, ...] = (1e-3, 2e-3),
    at: float = 1.7e9,
    run: str = "",
) -> Measurement:
    return Measurement(
        task,
        space,
        (row, 0, 3),
        {"tile": (2, 4, 8), "unroll": 16, "layout": "packed \N{SNOWMAN}", "on": True, "scale": 0.5},
        seconds,
        runs=len(seconds) + 1,
        why="two runs agree",
        cost={"build": 0.25, "run": 0.125},
        origin="random",
        device=device,
        versions={"tvm": "0.27"},
        at=at,
        run_id=run,
    )


def _of(task: Task, row: int, device: str, seconds: tuple[float, ...] = (1e-3,)) -> Measurement:
    trial = Trial((row, 0, 0, 0), seconds, error=None if seconds else "build")
    return Measurement.of(trial, task, device=device)


def _failures() -> list[Measurement]:
    return [
        Measurement("t1", "s1", (20 + i, 1, 1), error=e, why=f"why {e}\nline two", device="d1")
        for i, e in enumerate(ERRORS)
    ]
