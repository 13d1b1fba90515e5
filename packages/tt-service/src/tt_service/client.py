"""A run whose thinking is a server's: this machine lowers, measures and ships, the server searches."""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import Batch, Measurement, Plugins, RunInfo, Task, Trial
from tt_spec.errors import PieceError, StoreError
from tt_spec.faults import Audience
from tt_spec.loop import Outcome
from tt_spec.past import Past
from tt_spec.pieces.memory_store import MemoryStore
from tt_spec.pipeline import Pipeline
from tt_spec.roles import Errand, Judges, Listener, Measurer, Store
from tt_spec.types import TaskState

from tt_service import wire
from tt_service.agent import Agent
from tt_service.errors import ServiceError
from tt_service.finalists import Finalists
from tt_service.http import Http
from tt_service.keys import key_for_client
from tt_service.outbox import Outbox
from tt_service.presence import device_for

__all__ = ["Follower", "HttpService", "agent_name"]

WAIT_S = 2.0
"""How long an agent inside a run waits for work: after Ctrl-C nobody waits longer."""

COMPILER = ("tvm", "llvm")
"""Versions that say which compiler made a program."""

MOST_KNOWN = 20_000
"""Rows of the history here that a server is told of."""

BEST_OF_OTHERS = 32
"""Rows of a task that the server has from others and that are taken over; what ships is timed here."""


