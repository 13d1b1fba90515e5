"""One tuning run as a page: `tt report`."""

from __future__ import annotations

import html
import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import Batch, Listener, Measurement, Plugins, RunInfo, StoreError, TaskState
from tt_spec.spent import Spent

from tt_bench import pictures
from tt_bench.errors import BenchError
from tt_bench.markup import document, section, table
from tt_bench.slots import Given, add, section_slots
from tt_bench.states import section_states
from tt_bench.stops import section_stops
from tt_bench.subspace import importance
from tt_bench.wallclock import Clocked, section_time

__all__ = ["Told", "listen", "write"]

PANELS = 12


@dataclass
class Told(Listener):
    """The content of a run's events; a listener of the event hooks.

    Args:
        spent: Where the loop's wall clock went.
        info: Numbers among a batch's remarks: `(task, trials, value)` by name.
        losses: Of batches picked by clustering, `(numbers of clusters, their losses, the number chosen)` by task.
        stops: Of each batch, `(trials, what an adaptive stopper remarked)` by task.
    """

    run: RunInfo | None = None
    retold: Any = None
    measured: dict[str, list[Measurement]] = field(default_factory=lambda: defaultdict(list))
    spent: Spent = field(default_factory=Spent)
    batches: Counter[str] = field(default_factory=Counter)
    info: dict[str, list[tuple[str, int, float]]] = field(default_factory=lambda: defaultdict(list))
    losses: dict[str, list[tuple[list[int], list[float], int]]] = field(default_factory=lambda: defaultdict(list))
    stops: dict[str, list[tuple[int, dict[str, Any]]]] = field(default_factory=lambda: defaultdict(list))
    slots: list[Given] = field(default_factory=list)

    def tt_run_started(self, run: RunInfo) -> None:
        self.run, self.spent = run, Spent(_cores(run))

    def tt_batch_measured(self, run: RunInfo, state: TaskState, batch: Batch, results: list[Measurement]) -> None:
        name = state.task.name
        self.measured[name] += results
        self.batches[name] += 1
        add(self.slots, state, batch, sum(m.error != "invalid" for m in results))
        for key, value in _numbers({k: v for k, v in batch.info.items() if k != "stopper"}):
            self.info[key].append((name, state.trials, value))
        if isinstance(curve := batch.info.get("loss_curve"), dict):
            self.losses[name].append((list(curve["k"]), list(curve["loss"]), int(batch.info["k"])))
        if "im" in (about := batch.info.get("stopper") or {}):
            self.stops[name].append((state.trials, about))
        self.spent.add(state, batch, results)


def listen(host: Any, run: str, history: Path) -> Told:
    """A run's events, from its log."""
    told = Told()
    try:
        told.retold = host.retell(host.events(run, history), [told])
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise BenchError(
            f"the event log of {run or history} is incomplete or damaged ({e}); was it edited by hand?"
        ) from e
    return told


def write(told: Told, history: Path, out: Path) -> None:
    """Write the page."""
    assert told.run is not None
    options = told.run.options
    states = sorted(told.run.states, key=lambda s: -s.weight * s.best_s if math.isfinite(s.best_s) else math.inf)
    parts = [
        f"<h1>{html.escape(str(options.get('model', 'run')))}</h1>",
        f'<p class="note">{html.escape(_subtitle(told, states))}</p>',
        _section_model(told),
        _section_convergence(told, states),
        section_time(_clocked(told)),
        section_states(m for results in told.measured.values() for m in results),
        section_slots(told.slots, [s.task.name for s in states], told.spent.total_s),
        _section_slots(told, states),
        section_stops(told.stops, [s.task.name for s in states]),
        _section_errors(told),
        _section_best(told, states, history),
        _section_clusters(told, states),
        _section_info(told),
    ]
    try:
        out.write_text(document(f"tt report: {options.get('model', '')}", [p for p in parts if p]), encoding="utf-8")
    except OSError as e:
        raise BenchError(f"{out}: {e.strerror or e}") from e


def _subtitle(told: Told, states: Sequence[TaskState]) -> str:
    assert told.run is not None
    o = told.run.options
    recipe = o.get("recipe", {}).get("name", "?") if isinstance(o.get("recipe"), dict) else "?"
    trials = sum(s.trials for s in states)
    reason = told.retold.reason or "its log ends here: the run was killed or goes on"
    asked = o.get("options")
    precision = asked.get("precision", "exact") if isinstance(asked, dict) else "exact"
    how = "" if precision == "exact" else f", computed in {precision}"
    return (
        f"Recipe {recipe}, seed {o.get('seed', '?')}{how}, {o.get('device', '?')}; run {told.run.run_id[:8]}:"
        f" {trials} trials on {len(states)} operators; stopped: {reason}."
    )


