"""Seeded rounds of `tools/chaos.py` and `tools/fuzz.py`: random faults and hostile inputs, and that both look."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tt_bench.errors import BenchError

from .conftest import tool

ROOT = Path(__file__).parents[1]


chaos, fuzz = tool("chaos"), tool("fuzz")


@pytest.mark.slow
def test_random_faults_lose_nothing_and_leave_nothing(tmp_path):
    """A signal; hurt workers beside two more writers: each at a moment that the seed chooses."""
    with chaos.laboratory(tmp_path / "chaos") as lab:
        for number, faults in enumerate((["a signal"], ["workers are hurt", "two more writers"])):
            turn = chaos.Round(lab, number, random.Random(number))
            assert turn.run(faults) == [], (turn.did, turn.errors.read_text()[-2000:])
        assert len(lab.rows()) > 4
        turn = chaos.Round(lab, 2, random.Random(2))
        turn.op, turn.before = "", lab.rows()
        turn.output, turn.errors = tmp_path / "out", tmp_path / "err"
        turn.output.write_text('{"event": "batch_measured", "results": [{"config": [9999]}]}\n')
        assert list(turn._reports({"[1]"}, set())) == ["output: 1 reported rows are not in the history"]


@pytest.mark.slow
def test_damaged_and_hostile_inputs_end_as_documented(tmp_path, tt_in, monkeypatch):
    """All kinds but those that need the compiler."""
    sound, work = tmp_path / "sound", tmp_path / "work"
    sound.mkdir()
    work.mkdir()
    tt_in(sound, "tune", fuzz.OP, "--trials", "4", "--recipe", "random")
    (sound / "log.jsonl").write_bytes(next((sound / "tt.runs").iterdir()).read_bytes())
    (sound / "recipe.toml").write_bytes(next((ROOT / "packages").rglob("src/**/recipes/tt.toml")).read_bytes())
    monkeypatch.chdir(work)
    inputs = fuzz.Inputs(sound, work)
    for number in range(45):
        rng = random.Random(number)
        words = getattr(inputs, ("histories", "logs", "commands")[number % 3])(rng)
        code, out, err = fuzz.attempt(words, work)
        assert fuzz.wrong(code, out, err, 0.0) is None, (number, words, code, err[-500:])


def test_a_stage_without_a_time_or_with_strange_work_is_a_damaged_log(tmp_path, tt_in):
    """Found by `tools/fuzz.py`: a page cannot be drawn of it."""
    tt_in(tmp_path, "tune", fuzz.OP, "--trials", "2", "--recipe", "random")
    log = next((tmp_path / "tt.runs").iterdir())
    events = [json.loads(line) for line in log.read_text().splitlines()]
    for damage in ({"began": "[bold red"}, {"work": [[0, "build", " ", 1.0]]}, {"work": [[0, "build", 1.0, 1.0, 1.0]]}):
        damaged = [e | damage if e["event"] == "stage" else e for e in events]
        log.write_text("\n".join(map(json.dumps, damaged)) + "\n")
        done = tt_in(tmp_path, "report", str(log), code=BenchError.exit_code)
        assert "event log is damaged" in done.stderr


def test_the_look_at_what_a_command_did_can_fail():
    assert fuzz.wrong(0, "", "", 0) is None and fuzz.wrong(2, "", "tt: no\n", 0) is None
    assert "exit 70" in fuzz.wrong(70, "", "tt: internal error", 0)
    assert "exit 1" in fuzz.wrong(1, "", "x", 0)
    assert "traceback" in fuzz.wrong(2, "", "Traceback", 0)
    assert "acts in the terminal" in fuzz.wrong(0, "\x1b[2J", "", 0)
    assert "without a word" in fuzz.wrong(2, "", "", 0)
    assert "10 lines" in fuzz.wrong(2, "", "x\n" * 10, 0)
    assert "GB" in fuzz.wrong(0, "", "", 2e9)
