"""A run whose search is a service's: which pieces of the recipe stay here, and what the service is asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tt_spec import Plugins, Task, nearest
from tt_spec.errors import OptionError
from tt_spec.recipe import SUGGESTED, Recipe, read_toml, recipe_of, resolve
from tt_spec.roles import Errand, Peaked, Service
from tt_spec.serial import JsonObject

if TYPE_CHECKING:
    from tt_core.request import Request

__all__ = ["errand", "recipe_here", "service_of", "wants_peak"]

HERE = ("space", "evaluator", "measurer", "store")
"""Roles whose pieces work here: tasks are lowered and rows measured where the compiler is."""

_OURS = ("measurer", "store")
"""Roles that a service does not let others choose."""


def service_of(request: Request, plugins: Plugins) -> Service | None:
    """The service that the request names; None for a search here."""
    if request.server is None:
        return None
    names = ("agent", "private", "key_file", "insecure", "wait", "device")
    if "http" not in plugins.names("service"):
        raise OptionError("--server needs the package tt-service: pip install tt-service")
    return plugins.build("service", "http", url=request.server, **{n: getattr(request, n) for n in names})


def recipe_here(request: Request, service: Service | None, plugins: Plugins) -> Recipe:
    """The recipe, as far as it is used here. With a service that is what lowers and measures, as the service's own
    recipe or the user's file says it; `--set` overrides both, and everything else is as plain as can be."""
    if service is None:
        name = (
            type(request).recipe if request.recipe == SUGGESTED else request.recipe
        )  # what is suggested, the tasks tell
        return resolve(name, request.sets, plugins)
    content = _pieces(service, request.recipe) if (path := _file(request)) is None else read_toml(path)
    mine = {k: v for k, v in content.items() if k in ("space", "evaluator", "batch")}
    sets = [text for text in request.sets if _role(text) in HERE]
    return recipe_of(request.recipe, mine, sets, plugins)


def _pieces(service: Service, name: str) -> JsonObject:
    """A recipe of the service."""
    found = {r["name"]: r for r in service.recipes()}
    if name not in found:
        raise OptionError(f"the server has no recipe called {name!r}{nearest(name, found)}")
    if "unusable" in found[name]["pieces"]:
        raise OptionError(f"the server cannot use its recipe {name!r}: {found[name]['pieces']['unusable']}")
    return found[name]["pieces"]


def wants_peak(request: Request, service: Service, plugins: Plugins) -> bool:
    """Whether the scheduler that the service will use wants the machine's peak; one that is not here may."""
    path = _file(request)
    content = _pieces(service, request.recipe) if path is None else read_toml(path)
    chosen = [text.partition("=")[2].strip() for text in request.sets if text.partition("=")[0].strip() == "scheduler"]
    name = chosen[-1] if chosen else content.get("scheduler", {}).get("piece")
    if name is None:
        return False
    return name not in plugins.names("scheduler") or isinstance(plugins.build("scheduler", name), Peaked)


def errand(request: Request, tasks: tuple[Task, ...], name: str, minutes: float | None) -> Errand:
    """What the service is asked for; device and versions are for the caller to add.

    Args:
        minutes: For the search; None where only trials bound it.
    """
    path = _file(request)
    return Errand(
        name=name,
        tasks=tasks,
        recipe=request.recipe if path is None else path.stem,
        toml=None if path is None else _shared(path),
        sets=tuple(text for text in request.sets if _role(text) not in _OURS),
        seed=request.seed,
        trials=request.trials,
        minutes=minutes,
        only_heavy=request.only_heavy,
        history=None if request.history is None else os.fspath(request.history),
    )


def _file(request: Request) -> Path | None:
    """The user's own recipe; None for a name."""
    return Path(request.recipe) if os.path.isfile(request.recipe) else None


def _shared(path: Path) -> str:
    """A recipe file's text, for a service."""
    if found := [role for role in _OURS if role in read_toml(path)]:
        raise OptionError(f"recipe {path}: with --server it cannot have [{found[0]}]; give it by --set")
    return path.read_text(encoding="utf-8")


def _role(text: str) -> str:
    return text.partition("=")[0].strip().partition(".")[0]