def _section_model(told: Told) -> str:
    curve = [(t, s) for t, s in told.retold.curve if math.isfinite(s)]
    made, (ax,) = pictures.grid(1, 7.5, 3.2)
    began = told.retold.curve[0][0] if told.retold.curve else 0.0
    if curve:
        (line,) = ax.step([t - began for t, _ in curve], [1e3 * s for _, s in curve], where="post", color="#0072B2")
        line.set_gid("curve-model")
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(lambda v, _: f"{v:g}")
        ax.yaxis.set_minor_formatter(lambda v, _: "")
    ax.set_xlabel("seconds since the first batch", fontsize=8)
    ax.set_ylabel("ms", fontsize=8)
    note = "Weighted sum of the operators' best latencies; it begins when each has a program."
    result = told.retold.result or {}
    if result.get("after_s"):
        note += f" The written file: {1e3 * result['before_s']:.3g} ms untuned, {1e3 * result['after_s']:.3g} ms tuned."
    lack = sum(not math.isfinite(s.best_s) for s in told.retold.states)
    body = _svg(made, "model") if curve else f'<p class="note">{lack} operators have no program yet.</p>'
    return section("Model latency over time", body, note)


def _section_convergence(told: Told, states: Sequence[TaskState]) -> str:
    shown = [s for s in states if any(m.seconds for m in told.measured[s.task.name])][:PANELS]
    if not shown:
        return section("Convergence", '<p class="note">No operator has a valid program from this run.</p>')
    made, axes = pictures.grid(len(shown), 3.6, 2.4)
    for ax, s in zip(axes, shown, strict=True):
        seen = [1e6 * m.latency_s for m in told.measured[s.task.name] if m.error != "invalid"]
        trials = np.arange(1, len(seen) + 1)
        best = np.minimum.accumulate(seen)
        ax.plot(trials, np.where(np.isfinite(seen), seen, np.nan), ".", color="#bbbbbb", markersize=3)
        (line,) = ax.step(trials, best, where="post", color="#0072B2")
        line.set_gid(f"curve-{s.task.name}")
        ax.set_title(f"{s.task.name} (x {s.weight:g})", fontsize=8)
        last = float(best[-1])
        ax.set_ylim(0, min(max(x for x in seen if np.isfinite(x)), 6 * last) * 1.05)
        ax.tick_params(labelsize=7)
        ax.set_ylabel("us", fontsize=7)
        ax.set_xlabel("trials", fontsize=7)
    more = f" The {len(shown)} of {len(states)} that cost the model most." if len(states) > len(shown) else ""
    note = f"The result of each trial, and the best so far; trials slower than six times the end are cut off.{more}"
    return section("Convergence", _svg(made, "convergence"), note)


def _clocked(told: Told) -> Clocked:
    return Clocked(told.spent, told.retold.stages, sum(g.decided_s for g in told.slots if g.decided_s))


def _section_slots(told: Told, states: Sequence[TaskState]) -> str:
    rows = []
    for s in states:
        share = f"{s.weight * s.best_s * 1e3:.3g} ms" if math.isfinite(s.best_s) else "—"
        gflops = f"{s.flops / s.best_s / 1e9:.1f}" if math.isfinite(s.best_s) and s.flops else "—"
        failed = sum(n for kind, n in s.errors.items() if kind != "invalid")
        rows.append(
            (
                s.task.name,
                s.op,
                f"{s.weight:g}",
                told.batches[s.task.name],
                s.trials,
                failed,
                share,
                gflops,
                s.finished or "",
            )
        )
    head = ("operator", "kind", "x", "batches", "trials", "failed", "of the model", "GFLOP/s", "finished")
    return section("Slots per operator", table(head, [[str(c) for c in r] for r in rows], text=(1, 8)))


def _section_errors(told: Told) -> str:
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for results in told.measured.values():
        for m in results:
            if m.error is not None:
                kinds[m.error][re.sub(r"\d+(\.\d+)?", "N", m.why)[:300] or "(no message)"] += 1
    if not kinds:
        return section("Errors", '<p class="note">None.</p>')
    rows = []
    for kind, why in sorted(kinds.items(), key=lambda k: -sum(k[1].values())):
        for i, (text, n) in enumerate(why.most_common(3)):
            rows.append((kind if i == 0 else "", str(sum(why.values())) if i == 0 else "", str(n), text))
    note = "By kind, with the three most frequent messages of each; N stands for numbers."
    return section("Errors", table(("kind", "rows", "of these", "message"), rows, text=(3,)), note)


