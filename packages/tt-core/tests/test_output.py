"""The written file: whole with its sidecar, or not there."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tt_core.compiler.runtime import digest, sidecar_path
from tt_core.deploy import library
from tt_spec.errors import FileError

STEPS = ("shutil.copyfile", "shutil.copymode", "pathlib.Path.write_text", "os.fsync", "os.replace")


@pytest.fixture
def made(tmp_path):
    """A library, as `write` copies one."""
    source = tmp_path / "source.so"
    source.write_bytes(b"machine code" * 1000)
    (tmp_path / "out").mkdir()
    return source


def killed_at(n, made, goal):
    """Write in a process of its own that is killed before its n-th step; whether it was."""
    if (child := os.fork()) == 0:
        left = [n]

        def deadly(real):
            def step(*args, **more):
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return real(*args, **more)

            return step

        path: Any = Path
        shutil.copyfile, shutil.copymode = deadly(shutil.copyfile), deadly(shutil.copymode)
        path.write_text, os.fsync, os.replace = deadly(path.write_text), deadly(os.fsync), deadly(os.replace)
        library.write(made, goal, {"inputs": []})
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_a_library_never_stands_without_its_sidecar_wherever_its_writer_is_killed(made, tmp_path):
    kills = 0
    for n in range(20):
        goal = tmp_path / "out" / f"m{n}.so"
        dead = killed_at(n, made, goal)
        kills += dead
        assert dead or goal.exists()
        if goal.exists():
            assert json.loads(sidecar_path(goal).read_text())["sha256"] == digest(goal) == digest(made)
    assert kills == len(STEPS) + 2  # two files are kept, and two renamed


def test_an_old_library_with_a_newer_sidecar_is_not_taken_for_it(made, tmp_path):
    goal = tmp_path / "out" / "m.so"
    library.write(made, goal, {})
    made.write_bytes(b"other code")
    for n in range(len(STEPS) + 2):
        assert killed_at(n, made, goal)
        stated = json.loads(sidecar_path(goal).read_text())["sha256"]
        assert stated == digest(goal) or stated == digest(made), "the old pair, or one that is refused"


def test_links_in_the_folder_are_not_followed(made, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("keep")
    goal = tmp_path / "out" / "m.so"
    for name in (".m.part.so", ".m.part.json", "m.so", "m.so.json"):
        (goal.parent / name).symlink_to(precious)
    library.write(made, goal, {})
    assert precious.read_text() == "keep" and not goal.is_symlink() and not sidecar_path(goal).is_symlink()
    assert not list(goal.parent.glob(".tt-*"))


def test_what_a_killed_writer_left_is_removed_and_a_living_ones_is_not(made, tmp_path):
    goal = tmp_path / "out" / "m.so"
    assert killed_at(0, made, goal)
    (left,) = goal.parent.glob(".tt-*.part")
    with library._beside(goal) as part:
        assert not left.exists() and part.parent.exists()
        library.write(made, goal, {})
        assert part.parent.exists(), "another run's folder"
    assert goal.exists() and not list(goal.parent.glob(".tt-*"))


def test_a_file_system_without_locks_is_written_to(made, tmp_path, monkeypatch):
    def none(fd, how):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", none)
    goal = tmp_path / "out" / "m.so"
    (left := goal.parent / ".tt-other.part").mkdir()
    library.write(made, goal, {})
    assert goal.exists() and left.exists(), "whether its writer lives is not known"
    with pytest.raises(FileError, match="cannot write"):
        library.write(tmp_path / "none.so", goal, {})
