"""A model made ready: imported, lowered for a target, its tasks chosen."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tt_spec import Plugins, Task
from tt_spec.serial import JsonObject

from tt_core.compiler.quiet import quiet
from tt_core.compiler.target import resolve as resolve_target
from tt_core.compiler.target import use_all_cores
from tt_core.errors import ModelError
from tt_core.request import Request
from tt_core.requirements import require_tvm
from tt_core.selection import select

if TYPE_CHECKING:
    from tvm.target import Target

    from tt_core.compiler.lower import Lowered, Recall
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
    recall: Recall = lambda key: (),
    space: str = "both",
    plugins: Plugins | None = None,
    fix: Fixed | None = None,
    precision: str = Request.precision,
    untrusted: bool = Request.untrusted,
) -> Prepared:
    """Import and lower a model, and pick tasks as `tt_core.selection.select` does.

    `best` gives the seconds of a task's best program so far, inf where there is none, and `recall` the tasks that
    histories know by a key, so that no other operator has its rows; `fix` gives inputs of an ONNX
    model values, by name; `precision` is "exact", or "float32" for a quantised one. An
    `untrusted` file is read in a process of its own that may do little.
    """
    require_tvm()
    use_all_cores()
    from tt_core.compiler.lower import lower
    from tt_core.models.load import load

    plugins, path = plugins or Plugins(), _doubtful(model) if untrusted else None
    with quiet():
        resolved = resolve_target(target)
        if path is not None:
            from tt_core.untrusted import Suspect

            loaded, lowered = Suspect(path, shapes, fix, precision).read(resolved, plugins, space, recall)
        else:
            loaded = load(model, shapes, plugins, fix, precision)
            lowered = lower(loaded.mod, resolved, plugins, space, recall)
        loaded = dataclasses.replace(loaded, notes=(*loaded.notes, *lowered.notes))
    known = {t.key: best(t) for t in lowered.tasks} if only_heavy else None
    chosen = select(lowered.tasks, tasks, skip, only_heavy, known)
    return Prepared(loaded, resolved, lowered, chosen)


def _doubtful(model: object) -> Path | None:
    """The file that a model is read from; None for a name of the zoo and an operator, which are programs of ours."""
    if not isinstance(model, str | Path):
        raise ModelError("untrusted=True is about a file: a model that is loaded already was read outside")
    named = isinstance(model, str) and not os.path.exists(model) and "." not in os.path.basename(model)
    return None if named else Path(model)
