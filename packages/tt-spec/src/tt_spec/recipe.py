"""Recipes: TOML files that name one piece per role with its options."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

__all__ = ["PER_TASK", "SUGGESTED", "Chosen", "Recipe", "content_of", "plainest", "read_toml", "recipe_of", "resolve"]

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
PER_TASK = ("surrogate", "draft", "searcher", "sampler", "transfer")
"""Roles whose pieces a kind of operator may have of its own; the others belong to a whole run."""

Chosen = tuple[str, JsonObject] | None
"""A piece's name and options; None for none."""

_RUNS = ("name", "measurer", "store")
"""Parts of a recipe's description that belong to a run and a machine."""

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
        kinds: Other pieces of a kind of operator (`Task.op`), by kind and role, of the roles in `PER_TASK`.
    """

    name: str
    pieces: dict[str, Chosen]
    batch: int = 64
    verify: int = 256
    light: int = 16
    plugins: Plugins = field(default_factory=Plugins, repr=False)
    kinds: dict[str, dict[str, Chosen]] = field(default_factory=dict)

    def of(self, op: str) -> Recipe:
        """The recipe of the tasks of one kind of operator; itself where they have no pieces of their own."""
        own = self.kinds.get(op)
        return self if own is None else replace(self, pieces={**self.pieces, **own}, kinds={})

    def build(self, role: str, **more: Any) -> Any:
        """A new piece of the recipe, with options that the runner adds; None where the recipe has none."""
        chosen = self.pieces[role]
        if chosen is None:
            return None
        name, options = chosen
        return self.plugins.build(_ROLE.get(role, role), name, **{**more, **options})

    def describe(self) -> JsonObject:
        """As plain data, for the run's record."""
        pieces = {r: _described(p) for r, p in self.pieces.items() if p is not None}
        plain = {"name": self.name, "batch": self.batch, "verify": self.verify, "light": self.light}
        kinds = {op: {r: _described(p) for r, p in own.items()} for op, own in self.kinds.items()}
        return {**plain, **pieces, **({"kind": kinds} if kinds else {})}

    @property
    def space(self) -> str:
        """Name of the space that candidates come from."""
        chosen = self.pieces["space"]
        return "both" if chosen is None else chosen[0]


def content_of(described: Mapping[str, Any]) -> JsonObject:
    """The content of a recipe file that says what `Recipe.describe` says."""
    return {k: v for k, v in described.items() if k not in _RUNS}


def plainest(role: str) -> JsonObject:
    """The part of a recipe file for a role that the file leaves out."""
    return {"piece": _PIECES[role] or "none"}


def _described(chosen: Chosen) -> JsonObject:
    return {"piece": "none"} if chosen is None else {"piece": chosen[0], **chosen[1]}


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
    for where, role, of in [(r, r, recipe) for r in recipe.pieces if r not in elsewhere] + [
        (f"kind.{op}.{r}", r, recipe.of(op)) for op, own in recipe.kinds.items() for r in own
    ]:
        try:
            if role not in ("measurer", "store", "space"):  # which may be dear to load
                _check_types(of, role)
                _fits(_ROLE.get(role, role), of.build(role))
            elif (piece := of.pieces[role]) is not None:
                plugins.find(role, piece[0])
                _check_types(of, role)
        except PluginError as e:
            raise OptionError(f"recipe {recipe.name!r}: {e}") from e
        except (TypeError, ValueError) as e:
            raise OptionError(f"recipe {recipe.name!r}, {where}: {e}") from e
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
    pieces: dict[str, Chosen] = {role: None if default is None else (default, {}) for role, default in _PIECES.items()}
    plain: JsonObject = {}
    kinds: dict[str, dict[str, Chosen]] = {}
    for key, value in content.items():
        if key == "kind":
            kinds = _kinds(name, value)
        elif key in _PLAIN:
            number = _PLAIN[key] is int
            if type(value) is not _PLAIN[key] or (number and value < 1):
                rule = "a whole number, at least 1" if number else "text"
                raise OptionError(f"recipe {name!r}: {key} must be {rule}, got {value!r}")
            plain[key] = value
        elif key not in _PIECES:
            raise OptionError(f"recipe {name!r} has no entry {key!r}{nearest(key, [*_PIECES, *_PLAIN, 'kind'])}")
        else:
            pieces[key] = _chosen(name, key, value)
    numbers = {k: v for k, v in plain.items() if _PLAIN[k] is int}
    return Recipe(name, pieces, plugins=plugins, kinds=kinds, **numbers)


def _chosen(name: str, where: str, value: object) -> tuple[str, JsonObject]:
    if not isinstance(value, dict) or not isinstance(value.get("piece"), str):
        raise OptionError(f'recipe {name!r}: [{where}] needs a line piece = "name"')
    return value["piece"], {k: v for k, v in value.items() if k != "piece"}


def _kinds(name: str, value: object) -> dict[str, dict[str, Chosen]]:
    """The pieces of `[kind.conv2d.searcher]` and the like."""
    if not isinstance(value, dict) or not all(isinstance(own, dict) for own in value.values()):
        raise OptionError(f"recipe {name!r}: pieces of a kind of operator are tables such as [kind.conv2d.searcher]")
    kinds: dict[str, dict[str, Chosen]] = {}
    for op, own in value.items():
        for role, about in own.items():
            if role not in PER_TASK:
                what = "belongs to the whole run" if role in _PIECES or role in _PLAIN else "is no part of a recipe"
                raise OptionError(f"recipe {name!r}: [kind.{op}.{role}] {what}; a kind has {', '.join(PER_TASK)}")
            piece, options = _chosen(name, f"kind.{op}.{role}", about)
            none = piece == "none" and _PIECES[role] is None
            kinds.setdefault(op, {})[role] = None if none else (piece, options)
    return kinds


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
        _everywhere(recipe, role, None)
        return
    if not dot:
        _everywhere(recipe, role, (value.strip(), {}))
        return
    chosen = recipe.pieces[role]
    if chosen is None:
        raise OptionError(f"--set {text}: recipe {recipe.name!r} has no {role}; choose one first: --set {role}=NAME")
    recipe.pieces[role] = (chosen[0], {**chosen[1], option: _value(value.strip())})
    for own in recipe.kinds.values():
        if (other := own.get(role)) is not None and other[0] == chosen[0]:
            own[role] = (other[0], {**other[1], option: _value(value.strip())})


def _everywhere(recipe: Recipe, role: str, chosen: Chosen) -> None:
    """Let all kinds of operators have this piece."""
    recipe.pieces[role] = chosen
    for own in recipe.kinds.values():
        own.pop(role, None)


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (ValueError, RecursionError):
        return text
