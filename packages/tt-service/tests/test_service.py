"""Jobs through a real server with real HTTP, over a formula: the same rows as a local run, and nothing lost."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import httpx
import numpy as np
import pytest
from tt_service import app, wire
from tt_service.broker import Agent
from tt_service.channel import Channel
from tt_service.client import HttpService
from tt_service.database import path_of
from tt_service.errors import ServiceError
from tt_service.http import Gone, Http
from tt_service.keys import Keys
from tt_service.runner import Bounds, Runner
from tt_service.thinking import Inbox, Thought
from tt_service_house import Bench, Judge, house, job_of
from tt_spec import Entry, Plugins, RunInfo, WallClock, hookimpl
from tt_spec.assembly import assemble
from tt_spec.errors import StoreError
from tt_spec.pieces.memory_store import MemoryStore
from tt_spec.pieces.sequential_scheduler import SequentialScheduler
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.recipe import resolve
from tt_spec.types import Bar

TASKS = (synthetic_task("one"), synthetic_task("two", 3))


def local_rows(trials, seed):
    plugins, store = Plugins(), MemoryStore()
    elsewhere = ("measurer", "space", "store", "evaluator")
    recipe = resolve("random", ["batch=8"], plugins, elsewhere)
    budget = [plugins.build("stopper", "trials", trials=trials)]
    measurer, clock = Judge(), WallClock()
    made = assemble(recipe, TASKS, measurer, clock=clock, seed=seed, budget=budget)
    made.loop(measurer, store, clock, info=RunInfo("r", TASKS)).run()
    return [(m.task_key, m.config, m.origin, m.seconds) for m in store.query()]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A job that one agent measured to its end, with its events and the history's rows."""
    folder = tmp_path_factory.mktemp("service")
    with house(folder) as here:
        here.agent()
        job = here.http.post("/v1/jobs", job_of(*TASKS, seed=7, trials=40), wire.JobOut, wait_s=60)
        events = here.ended(job)
        rows = list(here.server.desk.store(None).query())
        last = here.http.get(f"/v1/jobs/{job.id}", wire.JobOut)
        served = [m for t in TASKS for m in here.http.get_list(f"/v1/history/{t.key}", wire.Historic, device="toy")]
        runs = here.server.desk.store(None).runs()
    return last, events, rows, served, runs


def test_one_agent_measures_the_rows_of_a_local_run_in_their_order(done):
    _, _, rows, _, _ = done
    mine = [(m.task_key, m.config, m.origin, m.seconds) for m in rows]
    assert mine == local_rows(40, 7)


def test_events_tell_every_row_and_the_end(done):
    job, events, rows, served, runs = done
    assert job.state == "done" and job.reason == "40 trials are spent" and job.trials == 40
    told = [m for e in events if e.what == "rows" for m in e.results]
    assert [tuple(m.config) for m in told] == [m.config for m in rows if m.origin != "again"]
    assert events[-1].text == "done: 40 trials are spent" and [e.number for e in events] == list(
        range(1, len(events) + 1)
    )
    batches = [e.batch for e in events if e.what == "batch"]
    assert sum(len(b["rows"]) for b in batches) == 40
    assert runs[-1]["reason"] == job.reason and len(served) == len(rows)
    assert min(s for s in job.best_s.values() if s) == min(m.latency_s for m in rows)


def test_rows_say_which_agent_of_whose_key_measured_them(done):
    rows = done[2]
    assert any(m.origin == "again" for m in rows), "also those that were timed again"
    assert {m.device for m in rows} == {"toy"} and {m.versions["agent"] for m in rows} == {"me/a"}


