"""`--recipe suggested`: what the newest suggestion of the history says for a model's heaviest kind of operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone

from tt_spec import Task
from tt_spec.assembly import about_the_history
from tt_spec.errors import OptionError
from tt_spec.recipe import SUGGESTED, Recipe, recipe_of
from tt_spec.roles import ListsRuns, Store
from tt_spec.suggestions import Suggestion, newest

from tt_core.request import Request
from tt_core.selection import share_of

__all__ = ["taken"]

DEFAULT = Request.recipe

_FOREIGN = ("store", "measurer", "space")
"""Of a suggestion these are not taken: the run has them already."""


def taken(
    request: Request, recipe: Recipe, store: Store, tasks: Sequence[Task], device: str
) -> tuple[Recipe, list[str]]:
    """The recipe to run, and a line that says which suggestion was taken, or why none.

    Args:
        recipe: That the run began with; it is kept unless the suggested one was asked for.
        tasks: Of the model. Kinds of operators are asked about by their share of its work, the heaviest first.
    """
    if request.recipe != SUGGESTED:
        return recipe, []
    share: Counter[str] = Counter()
    for task, s in zip(tasks, share_of(tasks), strict=True):
        share[task.op] += float(s)  # type: ignore[assignment]
    with about_the_history():
        runs = store.runs() if isinstance(store, ListsRuns) else []
    for kind, part in share.most_common():
        found = newest(runs, kind, device)
        if found is None:
            continue
        about = f"the suggestion of {_source(found)} for {kind}, {part:.0%} of the work"
        if not found.better:
            return recipe, [f"recipe {DEFAULT}: {about}, is to keep the default"]
        try:
            content = {k: v for k, v in found.recipe.items() if k not in _FOREIGN}
            return recipe_of(SUGGESTED, content, request.sets, recipe.plugins), [f"recipe {SUGGESTED}: {about}"]
        except OptionError as e:
            return recipe, [f"recipe {DEFAULT}: {about}, cannot be used here ({e})"]
    kinds = ", ".join(k for k, _ in share.most_common(3)) or "nothing"
    return recipe, [f"recipe {DEFAULT}: the history has no suggestion for {kinds} on {device}; tt suggest makes one"]


def _source(s: Suggestion) -> str:
    try:
        day = datetime.fromtimestamp(s.at, timezone.utc).date().isoformat()
    except (OverflowError, ValueError, OSError):  # not a time of this world
        day = "an unknown day"
    who = f" by {s.who}" if s.who else ""
    file = f", imported from {s.file}" if s.file else ""
    return f"{day}{who}{file}"
