"""Design spaces over TVM: where candidates come from."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tt_space.both import Both, Template, Union
    from tt_space.programs import InvalidRow, Programs, Repacked
    from tt_space.sketch import Sketch, SketchPrograms
    from tt_space.template import TemplatePrograms
    from tt_space.winograd import StepPrograms, WinogradPrograms

__all__ = [
    "Both",
    "InvalidRow",
    "Programs",
    "Repacked",
    "Sketch",
    "SketchPrograms",
    "StepPrograms",
    "Template",
    "TemplatePrograms",
    "Union",
    "WinogradPrograms",
]

_MODULES = {
    "both": ("Both", "Template", "Union"),
    "programs": ("InvalidRow", "Programs", "Repacked"),
    "sketch": ("Sketch", "SketchPrograms"),
    "template": ("TemplatePrograms",),
    "winograd": ("StepPrograms", "WinogradPrograms"),
}


def __getattr__(name: str) -> Any:
    """Import TVM only when a space is used."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"tt_space.{module}"), name)
    raise AttributeError(f"module 'tt_space' has no attribute {name!r}")