def test_what_the_client_knows_is_not_asked_again_and_serves_its_job_alone(tmp_path):
    task = TASKS[0]
    codes = np.array([c for k, c, *_ in local_rows(40, 7) if k == task.key])[:16]
    known = [wire.KnownIn(task=task.key, config=row.tolist(), seconds=1.0) for row in codes]
    known[0] = wire.KnownIn(task=task.key, config=codes[0].tolist(), seconds=None, error="run")
    with house(tmp_path) as here:
        here.agent()
        job = here.http.post("/v1/jobs", job_of(task, seed=7, trials=24, known=known), wire.JobOut, wait_s=60)
        assert here.ended(job)[-1].text == "done: 24 trials are spent"
        rows = {m.config for m in here.server.desk.store(None).query()}
        assert len(rows) == 24 and not rows & {tuple(row) for row in codes.tolist()}
        wrong = wire.KnownIn(task=task.key, config=[10**6], seconds=1.0)
        with pytest.raises(Gone, match="is no row of task"):
            here.http.post("/v1/jobs", job_of(task, known=[wrong]), wire.JobOut, wait_s=60)


def test_the_schedulers_of_a_server_know_the_machines_peak():
    class Told(SequentialScheduler):
        def peak(self, flops):
            self.flops = flops

    told, sets, inbox = Told(), ["scheduler=told"], cast(Inbox, SimpleNamespace(send=None, halted=None))
    hooks = SimpleNamespace(tt_schedulers=hookimpl(lambda: [Entry("told", lambda: told, "keeps what it is told")]))
    for flops in (None, 5e10):
        job = job_of(*TASKS, sets=sets, peak_flops=flops)
        start = {"job": job.model_dump_json(), "history": None, "private": None, "run_id": "r", "spent_s": 0.0}
        thought = Thought(inbox, start)
        thought.plugins = Plugins([("told", hooks)])
        thought.prepare()
        thought.assembled()
        assert getattr(told, "flops", None) == flops


def test_two_agents_share_a_job(tmp_path):
    with house(tmp_path) as here:
        first, second = here.agent("a"), here.agent("b")
        job = here.http.post("/v1/jobs", job_of(trials=48), wire.JobOut, wait_s=60)
        here.ended(job)
        rows = [m for m in here.server.desk.store(None).query() if m.origin != "again"]
        assert len(rows) == 48 == len({m.config for m in rows}) == first.measured + second.measured
        assert min(first.measured, second.measured) >= 8


def test_what_cannot_be_run_is_refused_in_one_line(tmp_path):
    with house(tmp_path) as here:
        for wrong, said in (
            ({"recipe": "unheard"}, "no recipe called 'unheard'"),
            ({"recipe": "/etc/passwd"}, "no recipe called '/etc/passwd'"),
            ({"sets": ["searcher=unheard"]}, "no searcher is called 'unheard'"),
            ({"sets": ["store=memory"]}, "does not choose its store"),
            ({"sets": ["measurer.path=/tmp"]}, "does not choose its measurer"),
            ({"toml": '[searcher]\npiece = "random"\nfile = "x"\n'}, "no files and no paths"),
            ({"toml": "batch = ["}, "TOML"),
            ({"trials": None}, "needs a budget"),
        ):
            with pytest.raises(Gone, match=said) as e:
                here.http.post("/v1/jobs", job_of(**wrong), wire.JobOut, wait_s=60)
            assert e.value.status == 422 and "\n" not in str(e.value)
        with pytest.raises(Gone, match="there is no job"):
            here.http.get("/v1/jobs/nothing", wire.JobOut)
        with pytest.raises(Gone, match="introduce yourself"):
            here.http.ask("/v1/agents/x/ask", wire.AskIn(wait_s=0), 0)


def test_a_job_waits_for_an_agent_that_can_and_says_so(tmp_path):
    with house(tmp_path) as here:
        here.agent("wrong", Bench(device="another"))
        job = here.http.post("/v1/jobs", job_of(trials=8), wire.JobOut, wait_s=60)
        waiting = ""
        while not waiting:
            waiting = here.http.get(f"/v1/jobs/{job.id}", wire.JobOut).waiting
        assert "me/wrong: its device is another" in waiting
        here.agent("right")
        assert here.ended(job)[-1].text == "done: 8 trials are spent"


