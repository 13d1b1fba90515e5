"""The broker under any order of asks, tells, deaths, returns and restarts: nothing lost, nothing double."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from tt_service.broker import LEASE_S, RETURNS, Agent, Batch, Broker, Needs, Row
from tt_service.journal import Journal

TASKS = {"j0": "t0", "j1": "t1"}
AGENTS = ("me/a", "me/b", "you/c")


class Ledger(RuleBasedStateMachine):
    """A broker, its journal, and what may be said of both after every step."""

    batches = Bundle("batches")

    @initialize()
    def begin(self):
        self.journal, self.now, self.made = Journal(":memory:"), 0.0, 0
        self.wanted: dict[str, int] = {"j0": 0, "j1": 0}
        self.first: set[tuple[str, tuple[int, ...]]] = set()
        self.dead: set[tuple[str, tuple[int, ...]]] = set()
        self.told: dict[tuple[str, int], int] = {}
        self.start()

    def start(self):
        self.broker = Broker(self.journal.past, self.make_id)
        for job, task in TASKS.items():
            self.broker.open(job, {task: Needs("cpu", "llvm", "space", "fixed")})
        self.broker.restore(*self.journal.pending(), self.now)
        for agent in AGENTS:
            self.broker.meet(Agent(agent, "cpu", ("llvm",), ("fixed",)), self.now)
        self.flush()

    def make_id(self):
        self.made += 1
        return f"id{self.made}"

    def flush(self, taken=()):
        for one in self.broker.dead:
            assert isinstance(one, Row) and one.deaths == 2
            key = one.job, one.config
            assert key not in self.first | self.dead, "a row has one end"
            self.dead.add(key)
        self.broker.dead = []
        self.journal.write(self.broker.changes, [(t, "text") for t in taken])
        self.broker.changes = []

    @rule(job=st.sampled_from(sorted(TASKS)), n=st.integers(1, 9))
    def want(self, job, n):
        rows = range(self.wanted[job], self.wanted[job] + n)
        self.broker.want(job, TASKS[job], [((i, i), "search") for i in rows])
        self.broker.want(job, TASKS[job], [((i, i), "again") for i in rows])
        self.wanted[job] += n
        self.flush()

    @rule(target=batches, agent=st.sampled_from(AGENTS), n=st.integers(1, 8))
    def ask(self, agent, n):
        held = self.broker.held.get(agent)
        until = self.broker.batches[held].until if held else 0.0
        batch = self.broker.ask(agent, n, self.now)
        self.flush()
        if held is not None and until > self.now:
            assert batch is not None and batch.id == held, "an agent gets its own lease again"
        if batch is None:
            return agent, "nothing", 0
        assert len(batch.rows) <= 8 and batch.until == self.now + LEASE_S
        return agent, batch.id, len(batch.rows)

    @rule(which=batches, places=st.sets(st.integers(0, 7)))
    def tell(self, which, places):
        agent, batch, rows = which
        places = [p for p in places if p < rows]
        before = {p for p in places if (batch, p) in self.told}
        counts = self.broker.tell(agent, batch, [(p, f"{batch}-{p}") for p in places], self.now)
        if not rows:
            assert counts.unknown == len(places)
            return
        assert len(counts.taken) + counts.before == len(places) and not counts.unknown, "every result counts"
        assert {t.at for t in counts.taken} == set(places) - before, "once"
        for t in counts.taken:
            self.told[batch, t.at] = 1
            if t.first:
                key = t.batch.job, t.batch.rows[t.at]
                assert key not in self.first | self.dead, "a job hears of a row once"
                self.first.add(key)
        self.flush(counts.taken)

    @rule(which=batches, other=st.sampled_from(AGENTS))
    def tell_of_anothers(self, which, other):
        agent, batch, rows = which
        if agent != other and rows:
            assert self.broker.tell(other, batch, [(0, "theirs")], self.now).unknown == 1

    @rule(which=batches)
    def tell_too_much(self, which):
        agent, batch, rows = which
        if rows:
            with pytest.raises(ValueError, match="rows, a result is for row"):
                self.broker.tell(agent, batch, [(rows, "beyond")], self.now)

    @rule(which=batches)
    def beat(self, which):
        agent, batch, _ = which
        mine = self.broker.batches.get(batch)
        lost = self.broker.heartbeat(agent, [batch], self.now)
        assert (batch in lost) == (mine is None or mine.id not in self.broker.batches)
        self.flush()

    @rule(seconds=st.sampled_from([1.0, LEASE_S - 1, LEASE_S + 1]))
    def wait(self, seconds):
        self.now += seconds
        self.broker.expire(self.now)
        self.flush()

    @rule(agent=st.sampled_from(AGENTS))
    def come_back(self, agent):
        self.broker.meet(Agent(agent, "cpu", ("llvm",), ("fixed",)), self.now)
        self.flush()

    @rule(which=batches)
    def release(self, which):
        agent, batch, _ = which
        there = batch in self.broker.batches
        assert self.broker.release(agent, batch, self.now) == there
        assert batch not in self.broker.batches
        self.flush()

    @rule()
    def restart(self):
        self.start()

    @invariant()
    def every_row_is_in_one_place(self):
        out: dict[tuple[str, tuple[int, ...]], str] = {}
        for batch in self.broker.batches.values():
            for row in batch.rows:
                mine = self.broker.rows.get((batch.job, batch.task, row))
                if mine is not None and mine.batch == batch.id:
                    assert (batch.job, row) not in out, "a row is out once"
                    out[batch.job, row] = batch.id
        for job in TASKS:
            waiting = {(job, c) for _, c in self.broker.waiting[job]}
            mine = {key for key in out if key[0] == job}
            ended = {key for key in self.first | self.dead if key[0] == job}
            every = {(job, (i, i)) for i in range(self.wanted[job])}
            assert waiting | mine | ended == every and len(waiting) + len(mine) + len(ended) == len(every)
            assert (job in self.broker.pending) == bool(waiting or mine)
            assert len([r for r in self.broker.rows.values() if r.job == job]) == len(waiting) + len(mine)

    @invariant()
    def the_journal_has_every_result_once(self):
        found = self.journal.db.execute("SELECT batch, at FROM results").fetchall()
        assert sorted(found) == sorted(self.told)

    def teardown(self):
        if not hasattr(self, "broker"):
            return
        for _ in range(10_000):  # whatever happened, agents that live end the work
            self.now += 1.0
            batch = next((b for a in AGENTS if (b := self.broker.ask(a, 8, self.now)) is not None), None)
            self.flush()
            if batch is None:
                break
            left = [p for p in range(len(batch.rows)) if p not in batch.told]
            self.tell((batch.agent, batch.id, len(batch.rows)), set(left))
        assert self.broker.idle() and not self.broker.batches and not self.broker.rows
        self.journal.close()


Ledger.TestCase.settings = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60, stateful_step_count=40
)
TestLedger = Ledger.TestCase


# -- what single steps must do -----------------------------------------------------------------------------------------


NEEDS = Needs("cpu", "llvm", "space", "fixed")


def broker(rows=8, agents=("a",), **keys):
    made = Broker(**keys)
    made.open("j", {"t": NEEDS})
    for name in agents:
        made.meet(Agent(name, "cpu", ("llvm",), ("fixed",)), 0.0)
    made.want("j", "t", [((i,), "search") for i in range(rows)])
    return made


def asked(b: Broker, agent: str, n: int = 64, now: float = 0.0) -> Batch:
    found = b.ask(agent, n, now)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("agent", "lacks"),
    [
        (Agent("x", "gpu", ("llvm",), ("fixed",)), "its device is gpu"),
        (Agent("x", "cpu", ("cuda",), ("fixed",)), "cannot run target llvm"),
        (Agent("x", "cpu", ("llvm",), ()), "has no evaluator 'fixed'"),
    ],
)
def test_an_agent_gets_only_what_it_can_do_and_the_job_says_what_lacks(agent, lacks):
    b = broker(agents=())
    assert b.lacking("j", 0.0) == "no agent is there"
    b.meet(agent, 0.0)
    assert b.ask("x", 8, 0.0) is None and lacks in b.lacking("j", 0.0)
    b.meet(Agent("y", "cpu", ("*",), ("fixed",)), 0.0)
    assert asked(b, "y").rows and b.lacking("j", 0.0) == ""


def test_one_that_derives_another_space_is_not_asked_again():
    b = broker(agents=("a", "b"))
    b.release("a", asked(b, "a").id, 0.0, unable="another version of tt-space")
    assert b.ask("a", 8, 0.0) is None and len(asked(b, "b").rows) == 8
    assert "another version" in str(b.agents["a"].lacks(NEEDS))


def test_agents_share_a_batch_and_one_serves_jobs_in_turn():
    b = broker(rows=8, agents=("a", "b"))
    assert len(asked(b, "a").rows) == 2 and len(asked(b, "b").rows) == 3, "half of a fair part, then half of the rest"
    b = broker(rows=4)
    b.open("k", {"t": NEEDS})
    b.want("k", "t", [((i,), "search") for i in range(4)])
    jobs = []
    while (batch := b.ask("a", 2, 0.0)) is not None:
        jobs.append(batch.job)
        b.tell("a", batch.id, [(i, "ok") for i in range(len(batch.rows))], 0.0)
    assert jobs == ["j", "k", "j", "k"]


def test_a_row_on_which_two_agents_die_is_given_up_and_the_others_are_not():
    b = broker(rows=4, agents=("a", "b"))
    b.agents["b"].seen = -1e9
    assert len(asked(b, "a").rows) == 4
    killed, now = (2,), LEASE_S + 1
    while (batch := b.ask("b", 64, now)) is not None:
        assert len(batch.rows) == 1, "after a death rows go out alone"
        if batch.rows[0] == killed:
            now += LEASE_S + 1
            continue
        b.tell("b", batch.id, [(0, "ok")], now)
    assert [r.config for r in b.dead if isinstance(r, Row)] == [killed] and not b.rows


def test_a_lease_to_which_an_agent_comes_back_again_and_again_is_taken_from_it():
    b = broker(rows=2)
    first = asked(b, "a")
    for _ in range(RETURNS):
        b.meet(Agent("a", "cpu", ("llvm",), ("fixed",)), 1.0)
        assert asked(b, "a", now=1.0).id == first.id
    b.meet(Agent("a", "cpu", ("llvm",), ("fixed",)), 1.0)
    assert asked(b, "a", now=1.0).id != first.id


def test_a_call_that_kills_two_agents_is_answered_with_that():
    b = broker(rows=0)
    b.call("j", "t", "realise", [(1,)])
    for now in (0.0, LEASE_S + 1):
        assert asked(b, "a", now=now).kind == "realise"
    assert b.ask("a", 8, 3 * LEASE_S) is None and len(b.dead) == 1


def test_an_ended_job_takes_what_is_late_and_hands_out_nothing():
    b = broker(rows=4)
    batch = asked(b, "a", 2)
    past = {batch.id: batch}
    b.past = past.get
    b.drop("j")
    assert b.heartbeat("a", [batch.id], 0.0) == [batch.id] and b.ask("a", 8, 0.0) is None
    counts = b.tell("a", batch.id, [(0, "late")], 0.0)
    assert [t.first for t in counts.taken] == [False]


def test_a_private_job_is_worked_on_by_its_owner_alone():
    b = broker(rows=0, agents=())
    b.meet(Agent("a", "cpu", ("*",), ("fixed",), owner="me"), 0.0)
    b.meet(Agent("b", "cpu", ("*",), ("fixed",), owner="you"), 0.0)
    b.open("p", {"t": NEEDS}, only="you")
    b.want("p", "t", [((1,), "search")])
    assert b.ask("a", 8, 0.0) is None and asked(b, "b").job == "p"


def expecting() -> Broker:
    """Two agents that can work on a job's task, and one that cannot."""
    broker = Broker()
    broker.open("job", {"conv": Needs("cpu", "llvm", "space", "fixed")})
    for name, device in (("me/a", "cpu"), ("me/gpu", "gpu"), ("me/b", "cpu")):
        broker.meet(Agent(name, device, ("llvm",), ("fixed",)), 0.0)
    return broker


