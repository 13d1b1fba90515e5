"""Functions that can be read in one sitting: in tt-core and tt-spec none over 50 lines or 7 parameters.

Public keyword-only parameters do not count: an interface may have many options, each with its default.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from workspace import ROOT

LINES, PARAMETERS = 50, 7
FILES = [p for name in ("tt-core", "tt-spec") for p in sorted((ROOT / "packages" / name / "src").rglob("*.py"))]


def too_large(source: str) -> list[str]:
    """Functions over the bounds; docstrings count as lines, `self` not as a parameter."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        doc = node.body[0] if ast.get_docstring(node) is not None else None
        lines = (node.end_lineno or 0) - node.lineno + 1
        lines -= 0 if doc is None else (doc.end_lineno or 0) - doc.lineno + 1
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
        counted = [n for n in names if n not in ("self", "cls")]
        counted += [a.arg for a in node.args.kwonlyargs if node.name.startswith("_") and node.name != "__init__"]
        if lines > LINES:
            found.append(f"{node.name}: {lines} lines")
        if len(counted) > PARAMETERS and not _stores(node):
            found.append(f"{node.name}: {len(counted)} parameters")
    return found


def _stores(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it is a constructor, whose arguments are a piece's options, each with a default."""
    required = len(node.args.args) - 1 - len(node.args.defaults)
    return node.name == "__init__" and required <= PARAMETERS


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT / "packages").as_posix())
def test_no_function_is_too_large(path: Path):
    assert too_large(path.read_text()) == []


def test_the_check_can_fail():
    many = ", ".join(f"a{i}" for i in range(8))
    assert too_large(f"def f({many}):\n    pass") == ["f: 8 parameters"]
    assert too_large(f"def f(*, {many}):\n    pass") == []
    assert too_large(f"def _f(*, {many}):\n    pass") == ["_f: 8 parameters"]
    assert too_large("def f():\n" + "    x = 1\n" * 50) == ["f: 51 lines"]
