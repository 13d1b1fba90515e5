"""Whatever is in a file: documented exit codes, no traceback, nothing of it at work in the terminal."""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import random
import sqlite3
from pathlib import Path

import pytest
from rich.console import Console
from tt_core import tuning
from tt_core.cli import progress
from tt_core.cli.app import run
from tt_core.errors import EXIT_CODES
from tt_spec import Task, TaskState, UserError

HOSTILE = [
    None,
    True,
    -1,
    1e300,
    float("nan"),
    10**400,
    "",
    "[/grid]",
    "[bold red",
    "a\\",
    "\x1b]0;owned\x07\x1b[2J",
    "nul\0nul",
    "\ud800",
    "$\\frac{",
    "x" * 5000,
    [],
    {},
    [[[[]]]],
    {"a": {"b": None}},
]
ROUNDS, SEED = (int(os.environ.get(name, n)) for name, n in (("TT_DAMAGED_ROUNDS", 25), ("TT_DAMAGED_SEED", 0)))
"""Damaged files of each kind, and where drawing them begins; a soak asks for more."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A folder with a history of two runs and their logs."""
    folder = tmp_path_factory.mktemp("sound")
    for seed in (0, 1):
        tuning.tune("op:matmul:8,16,16", trials=6, recipe="random", history=folder / "tt.db", seed=seed)
    return folder


def spots(node, at=()):
    """Every place in a JSON document."""
    yield at
    for k, v in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from spots(v, (*at, k))


def damaged(document, rng):
    """A copy with one place replaced or taken out."""
    made = copy.deepcopy(document)
    *way, last = rng.choice([s for s in spots(made) if s])
    node = made
    for k in way:
        node = node[k]
    if rng.random() < 0.2:
        del node[last]
    else:
        node[last] = copy.deepcopy(rng.choice(HOSTILE))
    return made


def ends_well(capsys, *words):
    """The command ends with a documented code, other than that of a defect, and writes nothing that acts."""
    code = run(words)
    out, err = capsys.readouterr()
    assert code in EXIT_CODES and code != 70, (words, code, err[-2000:])
    assert "Traceback" not in err and not {"\x1b", "\0", "\x07"} & set(out + err), (out[-500:], err[-500:])
    if code:
        assert len(err.strip().splitlines()) == 1, err
    return code


def test_event_logs(sound, tmp_path, capsys):
    rng = random.Random(1 + SEED)
    log = min((sound / "tt.runs").iterdir())
    events = [json.loads(line) for line in log.read_text().splitlines()]
    codes = []
    for _ in range(ROUNDS):
        i = rng.randrange(len(events))
        changed = [*events[:i], damaged(events[i], rng), *events[i + 1 :]]
        (tmp_path / "log.jsonl").write_text("\n".join(json.dumps(e) for e in changed) + "\n")
        codes.append(ends_well(capsys, "history", "retell", str(tmp_path / "log.jsonl")))
    assert 0 in codes and 6 in codes
    for deep in ("[" * 10**5, '{"event":' * 10**5, '{"event": "note", "text": ' + "[" * 900 + "]" * 900 + "}"):
        (tmp_path / "log.jsonl").write_text(f"{deep}\n" + log.read_text())
        assert ends_well(capsys, "history", "retell", str(tmp_path / "log.jsonl")) in (0, 6)


def test_histories(sound, tmp_path, capsys):
    rng = random.Random(2 + SEED)
    codes = []
    with sqlite3.connect(sound / "tt.db") as db:
        tables = {
            t: [c[1] for c in db.execute(f"pragma table_info({t})")]
            for (t,) in db.execute("select name from sqlite_master where type = 'table' and name not like 'sqlite%'")
        }
    for _ in range(ROUNDS):
        path = tmp_path / "h.db"
        for old in tmp_path.glob("h.db*"):
            old.unlink()
        source = sqlite3.connect(sound / "tt.db")
        made = sqlite3.connect(path)
        source.backup(made)
        source.close()
        table = rng.choice(["runs", *tables])
        column = rng.choice(tables[table])
        value = rng.choice([h for h in HOSTILE if h != "\ud800" and h != 10**400])
        value = json.dumps(value) if isinstance(value, list | dict) else value
        value = rng.choice([value, "[" * 10**5, b"\xff\xfe\x00", '{"model": "\\u001b[2J", "recipe": []}'])
        made.execute("pragma ignore_check_constraints = on")
        try:
            made.execute(f"update {table} set {column} = ?", (value,))
            made.commit()
        except sqlite3.Error:
            continue
        finally:
            made.close()
        for words in (("show",), ("show", "--json"), ("stats",), ("tasks",)):
            codes.append(ends_well(capsys, "history", *words, str(path)))
    assert 0 in codes and 6 in codes


def test_recordings(tmp_path):
    from tt_bench.files import load

    source = min((Path(__file__).parents[1] / "recordings").rglob("*.json.gz"), key=lambda p: p.stat().st_size)
    document = json.loads(gzip.decompress(source.read_bytes()))
    rng = random.Random(3 + SEED)
    refused = 0
    for _ in range(ROUNDS):
        (tmp_path / "r.json").write_text(json.dumps(damaged(document, rng)))
        try:
            load(tmp_path / "r.json")
        except UserError:
            refused += 1
    assert refused
    for text in ("[" * 10**5, '{"a":' * 10**5, "\0", "\ud800".encode("utf-8", "surrogatepass").decode("latin1")):
        (tmp_path / "r.json").write_text(text)
        with pytest.raises(UserError):
            load(tmp_path / "r.json")


def test_names_do_not_act_in_the_live_table():
    """Neither rich's markup nor a terminal's escape sequences."""
    name = "[/grid][bold]a\\\x1b[2J"
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    live = progress.LiveTable(console)
    state = TaskState(Task("k", name, "op", "llvm", (), 1.0))
    state.errors = {"[/x]": 1}
    live.states, live.slot = {"k": state}, f"slot 1: {name}"
    console.print(live._table())
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[/grid][bold]a\\" in drawn and "[/x]" in drawn and "\x1b[2J" not in drawn
