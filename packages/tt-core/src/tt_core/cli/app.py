"""The command `tt`."""

from __future__ import annotations

import io
import json
import math
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from tt_spec import PluginError, Plugins, Task
from tt_spec.command import Framework, exit_code
from tt_spec.errors import OptionError
from tt_spec.hooks import EVENTS
from tt_spec.serial import JsonObject

from tt_core.cli import history as history_commands
from tt_core.cli import progress, tables
from tt_core.cli.reader import Reader
from tt_core.compiler.lean import tvm_without_torch, xgboost_without_sklearn
from tt_core.compiler.target import use_all_cores
from tt_core.doctor import checks as doctor
from tt_core.errors import EXIT_CODES, InstallationError, ModelError, RunError, explained, one_line, summary
from tt_core.host import Host
from tt_core.interrupt import Interrupt, interruptible, interruptions
from tt_core.request import Asked, Request
from tt_core.result import Result

__all__ = ["app", "main", "run"]

app = typer.Typer(
    name="tt",
    help="Tune the tensor programs of a model on this machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    epilog="Exit codes: " + "; ".join(f"{code} {what}" for code, what in EXIT_CODES.items()) + ".",
)
app.add_typer(history_commands.app, name="history")

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="File (.onnx, .pt2, TVMScript .py), name of the zoo (tt plugins; resnet18@8 is a batch of 8), or operator"
        " (op:conv2d:N,CI,HW,CO,K,S,P, op:C2D:1)"
    ),
]
ShapeOption = Annotated[
    list[str] | None, typer.Option("--shape", help="Fix an input's shape: name=1,3,320,320 (repeatable)")
]
FixOption = Annotated[
    list[str] | None,
    typer.Option("--fix", help="A value for an input of an ONNX model, which becomes a constant: sr=16000"),
]
PrecisionOption = Annotated[
    str, typer.Option(help="exact keeps a quantised ONNX model's arithmetic, float32 dequantises its weights")
]
DenormalsOption = Annotated[
    str | None,
    typer.Option(help="flush (default) takes numbers under 1.2e-38 for zero, also in the file; keep does not"),
]
TargetOption = Annotated[str, typer.Option(help='"native", a TVM target string or JSON')]
TasksOption = Annotated[
    list[str] | None,
    typer.Option(help="Only these tasks: a name or operator, as in a shell (repeatable, commas join several)"),
]
SkipOption = Annotated[list[str] | None, typer.Option(help="Not these tasks (repeatable)")]
SpaceOption = Annotated[
    str | None, typer.Option(help="Where candidates come from: template, sketch, both (default), or a plug-in's")
]
UntrustedOption = Annotated[
    bool,
    typer.Option("--untrusted", help="Read the ONNX file in a process without network, other files and much memory"),
]
MinutesOption = Annotated[
    float | None, typer.Option(help="Of the whole run, from reading to writing; 5 if there is no other budget")
]
OnlyHeavyOption = Annotated[
    bool, typer.Option("--only-heavy", help="Only the fewest tasks that hold 95 % of the model's latency")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the plan and the time it takes; do nothing")]
HistoryOption = Annotated[Path, typer.Option(help="Where every measurement is kept; a repeated run continues from it")]
SetsOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override the recipe: searcher.population=256, scheduler=round-robin"),
]
ServerOption = Annotated[
    str | None, typer.Option(help="URL of a tuning service (tt serve) that searches, while this machine measures")
]
KeyFileOption = Annotated[Path | None, typer.Option(help="Holds the server's key, instead of TT_KEY")]
InsecureOption = Annotated[bool, typer.Option("--insecure", help="Let the key cross a network in plain text")]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output")]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tt {metadata.version('tt-core')} (TVM {metadata.version('apache-tvm')})")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback with every error; may stand anywhere")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the versions of tt and TVM", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Tune the tensor programs of a model on this machine."""


@app.command()
def tune(
    model: ModelArgument,
    *,
    shape: ShapeOption = None,
    fix: FixOption = None,
    precision: PrecisionOption = Request.precision,
    denormals: DenormalsOption = None,
    target: TargetOption = Request.target,
    recipe: Annotated[str, typer.Option(help="Name (tt recipes), TOML file, or suggested")] = Request.recipe,
    trials: Annotated[int | None, typer.Option(help="Programs to measure in this run")] = None,
    minutes: MinutesOption = None,
    tasks: TasksOption = None,
    skip: SkipOption = None,
    only_heavy: OnlyHeavyOption = False,
    dry_run: DryRunOption = False,
    space: SpaceOption = None,
    history: HistoryOption = Path(str(Request.history)),
    out: Annotated[Path | None, typer.Option(help="Write the tuned library here, its sidecar beside it")] = None,
    seed: Annotated[int, typer.Option(help="Root of all randomness")] = Request.seed,
    sets: SetsOption = None,
    log: Annotated[bool, typer.Option(help="Keep the run's events beside the history, for tt history retell")] = True,
    untrusted: UntrustedOption = False,
    server: ServerOption = None,
    agent: Annotated[bool, typer.Option(help="Whether this machine measures for the server")] = True,
    private: Annotated[bool, typer.Option("--private", help="Keep the rows from the server's other users")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="With --no-agent, wait until an agent is there")] = False,
    device: Annotated[
        str | None, typer.Option(help="With --no-agent, the device of the agents that measure, or a pattern of it")
    ] = None,
    key_file: KeyFileOption = None,
    insecure: InsecureOption = False,
    as_json: JsonOption = False,
) -> None:
    """Search faster programs for a model's operators, measure them here, and write the faster model."""
    asked: Asked = {"target": target, "recipe": recipe, "minutes": minutes, "trials": trials, "history": history}
    asked |= {"tasks": tasks or Request.tasks, "skip": skip or Request.skip, "only_heavy": only_heavy}
    asked |= {"shapes": _shapes(shape or []), "fix": _fixed(fix or []), "out": out, "seed": seed}
    sets = [*([f"space={space}"] if space else []), *(sets or [])]
    asked |= {"precision": precision, "denormals": denormals, "untrusted": untrusted, "set": sets}
    asked |= {"server": server, "agent": agent, "private": private, "key_file": key_file}
    asked |= {"insecure": insecure, "wait": wait, "device": device}
    if dry_run:
        return _show_plan(model, asked, as_json)
    request = Request.of(model, asked)
    shown = Reader(progress.listener(as_json, request.limit_minutes, trials))
    result = _tuned(model, asked, log, shown)
    if as_json:
        shown.emit("result", **result.as_dict())
    else:
        tables.show_result(result, history)
    _end(result, shown, history)


