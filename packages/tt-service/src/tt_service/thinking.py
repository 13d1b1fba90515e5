"""The process that thinks for one job: the loop and pipelines of tt-spec over a measurer whose agents are elsewhere.

It is a process of its own so that a piece that raises, hangs or grows ends its job, not the server.
"""

from __future__ import annotations

import os
import queue
import resource
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from tt_spec import Batch, Measurement, Plugins, RunInfo, WallClock, summary
from tt_spec.assembly import Assembled, assemble, start_models
from tt_spec.errors import OptionError, UserError
from tt_spec.loop import Outcome
from tt_spec.past import Past
from tt_spec.pipeline import Pipeline
from tt_spec.recipe import recipe_of
from tt_spec.roles import Listener, Stopper, Store
from tt_spec.types import TaskState

from tt_service.channel import Channel, Closed
from tt_service.orders import ELSEWHERE, chosen
from tt_service.remote import RemoteMeasurer
from tt_service.wire import JobIn

__all__ = ["main"]

MOST_ASKED = "tt"
"""The recipe whose cost model is loaded before a job is known."""

COMPILER = ("tvm", "llvm")
"""Versions that say which compiler made a program."""


class Inbox:
    """The server's messages, read beside the thinking, so that a halt is known at once and a server that is gone ends
    this process."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.reason: str | None = None
        self._waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True, name="inbox").start()

    def send(self, what: str, **fields: Any) -> None:
        """A message to the server."""
        self.channel.send(what, **fields)

    def receive(self) -> dict[str, Any]:
        """The next message."""
        return self._waiting.get()

    def halted(self) -> str | None:
        """Why the job is to halt; None while it may go on."""
        return self.reason

    def _read(self) -> None:
        try:
            while True:
                message = self.channel.receive()
                if message["what"] == "halt":
                    self.reason = message["reason"]
                self._waiting.put(message)
        except (Closed, ValueError):
            os._exit(3)


class Reporter(Listener):
    """Tells the server of every batch.

    Args:
        made_by: The agent that said of a task's row that it has no program, or timed it again; None is unknown.
    """

    def __init__(self, inbox: Inbox, made_by: Callable[[str, Sequence[int]], str | None]) -> None:
        self.inbox, self.made_by = inbox, made_by

    def tt_batch_measured(self, run: RunInfo, state: TaskState, batch: Batch, results: list[Measurement]) -> None:
        task = state.task.key
        refused = [
            _signed(m, self.made_by(task, m.config))
            for m in results
            if m.error == "invalid" and any(np.array_equal(m.config, r) for r in batch.invalid)
        ]
        info = dict(batch.info)
        if again := info.get("again"):
            info["again"] = [{**a, "agent": self.made_by(task, a["config"])} for a in again]
        about = {
            "batch": batch.id,
            "rows": batch.codes.tolist(),
            "origin": list(batch.origin),
            "predicted": [float(x) if np.isfinite(x) else None for x in batch.predicted],
            "info": info,
            "best_s": state.best_s if np.isfinite(state.best_s) else None,
        }
        self.inbox.send("batch", task=task, about=about, refused=refused)

    def tt_task_finished(self, run: RunInfo, state: TaskState) -> None:
        self.inbox.send("finished", task=state.task.key, reason=state.finished)


class _Kept:
    """The history for the loop: what agents told is in it already, so only what the loop itself finds is appended.

    Args:
        made_by: As `Reporter` has it.
    """

    def __init__(self, store: Store, made_by: Callable[[str, Sequence[int]], str | None]) -> None:
        self.store, self.made_by = store, made_by

    def append(self, batch: Sequence[Measurement]) -> None:
        own = [m for m in batch if m.origin == "again" or m.error == "invalid"]
        self.store.append([_signed(m, self.made_by(m.task_key, m.config)) for m in own])


class Thought:
    """A job, put together from the server's first message.

    Args:
        start: `job` (the request's JSON), `history` and `private` (paths), `run_id`, `spent_s` (what is used of the
            minutes).
    """

    def __init__(self, inbox: Inbox, start: dict[str, Any]) -> None:
        self.inbox, self.start = inbox, start
        self.job = JobIn.model_validate_json(start["job"])
        self.plugins, self.clock = Plugins(), WallClock()
        self.origins: dict[tuple[str, tuple[int, ...]], str] = {}

    def prepare(self) -> None:
        """Resolve the recipe and open the history. Raises `UserError`."""
        self.recipe = chosen(self.job, self.plugins)
        self.tasks = [t.thing() for t in self.job.tasks]
        self.known = self._known()
        self.store = self._store(self.start["private"] or self.start["history"])
        self.shared = self._store(self.start["history"])
        self.budget()
        start_models(self.recipe)

    def _known(self) -> dict[str, list[Measurement]]:
        """What the client knows, by task."""
        tasks, found = {t.key: t for t in self.tasks}, {t.key: [] for t in self.tasks}
        for row in self.job.known:
            if row.task not in tasks:
                raise OptionError(f"known: the job has no task {row.task!r}")
            try:
                found[row.task].append(row.thing(tasks[row.task], self.job.device))
            except ValueError as e:
                raise OptionError(str(e)) from e
        return found

    def _store(self, path: str | None) -> Store:
        if path is None:
            return self.plugins.build("store", "memory")
        return self.plugins.build("store", "sqlite", path=path)

    def budget(self, spent: int = 0) -> list[Stopper]:
        """What is left of trials and minutes.

        Args:
            spent: Trials of earlier processes.
        """
        found: list[Stopper] = []
        if self.job.trials is not None:
            left = max(0, self.job.trials - spent)
            found.append(self.plugins.build("stopper", "trials", trials=left))
        if self.job.minutes is not None:
            found.append(
                self.plugins.build("stopper", "minutes", minutes=self.job.minutes, apart_s=self.start["spent_s"])
            )
        return found

    def assembled(self) -> Assembled:
        """Pipelines with all that is known, scheduler and stoppers."""
        compiler = {n: self.job.versions[n] for n in COMPILER if n in self.job.versions}
        past, own = Past(self.shared, self.job.device, compiler), Past(self.store, self.job.device, compiler)
        told = {t.key: past.known(t) for t in self.tasks}
        if self.start["private"] is not None:
            told = {t.key: [*told[t.key], *own.known(t)] for t in self.tasks}
        told = {key: sorted([*self.known[key], *rows], key=lambda m: m.at) for key, rows in told.items()}
        mine = [m for rows in told.values() for m in rows if m.run_id == self.start["run_id"]]
        spent = len({(m.task_key, m.config) for m in mine if m.error != "invalid"})
        self.measurer = RemoteMeasurer(self.inbox, lambda task, row: self.origins.get((task, row), "search"))

        return assemble(
            self.recipe,
            self.tasks,
            self.measurer,
            clock=self.clock,
            seed=self.job.seed,
            budget=self.budget(spent),
            only_heavy=self.job.only_heavy,
            known=lambda task: told[task.key],
            warm=past.guides,
            lend=past.lend,
            peak=None if (flops := self.job.peak_flops) is None else lambda: flops,
            pipeline=self._pipeline,
        )

    def _pipeline(self, *args: Any, **keys: Any) -> Pipeline:
        return _Noting(self.origins, *args, **keys)

    def run(self) -> Outcome:
        """The one loop, to its end."""
        made = self.assembled()
        stamp = {"device": self.job.device, "versions": dict(self.job.versions)}
        info = RunInfo(
            self.start["run_id"], tuple(self.tasks), {"recipe": self.recipe.describe(), "seed": self.job.seed}
        )
        listeners = [Reporter(self.inbox, self.measurer.made_by)]
        loop = made.loop(
            self.measurer,
            _Kept(self.store, self.measurer.made_by),
            self.clock,
            info=info,
            listeners=listeners,
            halt=self.inbox.halted,
            stamp=stamp,
        )
        return loop.run()


class _Noting(Pipeline):
    """A pipeline that notes who proposed a row, for those who keep its result."""

    def __init__(self, origins: dict[tuple[str, tuple[int, ...]], str], *args: Any, **keys: Any) -> None:
        super().__init__(*args, **keys)
        self._origins = origins

    def ask(self, n: int) -> Batch:
        batch = super().ask(n)
        for row, origin in zip(batch.codes, batch.origin, strict=True):
            self._origins[self.task.key, tuple(int(c) for c in row)] = origin
        return batch


def _signed(m: Measurement, agent: str | None) -> Measurement:
    return m if agent is None else replace(m, versions={**m.versions, "agent": agent})


def limit(cpu_s: int, memory_bytes: int) -> None:
    """Bound this process, and let the server answer before it thinks. The bound of memory is on private writable
    memory, mapped or not."""
    os.nice(5)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Entry point: the socket's number, the bounds, and whether it is spare are the arguments."""
    end, cpu_s, memory, spare = (int(x) for x in sys.argv[1:5])
    limit(cpu_s, memory)
    channel = Channel(socket.socket(fileno=end))
    inbox = Inbox(channel)
    if spare:
        load()
    work(inbox)
    channel.flush()


