"""Models that nobody vouches for: what the cage holds, and that what is read in it is what is read outside."""

from __future__ import annotations

import json
import os
import socket
import sys
import textwrap
from pathlib import Path

import numpy as np
import psutil
import pytest
from tt_core.cage import running
from tt_core.cage.limits import Limits
from tt_core.cage.running import Cage
from tt_core.cli.app import run as tt
from tt_core.compiler import lower
from tt_core.compiler.target import resolve
from tt_core.errors import ModelError
from tt_core.models import load
from tt_core.prepared import prepare
from tt_core.untrusted import Suspect
from tt_spec import Plugins

from . import hostile

MB = 2**20
USUAL = Limits(512 * MB, 20, 8 * MB)

linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has landlock and seccomp")


@pytest.fixture
def caged(tmp_path, monkeypatch):
    """What a program of some lines answers in the cage."""

    def run(body: str, limits: Limits = USUAL, read: tuple[str, ...] = ()) -> dict:
        modules, folder = tmp_path / "modules", tmp_path / "folder"
        modules.mkdir()
        folder.mkdir()
        text = "import os, socket, subprocess, sys\nfrom tt_core.cage import running\n"
        text += "job, folder, walls = running.enter()\nfound = {'walls': walls}\n"
        text += "def tried(f):\n    try:\n        f()\n    except OSError as e:\n        return type(e).__name__\n"
        (modules / "inmate.py").write_text(text + textwrap.dedent(body) + "\nrunning.answer(folder, found)\n")
        monkeypatch.syspath_prepend(str(modules))
        return running.run("inmate", folder, Cage(limits, read), {}, "model.onnx")

    return run


def test_a_process_in_the_cage_sees_nothing_of_ours(caged, tmp_path, monkeypatch):
    """Files, the environment, the network, other processes."""
    (tmp_path / "secret").write_text("key")
    (tmp_path / "given").write_text("weights")
    monkeypatch.setenv("SECRET", "key")
    server = socket.create_server(("127.0.0.1", 0))
    found = caged(
        f"""
        found["environment"] = os.environ.get("SECRET")
        found["secret"] = tried(lambda: open({str(tmp_path / "secret")!r}))
        found["home"] = tried(lambda: os.listdir({os.path.expanduser("~")!r}))
        found["spoilt"] = tried(lambda: open({str(tmp_path / "given")!r}, "w"))
        found["written"] = tried(lambda: open({str(tmp_path / "new")!r}, "w"))
        found["shell"] = tried(lambda: subprocess.run(["/bin/sh", "-c", "true"]))
        found["fork"] = tried(os.fork)
        found["killed"] = tried(lambda: os.kill({os.getpid()}, 0))
        found["network"] = tried(lambda: socket.create_connection(("127.0.0.1", {server.getsockname()[1]})))
        found["given"] = open({str(tmp_path / "given")!r}).read()
        open(folder / "own", "w").close()
        """,
        read=(str(tmp_path / "given"),),
    )
    server.close()
    assert found["environment"] is None and found["given"] == "weights" and not (tmp_path / "new").exists()
    refused = {"landlock": ("secret", "home", "spoilt", "written"), "seccomp": ("shell", "fork", "killed", "network")}
    for wall in found["walls"]:
        assert {k: found[k] for k in refused[wall]} == dict.fromkeys(refused[wall], "PermissionError")


def test_memory_is_limited(caged):
    with pytest.raises(ModelError, match=r"^model.onnx: .*512 MB of memory"):
        caged("found['x'] = len(bytearray(2**30))")


def test_time_is_limited(caged):
    with pytest.raises(ModelError, match=r"^model.onnx: .*1 seconds of the processor"):
        caged("while True: pass", Limits(512 * MB, 1, MB))


def test_a_crash_is_one_line(caged):
    with pytest.raises(ModelError, match=r"^model.onnx: the process that read it was ended by SIGSEGV$"):
        caged("import ctypes\nos.close(2)\nctypes.string_at(0)")


