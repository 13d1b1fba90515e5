"""`tt suggest`, and without a compiler `tt-history suggest`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from tt_spec.exchange import guarded, replaced
from tt_spec.roles import Host
from tt_spec.suggestions import Suggestion, joined

from tt_history.errors import HistoryError
from tt_history.suggestion.wanted import DEFAULT, Asked

__all__ = ["suggest"]


def suggest(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="As for tt tune; or a task of the history, by name or key")],
    *,
    history: Annotated[Path, typer.Option(help="The database; suggestions are kept in it")] = Path("tt.db"),
    by: Annotated[str, typer.Option(help="runs: past runs; replay: recipes played over recordings; both")] = "both",
    minutes: Annotated[float, typer.Option(help="Of the replays, about")] = 20.0,
    trials: Annotated[int, typer.Option(help="Of options, for each kind of operator, earlier calls among them")] = 100,
    jobs: Annotated[int, typer.Option(help="Processes that play")] = 1,
    seed: Annotated[int, typer.Option(help="Of what is tried")] = 0,
    recipes: Annotated[
        list[str] | None, typer.Option("--recipe", help="Try this recipe's options too: a name or a file (repeatable)")
    ] = None,
    against: Annotated[str, typer.Option(help="The recipe to be better than")] = DEFAULT,
    recordings: Annotated[
        list[str] | None,
        typer.Option(help="Of tt record: files or patterns (repeatable); else recordings/*-template.json.gz"),
    ] = None,
    kinds: Annotated[list[str] | None, typer.Option("--kind", help="Only this kind of operator (repeatable)")] = None,
    device: Annotated[str | None, typer.Option(help="For this device; else this machine's")] = None,
    study: Annotated[Path | None, typer.Option(help="File of what was tried; else beside the history")] = None,
    out: Annotated[Path | None, typer.Option(help="Write a recipe for all the model's kinds here, for tt tune")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output")] = False,
) -> None:
    """Suggest a recipe for a model's operators, from past runs and replays, if held-out tasks say that it is better."""
    from tt_history.suggestion.suggest import suggest as run

    host: Host | None = ctx.obj
    asked: dict[str, Any] = {"by": by, "minutes": minutes, "trials": trials, "jobs": jobs, "seed": seed}
    asked |= {
        "against": against,
        "recipes": recipes or (),
        "recordings": recordings,
        "kinds": kinds or (),
        "device": device,
    }
    if out is not None:
        _check(out)
    with _interruptible(host) as halt:
        found = run(history, model, host=host, halt=halt, say=_say, **Asked(**asked, study=study))
    if as_json:
        print(json.dumps([_plain(s) for s in found]))
    else:
        for s in found:
            print("\n".join(_lines(s, against)))
    if out is not None:
        _write(out, found, host, against)


@contextmanager
def _interruptible(host: Host | None) -> Iterator[Any]:
    if host is None:
        yield lambda: None
        return
    with host.interruptible() as halt:
        yield halt


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _plain(s: Suggestion) -> dict[str, Any]:
    return {**vars(s), "recipe": dict(s.recipe), "kept": bool(s.id)}


def _lines(s: Suggestion, against: str) -> list[str]:
    """A suggestion for people, with its evidence."""
    lines = [f"{s.kind} on {s.device or 'an unknown device'}: {_answer(s, against)}"]
    for ground, name in (("replay", "replays of recordings"), ("model", "replays over a model fitted to the history")):
        if (about := s.evidence.get(ground)) is not None:
            lines += _replayed(name, about)
    if (about := s.evidence.get("runs")) is not None:
        lines += _past(about)
    return lines + [f"  {note}" for note in s.evidence.get("notes", ())]


