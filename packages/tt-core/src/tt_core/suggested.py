"""`--recipe suggested`: what the newest suggestions of the history say for a model's kinds of operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone

from tt_spec import Task
from tt_spec.assembly import about_the_history
from tt_spec.errors import OptionError
from tt_spec.recipe import SUGGESTED, Recipe, content_of, recipe_of
from tt_spec.roles import ListsRuns, Store
from tt_spec.serial import JsonObject
from tt_spec.suggestions import Suggestion, joined, newest

from tt_core.request import Request
from tt_core.selection import share_of

__all__ = ["taken"]

DEFAULT = Request.recipe

_FOREIGN = ("store", "measurer", "space")
"""Of a suggestion these are not taken: the run has them already."""


def taken(
    request: Request, recipe: Recipe, store: Store, tasks: Sequence[Task], device: str
) -> tuple[Recipe, list[str]]:
    """The recipe to run, and for each kind of operator with a suggestion a line that says which one it was.

    Args:
        recipe: That the run began with; it is kept unless the suggested one was asked for.
        tasks: Of the model. The heaviest kind of operator decides on what belongs to the whole run, the others have
            their own pieces (`tt_spec.suggestions.joined`).
    """
    if request.recipe != SUGGESTED:
        return recipe, []
    share: Counter[str] = Counter()
    for task, s in zip(tasks, share_of(tasks), strict=True):
        share[task.op] += float(s)  # type: ignore[assignment]
    with about_the_history():
        runs = store.runs() if isinstance(store, ListsRuns) else []
    kinds: dict[str, JsonObject | None] = {}
    said = []
    for kind, part in share.most_common():
        kinds[kind] = None
        if (found := newest(runs, kind, device)) is None:
            continue
        about = f"the suggestion of {_source(found)} for {kind}, {part:.0%} of the work"
        if not found.better:
            said.append(f"recipe {DEFAULT}: {about}, is to keep the default")
            continue
        content = {k: v for k, v in found.recipe.items() if k not in _FOREIGN}
        try:
            recipe_of(SUGGESTED, content, request.sets, recipe.plugins)
        except OptionError as e:
            said.append(f"recipe {DEFAULT}: {about}, cannot be used here ({e})")
            continue
        kinds[kind] = content
        said.append(f"recipe {SUGGESTED}: {about}")
    if any(content is not None for content in kinds.values()):
        content = joined(kinds, content_of(recipe.describe()))
        return recipe_of(SUGGESTED, content, request.sets, recipe.plugins), said
    names = ", ".join(k for k, _ in share.most_common(3)) or "nothing"
    none = f"recipe {DEFAULT}: the history has no suggestion for {names} on {device}; tt suggest makes one"
    return recipe, said or [none]


def _source(s: Suggestion) -> str:
    try:
        day = datetime.fromtimestamp(s.at, timezone.utc).date().isoformat()
    except (OverflowError, ValueError, OSError):  # not a time of this world
        day = "an unknown day"
    who = f" by {s.who}" if s.who else ""
    file = f", imported from {s.file}" if s.file else ""
    return f"{day}{who}{file}"
