"""Recipes: TOML files that name one piece per role with its options."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tt_spec.errors import OptionError, PluginError, whose
from tt_spec.plugins import Plugins, nearest
from tt_spec.roles import PROTOCOLS, missing
from tt_spec.serial import JsonObject

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["SUGGESTED", "Recipe", "read_toml", "recipe_of", "resolve"]

SUGGESTED = "suggested"
"""Stands for what a history suggests; see `tt_spec.suggestions`."""

_PIECES = {
    "surrogate": "null",
    "draft": None,
    "searcher": "random",
    "sampler": "top",
    "transfer": None,
    "scheduler": "sequential",
    "stopper": None,
    "evaluator": "fixed",
    "measurer": "local",
    "space": "both",
    "store": "sqlite",
}
_ROLE = {"draft": "surrogate"}
_ALSO = {"schedule": "scheduler"}  # what people type
_PLAIN = {"summary": str, "source": str, "batch": int, "verify": int, "light": int}


@dataclass
class Recipe:
    """One piece per role, ready to be built.

    Args:
        pieces: `(name, options)` by role; a role that the recipe leaves out has its default, None means none.
        batch: Rows asked at once.
        verify: Rows that the surrogate ranks for a full batch when there is a draft model.
        light: The most trials of a task that hardly matters; see `tt_spec.light`.
    """

    name: str
    pieces: dict[str, tuple[str, JsonObject] | None]
    batch: int = 64
    verify: int = 256
    light: int = 16
    plugins: Plugins = field(default_factory=Plugins, repr=False)

    def build(self, role: str, **more: Any) -> Any:
        """A new piece of the recipe, with options that the runner adds; None where the recipe has none."""
        chosen = self.pieces[role]
        if chosen is None:
            return None
        name, options = chosen
        return self.plugins.build(_ROLE.get(role, role), name, **{**more, **options})

    def describe(self) -> JsonObject:
        """As plain data, for the run's record."""
        pieces = {r: {"piece": p[0], **p[1]} for r, p in self.pieces.items() if p is not None}
        return {"name": self.name, "batch": self.batch, "verify": self.verify, "light": self.light, **pieces}

    @property
    def space(self) -> str:
        """Name of the space that candidates come from."""
        chosen = self.pieces["space"]
        return "both" if chosen is None else chosen[0]


def resolve(
    name: str, sets: Sequence[str] = (), plugins: Plugins | None = None, elsewhere: Collection[str] = ()
) -> Recipe:
    """The recipe of that name or TOML file, with `--set` applied: "surrogate.rounds=20" or "searcher=evolve".

    Args:
        elsewhere: Roles whose pieces another machine builds and checks, e.g. the space where there is no compiler.

    Raises `OptionError` naming what is unknown and what is known; every piece is looked up, and its options checked.
    """
    plugins = plugins or Plugins()
    if name in plugins.names("recipe"):
        content = plugins.build("recipe", name)
    elif os.path.isfile(name):  # unlike pathlib's, it takes any text
        content = read_toml(Path(name))
    elif name == SUGGESTED:
        raise OptionError(f"recipe {name!r} is looked up in a history by tt tune: name another recipe here")
    else:
        raise OptionError(f"no recipe and no file is called {name!r}{nearest(name, plugins.names('recipe'))}")
    return recipe_of(Path(name).stem, content, sets, plugins, elsewhere)


def recipe_of(
    name: str, content: JsonObject, sets: Sequence[str], plugins: Plugins, elsewhere: Collection[str] = ()
) -> Recipe:
    """The recipe with this content of a TOML file, wherever that came from; otherwise as `resolve`."""
    recipe = _parse(name, content, plugins)
    for text in sets:
        _set(recipe, text)
    for role in [r for r in recipe.pieces if r not in elsewhere]:
        try:
            if role not in ("measurer", "store", "space"):  # which may be dear to load
                _check_types(recipe, role)
                _fits(_ROLE.get(role, role), recipe.build(role))
            elif (piece := recipe.pieces[role]) is not None:
                plugins.find(role, piece[0])
                _check_types(recipe, role)
        except PluginError as e:
            raise OptionError(f"recipe {recipe.name!r}: {e}") from e
        except (TypeError, ValueError) as e:
            raise OptionError(f"recipe {recipe.name!r}, {role}: {e}") from e
    return recipe


