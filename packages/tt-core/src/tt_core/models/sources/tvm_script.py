"""TVMScript files: one `@T.prim_func` is an operator, one `@I.ir_module` a model, as TVM's printer writes them.

The file is parsed by TVM, not run: besides its one definition only imports of TVM, type variables and the printer's
metadata may stand in it, and the imports are not followed. The parser does evaluate the expressions inside the
definition, so a script is as trusted as a program.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
from tt_spec import Plugins
from tvm import relax

from tt_core.errors import ModelError, summary
from tt_core.models.model import Model
from tt_core.models.sources import tvm_module

__all__ = ["TvmScriptFormat"]

_RULE = (
    "a TVMScript file holds one @T.prim_func or @I.ir_module, imports of tvm, type variables, and nothing else;"
    " write it with script(show_meta=True)"
)


class TvmScriptFormat:
    """TVMScript files, `.py`."""

    def read(self, path: Path, shapes: Mapping[str, tuple[int, ...]], plugins: Plugins | None = None) -> Model:
        """The model of a TVMScript file. Raises `ModelError` that names the line."""
        try:
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (OSError, ValueError, RecursionError, MemoryError, SyntaxError) as e:
            line = f" line {e.lineno}" if isinstance(e, SyntaxError) and e.lineno else ""
            raise ModelError(f"{path}{line} is not TVMScript: {summary(e)}") from e
        definition, metadata = _split(tree, path)
        found = _parse(text, tree, definition, metadata, path)
        name = path.stem if definition.name in ("main", "Module") else definition.name
        if isinstance(found, tvm.tirx.PrimFunc):
            return tvm_module.operator(found, name, shapes)
        if isinstance(found, relax.Function):
            found = tvm.IRModule({"main": found.with_attr("global_symbol", "main")})
        if not isinstance(found, tvm.IRModule):
            raise ModelError(f"{path}: {definition.name} is a {type(found).__name__}: {_RULE}")
        return tvm_module.convert(found, name, shapes)


def _split(tree: ast.Module, path: Path) -> tuple[ast.ClassDef | ast.FunctionDef, ast.expr | None]:
    """The file's only definition, and the constants that the printer put before it."""
    definitions, metadata = [], None
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.decorator_list:
            definitions.append(node)
        elif _is_metadata(node):
            metadata = node.value.args[0].value  # type: ignore[attr-defined]
        elif not _is_harmless(node):
            raise ModelError(f"{path} line {node.lineno}: {_RULE}")
    if len(definitions) != 1:
        raise ModelError(f"{path} has {len(definitions)} decorated definitions: {_RULE}")
    return definitions[0], metadata


def _is_harmless(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import):
        return all(a.name.split(".")[0] == "tvm" for a in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] in ("tvm", "typing", "__future__") and not node.level
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return _calls(node, "TypeVar")


def _is_metadata(node: ast.stmt) -> bool:
    """`metadata = tvm.ir.load_json("…")`, which `script(show_meta=True)` writes."""
    return (
        _calls(node, "load_json")
        and isinstance(node, ast.Assign)
        and [getattr(t, "id", "") for t in node.targets] == ["metadata"]
    )


def _calls(node: ast.stmt, name: str) -> bool:
    """Whether the statement is `x = name("…")`."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and name in (getattr(node.value.func, "id", ""), getattr(node.value.func, "attr", ""))
        and all(isinstance(a, ast.Constant) for a in node.value.args)
        and bool(node.value.args)
    )


def _parse(
    text: str, tree: ast.Module, definition: ast.ClassDef | ast.FunctionDef, metadata: ast.expr | None, path: Path
) -> Any:
    lines = text.splitlines()
    for node in tree.body:  # blank, so that the parser's line numbers stay those of the file
        if node is not definition and not _calls(node, "TypeVar"):
            for i in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[i] = ""
    try:
        from tvm.script.parser.core.entry import _default_globals

        known = _default_globals()
        if metadata is not None:
            known["metadata"] = tvm.ir.load_json(metadata)
        return tvm.script.from_source("\n".join(lines), known)
    except Exception as e:  # the parser lets pass what the expressions raise
        at = re.search(r"<str>:(\d+)", str(e))
        hint = ""
        if "metadata" in str(e):
            hint = "; constants are in the script only if it was written with script(show_meta=True)"
        message = re.sub(r"^\w+: error: ", "", summary(e))
        raise ModelError(f"{path}{f' line {at.group(1)}' if at else ''} is not TVMScript: {message}{hint}") from e