def _section_best(told: Told, states: Sequence[TaskState], history: Path) -> str:
    known = _known(told, states, history)
    rows, matter = [], []
    for s in states:
        valid = [m for m in known.get(s.task.key, []) if m.seconds]
        if not valid:
            continue
        best = min(valid, key=lambda m: m.latency_s)
        knobs = ", ".join(f"{k} {_plain(v)}" for k, v in best.knobs.items())
        rows.append((s.task.name, f"{1e6 * best.latency_s:.4g} us", knobs))
        alike = [m for m in valid if m.space_key == best.space_key and m.knobs.keys() == best.knobs.keys()]
        matter += _importance(s.task.name, alike)
    if not rows:
        return section("Best configurations", f'<p class="note">{history} holds no rows of these operators.</p>')
    out = section("Best configurations", table(("operator", "latency", "knobs"), rows, text=(2,)))
    note = (
        "Share of the variance of log latency that a knob explains alone (omega squared), among the measured rows that"
        " have the best one's knobs."
    )
    return out + section("Knob importance", table(("operator", "rows", "knobs"), matter, text=(2,)), note)


def _importance(name: str, alike: Sequence[Measurement]) -> list[tuple[str, str, str]]:
    names = list(alike[0].knobs)
    columns = [np.unique([_plain(m.knobs[k]) for m in alike], return_inverse=True)[1] for k in names]
    shares = importance(np.stack(columns, axis=1), np.array([m.latency_s for m in alike]))
    order = np.argsort(-shares, kind="stable")
    text = ", ".join(f"{names[i]} {shares[i]:.0%}" for i in order[:6] if shares[i] >= 0.01)
    return [(name, str(len(alike)), text or "none stands out")]


def _known(told: Told, states: Sequence[TaskState], history: Path) -> dict[str, list[Measurement]]:
    """The measurements of a history on the run's device by task, the latest of each row."""
    if not history.is_file():
        return {}
    store = Plugins().build("store", "sqlite", path=str(history))
    device = told.run.options.get("device") if told.run else None
    try:
        return {
            s.task.key: list({(m.space_key, m.config): m for m in store.query(s.task.key, None, device)}.values())
            for s in states
        }
    except StoreError as e:
        raise BenchError(str(e)) from e
    finally:
        store.close()


def _section_info(told: Told) -> str:
    keys = sorted(k for k, points in told.info.items() if len({v for _, _, v in points}) > 1)[:PANELS]
    if not keys:
        return ""
    made, axes = pictures.grid(len(keys), 3.6, 2.2)
    tasks = list(told.measured)
    colours = pictures.colours(len(tasks))
    for ax, key in zip(axes, keys, strict=True):
        for i, name in enumerate(tasks):
            points = [(n, v) for t, n, v in told.info[key] if t == name]
            ax.plot(
                [n for n, _ in points], [v for _, v in points], color=colours[i], linewidth=1, marker=".", markersize=3
            )
        ax.set_title(key, fontsize=8)
        ax.tick_params(labelsize=7)
    axes[-1].set_xlabel("trials of the operator", fontsize=8)
    return section("What the pieces remarked", _svg(made, "info"), "Their own numbers, one line per operator.")


def _section_clusters(told: Told, states: Sequence[TaskState]) -> str:
    shown = [s.task.name for s in states if told.losses[s.task.name]][:PANELS]
    if not shown:
        return ""
    made, axes = pictures.grid(len(shown), 3.6, 2.2)
    for ax, name in zip(axes, shown, strict=True):
        batches = told.losses[name]
        for i, (ks, losses, k) in enumerate(batches):
            shade = str(round(0.75 * (1 - (i + 1) / len(batches)), 3))  # later batches are darker
            ax.plot(ks, losses, color=shade, linewidth=0.8)
            (chosen,) = ax.plot([k], [losses[ks.index(k)]], "o", color="#D55E00", markersize=4)
            chosen.set_gid(f"clusters-{name}-{i}")
        ax.set_title(name, fontsize=8)
        ax.tick_params(labelsize=7)
    axes[-1].set_xlabel("clusters", fontsize=8)
    rows = [(name, ", ".join(str(k) for _, _, k in told.losses[name])) for name in shown]
    note = (
        "The loss when candidates are represented by their cluster's centroid, by number of clusters; later batches are"
    )
    body = _svg(made, "clusters") + table(("operator", "clusters of each batch"), rows, text=(1,))
    return section("Clusters", body, f"{note} darker. The dots are the numbers chosen.")


def _numbers(info: Any, prefix: str = "") -> list[tuple[str, float]]:
    found = []
    for key, value in info.items():
        if isinstance(value, dict):
            found += _numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found.append((prefix + key, float(value)))
    return found


def _cores(run: RunInfo) -> int:
    found = re.search(r"(\d+) cores$", str(run.options.get("device", "")))
    return int(found.group(1)) if found else 1


def _plain(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _svg(made: Any, name: str) -> str:
    return f'<div class="wide">{pictures.svg(made, name)}</div>'