def test_each_agent_is_told_a_part_of_what_is_expected_and_gets_that_part_first():
    broker, rows = expecting(), [(i,) for i in range(6)]
    broker.expect("job", "conv", rows, 0.0)
    told = {}
    for name in ("me/b", "me/a", "me/gpu"):
        batch = broker.ask(name, 64, 0.0)
        told[name] = None if batch is None else (batch.kind, list(batch.rows))
        if batch is not None:
            broker.answer(name, batch.id, 0.0)
    assert told == {"me/a": ("expect", rows[:3]), "me/b": ("expect", rows[3:]), "me/gpu": None}
    broker.want("job", "conv", [((c,), "search") for c in (9, 5, 4, 3, 2, 1, 0)])
    first, second = broker.ask("me/a", 64, 0.0), broker.ask("me/b", 64, 0.0)
    assert first is not None and first.rows == ((2,), (1,)), "its own, half of what it would have if both shared"
    assert second is not None and second.rows == ((5,), (4,), (3,)), "the other is busy: half of what is left"
    broker.tell("me/a", first.id, [(0, "ms"), (1, "ms")], 0.0)
    last = broker.ask("me/a", 64, 0.0)
    assert last is not None and last.rows == ((0,),), "its own before what nobody built"


def test_an_agent_that_is_alone_gets_all_rows_at_once():
    broker = expecting()
    broker.agents["me/b"].seen = -math.inf
    broker.want("job", "conv", [((c,), "search") for c in range(7)])
    found = broker.ask("me/a", 64, 0.0)
    assert found is not None and len(found.rows) == 7


def test_what_was_expected_is_not_built_any_more_once_it_is_out():
    broker = expecting()
    broker.expect("job", "conv", [(0,), (1,)], 0.0)
    broker.want("job", "conv", [((0,), "search"), ((1,), "search")])
    kinds = []
    for _ in range(3):
        found = asked(broker, "me/a")
        kinds.append((found.kind, found.rows))
        if found.kind == "expect":
            broker.answer("me/a", found.id, 0.0)
        else:
            broker.tell("me/a", found.id, [(0, "ms")], 0.0)
    assert kinds == [("expect", ((0,),)), ("measure", ((0,),)), ("measure", ((1,),))]
    assert list(broker.calls) == [], "the other was to build the second"


def test_an_agent_that_dies_while_it_builds_ahead_leaves_nothing_behind():
    broker = expecting()
    broker.expect("job", "conv", [(0,), (1,)], 0.0)
    assert broker.ask("me/a", 64, 0.0) is not None
    broker.expire(LEASE_S + 1)
    broker.meet(Agent("me/a", "cpu", ("llvm",), ("fixed",)), LEASE_S + 1)
    assert broker.ask("me/a", 64, LEASE_S + 1) is None and broker.dead == []