def test_a_job_is_paused_resumed_and_cancelled(tmp_path):
    with house(tmp_path) as here:
        job = here.http.post("/v1/jobs", job_of(trials=16), wire.JobOut, wait_s=60)
        paused = here.http.post(f"/v1/jobs/{job.id}/pause", None, wire.JobOut)
        assert paused.state == "paused"
        here.agent()
        resumed = here.http.post(f"/v1/jobs/{job.id}/resume", None, wire.JobOut)
        assert resumed.state == "running" and here.ended(job)[-1].text == "done: 16 trials are spent"
        other = here.http.post("/v1/jobs", job_of(trials=10**6), wire.JobOut, wait_s=60)
        assert here.http.post(f"/v1/jobs/{other.id}/cancel", None, wire.JobOut).state == "cancelled"


def realised(desk, name):
    """An agent, without threads, that reads the first rows back."""
    desk.meet(Agent(name, "toy", ("*",), ("fixed",)))
    work = desk.ask(name, 64).future.result(60)
    assert work.kind == "realise"
    found = SyntheticMeasurer().realise(synthetic_task(), np.array(work.rows))
    desk.tell(name, wire.Tell(batch=work.batch, done=True, realised=wire.RealisedWire.of(found)))


def test_rows_that_waited_when_a_job_was_paused_are_measured_once(tmp_path):
    with house(tmp_path) as here:
        desk = here.server.desk
        job = here.http.post("/v1/jobs", job_of(trials=24), wire.JobOut, wait_s=60)

        def until(what):
            while not what():
                time.sleep(0.01)

        realised(desk, "me/first")
        until(lambda: len(desk.broker.rows) == 8)
        here.http.post(f"/v1/jobs/{job.id}/pause", None, wire.JobOut)
        until(lambda: desk.jobs[job.id].runner is None)
        agent = here.agent()
        here.http.post(f"/v1/jobs/{job.id}/resume", None, wire.JobOut)
        assert here.ended(job)[-1].text.startswith("done") and agent.measured == 24
        assert here.http.get(f"/v1/jobs/{job.id}", wire.JobOut).trials == 24


def test_a_job_begins_once_the_histories_have_what_was_told(tmp_path):
    with house(tmp_path) as here:
        desk = here.server.desk
        desk.ledger._unkept = True  # as a full disk leaves it
        retried, desk.ledger.deliver = desk.ledger.deliver, lambda: None
        desk.add(job_of(), "me")
        desk.tick()
        assert [j.runner for j in desk.jobs.values()] == [None]
        desk.ledger.deliver = retried
        desk.tick()
        assert all(j.runner is not None for j in desk.jobs.values())


def test_a_server_that_starts_again_goes_on_and_repeats_no_row(tmp_path):
    with house(tmp_path) as here:
        agent = here.agent(rows=4)
        job = here.http.post("/v1/jobs", job_of(trials=400, sets=["batch=16"]), wire.JobOut, wait_s=60)
        while agent.measured < 20:
            here.http.get(f"/v1/jobs/{job.id}/events", wire.Events, wait_s=1, after=10**6)
    rows = [m for m in here.server.desk.store(None).query() if m.origin != "again" and m.error is None]
    with house(tmp_path) as here:
        before = here.http.get(f"/v1/jobs/{job.id}", wire.JobOut)
        assert before.state == "running" and 20 <= before.trials < 400
        while None in before.best_s.values():  # read beside
            before = here.http.get(f"/v1/jobs/{job.id}", wire.JobOut)
        assert before.best_s == {rows[0].task_key: min(m.latency_s for m in rows)}
        here.agent(rows=4)
        assert here.ended(job)[-1].text.startswith("done")
        rows = [m for m in here.server.desk.store(None).query() if m.origin != "again"]
        assert len(rows) == 400 == len({m.config for m in rows})


