"""An agent: asks a server for work, measures it here, and tells what came of it.

Source: Chen et al. (2024), adaptive workflow, section IV and figure 5: the client's agent holds control flow and
measuring, the server everything else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from tt_spec import Task, summary
from tt_spec.errors import PieceError, ProgramError
from tt_spec.roles import Checks, Expects, Measurer, Races, Retimes

from tt_service import wire
from tt_service.errors import ServiceError
from tt_service.http import Gone, Http
from tt_service.outbox import Outbox

__all__ = ["Agent", "Bench"]

KEPT_TASKS = 256
UNKNOWN = 409
"""HTTP's status where the server does not know the agent, e.g. because it was started again."""


class Bench(Protocol):
    """What an agent measures with.

    Args:
        device: Fingerprint of this machine.
        targets: Texts of the targets that run here; "*" is any.
        evaluators: Names of those that are installed.
        versions: Of what takes part in a measurement.
    """

    device: str
    targets: Sequence[str]
    evaluators: Sequence[str]
    versions: dict[str, str]

    def measurer(self, evaluator: str, options: dict[str, Any]) -> Measurer:
        """The measurer with this evaluator; the same one for as long as nothing else is asked for."""
        ...


class Agent:
    """Works for a server until it is told to stop.

    Every result is in the outbox before it is sent, and sent until the server counted it. What the server says never
    ends the agent, but for a key that it does not accept.

    Args:
        http: The server.
        outbox: Keeps results.
        name: Who this is at the server.
        rows: Rows asked for at once.
        jobs: The only jobs to work for; empty is any.
        wait_s: How long one question for work may wait.
        halt: Asked between rows and questions; a reason ends the agent.
        say: Told in one line what happens.
    """

    def __init__(
        self,
        http: Http,
        outbox: Outbox,
        bench: Bench,
        *,
        name: str,
        rows: int = 64,
        jobs: Sequence[str] = (),
        wait_s: float = 20.0,
        halt: Callable[[], str | None] = lambda: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.http, self.outbox, self.bench, self.name = http, outbox, bench, name
        self.rows, self.jobs, self.wait_s, self.halt, self.say = rows, tuple(jobs), wait_s, halt, say
        self.measured = 0
        self._tasks: dict[tuple[str, str], Task] = {}
        self._batch: str | None = None
        self._lost = threading.Event()
        self._news = threading.Event()
        self._sent = threading.Condition()
        self._over = threading.Event()
        self._beat_s = 10.0
        self._broken: Exception | None = None

    def run(self) -> str:
        """Work until `halt` speaks; returns its reason.

        Raises `ServiceError` where the server wants nothing of us, and `PieceError` where we were to work for chosen
        jobs alone and cannot.
        """
        self.introduce()
        threads = [threading.Thread(target=w, daemon=True) for w in (self._keep_beating, self._keep_sending)]
        for thread in threads:
            thread.start()
        try:
            while (reason := self.halt()) is None:
                self._drain()
                work = self._ask()
                if work is not None:
                    self._do(work)
            return reason
        finally:
            self._drain(patience_s=5.0)
            self._over.set()
            self._news.set()
            for thread in threads:
                thread.join(2.0)

    def introduce(self) -> None:
        """Say who this is and what it can do."""
        me = wire.AgentIn(
            name=self.name,
            device=self.bench.device,
            targets=list(self.bench.targets),
            evaluators=list(self.bench.evaluators),
            versions=dict(self.bench.versions),
            jobs=list(self.jobs),
        )
        self._beat_s = self.http.post("/v1/agents", me, wire.AgentOut).heartbeat_s

    # -- work ---------------------------------------------------------------------------------------------------

    def _ask(self) -> wire.Asked | None:
        body = wire.AskIn(rows=self.rows, wait_s=self.wait_s)
        return self._known(lambda: self.http.ask(f"/v1/agents/{self.name}/ask", body, self.wait_s))

    def _do(self, work: wire.Asked) -> None:
        """One batch, whatever it is; what cannot be done here is given back with the reason.

        Raises `PieceError`, see `run`.
        """
        self._lost.clear()
        self._batch = work.batch
        try:
            task = self._task(work)
            measurer = self.bench.measurer(work.evaluator.piece, work.evaluator.options)
            if work.kind == "measure":
                self._measure(work, task, measurer)
            else:
                self._tell(self._answer(work, task, measurer))
        except (KeyboardInterrupt, ServiceError):
            raise
        except Exception as e:  # whatever a measurer raises, others may be able to do it
            self.say(f"gave back work of {work.task}: {summary(e)}")
            back = wire.Release(batch=work.batch, unable=summary(e)[:2000])
            with suppress(Gone):
                self._known(lambda: self._send("release", back))
            if self.jobs:  # without us they would wait for ever
                raise PieceError(f"cannot work for job {work.job[:8]}: {summary(e)}") from e
        finally:
            self._batch = None

    def _task(self, work: wire.Asked) -> Task:
        key = work.job, work.task
        if key not in self._tasks:
            if len(self._tasks) >= KEPT_TASKS:
                self._tasks.clear()
            found = self._known(lambda: self.http.get(f"/v1/jobs/{work.job}/tasks/{work.task}", wire.TaskWire))
            self._tasks[key] = found.thing()
        task = self._tasks[key]
        if task.space.key != work.space:
            raise ValueError(f"task {task.name} has space {task.space.key} here, the work is of {work.space}")
        return task

    def _measure(self, work: wire.Asked, task: Task, measurer: Measurer) -> None:
        """Measure what has no result yet, here or there; close the measurer's stream if the batch is ours no more."""
        there = set(work.done) | self.outbox.done(work.batch)
        places = {tuple(row): at for at, row in enumerate(work.rows)}
        rows = [row for at, row in enumerate(work.rows) if at not in there]
        if not rows:
            return
        stream = iter(measurer.measure(task, np.array(rows, dtype=np.int64), work.bar.thing()))
        try:
            for trial in stream:
                self.outbox.keep(work, places[trial.config], wire.TrialWire.of(trial))
                self.measured += 1
                self._news.set()
                if self._lost.is_set() or self.halt() is not None:
                    break
        finally:
            if (close := getattr(stream, "close", None)) is not None:
                close()
        if self.halt() is not None and not self._lost.is_set():
            self._drain(patience_s=5.0)
            with suppress(ServiceError):
                self._send("release", wire.Release(batch=work.batch))

    def _answer(self, work: wire.Asked, task: Task, measurer: Measurer) -> wire.Tell:
        """What work of another kind asks for."""
        codes = np.array(work.rows, dtype=np.int64).reshape(len(work.rows), len(task.space.knobs))
        tell = wire.Tell(batch=work.batch, done=True)
        if work.kind == "expect":
            if isinstance(measurer, Expects):
                measurer.expect(task, codes)
        elif work.kind == "realise":
            tell.realised = wire.RealisedWire.of(measurer.realise(task, codes))
        elif work.kind == "features":
            tell.features = wire.FeaturesWire.of(*measurer.features(task, codes))
        elif work.kind == "retime":
            places = {tuple(row): at for at, row in enumerate(work.rows)}
            found = list(measurer.retime(task, codes)) if isinstance(measurer, Retimes) else []
            tell.trials = [wire.Answer(at=places[t.config], trial=wire.TrialWire.of(t)) for t in found]
        else:
            self._judge(work, task, codes, measurer, tell)
        return tell

    def _judge(self, work: wire.Asked, task: Task, codes: np.ndarray, measurer: Measurer, tell: wire.Tell) -> None:
        """A race or a check; a program that fails at it is an answer too."""
        try:
            if work.kind == "race" and isinstance(measurer, Races) and work.race is not None:
                tell.race = measurer.race(task, codes, **work.race.model_dump())
            elif work.kind == "check" and isinstance(measurer, Checks):
                tell.check = wire.FaultWire(fault=measurer.check(task, codes[0]))
            else:
                raise ValueError(f"the measurer here cannot do work of kind {work.kind!r}")
        except ProgramError as e:
            error = "run-timeout" if e.error == "run-timeout" else "run"
            tell.failed = wire.FailedWire(error=error, why=str(e)[:20_000])

    # -- talking ------------------------------------------------------------------------------------------------

    def _known(self, call: Callable[[], Any]) -> Any:
        """The call's answer; a server that does not know us is told who we are, and asked again, as often as it is
        started again."""
        while True:
            try:
                return call()
            except Gone as e:
                if e.status != UNKNOWN or self.halt() is not None:
                    raise
            self.introduce()
            self.http.sleep(0.05)

    def _send(self, what: str, body: Any) -> None:
        self.http.send(f"/v1/agents/{self.name}/{what}", body)

    def _tell(self, tell: wire.Tell) -> wire.Counted | None:
        """Tell; None where the server will never take it."""
        path = f"/v1/agents/{self.name}/tell"
        try:
            return self._known(lambda: self.http.post(path, tell, wire.Counted))
        except Gone as e:
            if e.status in (401, 403):
                raise
            self.say(f"the server does not take a result: {e}")
            return None

    def _keep_sending(self) -> None:
        """Send what is in the outbox, as it comes."""
        while not self._over.is_set():
            try:
                while tells := self.outbox.unsent():
                    for tell in tells:
                        self._tell(tell)
                        self.outbox.sent(tell.batch, [a.at for a in tell.trials])
            except Exception as e:  # told by the main thread, which ends
                self._broken = e
            with self._sent:
                self._sent.notify_all()
            if self._broken is not None:
                return
            self._news.wait(5.0)
            self._news.clear()

    def _drain(self, patience_s: float | None = None) -> None:
        """Wait until everything is sent; without a limit, until `halt` speaks."""
        waited_s = 0.0
        with self._sent:
            while self._broken is None and self.outbox.unsent(1):
                self._news.set()
                self._sent.wait(0.2)
                waited_s += 0.2
                if self.halt() is not None if patience_s is None else waited_s > patience_s:
                    return
        if self._broken is not None and patience_s is None:
            raise self._broken

    def _keep_beating(self) -> None:
        """Renew the lease of what is in hand, also while a candidate hangs."""
        while not self._over.wait(self._beat_s):
            batch = self._batch
            if batch is None:
                continue
            try:
                answer = self.http.post(
                    f"/v1/agents/{self.name}/heartbeat",
                    wire.Heartbeat(batches=[batch]),
                    wire.HeartbeatOut,
                    patient=False,
                )
            except ServiceError:  # the next one may arrive; a lease that ends costs no result
                continue
            if batch in answer.lost and batch == self._batch:
                self._lost.set()
