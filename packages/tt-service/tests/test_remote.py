"""The measurer whose rows are measured elsewhere keeps the contract of measurers."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from tt_service.broker import Agent, Broker, Needs
from tt_service.remote import Halted, RemoteMeasurer
from tt_service_house import Judge
from tt_spec.errors import ProgramError
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.testing import MeasurerContract
from tt_spec.types import Bar


class Door:
    """A broker and one agent behind a door, without threads: whoever waits lets the agent work."""

    def __init__(self, rows=3):
        self.broker, self.measurer, self.rows = Broker(), Judge(), rows
        self.begun = {}
        self.tasks, self.out, self.numbers, self.bodies, self.bars = {}, deque(), {}, {}, {}
        self.broker.meet(Agent("me/a", "toy", ("*",), ("fixed",)), 0.0)

    def open(self, *tasks):
        self.tasks |= {t.key: t for t in tasks}
        self.broker.open("job", {k: Needs("", t.target, t.space.key, "fixed") for k, t in self.tasks.items()})

    def send(self, what, **fields):
        task = fields["task"]
        if what in ("begin", "measure"):
            self.bars[task] = fields["bar"]
            begun = self.begun.setdefault(task, set())
            rows = zip(fields["rows"], fields["origins"], strict=True)
            self.broker.want("job", task, [(r, origin) for r, origin in rows if r not in begun])
            (begun.update if what == "begin" else begun.difference_update)(fields["rows"])
        elif what == "unwant":
            self.broker.unwant("job", task, fields["rows"])
        elif what == "call":
            call = self.broker.call("job", task, fields["kind"], fields["rows"])
            self.numbers[call], self.bodies[call] = fields["number"], fields["body"]

    def receive(self):
        while not self.out:
            self.work()
        return self.out.popleft()

    def work(self):
        batch = self.broker.ask("me/a", self.rows, 0.0)
        assert batch is not None, "somebody waits for what nobody was asked for"
        task, codes = self.tasks[batch.task], np.array(batch.rows, dtype=np.int64)
        codes = codes.reshape(len(batch.rows), len(self.tasks[batch.task].space.knobs))
        if batch.call is None:
            for at, trial in enumerate(self.measurer.measure(task, codes, self.bars[batch.task])):
                taken = self.broker.tell("me/a", batch.id, [(at, trial)], 0.0).taken
                if taken and taken[0].first:
                    self.out.append({"what": "trial", "task": batch.task, "trial": trial})
            return
        call = self.broker.answer("me/a", batch.id, 0.0)
        assert call is not None
        number, body = self.numbers[call.id], self.bodies[call.id]
        value, trials = None, []
        if batch.kind == "realise":
            found = self.measurer.realise(task, codes)
            value = [found.codes, list(found.why)]
        elif batch.kind == "features":
            value = list(self.measurer.features(task, codes))
        elif batch.kind == "retime":
            trials = list(self.measurer.retime(task, codes))
        elif batch.kind == "race":
            value = self.measurer.race(task, codes, **body)
        self.out.append({"what": "answer", "number": number, "value": value, "trials": trials})


class TestRemoteMeasurer(MeasurerContract):
    @pytest.fixture
    def piece(self):
        door = Door()
        door.open(synthetic_task())
        return RemoteMeasurer(door)


def test_a_halt_is_known_where_it_waits():
    door, reasons = Door(), []
    door.open(synthetic_task())
    door.out.append({"what": "halt", "reason": "paused"})
    with pytest.raises(Halted, match="paused"):
        list(RemoteMeasurer(door, halted=reasons.append).measure(synthetic_task(), np.zeros((1, 4), int), Bar()))
    assert reasons == ["paused"]


def test_what_two_agents_died_on_is_a_program_that_failed():
    door = Door()
    door.open(synthetic_task())
    failed = {"error": "run", "why": "two agents died"}
    door.out.append({"what": "answer", "number": 1, "value": None, "trials": [], "failed": failed})
    with pytest.raises(ProgramError, match="two agents died"):
        RemoteMeasurer(door).check(synthetic_task(), np.zeros(4, int))


def test_a_result_that_came_before_it_was_asked_for_is_not_asked_again():
    task, door = synthetic_task(), Door()
    door.open(task)
    codes = np.array([[0, 0, 0, 1], [0, 0, 0, 2]])
    early = next(Judge().measure(task, codes[:1], Bar()))
    door.out.append({"what": "trial", "task": task.key, "trial": early})
    remote = RemoteMeasurer(door)
    remote.realise(task, codes)
    found = list(remote.measure(task, codes, Bar()))
    assert [t.config for t in found] == [(0, 0, 0, 1), (0, 0, 0, 2)] and found[0] is early
    assert not door.broker.rows
