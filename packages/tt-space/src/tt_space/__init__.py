"""Design spaces over TVM: where candidates come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tt_space.sketch import InvalidRow, Sketch, SketchPrograms

__all__ = ["InvalidRow", "Sketch", "SketchPrograms"]


def __getattr__(name: str) -> Any:
    """Import TVM only when a space is used."""
    if name in __all__:
        from tt_space import sketch

        return getattr(sketch, name)
    raise AttributeError(f"module 'tt_space' has no attribute {name!r}")
