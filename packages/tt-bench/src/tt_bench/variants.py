"""Comparing variants of recipes: recipes with options set, each under a name of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tt_bench.compare import Comparison, Unit, compare
from tt_bench.errors import BenchError

__all__ = ["Variant", "compare_variants"]


@dataclass(frozen=True)
class Variant:
    """A recipe with options set, as in `tt tune --recipe RECIPE --set OPTION`.

    Args:
        recipe: Name or TOML file.
        sets: E.g. `("searcher=anneal", "searcher.unit=spread")`.
    """

    recipe: str
    sets: tuple[str, ...] = ()


def compare_variants(
    host: Any,
    chosen: Sequence[Unit],
    variants: Mapping[str, Variant],
    out: Path,
    *,
    say: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Comparison:
    """Compare each variant with `compare` in a folder of its own, `out`/NAME, and join what came of it.

    Args:
        host, chosen, options: As of `compare`, all but `sets`.
        variants: By the names that the result knows as recipes.
    """
    if not variants:
        raise BenchError("a comparison needs a variant, got none")
    found = {
        name: compare(host, chosen, [v.recipe], out / name, sets=v.sets, say=_named(name, say), **options)
        for name, v in variants.items()
    }
    own = [(name, variants[name].recipe, done) for name, done in found.items()]
    last = own[-1][2]
    return dataclasses.replace(
        last,
        settings={**last.settings, "recipes": {name: done.settings["recipes"][r] for name, r, done in own}},
        runs={(name, *key[1:]): run for name, r, done in own for key, run in done.runs.items() if key[0] == r},
        thinking={(name, *key[1:]): s for name, r, done in own for key, s in done.thinking.items() if key[0] == r},
        folder=out,
    )


def _named(name: str, say: Callable[[str], None]) -> Callable[[str], None]:
    return lambda text: say(f"{name}: {text}")
