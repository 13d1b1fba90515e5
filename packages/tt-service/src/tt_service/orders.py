"""What a job may choose: a recipe of the server or pieces with plain options; no store, measurer, file or path."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from tt_spec import Plugins, nearest
from tt_spec.errors import OptionError
from tt_spec.recipe import Recipe, recipe_of

from tt_service.wire import JobIn

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["ELSEWHERE", "chosen"]

ELSEWHERE = ("measurer", "space", "evaluator", "store")
"""Roles whose pieces agents build, or the server itself."""

_NOT_ITS = ("measurer", "store")
_FILES = ("weights", "path", "file", "history")
_MOST = 10**9


def chosen(job: JobIn, plugins: Plugins) -> Recipe:
    """The job's recipe, resolved here. Raises `OptionError` for what it may not choose, or what is not installed."""
    if job.toml is not None:
        try:
            content = tomllib.loads(job.toml)
        except (ValueError, RecursionError) as e:
            raise OptionError(f"the recipe's TOML: {e}") from e
    elif job.recipe in plugins.names("recipe"):
        content = plugins.build("recipe", job.recipe)
    else:
        known = plugins.names("recipe")
        raise OptionError(f"this server has no recipe called {job.recipe!r}{nearest(job.recipe, known)}")
    if job.toml is not None:
        for role, piece in content.items():
            _check(str(role), piece)
    before = recipe_of(job.recipe, content, (), plugins, ELSEWHERE)
    recipe = recipe_of(job.recipe, content, job.sets, plugins, ELSEWHERE)
    for role, piece in recipe.pieces.items():
        if piece != before.pieces[role] and piece is not None:
            _check(role, {"piece": piece[0], **piece[1]})
    if recipe.batch > 4096 or recipe.verify > 100_000:
        raise OptionError(f"a job's batch is at most 4096 and verify 100000, got {recipe.batch} and {recipe.verify}")
    return recipe


def _check(role: str, piece: Any) -> None:
    if role in _NOT_ITS:
        raise OptionError(f"a job does not choose its {role}: the server has it")
    if not isinstance(piece, Mapping):
        return
    for option, value in piece.items():
        values = value if isinstance(value, list) else [value]
        if option in _FILES or any(isinstance(v, str) and ("/" in v or "\\" in v or v in (".", "..")) for v in values):
            raise OptionError(f"{role}.{option}: a job names no files and no paths of the server")
        if any(isinstance(v, dict | list) for v in values):
            raise OptionError(f"{role}.{option}: options are plain numbers, texts and lists of them")
        if any(isinstance(v, int | float) and not abs(v) <= _MOST for v in values):
            raise OptionError(f"{role}.{option} must be at most {_MOST}, got {value}")
