"""Recipes x units x seeds, over all cores, one file per run."""

from __future__ import annotations

import dataclasses
import hashlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tt_bench.atomic import read_json, write_json
from tt_bench.errors import BenchError
from tt_bench.files import load
from tt_bench.recording import Recorded
from tt_bench.replay import Unrecorded
from tt_bench.runs import Run, tune
from tt_bench.thinking import Thoughts

__all__ = ["Comparison", "Unit", "compare", "read", "units"]

FORMAT = 1

WARM_UP = 72


@dataclass(frozen=True)
class Unit:
    """The unit on which recipes are compared: one task, or a whole model.

    Args:
        name: For tables and file names.
        path: Of the recording.
        parts: Which of its tasks.
    """

    name: str
    path: str
    parts: tuple[int, ...]


@dataclass(frozen=True)
class Comparison:
    """A finished comparison.

    Args:
        settings: What was asked for.
        runs: By `(recipe, unit, seed)`.
        thinking: Real seconds that the pieces thought, by the same.
        best: Best known latency of each unit, seconds (models: the weighted sum).
    """

    settings: dict[str, Any]
    runs: dict[tuple[str, str, int], Run]
    thinking: dict[tuple[str, str, int], float]
    best: dict[str, float]
    folder: Path

    @property
    def recipes(self) -> list[str]:
        return list(self.settings["recipes"])

    @property
    def units(self) -> list[str]:
        return [u["name"] for u in self.settings["units"]]

    def of(self, recipe: str, unit: str) -> list[Run]:
        """Runs of all seeds, in order."""
        return [r for (a, b, _), r in sorted(self.runs.items()) if (a, b) == (recipe, unit)]


def units(paths: Sequence[Path], spaces: Sequence[str], tasks: str = "*", whole: bool = False) -> list[Unit]:
    """Tasks with more than one row, or with `whole` each recording's model; spaces: which kinds, empty for all."""
    from fnmatch import fnmatch

    found = []
    for path in paths:
        recording = load(path)
        if spaces and recording.space not in spaces:
            continue
        model = recording.model.removeprefix("op:")
        chosen = [
            i
            for i, p in enumerate(recording.parts)
            if fnmatch(p.whole.name, tasks) and np.isfinite(p.latency).sum() > (0 if whole else 1)
        ]
        if whole and chosen:
            found.append(Unit(f"{model} [{recording.space}]", str(path), tuple(chosen)))
        elif not whole:
            for i in chosen:
                name = recording.parts[i].whole.name
                shown = f"{model} {name}" if len(chosen) > 1 else model
                found.append(Unit(f"{shown} [{recording.space}]", str(path), (i,)))
    if not found:
        what = f" with space {' or '.join(spaces)}" if spaces else ""
        raise BenchError(f"no recorded task{what} in {', '.join(map(str, paths)) or 'no file'}: tt record makes some")
    twice = sorted({u.name for u in found if sum(v.name == u.name for v in found) > 1})
    if twice:
        raise BenchError(f"{twice[0]} is in several recordings: give one of them")
    return found


