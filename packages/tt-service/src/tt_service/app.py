"""The routes of `/v1`: from HTTP to the desk and back. Nothing here thinks, and nothing waits in the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import JSONResponse
from tt_spec import Measurement, Plugins
from tt_spec.errors import OptionError, StoreError
from tt_spec.recipe import resolve

from tt_service import wire
from tt_service.broker import HEARTBEAT_S, Agent
from tt_service.desk import Desk
from tt_service.dispatch import Stranger
from tt_service.guard import who_of
from tt_service.jobs import Unknown
from tt_service.judging import Crowded, Refused
from tt_service.keys import Who
from tt_service.orders import ELSEWHERE
from tt_service.reading import APART, Misread, read_apart, read_here

__all__ = ["BODY_BYTES", "CAPABILITIES", "JOB_BYTES", "Lobby", "build"]

BODY_BYTES, JOB_BYTES = 8 * 2**20, 64 * 2**20
"""The most bytes of a body, and of a job's."""

CAPABILITIES = ("private", "retime", "race", "check", "judge")
TICK_S = 1.0
READY_S = 60.0
"""How long a client waits for word whether its job can be run."""

MOST_WAITING, MOST_JOBS, MOST_READ = 384, 100, 2
"""Long polls at once, which leaves connections for those who tell (see `tt_service.heads`); jobs of one user that are
not ended, and jobs that are read at once."""

T = TypeVar("T")
_log = logging.getLogger("tt_service")


class Lobby:
    """Where requests become calls to the desk, in a few threads.

    Args:
        desk: Opened.
    """

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.threads = ThreadPoolExecutor(4, thread_name_prefix="desk")
        self.waiting = 0

    async def call(self, what: Callable[..., T], *args: Any, **keys: Any) -> T:
        """A call to the desk, in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, lambda: what(*args, **keys))

    async def wait(self, future: Future[T], seconds: float) -> T | None:
        """A future's result, None if it takes longer. Raises 503 where too many wait."""
        if self.waiting >= MOST_WAITING:
            raise HTTPException(503, "too many wait here now", {"Retry-After": "5"})
        self.waiting += 1
        try:
            if not future.done():
                await asyncio.wait({asyncio.wrap_future(future)}, timeout=seconds)
        finally:
            self.waiting -= 1
        return future.result() if future.done() else None

    async def tick(self) -> None:
        """What time brings, every second."""
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self.call(self.desk.tick)
            except StoreError:
                continue


class Needs:
    """The user of a request, if the key has one of the scopes: the guard has put it there."""

    def __init__(self, *scopes: str) -> None:
        self.scopes = scopes

    def __call__(self, request: Request) -> Who:
        user = who_of(request.scope)
        if not any(user.may(scope) for scope in self.scopes):
            raise HTTPException(403, f"this key lacks the scope {' or '.join(map(repr, self.scopes))}")
        return user


ForJobs = Annotated[Who, Depends(Needs("jobs"))]
ForAgents = Annotated[Who, Depends(Needs("agent"))]
ForReaders = Annotated[Who, Depends(Needs("read", "jobs"))]


def everything(who: Any) -> str | None:
    """The owner whose jobs a user may see: None for an administrator, who may see all."""
    return None if "admin" in who.scopes else who.name


def build(desk: Desk) -> FastAPI:
    """The application over an opened desk; who may call what is `tt_service.guard`'s business."""
    lobby = Lobby(desk)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        ticking = asyncio.create_task(lobby.tick())
        yield
        ticking.cancel()
        await lobby.call(desk.close)
        lobby.threads.shutdown(wait=False)

    app = FastAPI(
        title="tt-service",
        version=version("tt-service"),
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,
    )
    app.state.lobby = lobby
    _errors(app)
    _plain_routes(app, lobby)
    _job_routes(app, lobby)
    _job_changes(app, lobby)
    _final_routes(app, lobby)
    _agent_routes(app, lobby)
    _work_routes(app, lobby)
    return app


