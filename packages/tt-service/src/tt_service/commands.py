"""`tt serve`, `tt agent`, `tt jobs …`; without a compiler `tt-server …`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from tt_spec.errors import OptionError

from tt_service import wire
from tt_service.errors import ServiceError
from tt_service.http import Http
from tt_service.keys import key_for_client
from tt_service.listening import Listening

__all__ = ["JOBS", "agent", "serve"]

ServerOption = Annotated[str, typer.Option(help="The server's URL")]
KeyFileOption = Annotated[Path | None, typer.Option(help="Holds the key, instead of TT_KEY")]
InsecureOption = Annotated[bool, typer.Option("--insecure", help="Let the key cross a network in plain text")]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output")]
JobArgument = Annotated[str, typer.Argument(help="The job's id, or its first six characters or more")]
HERE = "http://127.0.0.1:8420"


def serve(
    history: Annotated[Path, typer.Option(help="The shared history; keys and jobs lie beside it")] = Path("tt.db"),
    host: Annotated[str, typer.Option(help="Where to listen")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one", min=0, max=65535)] = 8420,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate, PEM")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Plain HTTP for other machines, too")] = False,
    proxy_headers: Annotated[bool, typer.Option(help="Believe X-Forwarded-For of a proxy on this machine")] = False,
    thinkers: Annotated[int, typer.Option(help="Jobs that may think at once", min=1, max=1000)] = 8,
    job_cpu_s: Annotated[int, typer.Option(help="CPU seconds of a job's thinking", min=1)] = 86_400,
    job_memory_mb: Annotated[int, typer.Option(help="Memory of a job's thinking, MiB", min=128)] = 8192,
    job_silent_s: Annotated[float, typer.Option(help="Seconds that a job may think without a word", min=1)] = 900.0,
) -> None:
    """Serve: think for jobs, and hand their rows to agents. Ends in five seconds at SIGTERM; nothing is lost."""
    from tt_service.runner import Bounds
    from tt_service.server import Options, make

    listening = Listening(host, port, tls_cert, tls_key, insecure, proxy_headers)
    bounds = Bounds(job_cpu_s, job_memory_mb * 2**20, job_silent_s)

    def ready(found: int) -> None:
        print(f"serving {history} at {replace(listening, port=found).url}", flush=True)

    server = make(Options(history, listening, thinkers, bounds), ready)
    server.run()
    if not server.started:
        raise ServiceError(f"cannot listen on {host} port {port}: is it taken?")


def agent(
    ctx: typer.Context,
    server: Annotated[str, typer.Argument(help="The server's URL")] = HERE,
    target: Annotated[str, typer.Option(help='"native", a TVM target string or JSON')] = "native",
    name: Annotated[str | None, typer.Option(help="Of this agent; one is made up, and kept in the log")] = None,
    rows: Annotated[int, typer.Option(help="Rows taken at once", min=1, max=4096)] = 64,
    log: Annotated[Path, typer.Option(help="Every result is kept here before it is sent")] = Path("tt-agent.db"),
    measurer: Annotated[str, typer.Option(help="The measurer, by name (tt plugins)")] = "local",
    key_file: KeyFileOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Measure here what a server asks for, until Ctrl-C. It compiles and runs what that sends: see SECURITY.md."""
    from tt_service.agent import Agent
    from tt_service.client import agent_name
    from tt_service.outbox import Outbox
    from tt_service.workbench import HostBench

    if ctx.obj is None:
        raise OptionError("an agent measures, which needs the compiler: pip install tt-core, then tt agent")
    http = _http(server, key_file, insecure)
    bench = HostBench(ctx.obj, target, measurer)
    outbox = Outbox(log, http.url)
    try:
        with ctx.obj.interruptible() as halt:
            http.stop = lambda: halt() is not None
            mine = outbox.name(name or agent_name())
            made = Agent(http, outbox, bench, name=mine, rows=rows, wait_s=2.0, halt=halt, say=_say)
            print(f"agent {mine} works for {http.url}: {bench.device}", flush=True)
            try:
                made.run()
            except ServiceError:
                if halt() is None:
                    raise
    finally:
        bench.close()
        outbox.close()
        http.close()
    print(f"{made.measured} rows measured; every one is in {log}")
    raise typer.Exit(130)