def compare(
    host: Any,
    chosen: Sequence[Unit],
    recipes: Sequence[str],
    out: Path,
    *,
    sets: Sequence[str] = (),
    seeds: int = 15,
    trials: int = 300,
    unrecorded: Unrecorded | None = None,
    live: bool = False,
    jobs: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Run what is missing in `out` and read all of it. The same call again goes on where the last one stopped.

    Before the seeds each recipe runs once on each unit to see how long its pieces think; that table is kept in `out`
    and charged ever after, so that the same seed gives the same bytes.
    """
    settings = _settings(host, chosen, recipes, sets, seeds, trials, unrecorded, live)
    _begin(out, settings)
    for text in dict.fromkeys(d for u in settings["units"] for d in u["doubts"]):
        say(f"warning: {text}")
    workers = 1 if live else jobs or host.cores()
    todo = [(r, u) for r in recipes for u in chosen]
    with _pool(workers) as pool:
        if not live:
            missing = [(r, u) for r, u in todo if not _table(out, r, u).exists()]
            jobs_ = [_Job(host, u, r, tuple(sets), 0, trials, None, settings["unrecorded"], False) for r, u in missing]
            for n, (job, got) in enumerate(_all(pool, jobs_), 1):
                write_json(_table(out, job.recipe, job.unit), dataclasses.asdict(Thoughts.of(got.thought)))
                say(f"thinking of {job.recipe} on {job.unit.name} is known, {n} of {len(jobs_)}")
        jobs_ = []
        for r, u in todo:
            thoughts = None if live else Thoughts(**{k: tuple(v) for k, v in read_json(_table(out, r, u)).items()})
            jobs_ += [
                _Job(host, u, r, tuple(sets), s, trials, thoughts, settings["unrecorded"], live)
                for s in range(seeds)
                if not _file(out, r, u.name, s).exists()
            ]
        for n, (job, got) in enumerate(_all(pool, jobs_), 1):
            path = _file(out, job.recipe, job.unit.name, job.seed)
            real = {"thinking_s": sum(m + s for _, m, s in got.thought)}
            write_json(path.with_suffix(".real.json"), real)
            write_json(path, {k: v for k, v in vars(got).items() if k != "thought"})
            say(f"{job.recipe} on {job.unit.name}, seed {job.seed}: {len(got.t)} trials, {n} of {len(jobs_)} runs")
    return read(out)


def read(out: Path) -> Comparison:
    """A comparison from its folder; runs that are missing are left out."""
    if not (out / "bench.json").is_file():
        raise BenchError(f"{out} holds no comparison (bench.json): tt bench --out {out} makes one")
    settings = read_json(out / "bench.json")
    if settings.get("format") != FORMAT:
        raise BenchError(f"{out}: a comparison of format {settings.get('format')}, this tt-bench reads {FORMAT}")
    runs, real = {}, {}
    for r in settings["recipes"]:
        for u in settings["units"]:
            for s in range(settings["seeds"]):
                path = _file(out, r, u["name"], s)
                if path.is_file():
                    runs[r, u["name"], s] = Run(**read_json(path))
                    real[r, u["name"], s] = read_json(path.with_suffix(".real.json"))["thinking_s"]
    best = {u["name"]: u["best_s"] for u in settings["units"]}
    return Comparison(settings, runs, real, best, out)


@dataclass(frozen=True)
class _Job:
    host: Any
    unit: Unit
    recipe: str
    sets: tuple[str, ...]
    seed: int
    trials: int
    thoughts: Thoughts | None
    unrecorded: Unrecorded
    live: bool


_LOADED: dict[str, tuple[Recorded, ...]] = {}


def _do(job: _Job) -> Run:
    if job.unit.path not in _LOADED:
        _LOADED[job.unit.path] = load(job.unit.path).parts
    parts = [_LOADED[job.unit.path][i] for i in job.unit.parts]
    options: Any = {"thoughts": job.thoughts, "unrecorded": job.unrecorded, "live": job.live}
    if job.thoughts is None and not job.live:  # libraries load and caches fill before thinking is timed
        tune(job.host, parts, job.recipe, job.sets, job.seed, min(job.trials, WARM_UP), **options)
    return tune(job.host, parts, job.recipe, job.sets, job.seed, job.trials, **options)


def _pool(workers: int) -> ProcessPoolExecutor:
    """Fresh processes of one thread each: results must not depend on how many cores there are."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _end_with_parent)


def _end_with_parent() -> None:
    """A worker of a comparison that was killed would wait for its next job for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _all(pool: ProcessPoolExecutor, jobs: Sequence[_Job]) -> Iterator[tuple[_Job, Run]]:
    """Results as they come; after a failure nothing new begins."""
    futures = {pool.submit(_do, job): job for job in jobs}
    try:
        for done in as_completed(futures):
            yield futures[done], done.result()
    finally:
        for f in futures:
            f.cancel()


def _settings(
    host: Any,
    chosen: Sequence[Unit],
    recipes: Sequence[str],
    sets: Sequence[str],
    seeds: int,
    trials: int,
    unrecorded: Unrecorded | None,
    live: bool,
) -> dict[str, Any]:
    from tt_spec import Plugins

    from tt_bench.oracle import OraclePieces

    plugins = Plugins(extra=[("tt-bench-replay", OraclePieces(()))])
    about, lacking = [], []
    for unit in chosen:
        recording = load(unit.path)
        parts = [recording.parts[i] for i in unit.parts]
        best = float(sum(p.task.weight * p.best_s for p in parts))
        if not np.isfinite(best):
            raise BenchError(f"{unit.name}: a task without any working candidate cannot be compared on")
        lacking += [unit.name] * any(not p.complete for p in parts)
        digest = hashlib.sha256(Path(unit.path).read_bytes()).hexdigest()[:16]
        about.append({"name": unit.name, "recording": digest, "parts": list(unit.parts), "best_s": best})
        about[-1] |= {"path": os.path.abspath(unit.path), "doubts": recording.doubts()}
    if lacking and unrecorded is None and not live:
        raise BenchError(
            f"{lacking[0]} is recorded in part, so tuners will ask for rows that are missing: say what becomes of"
            " them, --unrecorded nearest (the closest recorded row) or refuse; or record with --candidates all"
        )
    return {
        "format": FORMAT,
        "recipes": {r: host.recipe(r, sets, plugins).describe() for r in recipes},
        "units": about,
        "seeds": seeds,
        "trials": trials,
        "unrecorded": unrecorded or "refuse",
        "live": live,
    }


def _begin(out: Path, settings: dict[str, Any]) -> None:
    """Keep the settings; a folder with other ones is refused, except that seeds, recipes and units may be added."""
    path = out / "bench.json"
    for kind, names in (("recipes", list(settings["recipes"])), ("units", [u["name"] for u in settings["units"]])):
        slugs = [_slug(n).casefold() for n in names]  # also where file names have no case
        same = [n for n, s in zip(names, slugs, strict=True) if slugs.count(s) > 1]
        if same:
            raise BenchError(f"the {kind} {' and '.join(map(repr, same))} would share their files: rename one of them")
    if path.exists():
        old = read_json(path)
        fixed = ("format", "trials", "unrecorded", "live")
        differ = [k for k in fixed if old.get(k) != settings[k]]
        for name, recipe in settings["recipes"].items():
            differ += [f"recipe {name}"] * (old["recipes"].get(name, recipe) != recipe)
        known = {u["name"]: u["recording"] for u in old["units"]}
        differ += [u["name"] for u in settings["units"] if known.get(u["name"], u["recording"]) != u["recording"]]
        if differ:
            raise BenchError(f"{out} holds a comparison that differs in {', '.join(differ)}: choose another --out")
    try:
        (out / "runs").mkdir(parents=True, exist_ok=True)
        write_json(path, settings)
    except OSError as e:
        raise BenchError(f"{out}: {e.strerror or e}") from e


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text)


def _file(out: Path, recipe: str, unit: str, seed: int) -> Path:
    return out / "runs" / f"{_slug(recipe)}--{_slug(unit)}--{seed}.json"


def _table(out: Path, recipe: str, unit: Unit) -> Path:
    return out / "thinking" / f"{_slug(recipe)}--{_slug(unit.name)}.json"