def _errors(app: FastAPI) -> None:
    """Every refusal is one line of JSON."""

    def line(status: int, text: str, headers: dict[str, str] | None = None) -> JSONResponse:
        return JSONResponse({"error": " ".join(text.split())[:1000]}, status, headers)

    def http(request: Request, e: Any) -> JSONResponse:
        return line(e.status_code, str(e.detail), e.headers)

    def invalid(request: Request, e: Any) -> JSONResponse:
        first = e.errors()[0]
        place = ".".join(str(x) for x in first["loc"])
        return line(422, f"{place}: {first['msg']}")

    def refused(request: Request, e: Any) -> JSONResponse:
        return line(422, str(e))

    def misread(request: Request, e: Any) -> JSONResponse:
        return line(e.status, str(e))

    def unknown(request: Request, e: Any) -> JSONResponse:
        return line(404, str(e))

    def stranger(request: Request, e: Any) -> JSONResponse:
        return line(409, "introduce yourself first: POST /v1/agents")

    def store(request: Request, e: Any) -> JSONResponse:
        _log.error("%s", e)  # it names files, which are not the caller's business
        return line(503, "the server's store cannot be used now", {"Retry-After": "5"})

    def defect(request: Request, e: Any) -> JSONResponse:
        return line(500, "a defect of the server; its log says more")

    def missing(request: Request, e: Any) -> JSONResponse:
        return line(404, str(getattr(e, "detail", None) or "there is no such page"))

    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(
        404, lambda request, e: line(404, str(getattr(e, "detail", None) or "there is no such page"))
    )
    app.add_exception_handler(405, lambda request, e: line(405, "this page does not do that"))
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Unknown, unknown)
    app.add_exception_handler(Stranger, stranger)
    app.add_exception_handler(StoreError, store)
    app.add_exception_handler(Exception, defect)  # which the guard then writes into the log
    app.add_exception_handler(Refused, refused)
    app.add_exception_handler(Misread, misread)


def _plain_routes(app: FastAPI, lobby: Lobby) -> None:
    desk = lobby.desk

    @app.get("/healthz", summary="Alive")
    async def healthz() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz", summary="Ready: what is told can be kept")
    async def readyz() -> dict[str, str]:
        await lobby.call(desk.writable)
        return {"status": "ready"}

    @app.get("/v1", summary="Versions and capabilities, asked first of all")
    async def hello(request: Request) -> wire.Hello:
        who_of(request.scope)
        return wire.Hello(
            protocol=wire.PROTOCOL,
            oldest=wire.OLDEST,
            version=version("tt-service"),
            capabilities=list(CAPABILITIES),
            lease_s=desk.broker.lease_s,
            heartbeat_s=min(HEARTBEAT_S, desk.broker.lease_s / 3),
            body_bytes=BODY_BYTES,
            job_bytes=JOB_BYTES,
        )

    @app.get("/v1/recipes", summary="Recipes of this server")
    async def recipes(who: ForJobs) -> list[wire.RecipeOut]:
        """Whoever asks this probably begins a job next: a process is started for it."""
        await lobby.call(desk.foresee)
        return await lobby.call(_recipes, desk.plugins)

    @app.get("/v1/history/{task}", summary="What the history knows of a task")
    async def history(
        who: ForReaders,
        task: wire.Key,
        device: Annotated[str | None, Query(max_length=500)] = None,
        best: Annotated[int, Query(ge=0, le=1000)] = 0,
    ) -> list[wire.Historic]:
        """The newest 10,000 rows or, where `best` is given, so many of the fastest."""
        rows = await lobby.call(_history, desk, task, device, who.name)
        if best:
            rows = sorted((m for m in rows if m.error is None), key=lambda m: m.latency_s)[:best]
        return [wire.Historic.of(m) for m in rows[-10_000:]]

    @app.get("/v1/tasks/{task}", summary="The tasks that the histories know by a key")
    async def known(who: ForReaders, task: wire.Key) -> list[wire.TaskKnown]:
        """A client compares them with its operator, which takes another key where one is another operator's."""
        return [wire.TaskKnown.of(t) for t in await lobby.call(desk.known, task, who.name)]