def list_(
    server: ServerOption = HERE,
    key_file: KeyFileOption = None,
    insecure: InsecureOption = False,
    as_json: JsonOption = False,
) -> None:
    """List your jobs."""
    http = _http(server, key_file, insecure)
    found = http.get_list("/v1/jobs", wire.JobOut)
    if as_json:
        print(json.dumps([j.model_dump() for j in found]))
        return
    for job in found:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.created))
        why = f": {job.reason}" if job.reason else ""
        print(f"{job.id[:8]}  {when}  {job.trials:6} trials  {job.recipe:12} {job.name}  {job.state}{why}")


def show(
    job: JobArgument,
    server: ServerOption = HERE,
    key_file: KeyFileOption = None,
    insecure: InsecureOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show a job: its tasks, the best of each, and who works on it."""
    http = _http(server, key_file, insecure)
    _show(http.get(f"/v1/jobs/{job}", wire.JobOut, patient=False), as_json)


def pause(
    job: JobArgument, server: ServerOption = HERE, key_file: KeyFileOption = None, insecure: InsecureOption = False
) -> None:
    """Pause a job: what is being measured still counts."""
    _change(job, "pause", server, key_file, insecure)


def resume(
    job: JobArgument, server: ServerOption = HERE, key_file: KeyFileOption = None, insecure: InsecureOption = False
) -> None:
    """Let a paused job go on."""
    _change(job, "resume", server, key_file, insecure)


def cancel(
    job: JobArgument, server: ServerOption = HERE, key_file: KeyFileOption = None, insecure: InsecureOption = False
) -> None:
    """End a job; its rows stay in the history."""
    _change(job, "cancel", server, key_file, insecure)


def attach(
    ctx: typer.Context,
    job: JobArgument,
    server: ServerOption = HERE,
    measure: Annotated[bool, typer.Option("--agent/--no-agent", help="Whether this machine measures for it")] = True,
    history: Annotated[Path, typer.Option(help="Its rows come into this history, too")] = Path("tt.db"),
    key_file: KeyFileOption = None,
    insecure: InsecureOption = False,
) -> None:
    """Go on with a job and follow it to its end; Ctrl-C pauses it again."""
    from tt_service.attaching import follow

    if ctx.obj is None:
        raise OptionError("attaching measures, which needs the compiler: pip install tt-core, then tt jobs attach")
    http = _http(server, key_file, insecure)
    with ctx.obj.interruptible() as halt:
        http.stop = lambda: halt() is not None
        ended = follow(http, job, ctx.obj if measure else None, history, halt, _say)
    _show(ended, False)
    if halt() is not None:
        raise typer.Exit(130)


JOBS: dict[str, Callable[..., Any]] = {
    "list": list_,
    "show": show,
    "attach": attach,
    "pause": pause,
    "resume": resume,
    "cancel": cancel,
}


def _http(server: str, key_file: Path | None, insecure: bool) -> Http:
    http = Http(server, key_for_client(key_file), insecure=insecure)
    http.hello()
    return http


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _change(job: str, what: str, server: str, key_file: Path | None, insecure: bool) -> None:
    found = _http(server, key_file, insecure).post(f"/v1/jobs/{job}/{what}", None, wire.JobOut, patient=False)
    print(f"{found.id[:8]} is {found.state}")


def _show(job: wire.JobOut, as_json: bool) -> None:
    if as_json:
        print(job.model_dump_json())
        return
    print(f"{job.id}  {job.name}, recipe {job.recipe}: {job.state}{': ' + job.reason if job.reason else ''}")
    print(f"{job.trials} trials on {job.device or 'any device'}; {', '.join(job.agents) or 'no agent'} at work")
    if job.waiting:
        print(f"it waits: {job.waiting}")
    for key, best_s in job.best_s.items():
        print(f"  {key}  {'no valid program yet' if best_s is None else f'{best_s * 1e6:.1f} us'}")
