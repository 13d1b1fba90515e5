"""Real interpreters in a folder with a hostile module."""

import os
import subprocess
import sys

import pytest
from tt_spec import child

HOSTILE = "open('ran', 'w').close()\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "json.py").write_text(HOSTILE)
    return tmp_path


def run(command, folder, **env):
    done = subprocess.run(command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_module_runs_without_what_lies_in_the_current_folder(folder):
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "looks.py").write_text("import json, sys\nprint(json.__file__, sys.argv[1:])\n")
    out = run([*child.command("looks", "-u"), "a", "b"], folder, PYTHONPATH=str(folder / "elsewhere"))
    assert str(folder) not in out.split()[0] and out.endswith("['a', 'b']\n")
    assert not (folder / "ran").exists()
    run([sys.executable, "-m", "looks"], folder, PYTHONPATH=str(folder / "elsewhere"))
    assert (folder / "ran").exists(), "the check can fail"


def test_the_way_of_python_3_10_does_the_same(folder, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    test_a_module_runs_without_what_lies_in_the_current_folder(folder)


SHOW = "import sys\nfrom tt_spec import child\nprint(*child.path(), sep='\\n')\n"


def test_the_path_that_is_handed_on_has_the_current_folder_only_where_it_was_asked_for(folder):
    (folder / "script.py").write_text(SHOW)
    assert str(folder) not in run([sys.executable, "-c", SHOW], folder).splitlines()
    assert str(folder) in run([sys.executable, "script.py"], folder).splitlines()
    named = os.environ.get("PYTHONPATH", "") + os.pathsep + str(folder)
    assert str(folder) in run([sys.executable, "-c", SHOW], folder, PYTHONPATH=named).splitlines()
