"""tools/alone.py: a package that needs more than it declares, or whose wheel lacks a file, fails there."""

import importlib.util
import os
import py_compile
import shutil
import textwrap
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
from workspace import OURS, ROOT, project

spec = importlib.util.spec_from_file_location("alone", ROOT / "tools" / "alone.py")
assert spec is not None and spec.loader is not None
alone = importlib.util.module_from_spec(spec)
spec.loader.exec_module(alone)

PROJECT = """
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0"
dependencies = {dependencies}

[dependency-groups]
test = ["pytest>=8"]

[tool.hatch.build.targets.wheel]
packages = ["src/{module}"]
"""


@pytest.fixture
def packages(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / "packages"


def write(packages: Path, name: str, code: str, test: str = "", dependencies: tuple[str, ...] = ()) -> Path:
    """A package whose single module holds `code` and whose tests are `test`."""
    folder, module = packages / name, name.replace("-", "_")
    for path, text in {
        "pyproject.toml": PROJECT.format(name=name, module=module, dependencies=list(dependencies)),
        "README.md": f"# {name}\n",
        f"src/{module}/__init__.py": code,
        "tests/test_it.py": textwrap.dedent(test),
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def test_a_sibling_must_be_declared(packages, capsys):
    write(packages, "fake-leaf", "LEAF = 1", "def test_fails():\n    assert 1 == 2")
    test = """
        import fake_user

        def test_runs_where_the_sources_are_not():
            assert fake_user.LEAF == 1 and "site-packages" in fake_user.__file__
    """
    write(packages, "fake-user", "from fake_leaf import LEAF", test)
    assert alone.main(["fake-user"], packages) == 1
    shown = capsys.readouterr().out
    assert "No module named 'fake_leaf'" in shown and "fake-user      FAILED: tests" in shown
    (log,) = packages.parent.glob("tt-alone-*/fake-user/log.txt")
    assert "No module named 'fake_leaf'" in log.read_text()

    write(packages, "fake-user", "from fake_leaf import LEAF", test, ("fake-leaf",))
    assert alone.main([], packages) == 1
    leaf, user = capsys.readouterr().out.splitlines()[-3:-1]
    assert "FAILED: tests" in leaf and "1 passed" in user  # failed tests take away no wheel


def test_the_oldest_versions_reach_through_our_own_packages(packages, capsys):
    write(packages, "fake-leaf", "", dependencies=("pluggy>=1.5",))
    test = """
        from importlib.metadata import version

        def test_version():
            assert version("pluggy") == "1.5.0"
    """
    write(packages, "fake-user", "", test, ("fake-leaf",))
    assert alone.main(["fake-user", "--oldest"], packages) == 0, capsys.readouterr().out


def test_every_file_must_be_in_the_wheel(packages, capsys):
    folder = write(packages, "fake-leaf", "")
    (folder / "src" / "fake_leaf" / "data.toml").write_text("")
    with (folder / "pyproject.toml").open("a") as settings:
        settings.write('exclude = ["*.toml"]\n')
    assert alone.main([], packages) == 1
    shown = capsys.readouterr().out
    assert "not in the wheel: fake_leaf/data.toml" in shown and "FAILED: wheel" in shown


def test_bytecode_is_shared_by_what_has_one_time_and_size(tmp_path, monkeypatch):
    first, shared, second = tmp_path / "first", tmp_path / "shared", tmp_path / "second"
    for name in ("same", "newer", "absent"):
        path = first / "some" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("FOUND = 'linked'")
        py_compile.compile(str(path))
    (second / "some").mkdir(parents=True)
    for path in (first / "some").glob("*.py"):
        if path.name != "absent.py":
            shutil.copy2(path, second / "some")
    os.utime(second / "some" / "newer.py", (1e9, 1e9))
    alone.share_bytecode(first, shared, new=True)
    alone.share_bytecode(shared, second)
    alone.share_bytecode(shared, second)
    assert len(list(shared.rglob("*.pyc"))) == 3 and len(list(second.rglob("*.pyc"))) == 2
    alone.share_bytecode(shared, tmp_path / "empty")
    assert not (tmp_path / "empty").exists(), "a folder would be a package"

    monkeypatch.setattr(SourceFileLoader, "source_to_code", lambda *_, **__: compile("FOUND = 'compiled'", "", "exec"))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    found: dict[str, dict[str, str]] = {"same": {}, "newer": {}}
    for name, names in found.items():
        code = SourceFileLoader(name, str(second / "some" / f"{name}.py")).get_code(name)
        assert code is not None
        exec(code, names)
    assert [names["FOUND"] for names in found.values()] == ["linked", "compiled"]


def test_all_packages_are_covered(capsys):
    with pytest.raises(SystemExit):
        alone.main(["no-such-package"])
    known = capsys.readouterr().err.split("(known: ")[1].split(")")[0]
    assert set(known.split(", ")) == OURS | {"tt-core[all]"}


def test_the_whole_brings_every_package():
    ours, others = alone.needs(["tt-core[all]"], {p: {"project": project(ROOT / "packages" / p)} for p in OURS})
    assert ours == OURS
    assert {"apache-tvm==0.27.0.post1", "xgboost>=2.0", "onnx>=1.16"} <= set(others)
