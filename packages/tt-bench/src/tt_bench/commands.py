"""`tt record`, `tt bench` and `tt report`."""

from __future__ import annotations

import sys
from glob import glob
from pathlib import Path
from typing import Annotated

import typer

from tt_bench.errors import BenchError

__all__ = ["bench", "record", "report"]


def record(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="As for tt tune: ONNX file, name of the zoo, or op:…")],
    out: Annotated[Path, typer.Option(help="Writes OUT.db as it goes on, and OUT.json.gz (T4) at the end")],
    space: Annotated[str, typer.Option(help="Where candidates come from: template, sketch, both")] = "template",
    candidates: Annotated[
        str, typer.Option(help='"all" of an enumerated sub-space, or how many random ones of each task')
    ] = "all",
    most: Annotated[int, typer.Option(help="Rows of a sub-space; the least important knobs are fixed")] = 2000,
    tasks: Annotated[str, typer.Option(help="Pattern of task names, as in a shell")] = "*",
    target: Annotated[str, typer.Option(help='"native", a TVM target string or JSON')] = "native",
    runs: Annotated[int, typer.Option(min=1, help="Single timings of each candidate")] = 20,
    long_rows: Annotated[int, typer.Option(min=0, help="Rows of each task in long series, beside the 32 fastest")] = 50,
    long_runs: Annotated[int, typer.Option(min=1, help="Timings of a long series")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of the random candidates")] = 0,
) -> None:
    """Measure a model's candidates once; the same command again goes on where it was stopped."""
    from tt_bench.record import record as run

    if candidates != "all" and not (candidates.isdigit() and int(candidates) > 0):
        raise typer.BadParameter(f'--candidates is "all" or a positive number, got {candidates!r}')
    with ctx.obj.interruptible() as halt:
        found = run(
            ctx.obj,
            model,
            out,
            space=space,
            candidates=None if candidates == "all" else int(candidates),
            most=most,
            target=target,
            tasks=tasks,
            runs=runs,
            long=(long_rows, long_runs),
            seed=seed,
            halt=halt,
            say=lambda text: print(text, flush=True),
        )
        stopped = halt()
    for t in found.about()["tasks"]:
        best = f"best {t['best_s'] * 1e6:.1f} us" if t["best_s"] else "none works"
        part = "part of its sub-space" if t["enumerated"] else "a sample"
        what = "every row of its sub-space" if t["complete"] else part
        again = "" if t["repeat"] is None else f"; timed again, nine of ten differ by at most {t['repeat']:.0%}"
        print(f"{t['name']}: {t['rows']} rows ({what}), {t['failed']} failed, {best}{again}")
    for text in found.doubts():
        print(f"warning: {text}", file=sys.stderr)
    if stopped:
        print(f"stopped; all of this is in {out}.db, and the same command goes on")
        raise typer.Exit(130)
    print(f"written to {out}.db and {out}.json.gz")


def bench(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for curves, table, CSV and page; a repeated call goes on")],
    recipes: Annotated[
        list[str] | None,
        typer.Option(help="Names (tt recipes; oracle knows every result) or TOML files; else random,tt"),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(help="Recordings: .db, .json or .json.gz; patterns allowed; else recordings/*-template.json.gz"),
    ] = None,
    spaces: Annotated[list[str] | None, typer.Option(help="Kinds of space; else all that are recorded")] = None,
    tasks: Annotated[str, typer.Option(help="Pattern of task names, as in a shell")] = "*",
    whole: Annotated[bool, typer.Option(help="Tune a recording's tasks together, to compare schedulers")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each recipe on each unit")] = 15,
    trials: Annotated[int, typer.Option(min=1, help="Measured rows of a run")] = 300,
    sets: Annotated[list[str] | None, typer.Option("--set", help="Override every recipe, as in tt tune")] = None,
    unrecorded: Annotated[
        str | None, typer.Option(help="What happens to rows that an incomplete recording lacks: nearest or refuse")
    ] = None,
    live: Annotated[bool, typer.Option(help="Measure the recorded rows here instead of replaying them")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; else one per core")] = None,
) -> None:
    """Compare recipes on recordings: curves, score, time to a share of the best known, paired tests.

    Options that take names may be repeated, or hold several with commas.
    """
    from tt_bench import compare, page

    if unrecorded not in (None, "nearest", "refuse"):
        raise typer.BadParameter(f"--unrecorded is nearest or refuse, got {unrecorded!r}")
    compared = _names(recipes or ["random,tt"])
    if not compared:
        raise typer.BadParameter(f"--recipes needs a name (tt recipes), got {','.join(recipes or [])!r}")
    chosen = compare.units(_paths(models or ["recordings/*-template.json.gz"]), _names(spaces or []), tasks, whole)
    done = compare.compare(
        ctx.obj,
        chosen,
        compared,
        out,
        sets=sets or [],
        seeds=seeds,
        trials=trials,
        unrecorded=unrecorded,  # type: ignore[arg-type]
        live=live,
        jobs=jobs,
        say=lambda text: print(text, flush=True),
    )
    page.publish(done, print)


def report(
    ctx: typer.Context,
    run: Annotated[
        str,
        typer.Argument(help="A history (its newest run), the beginning of a run's id, an event log, or a bench folder"),
    ] = "",
    history: Annotated[Path, typer.Option(help="The history that holds the run")] = Path("tt.db"),
    out: Annotated[
        Path | None, typer.Option(help="The page, .html (report.html); a comparison's lies in its folder")
    ] = None,
) -> None:
    """Draw a tuning run, or a comparison of tt bench, as one page that opens offline."""
    if out is not None and out.suffix != ".html":  # a slip must not cost a history
        raise typer.BadParameter(f"--out {out} must end with .html")
    if Path(run, "bench.json").is_file():
        if out is not None:
            raise typer.BadParameter(f"--out {out}: the page of a comparison lies in its folder, {run}/bench.html")
        from tt_bench import compare, page

        page.publish(compare.read(Path(run)), print)
        return
    if run and Path(run).is_dir():
        raise BenchError(f"{run} is a folder without bench.json: give a history, a run or a folder of tt bench")
    if Path(run).suffix == ".db":
        run, history = "", Path(run)
    from tt_bench import runpage

    out = out or Path("report.html")
    told = runpage.listen(ctx.obj, run, history)
    try:
        runpage.write(told, history, out)
    except (
        LookupError,
        TypeError,
        ValueError,
        ArithmeticError,
        AttributeError,
        RecursionError,
    ) as e:  # a log may hold anything in any place
        raise BenchError(f"the run's event log is damaged ({type(e).__name__}: {e}); was it edited by hand?") from e
    print(f"written to {out}")


def _paths(texts: list[str]) -> list[Path]:
    found = []
    for name in _names(texts):
        some = [Path(p) for p in sorted(glob(name))] if "*" in name else [Path(name)]
        if not some:
            raise BenchError(f"no recording matches {name!r}: tt record --out {name.split('*')[0]}NAME makes one")
        found += some
    return found


def _names(texts: list[str]) -> list[str]:
    return [n.strip() for text in texts for n in text.split(",") if n.strip()]
