"""A comparison for people and programs: a table, one page that needs no network, CSV and JSON."""

from __future__ import annotations

import csv
import html
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tt_bench import charts, pictures, stats, tables
from tt_bench.compare import Comparison
from tt_bench.errors import BenchError
from tt_bench.markup import document, section, table
from tt_bench.score import Scores, scores

__all__ = ["publish"]


def publish(done: Comparison, say: Callable[[str], None]) -> Path:
    """Write summary.csv, pairs.csv, summary.json, PNG pictures and bench.html into the comparison's folder."""
    found, pairs = stats.summaries(done), stats.paired(done)
    try:
        scored = scores(done)
    except BenchError as e:
        scored = Scores({}, {"every unit": str(e)})
    folder = done.folder
    try:
        _csv(folder / "summary.csv", [stats.rows(s) for s in found])
        _csv(folder / "pairs.csv", [_flat(p) for p in pairs])
        data = {"summary": [stats.rows(s) for s in found], "pairs": [_flat(p) for p in pairs], "scores": asdict(scored)}
        (folder / "summary.json").write_text(json.dumps(data, indent=1))
        page = folder / "bench.html"
        page.write_text(_page(done, found, pairs, scored), encoding="utf-8")
    except OSError as e:
        raise BenchError(f"{folder}: {e.strerror or e}; the runs in it are kept") from e
    _show(found, pairs, scored)
    say(f"page, pictures, CSV and JSON: {page}")
    return page


def _page(done: Comparison, found: Sequence[stats.Summary], pairs: Sequence[stats.Paired], scored: Scores) -> str:
    s = done.settings
    how = "measured here" if s["live"] else "replayed from recordings"
    parts = [
        f"<h1>{html.escape(' / '.join(done.recipes))}</h1>",
        f'<p class="note">{len(done.units)} units, {s["seeds"]} seeds, {s["trials"]} trials each, {how}.'
        " A run is judged by the recorded latency of the program it would ship, not by what it believes."
        " Brackets are 95 % bootstrap intervals over seeds.</p>",
    ]
    if scored.by_recipe:
        picture = charts.scores(scored.by_recipe, done.recipes)
        note = (
            "Willemsen et al. 2024, by autotuning_methodology: how far the curve over time lies between random search,"
            " calculated from the space, and the optimum, up to where random search has found 95 %. As defined there,"
            " it takes the best of what was measured by the record, without noise."
        )
        parts.append(_figure(done, picture, "score", "Standard score", note))
    for unit, why in scored.left_out.items():
        parts.append(f'<p class="note">Not scored: {html.escape(unit)} ({html.escape(why)}).</p>')
    for over in ("seconds", "trials"):
        note = "Median over seeds; the band holds the middle half of them."
        parts.append(_figure(done, charts.convergence(done, over), f"curves-{over}", f"Over {over}", note))
    note = "Programs: rows read back and statements extracted. Means over units of the seeds' medians."
    parts.append(_figure(done, charts.split(found, done.recipes), "split", "Where the time goes", note))
    parts.append(section("Figures", table(_HEAD, [_cells(f) for f in found])))
    if pairs:
        note = (
            "Pairs of the same unit and seed. Ratio: median of first / second with its interval. p: Wilcoxon's signed"
            " rank, two-sided, corrected by Holm."
        )
        parts.append(section("Paired comparisons", table(_PAIRS, [_pair_cells(p) for p in pairs]), note))
    parts += [
        f'<p class="note">{html.escape(d)}</p>' for d in dict.fromkeys(d for u in s["units"] for d in u["doubts"])
    ]
    lacking = max((f.lacking for f in found), default=0.0)
    if lacking:
        text = f"Up to {lacking:.1%} of the rows that tuners asked for are not in the recordings ({s['unrecorded']})."
        parts.append(f'<p class="note">{text}</p>')
    return document("tt bench", parts)


_HEAD = ("unit", "recipe", "final", "area", "to 90 %", "to 95 %", "to 99 %", "run", "thinking, real")
_PAIRS = ("figure", "first", "second", "pairs", "ratio", "first better", "p")


def _cells(s: stats.Summary) -> tuple[str, ...]:
    seconds = [_three(s.to[share], "{:.3g} s") for share in stats.SHARES]
    return (
        s.unit,
        s.recipe,
        _three(s.final, "{:.3f}"),
        _three(s.area, "{:.3f}"),
        *seconds,
        _three(s.seconds, "{:.3g} s"),
        f"{s.thinking_s:.2g} s",
    )


def _pair_cells(p: stats.Paired) -> tuple[str, ...]:
    mid, low, high = (">1000" if r > 1e3 else "<0.001" if r < 1e-3 else f"{r:.3g}" for r in p.ratio)
    return p.figure, p.a, p.b, str(p.pairs), f"{mid} [{low}, {high}]", f"{p.wins:.0%}", f"{p.p:.2g}"


def _three(v: tuple[float, float, float], form: str) -> str:
    """`median [low, high]`; what was never reached is an em dash."""
    mid, low, high = (form.format(x) if math.isfinite(x) else "—" for x in v)
    return f"{mid} [{low.removesuffix(' s')}, {high.removesuffix(' s')}]"


def _figure(done: Comparison, picture: Any, name: str, title: str, note: str) -> str:
    with pictures.literal(picture):
        picture.savefig(done.folder / f"{name}.png", dpi=130)
    return section(title, f'<div class="wide">{pictures.svg(picture, name)}</div>', note)


def _flat(p: stats.Paired) -> dict[str, Any]:
    data = asdict(p)
    ratio = data.pop("ratio")
    return {**data, "ratio": ratio[0], "ratio_low": ratio[1], "ratio_high": ratio[2]}


def _csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(k for r in rows for k in r))
    with open(path, "w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, names, restval="")
        writer.writeheader()
        writer.writerows(rows)


def _show(found: Sequence[stats.Summary], pairs: Sequence[stats.Paired], scored: Scores) -> None:
    brief = [
        (s.unit, s.recipe, _three(s.area, "{:.3f}"), _three(s.to[0.95], "{:.3g} s"), _three(s.final, "{:.3f}"))
        for s in found
    ]
    tables.show(("unit", "recipe", "area", "to 95 %", "final"), brief)
    if pairs:
        tables.show(_PAIRS, [_pair_cells(p) for p in pairs], text=3)
    for recipe, (score, low, high) in scored.by_recipe.items():
        print(f"score of {recipe}: {score:.2f} [{low:.2f}, {high:.2f}]")
    for unit, why in scored.left_out.items():
        print(f"not scored: {unit} ({why})")
    lacking = max((f.lacking for f in found), default=0.0)
    if lacking:
        print(f"up to {lacking:.1%} of the rows asked for are not in the recordings")