class HttpService:
    """A server behind a URL.

    Args:
        url: "http://127.0.0.1:8420".
        key_file: Holds this client's key; None is TT_KEY or the usual file.
        agent: Whether this machine measures, too.
        private: Whether the rows are for this user alone.
        insecure: Whether the key may cross a network in plain text.
        wait: Whether to wait for agents where none is there.
        device: Of the agents that measure, as a shell pattern, where several devices could.
        log: The agent's own log of results; None is beside the history.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8420",
        key_file: str | Path | None = None,
        agent: bool = True,
        private: bool = False,
        insecure: bool = False,
        wait: bool = False,
        device: str | None = None,
        log: str | Path | None = None,
    ) -> None:
        self.url, self.key_file, self.agent, self.private = url, key_file, agent, private
        self.insecure, self.wait, self.device, self.log = insecure, wait, device, log
        self._http: Http | None = None
        self._asked: tuple[Errand, str] | None = None

    def recipes(self) -> list[dict[str, Any]]:
        """See `tt_spec.roles.Service`; talks to the server for the first time."""
        return [
            {
                "name": r.name,
                "summary": r.summary,
                "pieces": r.pieces if r.unusable is None else {"unusable": r.unusable},
            }
            for r in self._opened().get_list("/v1/recipes", wire.RecipeOut)
        ]

    def recall(self, key: str) -> list[Task]:
        """See `tt_spec.roles.Service`."""
        return [t.thing() for t in self._opened().get_list(f"/v1/tasks/{key}", wire.TaskKnown)]

    def run(
        self,
        errand: Errand,
        pipelines: Sequence[Pipeline],
        measurer: Measurer,
        store: Store,
        *,
        info: RunInfo,
        listeners: Sequence[Listener] = (),
        halt: Callable[[], str | None] = lambda: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> Outcome:
        """See `tt_spec.roles.Service`."""
        http = self._opened()
        http.stop = lambda: halt() is not None
        known = _known(errand, store)
        if len(known) > MOST_KNOWN:
            say(f"the server is told of the newest {MOST_KNOWN} rows that are known here, of {len(known)}")
        job = http.post("/v1/jobs", self._job(errand, known[-MOST_KNOWN:]), wire.JobOut, wait_s=90)
        self._asked = errand, job.id
        say(f"job {job.id[:8]} of {http.url}; tt jobs show {job.id[:8]} tells of it")
        ledger = Ledger(errand, pipelines, store, info, listeners)
        ledger.take(self._of_others(http, errand, job))
        ledger.begin()
        follower = Follower(http, job, ledger.hear, say)
        follower.start()
        failure: Exception | None = None
        try:
            if self.agent:
                self._measure(http, errand, job, measurer, follower, halt, say)
            else:
                while halt() is None and follower.over() is None:
                    time.sleep(0.1)
        except (ServiceError, PieceError) as e:
            failure = None if halt() is not None else e
        return self._end(http, follower, ledger, halt(), failure, say)

    def place(
        self,
        target: str,
        device: str | None = None,
        halt: Callable[[], str | None] = lambda: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> str:
        """See `tt_spec.roles.Service`."""

        def can(agent: wire.AgentSeen) -> bool:
            runs = target in agent.targets or "*" in agent.targets
            return runs and agent.device == (device or agent.device)

        what = f"runs the target {target}" if device is None else f"has the device {device}"
        about = {"device": self.device, "wait": self.wait, "halt": halt, "say": say}
        return device_for(self._opened(), can, what, **about)

    def judge(self, say: Callable[[str], None] = lambda text: None) -> Judges:
        """See `tt_spec.roles.Service`."""
        if self._asked is None:
            raise RuntimeError("finalists are those of a run: call run first")
        errand, job = self._asked
        return Finalists(self._opened(), job, _compiler(errand), self.wait, say)

    # -- inside -------------------------------------------------------------------------------------------------

    def _opened(self) -> Http:
        if self._http is None:
            file = None if self.key_file is None else Path(self.key_file)
            http = Http(self.url, key_for_client(file), insecure=self.insecure)
            http.hello()
            self._http = http
        return self._http

    def _job(self, errand: Errand, known: list[wire.KnownIn]) -> wire.JobIn:
        return wire.JobIn(
            name=errand.name[:200],
            tasks=[wire.TaskWire.of(t) for t in errand.tasks],
            known=known,
            peak_flops=errand.peak_flops,
            recipe=errand.recipe,
            toml=errand.toml,
            sets=list(errand.sets),
            device=errand.device,
            versions=dict(errand.versions),
            seed=errand.seed,
            trials=errand.trials,
            minutes=errand.minutes,
            only_heavy=errand.only_heavy,
            private=self.private,
        )

    def _of_others(self, http: Http, errand: Errand, job: wire.JobOut) -> list[Measurement]:
        """The best rows that the server has of these tasks on this device."""
        found: list[Measurement] = []
        for task in errand.tasks:
            query = {"device": errand.device, "best": BEST_OF_OTHERS}
            found += [m.thing() for m in http.get_list(f"/v1/history/{task.key}", wire.Historic, **query)]
        believed = Past(MemoryStore(), errand.device, _compiler(errand))
        return [m for m in found if believed.believes(m)]

    def _measure(
        self,
        http: Http,
        errand: Errand,
        job: wire.JobOut,
        measurer: Measurer,
        follower: Follower,
        halt: Callable[[], str | None],
        say: Callable[[str], None],
    ) -> None:
        """Be an agent of this job alone until it is over."""
        log = Path(self.log) if self.log is not None else Path(f"{errand.history or 'tt.db'}.agent")
        outbox = Outbox(log, http.url)
        agent = Agent(
            http,
            outbox,
            _OwnBench(errand, measurer),
            name=outbox.name(agent_name()) + f"-{os.getpid()}",
            jobs=[job.id],
            wait_s=WAIT_S,
            halt=lambda: halt() or follower.over(),
            say=say,
        )
        try:
            agent.run()
        finally:
            outbox.close()

    def _end(
        self,
        http: Http,
        follower: Follower,
        ledger: Ledger,
        halted: str | None,
        failure: Exception | None,
        say: Callable[[str], None],
    ) -> Outcome:
        """Pause a job that we leave, hear what is left to hear, and give what came of it."""
        job = follower.job
        if follower.over() is None:
            http.stop = lambda: True
            try:
                job = http.post(f"/v1/jobs/{job.id}/pause", None, wire.JobOut, patient=False)
                say(f"the job is paused: tt jobs attach {job.id[:8]} goes on")
            except ServiceError as e:
                say(f"the job could not be paused: {e}")
        follower.finish()
        job = follower.job
        reason = halted or job.reason
        if failure is None and job.state == "failed":
            failure = PieceError(f"the server's run broke off: {job.reason}")
        if failure is None and ledger.broken is not None:
            failure = ledger.broken
        if failure is not None:
            reason = f"broken off: {failure}"
        return ledger.end(reason, failure)


class _OwnBench:
    """This run's measurer, as an agent has it."""

    def __init__(self, errand: Errand, measurer: Measurer) -> None:
        self.device, self.versions = errand.device, dict(errand.versions)
        self.targets: Sequence[str] = tuple(dict.fromkeys(t.target for t in errand.tasks))
        self.evaluators: Sequence[str] = tuple(Plugins().names("evaluator"))
        self._measurer = measurer

    def measurer(self, evaluator: str, options: dict[str, Any]) -> Measurer:
        """The run's own, which was made with the recipe's evaluator."""
        return self._measurer