def _answer(s: Suggestion, against: str) -> str:
    if not s.better:
        return f"keep the default, {against}"
    names = {"replay": "replays", "runs": "past runs", "model": "replays over a fitted model"}
    told = []
    for role, about in s.recipe.items():
        if role == "batch":
            told.append(f"batch={about}")
        elif isinstance(about, dict) and role not in ("space", "scheduler"):
            options = ", ".join(f"{k}={v}" for k, v in about.items() if k != "piece")
            told.append(f"{role} {about['piece']}{f' ({options})' if options else ''}")
    return f"better by {names.get(s.ground or '', '')}: {'; '.join(told)}"


def _replayed(name: str, about: dict[str, Any]) -> list[str]:
    chose = f"{len(about['tasks'])} tasks x {about['seeds']} seeds chose"
    judged = f"{len(about['held_out_tasks'])} others x {about['held_out_seeds']} seeds judged"
    tried = f"{about['complete']} trials complete, {about['pruned']} ended early, {about['failed']} failed"
    lines = [f"  {name}: {chose}, {judged}; {tried}{_reason(about)}"]
    lines.append(f"    recorded on {', '.join(about['devices'])}")
    if about["held_out"] is None:
        return [*lines, "    nothing that was tried was better than the default"]
    return [
        *lines,
        f"    the best took {about['chosen']:.2f} of the default's seconds on those that chose it",
        _held_out(about),
    ]


def _reason(about: dict[str, Any]) -> str:
    return f" ({about['reason']})" if about.get("reason") else ""


def _past(about: dict[str, Any]) -> list[str]:
    told = f"{about['runs']} runs of {len(about['tasks'])} tasks, {about['recipes']} recipes"
    lines = [f"  past runs: {told}, on {', '.join(about['devices']) or 'no device'}"]
    if about["chosen"] is None:
        return [*lines, "    no recipe was quicker than the default where both ran from nothing"]
    lines.append(f"    {about['name']} took {_gain(about['chosen'])}")
    return [*lines, _held_out(about)]


def _held_out(about: dict[str, Any]) -> str:
    gain = about["held_out"]
    if gain is None:
        return "    held out: the two never met there"
    return f"    held out: {_gain(gain)}"


def _gain(g: dict[str, Any]) -> str:
    seconds = f"{g['ratio']:.2f} [{g['low']:.2f}, {g['high']:.2f}] of the default's seconds"
    return f"{seconds}, {g['trials']:.2f} of its trials, p {g['p']:.3f} ({g['pairs']} pairs, {g['tasks']} tasks)"


# -- the recipe's file ------------------------------------------------------------------------------------------------


def _check(out: Path) -> None:
    """Refuse a file that cannot be written before an hour goes into it."""
    if out.suffix != ".toml":
        raise HistoryError(f"--out {out} must end with .toml")
    if out.is_dir() or not out.parent.is_dir():
        raise HistoryError(f"--out {out}: {'this is a folder' if out.is_dir() else f'there is no folder {out.parent}'}")
    with replaced(out) as part:
        part.touch()
        if out.exists():
            part.write_bytes(out.read_bytes())


def _write(out: Path, found: list[Suggestion], host: Host | None, against: str) -> None:
    """One recipe for all kinds that were asked about; the default's, which says so, if none has a better one."""
    from tt_spec.recipe import content_of

    from tt_history.suggestion.toml import written

    better = [s.kind for s in found if s.better]
    day = time.strftime("%Y-%m-%d")
    if not better and host is None:
        raise HistoryError(f"--out {out}: no better recipe was found, and the default's is tt-core's")
    default = {} if host is None else content_of(host.recipe(against).describe())
    kinds = {s.kind: s.recipe if s.better else None for s in found if s.better or host is not None}
    what = f"for {', '.join(better)} on {found[0].device}" if better else "keep the default"
    text = written(joined(kinds, default), f"tt suggest, {day}: {what}")
    if host is None and len(better) < len(found):
        others = ", ".join(s.kind for s in found if not s.better)
        _say(f"{out} has nothing for {others}: the default's pieces are tt-core's")
    with guarded(out), replaced(out) as part:
        part.write_text(text, encoding="utf-8")
    _say(f"written to {out}: tt tune --recipe {out}")