def _fits(role: str, piece: object) -> None:
    if piece is not None and (lacking := missing(piece, PROTOCOLS[role])):
        raise PluginError(f"{whose(role, piece)} lacks {', '.join(lacking)}: see tt_spec.roles.{role.capitalize()}")


def read_toml(path: Path) -> JsonObject:
    """A recipe file's content. Raises `OptionError` that names the line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise OptionError(f"recipe {path}: {e}") from e


def _parse(name: str, content: JsonObject, plugins: Plugins) -> Recipe:
    pieces: dict[str, tuple[str, JsonObject] | None] = {
        role: None if default is None else (default, {}) for role, default in _PIECES.items()
    }
    plain: JsonObject = {}
    for key, value in content.items():
        if key in _PLAIN:
            number = _PLAIN[key] is int
            if type(value) is not _PLAIN[key] or (number and value < 1):
                rule = "a whole number, at least 1" if number else "text"
                raise OptionError(f"recipe {name!r}: {key} must be {rule}, got {value!r}")
            plain[key] = value
        elif key not in _PIECES:
            raise OptionError(f"recipe {name!r} has no entry {key!r}{nearest(key, [*_PIECES, *_PLAIN])}")
        elif not isinstance(value, dict) or not isinstance(value.get("piece"), str):
            raise OptionError(f'recipe {name!r}: [{key}] needs a line piece = "name"')
        else:
            pieces[key] = (value["piece"], {k: v for k, v in value.items() if k != "piece"})
    numbers = {k: v for k, v in plain.items() if _PLAIN[k] is int}
    return Recipe(name, pieces, plugins=plugins, **numbers)


_TYPES = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


def _check_types(recipe: Recipe, role: str) -> None:
    """Compare options with the annotations of the piece's constructor, as far as these are plain types."""
    chosen = recipe.pieces[role]
    if chosen is None or not chosen[1]:
        return
    try:
        parameters = inspect.signature(recipe.plugins.factory(_ROLE.get(role, role), chosen[0])).parameters
    except ValueError:  # a builtin may have none
        return
    for option, value in chosen[1].items():
        annotation = parameters[option].annotation if option in parameters else ""
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        kinds = {kind.strip() for kind in text.split("|")} - {"None"}
        if kinds and kinds <= set(_TYPES) and type(value) not in {t for kind in kinds for t in _TYPES[kind]}:
            raise TypeError(f"option {option!r} of {chosen[0]!r} must be {' or '.join(sorted(kinds))}, got {value!r}")


def _set(recipe: Recipe, text: str) -> None:
    where, equals, value = text.partition("=")
    role, dot, option = where.strip().partition(".")
    role = _ALSO.get(role, role)
    if not equals or not value.strip():
        raise OptionError(f"--set needs piece.option=value or piece=name, got {text!r}")
    if _PLAIN.get(role) is int and not dot:
        number = _value(value.strip())
        if type(number) is not int or number < 1:
            raise OptionError(f"--set {role} needs a whole number, at least 1, got {value[:40]!r}")
        setattr(recipe, role, number)
        return
    if role not in _PIECES:
        raise OptionError(
            f"--set {text}: no piece is called {role!r}{nearest(role, [*_PIECES, 'batch', 'verify', 'light'])}"
        )
    if not dot and value.strip() == "none":
        if (default := _PIECES[role]) is not None:
            raise OptionError(f"--set {text}: a recipe needs a {role}; the plainest is --set {role}={default}")
        recipe.pieces[role] = None
        return
    if not dot:
        recipe.pieces[role] = (value.strip(), {})
        return
    chosen = recipe.pieces[role]
    if chosen is None:
        raise OptionError(f"--set {text}: recipe {recipe.name!r} has no {role}; choose one first: --set {role}=NAME")
    recipe.pieces[role] = (chosen[0], {**chosen[1], option: _value(value.strip())})


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (ValueError, RecursionError):
        return text
