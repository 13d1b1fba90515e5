"""tools/new_piece.py: what it writes passes its test and our lint as written, for every role; it overwrites nothing."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest
from tt_spec.roles import ROLES
from tt_spec.testing import CONTRACTS, cases, contract_for
from workspace import ROOT, project

TOOL = ROOT / "tools" / "new_piece.py"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("new_piece", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["new_piece"] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["new_piece"]


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "my-tt"
    (folder / "src" / "my_tt").mkdir(parents=True)
    (folder / "src" / "my_tt" / "__init__.py").touch()
    (folder / "pyproject.toml").write_text('[project]\nname = "my-tt"\nversion = "0.1"\ndependencies = ["tt-spec"]\n')
    return folder


def contents(folder):
    return {p: p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_a_new_piece_of_every_role_passes_its_contract_and_lint(tool, package):
    for role in ROLES:
        for name in (f"first-{role}", f"other-{role}"):
            done = tool.create(role, name, package)
            assert all(path.exists() for path in done)
    assert project(package)["entry-points"] == {"tt": {"my-tt": "my_tt.hooks"}}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=package,
        env={"PYTHONPATH": str(package / "src"), "PATH": ""},
        capture_output=True,
        text=True,
    )
    wanted = 2 * (sum(len(cases(contract_for(role))) for role in CONTRACTS) + len(set(ROLES) - set(CONTRACTS)))
    assert re.search(rf"\b{wanted} passed", ran.stdout) and ran.returncode == 0, ran.stdout[-3000:]
    for command in (["check"], ["format", "--check"]):
        lint = [sys.executable, "-m", "ruff", *command, "--no-cache", "--config", str(ROOT / "pyproject.toml")]
        ran = subprocess.run([*lint, str(package)], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout


def test_the_command_says_what_it_wrote(package):
    command = [sys.executable, str(TOOL), "searcher", "coordinate-descent", "--package", str(package)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    for path in ("src/my_tt/coordinate_descent.py", "tests/test_coordinate_descent.py", "src/my_tt/hooks.py"):
        assert str(package / path) in ran.stdout
    assert "class CoordinateDescent" in (package / "src/my_tt/coordinate_descent.py").read_text()
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 2 and "coordinate_descent.py exists" in again.stderr and "Traceback" not in again.stderr


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("sercher", "mine"), "did you mean 'searcher'"),
        (("searcher", "Mine"), "lower-case words with hyphens"),
        (("searcher", "../up"), "lower-case words with hyphens"),
        (("searcher", "class"), "lower-case words with hyphens"),
        (("searcher", "taken"), "taken.py exists"),
        (("searcher", "tested"), "test_tested.py exists"),
        (("searcher", "known"), "searcher 'known' is registered already"),
        (("sampler", "computed"), "must end with return"),
        (("scheduler", "crowded"), "one entry a line"),
    ],
)
def test_what_it_refuses_changes_nothing(tool, package, args, why):
    (package / "src" / "my_tt" / "taken.py").write_text("here = 1\n")
    (package / "tests").mkdir()
    (package / "tests" / "test_tested.py").touch()
    (package / "src" / "my_tt" / "hooks.py").write_text(
        "from tt_spec import Entry, hookimpl\n\n\n@hookimpl\ndef tt_searchers():\n    return [Entry('known', dict)]\n"
        "\n\n@hookimpl\ndef tt_samplers():\n    return list(map(Entry, ()))\n"
        "\n\n@hookimpl\ndef tt_schedulers():\n    return [Entry('a', dict), Entry(\n        'b', dict)]\n"
    )
    before = contents(package)
    with pytest.raises(tool.Refused, match=why):
        tool.create(*args, package)
    assert contents(package) == before


def test_a_folder_that_is_no_package_is_refused(tool, tmp_path, package):
    with pytest.raises(tool.Refused, match=r"pyproject.toml must be a package's"):
        tool.create("searcher", "mine", tmp_path)
    (package / "src" / "my_tt").rename(package / "src" / "your_tt")
    with pytest.raises(tool.Refused, match="is no folder: the package's modules must be there"):
        tool.create("searcher", "mine", package)


def test_our_own_hooks_grow_by_one_line_and_keep_their_comments(tool, tmp_path):
    source = ROOT / "packages" / "tt-search"
    folder = tmp_path / "tt-search"
    (folder / "src" / "tt_search").mkdir(parents=True)
    (folder / "pyproject.toml").write_text((source / "pyproject.toml").read_text())
    hooks = (source / "src" / "tt_search" / "hooks.py").read_text()
    (folder / "src" / "tt_search" / "hooks.py").write_text(hooks.replace("return [\n", "return [\n        # ours\n", 1))
    before = (folder / "src" / "tt_search" / "hooks.py").read_text().splitlines()
    tool.create("searcher", "coordinate-descent", folder)
    after = (folder / "src" / "tt_search" / "hooks.py").read_text().splitlines()
    new = [line for line in after if line not in before]
    assert new == [
        '        Entry("coordinate-descent", "tt_search.coordinate_descent:CoordinateDescent", "what it is"),'
    ]
    assert [line for line in after if line not in new] == before and "        # ours" in after
    assert (folder / "pyproject.toml").read_text() == (source / "pyproject.toml").read_text()