def test_who_asks_without_waiting_gets_the_work_that_is_there(tmp_path):
    with house(tmp_path) as here:
        me = wire.AgentIn(name="x", device="toy", targets=["*"], evaluators=["fixed"])
        here.http.post("/v1/agents", me, wire.AgentOut)
        job = here.http.post("/v1/jobs", job_of(), wire.JobOut, wait_s=60)
        first = here.http.ask("/v1/agents/x/ask", wire.AskIn(rows=4, wait_s=30), 30)
        assert first is not None and first.job == job.id
        again = here.http.ask("/v1/agents/x/ask", wire.AskIn(rows=4, wait_s=0), 0)
        assert again is not None and again.batch == first.batch
        here.http.send("/v1/agents/x/release", wire.Release(batch=first.batch))
        assert here.http.ask("/v1/agents/x/ask", wire.AskIn(rows=4, wait_s=0), 0) is not None


def test_one_long_poll_too_many_is_told_when_to_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(app, "MOST_WAITING", 1)
    with house(tmp_path) as here, httpx.Client(headers={"Authorization": f"Bearer {here.key}"}, timeout=60) as client:
        job = here.http.post("/v1/jobs", job_of(), wire.JobOut, wait_s=60)
        page = f"{here.url}/v1/jobs/{job.id}/events"
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(client.get, page, params={"after": 10**6, "wait_s": 60})
            lobby = here.server.config.app.app.state.lobby
            while not lobby.waiting:
                assert not first.done(), first.result().text
            answer = client.get(page, params={"after": 10**6, "wait_s": 0})
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
            here.http.post(f"/v1/jobs/{job.id}/cancel", None, wire.JobOut)
            assert first.result().status_code == 200, "whoever came first is answered"


def test_a_server_that_ends_in_mid_job_ends_well_and_only_once(tmp_path):
    with house(tmp_path) as here:
        here.http.post("/v1/jobs", job_of(trials=10**6), wire.JobOut, wait_s=60)
        desk = here.server.desk
        desk.close()  # as a signal has it done, before uvicorn ends the application
        assert all(j.runner is None or j.runner.process.poll() is not None for j in desk.jobs.values())
    assert not here.server.lifespan.shutdown_failed


def test_who_asks_for_recipes_finds_the_process_of_the_job_started(tmp_path, monkeypatch):
    with house(tmp_path) as here:
        thinkers = here.server.desk.thinkers

        def waiting():
            here.http.get_list("/v1/recipes", wire.RecipeOut)
            return thinkers._spare.process

        def begun():
            job = here.http.post("/v1/jobs", job_of(), wire.JobOut, wait_s=60)
            return here.server.desk.jobs[job.id].runner.process, job

        first = waiting()
        assert waiting() is first, "one waits, however many ask"
        assert begun()[0] is first and thinkers._spare is None
        killed = waiting()
        killed.kill()
        killed.wait()
        process, job = begun()
        assert process is not killed
        here.agent()
        assert here.ended(job)[-1].text == "done: 24 trials are spent"
        unused = waiting()
        here.server.desk.tick()
        assert unused.poll() is None
        monkeypatch.setattr(thinkers, "_spare_until", -1.0)
        here.server.desk.tick()
        assert unused.poll() is not None and thinkers._spare is None
        last = waiting()
    assert last.poll() is not None, "a server that ends leaves none"