def load() -> None:
    """Load what most jobs need while nothing is known of this one: it may be on its way still."""
    plugins = Plugins()
    with suppress(Exception):  # a stranger's piece may fail in any way: the job that names it is told
        start_models(recipe_of(MOST_ASKED, plugins.build("recipe", MOST_ASKED), (), plugins, ELSEWHERE))


def work(inbox: Inbox, made: Callable[[Inbox, dict[str, Any]], Thought] = Thought) -> None:
    """One job, from the first message to the last."""
    try:
        thought = made(inbox, inbox.receive())
        thought.prepare()
    except UserError as e:
        return inbox.send("refused", why=summary(e))
    except Exception as e:  # a stranger's piece may fail in any way
        return inbox.send("refused", why=f"a piece failed: {summary(e)}")
    chosen_ = thought.recipe.pieces["evaluator"]
    name, options = chosen_ if chosen_ is not None else ("fixed", {})
    inbox.send("ready", recipe=thought.recipe.describe(), evaluator=name, options=options)
    try:
        outcome = thought.run()
    except Exception as e:  # as above
        return inbox.send("over", reason=f"broken off: {summary(e)}", failed=summary(e), halted=inbox.reason)
    failed = None if outcome.failure is None else summary(outcome.failure)
    inbox.send("over", reason=outcome.reason, failed=failed, halted=inbox.reason)


if __name__ == "__main__":
    main()