class Ledger:
    """What a job's events mean for a run here: rows into the history and the pipelines, listeners told.

    Args:
        info: Of the run here; rows of the job get its id.
    """

    def __init__(
        self,
        errand: Errand,
        pipelines: Sequence[Pipeline],
        store: Store,
        info: RunInfo,
        listeners: Sequence[Listener],
    ) -> None:
        self.errand, self.store = errand, store
        self.pipelines = {p.task.key: p for p in pipelines}
        self.states = {p.task.key: _state(p) for p in pipelines}
        self.info = dataclasses.replace(info, states=tuple(self.states.values()))
        self.audience = Audience(listeners)
        self.trials = 0
        self.broken: Exception | None = None
        self._rows: dict[str, list[Measurement]] = {key: [] for key in self.pipelines}

    def begin(self) -> None:
        """Tell that the run begins."""
        self.audience.tell("tt_run_started", run=self.info)

    def take(self, rows: Sequence[Measurement]) -> None:
        """Rows that others measured: into the history, if they are new there, and known from now on."""
        for task in {m.task_key for m in rows} & set(self.pipelines):
            pipeline = self.pipelines[task]
            known = {tuple(int(c) for c in row) for row in pipeline.rows}
            new = [m for m in rows if m.task_key == task and m.space_key == pipeline.space.key]
            new = [m for m in new if m.config not in known]
            self.store.append(new)
            pipeline.restore(new)
            self.states[task] = _update(self.states[task], pipeline)

    def hear(self, event: wire.EventOut, now: float) -> None:
        """One event. A store that fails is remembered; what comes after is still heard."""
        try:
            if event.what == "rows":
                self._take_rows([m.thing() for m in event.results])
            elif event.what == "batch":
                self._take_batch(event, now)
            elif event.what == "note" and event.task in self.states:
                state = self.states[event.task]
                state.finished = event.text
                self.audience.tell("tt_task_finished", run=self.info, state=state)
        except (StoreError, ValueError) as e:
            self.broken = self.broken or e

    def end(self, reason: str, failure: Exception | None) -> Outcome:
        """Tell that the run is over."""
        states = list(self.states.values())
        self.audience.tell("tt_run_stopped", run=self.info, states=states, reason=reason)
        return Outcome(states, reason, failure, self.trials)

    def _take_rows(self, rows: Sequence[Measurement]) -> None:
        for m in rows:
            if m.task_key not in self.pipelines:
                continue
            mine = dataclasses.replace(m, run_id=self.info.run_id)
            self.store.append([mine])
            pipeline, state = self.pipelines[m.task_key], self.states[m.task_key]
            pipeline.restore([mine])
            state.record(mine)
            self.trials += mine.error != "invalid"
            self._rows[m.task_key].append(mine)

    def _take_batch(self, event: wire.EventOut, now: float) -> None:
        pipeline, state = self.pipelines[event.task], self.states[event.task]
        refused = [dataclasses.replace(m.thing(), run_id=self.info.run_id) for m in event.results]
        self.store.append(refused)
        pipeline.restore(refused)
        for m in refused:
            state.record(m)
        results, self._rows[event.task] = self._rows[event.task], []
        about = event.batch
        for again in about.get("info", {}).get("again", ()):
            self._again(pipeline, state, again, now)
        state.batches += 1
        state.curve.append((state.trials, now, state.best_s))
        self.audience.tell(
            "tt_batch_measured",
            run=self.info,
            state=state,
            batch=_batch(about, pipeline.task),
            results=refused + results,
        )

    def _again(self, pipeline: Pipeline, state: TaskState, again: dict[str, Any], now: float) -> None:
        """A leader that was timed again: the later timing counts here too."""
        trial = Trial(tuple(again["config"]), tuple(again["seconds"]), len(again["seconds"]), why="timed again")
        versions = {**self.errand.versions, **({"agent": again["agent"]} if again.get("agent") else {})}
        about = {"device": self.errand.device, "versions": versions, "run_id": self.info.run_id}
        m = pipeline.measured(trial, origin="again", at=now, **about)
        self.store.append([m])
        pipeline.correct(m)
        state.correct(pipeline.best_s, pipeline.incumbents())