def test_an_answer_that_is_a_link_is_none(caged, tmp_path):
    (tmp_path / "ours.json").write_text('{"secret": 1}')
    with pytest.raises(ModelError, match="ended with 0"):
        caged(f"os.symlink({str(tmp_path / 'ours.json')!r}, folder / 'answer.json')\nos._exit(0)")


@linux
def test_this_kernel_says_what_it_holds(caged):
    """The walls that are up are those that hold: each was tried above."""
    assert set(caged("")["walls"]) <= {"landlock", "seccomp"}


def test_what_is_read_in_the_cage_is_what_is_read_outside(tmp_path):
    path, target, plugins = hostile.harmless(tmp_path), resolve("native"), Plugins()
    inside, lowered = Suspect(path).read(target, plugins, "both")
    outside = load(path)
    assert inside.inputs == outside.inputs and inside.outputs == outside.outputs
    assert [(t.key, t.name, t.workload) for t in lowered.tasks] == [
        (t.key, t.name, t.workload) for t in lower.lower(outside.mod, target).tasks
    ]
    assert "limits on memory, time and files" in inside.notes[-1]
    x = {"x": np.ones((1, 4), np.float32)}
    assert inside.peer is not None and outside.peer is not None
    for a, b in zip(inside.peer.run(x), outside.peer.run(x), strict=True):
        assert np.array_equal(a[0], b[0])


@pytest.mark.parametrize("name", hostile.FILES)
def test_hostile_files_are_one_line_without_the_cage_too(tmp_path, name):
    """Bounds and checks that hold for every file; memory by what this process may have at most."""
    make, said = hostile.FILES[name]
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "bad.onnx").write_bytes(make(folder))
    before = psutil.Process().memory_info().rss
    with pytest.raises(ModelError, match=said) as caught:
        prepare(str(folder / "bad.onnx"))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000
    assert psutil.Process().memory_info().rss - before < 1e9


@pytest.mark.parametrize("name", ["10^12 constants", "10^6 operators", "a file outside"])
def test_hostile_files_are_one_line_in_the_cage(tmp_path, capsys, name):
    make, said = hostile.FILES[name]
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "bad.onnx").write_bytes(make(folder))
    assert tt(["tasks", str(folder / "bad.onnx"), "--untrusted"]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("tt: ") and said in lines[0]


def test_a_model_that_takes_long_is_one_line(tmp_path, capsys, monkeypatch):
    """Reading takes time in proportion to the operators, and no more than may be: here 3 seconds."""
    monkeypatch.setattr("tt_core.untrusted.SECONDS", 1)
    assert tt(["tasks", str(hostile.chain(tmp_path, 4000)), "--untrusted"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("reading it takes more than the 3 seconds of the processor that it may have")


@pytest.mark.parametrize("name", ["model.pt2", "model.py", "missing.onnx"])
def test_other_kinds_are_refused(tmp_path, capsys, name):
    path = tmp_path / name
    if name != "missing.onnx":
        path.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert tt(["tasks", str(path), "--untrusted"]) == 3
    assert "--untrusted takes ONNX files" in capsys.readouterr().err and not (tmp_path / "ran").exists()


def test_a_hostile_answer_names_no_file_of_ours(tmp_path, monkeypatch):
    """A process that was taken over answers what it likes; paths in it lead nowhere."""
    path = hostile.harmless(tmp_path)
    (tmp_path / "parts").mkdir()

    def answers(module, folder: Path, *rest):
        (folder / "parts").mkdir()
        os.symlink("/etc/hostname", folder / "parts" / "stolen.onnx")
        return {"plan": [], "files": ["../../../../etc/hostname", "stolen.onnx"], "walls": []}

    monkeypatch.setattr(running, "run", answers)
    with pytest.raises(ModelError, match="left no"):
        Suspect(path).split(tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_zoo_and_operators_need_no_cage(capsys):
    assert tt(["tasks", "op:matmul:8,8,8", "--untrusted", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["op"] == "matmul"
