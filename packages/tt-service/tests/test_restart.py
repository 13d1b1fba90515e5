"""A desk that is built again from its journal while rows of several operators wait and are out."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import numpy as np
import pytest
from tt_service import wire
from tt_service.broker import Agent
from tt_service.desk import Desk
from tt_service.jobs import Job
from tt_service_house import job_of
from tt_spec import Task
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.types import Bar

TASKS = tuple(synthetic_task(f"toy{i}", 5) for i in range(3))
TRIALS = 40


def met(desk: Desk, *names: str) -> Desk:
    for name in names:
        desk.meet(Agent(name, "toy", evaluators=("once",)))
    return desk


def work(desk: Desk, agent: str, rows: int = 64) -> wire.Asked | None:
    """The rows that an agent is given within a second; it answers what else is asked of it meanwhile."""
    while True:
        waiter = desk.ask(agent, rows)
        try:
            asked = waiter.future.result(1.0)
        except TimeoutError:
            desk.leave(waiter)
            asked = waiter.future.result(0)
        if asked is None or asked.kind == "measure":
            return asked
        found = None
        if asked.kind == "realise":
            found = SyntheticMeasurer().realise(task_of(asked), np.array(asked.rows))
        realised = None if found is None else wire.RealisedWire.of(found)
        desk.tell(agent, wire.Tell(batch=asked.batch, realised=realised, done=True))


def tell(desk: Desk, agent: str, asked: wire.Asked, most: int | None = None) -> None:
    """Results of the first rows of a batch that have none, of all where no number is given."""
    task = task_of(asked)
    trials = SyntheticMeasurer().measure(task, np.array(asked.rows), Bar(flops=task.flops))
    done = [wire.Answer(at=i, trial=wire.TrialWire.of(t)) for i, t in enumerate(trials) if i not in asked.done]
    desk.tell(agent, wire.Tell(batch=asked.batch, trials=done[:most]))


def task_of(asked: wire.Asked) -> Task:
    return next(t for t in TASKS if t.key == asked.task)


def begun(desk: Desk, **more: object) -> Job:
    job = desk.add(job_of(*TASKS, trials=TRIALS, sets=["batch=8", "evaluator=once"], **more), "me")
    job.ready.result(60)
    return job


def rows(desk: Desk) -> list[tuple[str, tuple[int, ...]]]:
    return [(m.task_key, m.config) for m in desk.store(None).query()]


def test_rows_of_before_are_measured_as_they_were_asked_and_then_the_job_thinks_on(tmp_path):
    path = tmp_path / "h.db"
    with closing(met(Desk(path), "a", "b")) as desk:
        job = begun(desk)
        held = work(desk, "a", 4)
        assert held is not None and held.kind == "measure" and held.evaluator.piece == "once"
        tell(desk, "a", held, 1)
    with closing(met(Desk(path), "a", "b")) as desk:
        again = desk.jobs[job.record.id]
        assert again.runner is None and desk.told(again).waiting == "rows asked for before"
        other = work(desk, "b")
        assert other is not None and other.evaluator.piece == "once", "before its process has said anything"
        tell(desk, "b", other)
        mine = work(desk, "a")
        assert mine is not None and (mine.batch, mine.rows, mine.done) == (held.batch, held.rows, [0])
        while mine is not None and again.runner is None:
            tell(desk, "a", mine)
            assert (again.runner is None) == (again.record.id in desk.broker.pending)
            mine = work(desk, "a")
        assert again.runner is not None and again.record.trials >= 8


@pytest.mark.parametrize("seed", range(2))
def test_a_job_measures_its_trials_however_often_the_desk_is_built_again(tmp_path, seed):
    path, lives, agents = tmp_path / "h.db", 0, "abc"
    desk = met(Desk(path), *agents)
    job = begun(desk, seed=seed)
    until = time.monotonic() + 120
    while desk.jobs[job.record.id].record.state == "running" and time.monotonic() < until:
        held = [(agent, asked) for agent in agents if (asked := work(desk, agent, 3)) is not None]
        again = bool(held) and lives < 8 and desk.jobs[job.record.id].record.trials >= 8
        for i, (agent, asked) in enumerate(held):
            tell(desk, agent, asked, 1 if again and i != (lives + seed) % 3 else None)
        if again:
            desk.close()
            desk, lives = met(Desk(path), *agents), lives + 1
    with closing(desk):
        record, found = desk.jobs[job.record.id].record, rows(desk)
        assert (record.state, record.trials, lives) == ("done", TRIALS, 8), record.reason
        assert len(found) == len(set(found)) == TRIALS


def test_a_journal_of_before_jobs_kept_their_evaluator_is_read(tmp_path):
    with closing(Desk(tmp_path / "h.db")) as desk:
        job = begun(desk)
        desk.pause(job)
        path = desk.journal.path
    with closing(sqlite3.connect(path)) as db:
        db.execute("ALTER TABLE jobs DROP COLUMN evaluator")
        db.commit()
    with closing(Desk(tmp_path / "h.db")) as desk:
        assert desk.jobs[job.record.id].record.state == "paused"