class Follower:
    """Follows a job's events in a thread.

    Args:
        hear: Told of each event, with the time.
        say: Told when the job waits, and for what.
    """

    def __init__(
        self, http: Http, job: wire.JobOut, hear: Callable[[wire.EventOut, float], None], say: Callable[[str], None]
    ) -> None:
        self.http, self.job, self.hear, self.say = http, job, hear, say
        self.last = 0
        self._waiting = ""
        self._stop = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True, name="follower")

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def over(self) -> str | None:
        """Why the job does not go on; None while it does."""
        return (self.job.reason or self.job.state) if self._over.is_set() else None

    def finish(self) -> None:
        """Hear what there is, and stop."""
        self._stop.set()
        self._thread.join(30)
        try:
            while self._page(0.0, patient=False):
                pass
        except ServiceError as e:
            self.say(f"the end of the job was not heard: {e}")

    def _follow(self) -> None:
        try:
            while not self._stop.is_set():
                more = self._page(WAIT_S)
                if self.job.state != "running" and not more:
                    self._over.set()
                    return
        except ServiceError as e:
            if not self._stop.is_set():
                self.say(str(e))
                self.job = self.job.model_copy(update={"reason": str(e)})
                self._over.set()

    def _page(self, wait_s: float, patient: bool = True) -> bool:
        """Hear the next events; whether there were any."""
        path = f"/v1/jobs/{self.job.id}/events"
        page = self.http.get(path, wire.Events, patient, wait_s, after=self.last)
        self.job = page.job
        for event in page.events:
            self.hear(event, time.time())
            self.last = event.number
        if page.job.waiting and page.job.waiting != self._waiting:
            self.say(f"the job waits: {page.job.waiting}")
        self._waiting = page.job.waiting
        return bool(page.events)


def agent_name() -> str:
    """A name that no other agent has."""
    host = "".join(c if c.isalnum() or c in "._-" else "-" for c in socket.gethostname())[:60]
    return f"{host}-{uuid.uuid4().hex[:8]}"


def _compiler(errand: Errand) -> dict[str, str]:
    return {name: errand.versions[name] for name in COMPILER if name in errand.versions}


def _known(errand: Errand, store: Store) -> list[wire.KnownIn]:
    """What the history here has of the errand's rows, the latest verdict of each, oldest first."""
    past = Past(store, errand.device, _compiler(errand))
    latest = {(m.task_key, m.config): m for t in errand.tasks for m in past.rows(t)}
    return [wire.KnownIn.of(m) for m in sorted(latest.values(), key=lambda m: m.at)]


def _state(pipeline: Pipeline) -> TaskState:
    return _update(TaskState(pipeline.task), pipeline)


def _update(state: TaskState, pipeline: Pipeline) -> TaskState:
    state.best_s, state.incumbents = pipeline.best_s, pipeline.incumbents()
    state.restored = pipeline.known_trials()
    return state


def _batch(about: dict[str, Any], task: Task) -> Batch:
    knobs = len(task.space.knobs)
    codes = np.array(about["rows"], dtype=np.int64).reshape(-1, knobs)
    predicted = np.array([np.nan if x is None else x for x in about["predicted"]], dtype=np.float64)
    none = np.empty((0, knobs), dtype=np.int64)
    return Batch(int(about["batch"]), codes, tuple(about["origin"]), predicted, none, dict(about.get("info", {})))