def _recipes(plugins: Plugins) -> list[wire.RecipeOut]:
    found = []
    for name in plugins.names("recipe"):
        summary = plugins.find("recipe", name).entry.summary
        try:
            pieces = resolve(name, (), plugins, ELSEWHERE).describe()
            found.append(wire.RecipeOut(name=name, summary=summary, pieces=pieces))
        except OptionError as e:
            found.append(wire.RecipeOut(name=name, summary=summary, pieces={}, unusable=str(e)))
    return found


def _history(desk: Desk, task: str, device: str | None, owner: str) -> list[Measurement]:
    """The shared rows and the user's own private ones."""
    return [m for store in desk.stores(owner) for m in store.query(task_key=task, device=device)]


_JOB_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/JobIn"}}},
    }
}
"""A job's body for the document: the route reads it itself."""


def _job_routes(app: FastAPI, lobby: Lobby) -> None:
    desk = lobby.desk

    reading = asyncio.Semaphore(MOST_READ)

    @app.post("/v1/jobs", status_code=201, summary="Begin a job", openapi_extra=_JOB_BODY)
    async def add(request: Request, who: ForJobs) -> wire.JobOut:
        body = await request.body()
        async with reading:
            job = await asyncio.to_thread(read_apart if len(body) > APART else read_here, body)
        mine = await lobby.call(desk.listed, who.name)
        if sum(j.record.ended is None for j in mine) >= MOST_JOBS:
            raise HTTPException(429, f"you have {MOST_JOBS} jobs that are not ended", {"Retry-After": "60"})
        made = await lobby.call(desk.add, job, who.name)
        await lobby.wait(made.ready, READY_S)
        if made.refused is not None:
            raise Refused(made.refused)
        return await lobby.call(desk.told, made)

    @app.get("/v1/jobs", summary="Your jobs")
    async def listed(who: ForJobs) -> list[wire.JobOut]:
        return await lobby.call(lambda: [desk.told(j) for j in desk.listed(everything(who))])

    @app.get("/v1/jobs/{job}", summary="One job")
    async def show(job: wire.Key, who: ForJobs) -> wire.JobOut:
        return await lobby.call(lambda: desk.told(desk.job(job, everything(who))))

    @app.get("/v1/jobs/{job}/request", summary="What a job was asked for, so that another client can attach to it")
    async def request(job: wire.Key, who: ForJobs) -> wire.JobIn:
        return (await lobby.call(desk.job, job, everything(who))).spec

    @app.get("/v1/jobs/{job}/events", summary="Events after a number; waits for the next", response_model=wire.Events)
    async def events(
        who: ForJobs,
        job: wire.Key,
        after: Annotated[int, Query(ge=0, lt=2**62)] = 0,
        wait_s: Annotated[float, Query(ge=0, le=60)] = 20.0,
    ) -> Response:
        found = await lobby.call(desk.job, job, everything(who))
        texts, future = await lobby.call(desk.events, found, after)
        if future is not None:
            try:
                await lobby.wait(future, wait_s)
            finally:
                texts = await lobby.call(desk.unheard, found, future, after)
        told = await lobby.call(desk.told, found)
        return Response(_events(texts, told), media_type="application/json")


def _events(texts: Sequence[str], job: wire.JobOut) -> str:
    return f'{{"events":[{",".join(texts)}],"job":{job.model_dump_json()}}}'


def _job_changes(app: FastAPI, lobby: Lobby) -> None:
    desk = lobby.desk

    async def change(job: str, who: Any, what: Callable[..., None]) -> wire.JobOut:
        def act() -> wire.JobOut:
            found = desk.job(job, everything(who))
            what(found)
            return desk.told(found)

        return await lobby.call(act)

    @app.post("/v1/jobs/{job}/pause", summary="Pause a job; what is out counts when it is told")
    async def pause(job: wire.Key, who: ForJobs) -> wire.JobOut:
        return await change(job, who, desk.pause)

    @app.post("/v1/jobs/{job}/resume", summary="Let a paused job go on")
    async def resume(job: wire.Key, who: ForJobs) -> wire.JobOut:
        return await change(job, who, desk.resume)

    @app.post("/v1/jobs/{job}/cancel", summary="End a job; its rows stay")
    async def cancel(job: wire.Key, who: ForJobs) -> wire.JobOut:
        return await change(job, who, desk.cancel)


