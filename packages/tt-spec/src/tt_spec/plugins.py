"""Finding, checking and building pieces by name."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pluggy

from tt_spec.errors import ORIGIN, PluginError
from tt_spec.hooks import EVENTS, Entry, Specs
from tt_spec.roles import ROLES, Listener

__all__ = ["Broken", "Piece", "Plugins", "nearest"]


@dataclass(frozen=True)
class Piece:
    """A registered entry with where it comes from."""

    role: str
    entry: Entry
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.role} {self.entry.name!r} of {self.distribution} {self.version}"


@dataclass(frozen=True)
class Broken:
    """A plug-in that could not be loaded, and why."""

    distribution: str
    version: str
    why: str


class Plugins:
    """All pieces installed here.

    Each plug-in is loaded on its own: one that fails to import is left out with a warning and listed in `broken`.

    Args:
        extra: `(distribution name, module or object)` pairs to register beside the installed ones; for tests.
        installed: Whether to look for installed plug-ins.
    """

    def __init__(self, extra: Iterable[tuple[str, Any]] = (), installed: bool = True) -> None:
        self.manager = pluggy.PluginManager("tt")
        self.manager.add_hookspecs(Specs)
        self.broken: list[Broken] = []
        self._origin: dict[str, str] = {}
        if installed:
            for point in importlib.metadata.entry_points(group="tt"):
                dist = point.dist.name if point.dist else point.name
                version = point.dist.version if point.dist else "?"
                self._add(point.name, dist, version, point.load)
        for name, module in extra:
            self._add(name, name, "?", lambda module=module: module)
        self.pieces = self._collect()

    def _add(self, name: str, dist: str, version: str, load: Any) -> None:
        if name in self._origin:
            raise PluginError(
                f"distributions {self._origin[name].split()[0]!r} and {dist!r} both use the"
                f" entry-point name {name!r} in group 'tt': name each after its distribution"
            )
        try:
            module = load()
            _check_names(module)
            self.manager.register(module, name=name)
            self.manager.check_pending()
        except Exception as e:  # a stranger's plug-in may fail in any way; it must not take the run with it
            if self.manager.has_plugin(name):
                self.manager.unregister(name=name)
            self.broken.append(Broken(dist, version, f"{type(e).__name__}: {e}"))
            warnings.warn(f"plug-in {dist} {version} is left out: {type(e).__name__}: {e}", stacklevel=2)
            return
        self._origin[name] = f"{dist} {version}"

    def _collect(self) -> dict[str, dict[str, Piece]]:
        pieces: dict[str, dict[str, Piece]] = {role: {} for role in ROLES}
        for role in ROLES:
            for impl in getattr(self.manager.hook, f"tt_{role}s").get_hookimpls():
                dist, version = self._origin[impl.plugin_name].split()
                try:
                    entries = list(impl.function())
                    if any(not isinstance(e, Entry) for e in entries):
                        raise TypeError(f"must return a list of Entry, got {entries!r}")
                except Exception as e:  # as above
                    self.broken.append(Broken(dist, version, f"tt_{role}s: {type(e).__name__}: {e}"))
                    warnings.warn(f"plug-in {dist} {version}: tt_{role}s failed: {e}", stacklevel=3)
                    continue
                for entry in entries:
                    if entry.name in pieces[role]:
                        raise PluginError(
                            f"{role} {entry.name!r} is registered by both {pieces[role][entry.name].distribution}"
                            f" and {dist}: uninstall one, or rename its entry"
                        )
                    pieces[role][entry.name] = Piece(role, entry, dist, version)
        return pieces

    @property
    def hook(self) -> Any:
        """pluggy's relay: calls a hook in every plug-in."""
        return self.manager.hook

    def each(self, hook: str) -> Iterator[tuple[str, Callable[..., list[Any]]]]:
        """Every plug-in that implements the hook: "plug-in NAME VERSION" and a call that reaches it alone."""
        implementations = getattr(self.manager.hook, hook).get_hookimpls()
        for impl in implementations:
            others = [i.plugin for i in implementations if i is not impl]
            yield f"plug-in {self._origin[impl.plugin_name]}", self.manager.subset_hook_caller(hook, others)

    def listeners(self) -> list[Listener]:
        """One listener for each plug-in that wants events, so that none keeps another from hearing them."""
        found: dict[str, Listener] = {}
        for event in EVENTS:
            for who, call in self.each(event):
                listener = found.setdefault(who, Listener())
                setattr(listener, ORIGIN, who)
                setattr(listener, event, call)
        return list(found.values())

    def others(self) -> list[tuple[str, str, str]]:
        """The hooks of events and contributions that plug-ins implement: `(hook, distribution, version)`."""
        hooks = [h for h in vars(Specs) if h.startswith("tt_") and h[3:-1] not in ROLES]
        found = []
        for hook in hooks:
            for impl in getattr(self.manager.hook, hook).get_hookimpls():
                dist, version = self._origin[impl.plugin_name].split()
                found.append((hook, dist, version))
        return found

    def names(self, role: str) -> list[str]:
        """Names registered for a role, sorted."""
        return sorted(self.pieces[role])

    def find(self, role: str, name: str) -> Piece:
        """The piece of that name; the error lists the known ones."""
        if role not in self.pieces:
            raise PluginError(f"there is no role {role!r} (known: {', '.join(ROLES)})")
        if name not in self.pieces[role]:
            raise PluginError(f"no {role} is called {name!r}{nearest(name, self.names(role))}")
        return self.pieces[role][name]

    def build(self, role: str, name: str, /, **options: Any) -> Any:
        """A new piece with these options; unknown options and missing extras are named."""
        piece = self.find(role, name)
        factory = self.factory(role, name)
        try:
            parameters = inspect.signature(factory).parameters
        except (TypeError, ValueError):
            parameters = None
        if parameters is not None and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            for option in options:
                if option not in parameters:
                    raise PluginError(f"{role} {name!r} has no option {option!r}{nearest(option, sorted(parameters))}")
        try:
            built = factory(**options)
        except ModuleNotFoundError as e:
            raise PluginError(_missing(piece, e)) from e
        except (PluginError, TypeError, ValueError):  # about the options: theirs is the clearer message
            raise
        except Exception as e:
            raise PluginError(f"{piece} cannot be built: {type(e).__name__}: {e}") from e
        with suppress(AttributeError, TypeError):  # what takes no attributes goes by its class
            setattr(built, ORIGIN, str(piece))
        return built

    def factory(self, role: str, name: str) -> Any:
        """The callable that builds the piece, imported."""
        piece = self.find(role, name)
        build = piece.entry.build
        if not isinstance(build, str):
            return build
        module, _, attribute = build.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as e:
            raise PluginError(_missing(piece, e)) from e
        except Exception as e:  # a stranger's module may fail in any way
            raise PluginError(f"{piece} cannot be built from {build!r}: {type(e).__name__}: {e}") from e


def _check_names(module: Any) -> None:
    """pluggy passes over a hook that is not marked, and says of a misspelt one not what was meant."""
    known = [name for name in vars(Specs) if name.startswith("tt_")]
    for name in dir(module):
        attribute = getattr(module, name, None)
        marks = getattr(attribute, "tt_impl", None)
        if isinstance(marks, dict):
            hook = marks.get("specname") or name
            if hook not in known and not marks.get("optionalhook"):
                raise PluginError(f"there is no hook {hook!r}{nearest(hook, known)}")
        elif name in known and callable(attribute):
            raise PluginError(f"{name} is not marked: put @tt_spec.hookimpl above it")


def _missing(piece: Piece, e: ModuleNotFoundError) -> str:
    what = piece.entry.requires or e.name
    return f"{piece.role} {piece.entry.name!r} is not installed ({e}): pip install '{what}'"


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an unknown-name error: the closest names first, then all."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    return f"{hint} (known: {', '.join(known) or 'none'})"
