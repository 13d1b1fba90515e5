"""Every arrow between our distributions ends in tt-spec (DESIGN.md, section 1)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from workspace import OURS, PACKAGES, module, project

WITH_TVM = {"tt-core", "tt-space"}
MODULES = {name.replace("-", "_") for name in OURS}


def names(requirements: list[str]) -> set[str]:
    found = (re.match(r"[A-Za-z0-9._-]+", r) for r in requirements)
    return {re.sub(r"[-_.]+", "-", m.group()).lower() for m in found if m}


def imports(source: str) -> Iterator[tuple[int, str]]:
    """Line and full name of every import, at any level, `importlib.import_module("...")` among them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def forbidden(package: str, source: str) -> list[str]:
    """The imports in this source of `package` that it may not have."""
    own = {package.replace("-", "_"), "tt_spec"}
    bad = []
    for line, name in imports(source):
        top = name.split(".")[0]
        sibling = (top in MODULES or top.startswith("tt_")) and top not in own
        if sibling or (top in ("tvm", "tvm_ffi") and package not in WITH_TVM):
            bad.append(f"line {line}: {name}")
    return bad


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.name)
def test_depends_on_no_sibling(package):
    about = project(package)
    assert about["name"] == package.name
    allowed = set() if package.name == "tt-spec" else {"tt-spec"}
    assert names(about.get("dependencies", [])) & OURS <= allowed
    for extra, requirements in about.get("optional-dependencies", {}).items():
        if (package.name, extra) != ("tt-core", "all"):
            assert names(requirements) & OURS <= allowed | {package.name}, f"extra {extra!r}"
    if package.name not in WITH_TVM:
        assert not {n for n in names(about.get("dependencies", [])) if "tvm" in n}
    if package.name != "tt-spec":
        assert "tt-spec" in names(about["dependencies"])


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.name)
def test_imports_no_sibling(package):
    bad = {
        str(path.relative_to(package)): found
        for path in sorted((package / "src").rglob("*.py"))
        if (found := forbidden(package.name, path.read_text()))
    }
    assert not bad


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.name)
def test_registers_under_its_own_name(package):
    points = project(package).get("entry-points", {}).get("tt", {})
    assert set(points) <= {package.name}, "the entry-point name is the distribution's name"
    assert all(p.split(".")[0] == module(package) for p in points.values())


@pytest.mark.parametrize(
    ("package", "source", "bad"),
    [
        ("tt-search", "import tt_spec.types\nfrom tt_search import x\nfrom . import y", 0),
        ("tt-search", "from tt_core import tune", 1),
        ("tt-search", "def f():\n    import tt_space.sketch", 1),
        ("tt-search", "try:\n    import tvm.ir\nexcept ImportError:\n    pass", 1),
        ("tt-search", "import importlib\nimportlib.import_module('tt_measure.pool')", 1),
        ("tt-space", "from tvm import tirx", 0),
        ("tt-spec", "import tt_core", 1),
    ],
)
def test_the_check_can_fail(package, source, bad):
    assert len(forbidden(package, source)) == bad


def test_packages_are_found():
    assert Path(__file__).parents[1] / "packages" / "tt-spec" in PACKAGES