def _end(result: Result, shown: Reader, history: Path) -> None:
    """Leave with the exit code of what became of the run."""
    if result.failure is not None:
        kept = f"everything measured before is kept in {history}"
        raise RunError(f"the run broke off ({summary(result.failure)}); {kept}") from result.failure
    if result.reason == "interrupted":
        raise typer.Exit(130)
    if shown.gone:
        raise BrokenPipeError
    if not any(math.isfinite(t.best_s) for t in result.tasks):
        raise RunError(f"no valid program was found; {result.causes.headline()}", result.causes.lines())


def _show_plan(model: str, asked: Asked, as_json: bool) -> None:
    from tt_core.planning import plan

    if asked.get("server") is not None:
        raise OptionError("--dry-run plans a search here: omit --server")
    found = plan(model, **asked)
    if as_json:
        print(json.dumps(found.as_dict()))
    else:
        tables.show_plan(found)


def _tuned(model: str, asked: Asked, log: bool, shown: Reader) -> Result:
    from tt_core.tuning import tune

    with interruptible() as halt:

        def ended() -> str | None:
            return halt() or ("nobody reads its output" if shown.gone else None)

        typed = psutil.Process().create_time()
        return tune(model, log=log, halt=ended, say=shown.note, listeners=[shown], began=typed, **asked)


@app.command("tasks")
def list_tasks(
    model: ModelArgument,
    *,
    shape: ShapeOption = None,
    fix: FixOption = None,
    precision: PrecisionOption = Request.precision,
    target: TargetOption = Request.target,
    tasks: TasksOption = None,
    skip: SkipOption = None,
    space: SpaceOption = None,
    untrusted: UntrustedOption = False,
    as_json: JsonOption = False,
) -> None:
    """List a model's tunable operators: shapes, work, weight and the size of their spaces."""
    from tt_core.prepared import prepare
    from tt_core.selection import share_of

    ready = prepare(
        model,
        target=target,
        shapes=_shapes(shape or []),
        fix=_fixed(fix or []),
        precision=precision,
        tasks=tasks or Request.tasks,
        skip=skip or Request.skip,
        space=space or "both",
        untrusted=untrusted,
    )
    for note in ready.model.notes:
        print(note, file=sys.stderr)
    found, every = ready.tasks, ready.lowered.tasks
    whole = {t.key: float(s) for t, s in zip(every, share_of(every), strict=True)}
    if as_json:
        print(json.dumps([_listed(t, whole[t.key]) for t in found]))
    else:
        tables.show_tasks(found, [whole[t.key] for t in found])