def _agent_id(who: Any, name: str) -> str:
    return f"{who.name}/{name}"


def _final_routes(app: FastAPI, lobby: Lobby) -> None:
    desk = lobby.desk

    @app.post("/v1/jobs/{job}/judge", summary="Have an agent race or check finalists; the answer may take wait_s")
    async def judge(job: wire.Key, judge: wire.JudgeIn, who: ForJobs) -> wire.JudgeOut:
        try:
            found, future = await lobby.call(lambda: desk.judge(desk.job(job, everything(who)), judge))
        except Crowded as e:
            raise HTTPException(503, str(e), {"Retry-After": "5"}) from e
        await lobby.wait(future, judge.wait_s)
        return await lobby.call(desk.judged, found)


def _agent_routes(app: FastAPI, lobby: Lobby) -> None:
    desk = lobby.desk

    @app.get("/v1/agents", summary="Agents that were here, with their devices")
    async def agents(who: ForJobs) -> list[wire.AgentSeen]:
        return await lobby.call(desk.agents)

    @app.post("/v1/agents", summary="Introduce yourself as an agent, first of all and whenever you are not known")
    async def meet(agent: wire.AgentIn, who: ForAgents) -> wire.AgentOut:
        if not wire.OLDEST <= agent.protocol <= wire.PROTOCOL:
            older = agent.protocol < wire.OLDEST
            what = "upgrade tt-service where the agent runs" if older else "upgrade tt-service on the server"
            spoken = f"this server speaks protocol {wire.OLDEST} to {wire.PROTOCOL}"
            raise HTTPException(426, f"the agent speaks protocol {agent.protocol}, {spoken}: {what}")
        made = Agent(
            _agent_id(who, agent.name),
            agent.device,
            tuple(agent.targets),
            tuple(agent.evaluators),
            dict(agent.versions),
            tuple(agent.jobs),
            owner=who.name,
        )
        await lobby.call(desk.meet, made)
        lease_s = desk.broker.lease_s
        return wire.AgentOut(id=made.id, lease_s=lease_s, heartbeat_s=min(HEARTBEAT_S, lease_s / 3))

    @app.get("/v1/jobs/{job}/tasks/{task}", summary="A task of a job, for an agent that has work of it")
    async def task(job: wire.Key, task: wire.Key, who: ForAgents) -> wire.TaskWire:
        return await lobby.call(desk.task, job, task, who.name)


def _work_routes(app: FastAPI, lobby: Lobby) -> None:
    desk = lobby.desk

    @app.post(
        "/v1/agents/{name}/ask",
        summary="Ask for work; the answer may take wait_s, and is empty where there was none",
        response_model=wire.Asked,
        responses={204: {"description": "No work; ask again"}},
    )
    async def ask(name: wire.Key, ask: wire.AskIn, who: ForAgents) -> Any:
        waiter = await lobby.call(desk.ask, _agent_id(who, name), ask.rows)
        try:
            work = await lobby.wait(waiter.future, ask.wait_s)
        finally:
            if not waiter.future.done():
                await lobby.call(desk.leave, waiter)
        if work is None:
            return Response(status_code=204)
        return Response(work.model_dump_json(), media_type="application/json")

    @app.post("/v1/agents/{name}/tell", summary="Tell results of a part of a batch, or of all of it")
    async def tell(name: wire.Key, tell: wire.Tell, who: ForAgents) -> wire.Counted:
        return await lobby.call(desk.tell, _agent_id(who, name), tell)

    @app.post("/v1/agents/{name}/heartbeat", summary="Renew the leases of the batches in hand")
    async def heartbeat(name: wire.Key, beat: wire.Heartbeat, who: ForAgents) -> wire.HeartbeatOut:
        return wire.HeartbeatOut(lost=await lobby.call(desk.heartbeat, _agent_id(who, name), beat.batches))

    @app.post("/v1/agents/{name}/release", status_code=204, summary="Give back what is left of a batch")
    async def release(name: wire.Key, back: wire.Release, who: ForAgents) -> Response:
        await lobby.call(desk.release, _agent_id(who, name), back.batch, back.unable)
        return Response(status_code=204)
