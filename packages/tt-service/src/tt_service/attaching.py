"""`tt jobs attach`: go on with a job that another client began."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from tt_spec import Plugins
from tt_spec.errors import OptionError
from tt_spec.roles import Host

from tt_service import wire
from tt_service.agent import Agent
from tt_service.client import WAIT_S, Follower, agent_name
from tt_service.errors import ServiceError
from tt_service.http import Http
from tt_service.outbox import Outbox
from tt_service.workbench import HostBench

__all__ = ["follow"]


def follow(
    http: Http,
    job: str,
    host: Host | None,
    history: Path,
    halt: Callable[[], str | None],
    say: Callable[[str], None],
) -> wire.JobOut:
    """Resume a job if it is paused, and hear it to its end; `halt` pauses it again.

    Args:
        host: This machine measures for it; None leaves that to others.
    """
    found = http.get(f"/v1/jobs/{job}", wire.JobOut, patient=False)
    spec = http.get(f"/v1/jobs/{found.id}/request", wire.JobIn, patient=False)
    if found.state == "paused":
        found = http.post(f"/v1/jobs/{found.id}/resume", None, wire.JobOut)
    store = Plugins().build("store", "sqlite", path=str(history))
    run_id = store.begin_run({"model": spec.name, "device": spec.device, "options": {"attached": found.id}})
    store.remember([t.thing() for t in spec.tasks])

    def hear(event: wire.EventOut, now: float) -> None:
        if event.what in ("rows", "batch"):
            store.append([dataclasses.replace(m.thing(), run_id=run_id) for m in event.results])
        if event.what == "state":
            say(event.text)

    follower = Follower(http, found, hear, say)
    follower.last = found.events
    follower.start()
    try:
        if host is not None:
            _measure(http, found, spec, host, history, lambda: halt() or follower.over(), say)
        else:
            while halt() is None and follower.over() is None:
                time.sleep(0.1)
    finally:
        if follower.over() is None:
            http.stop = lambda: True
            http.send(f"/v1/jobs/{found.id}/pause", wire.Heartbeat(), patient=False)
        follower.finish()
        store.end_run(run_id, halt() or follower.job.reason or follower.job.state)
        store.close()
    return follower.job


def _measure(
    http: Http,
    job: wire.JobOut,
    spec: wire.JobIn,
    host: Host,
    history: Path,
    halt: Callable[[], str | None],
    say: Callable[[str], None],
) -> None:
    """Be an agent of this job alone."""
    bench = HostBench(host)
    if spec.device and bench.device != spec.device:
        raise OptionError(f"the job is for {spec.device}, this machine is {bench.device}: --no-agent only follows it")
    outbox = Outbox(Path(f"{history}.agent"), http.url)
    try:
        Agent(http, outbox, bench, name=agent_name(), jobs=[job.id], wait_s=WAIT_S, halt=halt, say=say).run()
    except ServiceError:
        if halt() is None:
            raise
    finally:
        bench.close()
        outbox.close()