def _listed(t: Task, share: float) -> JsonObject:
    """A task as `tt tasks --json` prints it."""
    return {
        "name": t.name,
        "key": t.key,
        "op": t.op,
        "shapes": t.shapes,
        "flops": t.flops,
        "weight": t.weight,
        "share": share,
        "space": t.space.name,
        "knobs": len(t.space.knobs),
        "size": t.space.size,
        "target": t.target,
    }


@app.command("split")
def split_model(
    model: Annotated[Path, typer.Argument(help="An ONNX file")],
    out: Annotated[Path, typer.Option(help="Folder for the parts and parts.json, the order to run them in")],
    *,
    shape: ShapeOption = None,
    fix: FixOption = None,
    untrusted: UntrustedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Cut a model of which some operators cannot be imported into parts that can, and say what stays outside."""
    from tt_core.models.split import PLAN, split
    from tt_core.untrusted import Suspect

    if model.suffix.lower() != ".onnx" or not model.is_file():
        raise ModelError(f"tt split takes an ONNX file, {model} is none")
    shapes, fixed = _shapes(shape or []), _fixed(fix or [])
    if untrusted:
        order, path = Suspect(model, shapes, fixed).split(out), out / PLAN
    else:
        found = split(model, out, shapes, fixed)
        order, path = (None, out) if found is None else (found.order, found.path)
    if as_json:
        print(json.dumps({"order": order or []}))
    elif order is None:
        print(f"{model} can be imported whole: tt tune {model}")
    else:
        tables.show_split(order, path)


@app.command("run")
def run_library(
    library: Annotated[Path, typer.Argument(help="What tt tune --out wrote")],
    seconds: Annotated[float, typer.Option(help="How long to time, about")] = 3.0,
    as_json: JsonOption = False,
) -> None:
    """Time a tuned library on random inputs: median, p10 and p90."""
    import numpy as np

    from tt_core.compiler.runtime import Runner, read_sidecar

    if not 0 <= seconds <= 86400:
        raise OptionError(f"--seconds must be between 0 and 86400, got {seconds:g}")
    use_all_cores(read_sidecar(library).get("threads"))
    runner = Runner(library)
    timed = runner.time(runner.random_inputs(), seconds)
    p10, median, p90 = (float(v) for v in np.percentile(timed.seconds, [10, 50, 90]))
    runs, noise = len(timed.seconds), timed.noise
    if as_json:
        about = {"noise": None if noise is None else vars(noise)}
        print(json.dumps({"median_s": median, "p10_s": p10, "p90_s": p90, "runs": runs, **about}))
        return
    latency = progress.latency
    print(f"median {latency(median)}, p10 {latency(p10)}, p90 {latency(p90)} over {runs} runs")
    if noise is not None and noise.discarded:
        print(f"{noise.discarded} more runs are left out: the machine changed its speed meanwhile (see tt doctor)")


@app.command("plugins")
def list_plugins(as_json: JsonOption = False) -> None:
    """List every piece with its distribution, version and source, and who listens to runs or contributes to them."""
    plugins = Plugins()
    rows = [
        {
            "role": role,
            "name": p.entry.name,
            "distribution": p.distribution,
            "version": p.version,
            "summary": p.entry.summary,
            "source": p.entry.source,
            "ranges": {option: r.as_dict() for option, r in p.entry.ranges.items()},
        }
        for role, pieces in plugins.pieces.items()
        for p in pieces.values()
    ]
    for hook, distribution, version in plugins.others():
        role = "listener" if hook in EVENTS else "contribution"
        rows.append({"role": role, "name": hook, "distribution": distribution, "version": version})
    if as_json:
        print(json.dumps({"pieces": rows, "broken": [vars(b) for b in plugins.broken]}))
        return
    columns = ("role", "name", "distribution", "version", "summary", "source")
    headings = ("role", "name", "distribution", "version", "what it is", "source")
    tables.show(headings, [[str(row.get(c, "")) for c in columns] for row in rows])
    for b in plugins.broken:
        print(f"left out: {b.distribution} {b.version}: {one_line(b.why)}")


@app.command("doctor")
def examine(as_json: JsonOption = False) -> None:
    """Say whether this machine can tune, how well it can time, and what to do about it."""
    checks = doctor.examine(doctor.facts())
    if as_json:
        print(json.dumps(doctor.as_dict(checks)))
    else:
        print("\n".join(doctor.lines(checks)))
    if doctor.verdict(checks) == "failure":
        stops = ", ".join(c.name for c in checks if c.status == "failure")
        raise InstallationError(f"this installation cannot tune, see {stops}")


@app.command("recipes")
def list_recipes(
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    insecure: InsecureOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the recipes and the pieces they name, of this installation or of a server."""
    from tt_core.elsewhere import service_of

    plugins = Plugins()
    service = service_of(Request("", server=server, key_file=key_file, insecure=insecure), plugins)
    rows = _recipes_here(plugins) if service is None else service.recipes()
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        shown = ", ".join(
            f"{role} {p['piece']}" if isinstance(p, dict) else f"{role} {p}"
            for role, p in row["pieces"].items()
            if role not in ("name", "store", "measurer", "space")
        )
        print(f"{row['name']}: {row['summary']}\n    {shown}")


def _recipes_here(plugins: Plugins) -> list[JsonObject]:
    from tt_spec.recipe import resolve

    rows = []
    for name in plugins.names("recipe"):
        try:
            pieces = resolve(name, (), plugins).describe()
        except OptionError as e:
            pieces = {"unusable": str(e)}
        rows.append({"name": name, "summary": plugins.find("recipe", name).entry.summary, "pieces": pieces})
    return rows


def main() -> int:
    """The command in a process of its own; returns its exit code."""
    for stream in (sys.stdout, sys.stderr):  # a terminal may lack a character, a path may not be text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.formatwarning = lambda message, *_, **__: f"tt: warning: {one_line(str(message))}\n"
    tvm_without_torch()
    xgboost_without_sklearn()
    return run(sys.argv[1:])


def run(arguments: Sequence[str]) -> int:
    """One command; returns its exit code, one of `EXIT_CODES`. A mistake is one line on stderr, with `--debug` below
    its traceback."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    debug = "--debug" in words[:end]
    words = [w for i, w in enumerate(words) if i >= end or w != "--debug"]
    use_all_cores()
    before = interruptions()

    def act() -> object:
        _add_commands()
        return app(words, standalone_mode=False, obj=Host())

    def explain(e: Exception) -> tuple[str, Sequence[str], int]:
        if debug:
            traceback.print_exception(e)
        if interruptions() > before:
            raise Interrupt from e
        return explained(e)

    framework = Framework(typer.Exit, typer.Abort, typer.BadParameter.__mro__[2])
    return exit_code("tt", act, framework, explain)


def _add_commands() -> None:
    """Commands of plug-ins; one that cannot be used says so when it is called and stops no other. "history stats" is
    the command `stats` of the group `history`; a group that tt does not have is made."""
    try:
        plugins = Plugins()
    except PluginError:  # said by every command that needs a piece; tt doctor needs none
        return
    groups = {g.name: g.typer_instance for g in app.registered_groups if g.typer_instance is not None}
    every = plugins.names("command")
    for full in every:
        group, _, name = full.rpartition(" ")
        if group and group not in groups:
            names = ", ".join(n.rpartition(" ")[2] for n in every if n.startswith(f"{group} "))
            groups[group] = typer.Typer(help=f"A group of commands: {names}", no_args_is_help=True)
            app.add_typer(groups[group], name=group)
        place = groups[group] if group else app
        if name not in {c.name or getattr(c.callback, "__name__", None) for c in place.registered_commands}:
            place.command(name, help=plugins.find("command", full).entry.summary)(_command(plugins, full))


def _command(plugins: Plugins, name: str) -> Callable[..., Any]:
    try:
        return plugins.build("command", name)
    except Exception as e:  # a stranger's code
        why = str(e) if isinstance(e, PluginError) else summary(e)

        def unusable() -> None:
            raise OptionError(f"command {name!r} of {plugins.find('command', name).distribution}: {why}")

        return unusable


def _fixed(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        if not name or not value:
            raise ModelError(f"--fix needs NAME=VALUE, e.g. --fix sr=16000 or --fix size=1,64,64, got {text!r}")
        found[name] = value
    return found


def _shapes(texts: list[str]) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for text in texts:
        name, equals, dims = text.rpartition("=")
        try:
            shapes[name] = tuple(int(d) for d in dims.split(","))
        except ValueError:
            equals = ""
        if not equals or not name:
            raise ModelError(f"--shape needs name=1,3,224,224, got {text!r}")
    return shapes
