"""tools/readme_picture.py: shares of a model's latency, from the moment on when each operator has a program."""

from __future__ import annotations

import pytest
from workspace import ROOT, program

picture = program(ROOT / "tools" / "readme_picture.py")


def log(*measured: tuple[float, str, float | None], operators: int = 8) -> list[dict]:
    """A log of operators op0, op1, …, each occurring twice."""
    tasks = [{"name": f"op{i}", "weight": 2.0} for i in range(operators)]
    batches = [{"event": "batch_measured", "at": at, "task": name, "best_s": s} for at, name, s in measured]
    return [{"event": "run_started", "at": 100.0, "tasks": tasks}, *batches, {"event": "run_stopped", "at": 130.0}]


FIRST = [(100.0 + i, f"op{i}", 1e-3 * (i + 1)) for i in range(8)]


def test_shares_count_weights_and_begin_with_the_last_operator_s_first_program():
    run = picture.course(log(*FIRST, (120.0, "op7", 1e-3)))
    assert run.at.tolist() == [7.0, 20.0] and run.end == 30.0
    assert run.names == ("op7", "op6", "op5", "op4", "op3", "op2", "2 others")
    assert run.shares[:, 0] == pytest.approx([16, 14, 12, 10, 8, 6, 4 + 2])
    assert run.shares[:, 1] == pytest.approx([2, 14, 12, 10, 8, 6, 4 + 2])


def test_an_operator_without_a_program_is_named():
    with pytest.raises(ValueError, match="no program was found for op7"):
        picture.course(log(*FIRST[:7], (120.0, "op7", None)))


def test_a_picture_is_written_for_a_run_that_was_killed(tmp_path):
    pytest.importorskip("matplotlib")
    killed = log(*FIRST, (120.0, "op0", 9e-4))[:-1]
    picture.draw(picture.course(killed), tmp_path / "run.png")
    assert 10_000 < (tmp_path / "run.png").stat().st_size < 150_000
