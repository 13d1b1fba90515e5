"""A model made ready: imported, lowered for a target, its tasks chosen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tt_spec import Plugins, Task
from tt_spec.serial import JsonObject

from tt_core.compiler.quiet import quiet
from tt_core.compiler.target import resolve as resolve_target
from tt_core.compiler.target import use_all_cores
from tt_core.request import Request
from tt_core.requirements import require_tvm
from tt_core.selection import select

if TYPE_CHECKING:
    from tvm.target import Target

    from tt_core.compiler.lower import Lowered
    from tt_core.models.model import Fixed, Model

__all__ = ["Prepared", "prepare"]


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A model, lowered for a target, with the tasks that were asked for."""

    model: Model
    target: Target
    lowered: Lowered
    tasks: list[Task]

    @property
    def left_out(self) -> list[Task]:
        """The model's other tasks."""
        chosen = {t.key for t in self.tasks}
        return [t for t in self.lowered.tasks if t.key not in chosen]


def prepare(
    model: object,
    *,
    target: str | JsonObject | Target = Request.target,
    shapes: Mapping[str, Sequence[int]] | None = None,
    tasks: str | Sequence[str] = Request.tasks,
    skip: str | Sequence[str] = Request.skip,
    only_heavy: bool = Request.only_heavy,
    best: Callable[[Task], float] = lambda task: math.inf,
    space: str = "both",
    plugins: Plugins | None = None,
    fix: Fixed | None = None,
    precision: str = Request.precision,
) -> Prepared:
    """Import and lower a model, and pick tasks as `tt_core.selection.select` does.

    `best` gives the seconds of a task's best program so far, inf where there is none; `fix` gives inputs of an ONNX
    model values, by name; `precision` is "exact", or "float32" for a quantised one.
    """
    require_tvm()
    use_all_cores()
    from tt_core.compiler.lower import lower
    from tt_core.models.load import load

    plugins = plugins or Plugins()
    with quiet():
        resolved = resolve_target(target)
        loaded = load(model, shapes, plugins, fix, precision)
        lowered = lower(loaded.mod, resolved, plugins, space)
        loaded = dataclasses.replace(loaded, notes=(*loaded.notes, *lowered.notes))
    known = {t.key: best(t) for t in lowered.tasks} if only_heavy else None
    chosen = select(lowered.tasks, tasks, skip, only_heavy, known)
    return Prepared(loaded, resolved, lowered, chosen)