def test_a_killed_process_is_gone_before_its_channel_says_so(monkeypatch):
    receive, told = Channel.receive, threading.Event()
    monkeypatch.setattr(Channel, "receive", lambda channel: (told.wait(30), receive(channel))[1])
    runner, heard = Runner(Bounds()), []
    runner.start(spare=True)
    assert runner.process is not None and runner.listen(lambda message: None)
    runner.process.kill()
    runner.process.wait()
    assert not runner.listen(heard.append)
    told.set()
    runner.end()
    assert heard == []


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    with house(tmp_path) as here:
        desk, refused = here.server.desk, []

        def full(name, write):
            def tried(*args, **keys):
                if len(refused) < 4 and here.agents[0].measured >= 8:
                    refused.append(name)
                    raise StoreError(f"{name}: the disk is full")
                return write(*args, **keys)

            return tried

        here.agent()
        monkeypatch.setattr(desk.journal, "write", full("journal", desk.journal.write))
        monkeypatch.setattr(desk.store(None), "append", full("history", desk.store(None).append))
        job = here.http.post("/v1/jobs", job_of(trials=40), wire.JobOut, wait_s=60)
        events = here.ended(job)
        assert events[-1].text == "done: 40 trials are spent" and len(refused) == 4
        desk.tick()
        rows = [m for m in desk.store(None).query() if m.origin != "again"]
        told = [tuple(m.config) for e in events if e.what == "rows" for m in e.results]
        assert sorted(told) == sorted(m.config for m in rows) and len(set(told)) == 40


def test_a_whole_batch_that_a_full_disk_refused_is_told_again_and_counts_once(tmp_path, monkeypatch):
    with house(tmp_path) as here:
        desk, write = here.server.desk, here.server.desk.journal.write
        job = here.http.post("/v1/jobs", job_of(trials=8), wire.JobOut, wait_s=60)
        realised(desk, "me/a")
        work = desk.ask("me/a", 64).future.result(60)
        rows = np.array(work.rows, dtype=np.int64)
        trials = list(SyntheticMeasurer().measure(synthetic_task(), rows, Bar()))
        told = [wire.Answer(at=at, trial=wire.TrialWire.of(trial)) for at, trial in enumerate(trials)]

        def full(*args, **keys):
            raise StoreError("the disk is full")

        monkeypatch.setattr(desk.journal, "write", full)
        for _ in range(2):
            with pytest.raises(StoreError):
                desk.tell("me/a", wire.Tell(batch=work.batch, trials=told))
        monkeypatch.setattr(desk.journal, "write", write)
        desk.tell("me/a", wire.Tell(batch=work.batch, trials=told))
        here.agent("b")  # leaders may be timed again
        assert here.ended(job)[-1].text == "done: 8 trials are spent"
        assert len([m for m in desk.store(None).query() if m.origin != "again"]) == 8


def test_no_server_is_one_line():
    from tt_service.http import Http

    with pytest.raises(ServiceError, match=r"no server answers at http://127.0.0.1:9 \(ConnectError"):
        Http("http://127.0.0.1:9", None).hello()


def test_two_jobs_whose_tasks_have_one_key_by_chance_do_not_share_a_history(tmp_path):
    """A client is told what is known by a key, and takes another; one that does not ask is refused where it shows."""
    first = replace(synthetic_task(), shapes="4x8 -> 4x8", payload=b"one program")
    with house(tmp_path) as here:
        client = HttpService(here.url)
        client._http = here.http
        assert client.recall(first.key) == []
        here.http.post("/v1/jobs", job_of(first, private=True), wire.JobOut, wait_s=60)
        here.http.post("/v1/jobs", job_of(first), wire.JobOut, wait_s=60)
        mine = [(t.key, t.target, t.shapes, t.payload) for t in client.recall(first.key)]
        assert mine == [(first.key, first.target, "4x8 -> 4x8", b"one program")] * 2, "the shared and one's own"
        keys = Keys(path_of(tmp_path / "shared.db"))
        other = Http(here.url, keys.add("eve", ("jobs",)))
        keys.close()
        assert len(other.get_list(f"/v1/tasks/{first.key}", wire.TaskKnown)) == 1, "another user's private ones are not"
        other.close()
        for wrong in (replace(first, shapes="4x9 -> 4x9"), replace(first, target="another")):
            with pytest.raises(Gone, match="has the key of another operator") as e:
                here.http.post("/v1/jobs", job_of(wrong), wire.JobOut, wait_s=60)
            assert e.value.status == 422
        assert here.server.desk.store(None).task(first.key).shapes == "4x8 -> 4x8"
