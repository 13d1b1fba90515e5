"""Start a new piece: its module, its line in the hooks, and its test, which passes as written.

    hatch run python tools/new_piece.py searcher coordinate-descent --package packages/tt-search
    python tools/new_piece.py surrogate knn --package ../my-tt   # any package with a pyproject.toml and src/

The module starts as tt-spec's trivial piece of that role. Nothing that exists is overwritten.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import keyword
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from tt_spec import Plugins, nearest
from tt_spec.roles import ROLES
from tt_spec.testing import CONTRACTS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SUMMARY = "what it is"

MODULES = {
    "measurer": '''
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tt_spec import Bar, Task, Trial
from tt_spec.pieces.synthetic import SyntheticMeasurer

__all__ = ["{cls}"]


class {cls}(SyntheticMeasurer):
    """A new piece."""

    def measure(self, task: Task, codes: np.ndarray, bar: Bar) -> Iterator[Trial]:
        yield from super().measure(task, codes, bar)
''',
    "space": '''
from __future__ import annotations

from typing import Any

import numpy as np
from tt_spec import Knob, Space

__all__ = ["{cls}"]


class {cls}:
    """A new piece."""

    def legalizers(self, target: Any) -> dict[str, Any]:
        """Functions for `relax.transform.LegalizeOps`, by operator: how the space wants its operators to be written."""
        return {{}}

    def open(self, mod: Any, target: Any) -> Programs:
        """The space of one workload: `mod` is a TVM module with one PrimFunc "main"."""
        return Programs(mod)


class Programs:
    """Rows to schedules and back."""

    def __init__(self, mod: Any) -> None:
        self.mod = mod
        self.space = Space((Knob("unroll", "choice", (0, 16, 64)),), name="{name}")

    def apply(self, row: np.ndarray) -> Any:
        """The scheduled program of a row; ValueError if there is none."""
        from tvm.s_tir import Schedule

        schedule = Schedule(self.mod)
        unroll = self.space.decode(row)["unroll"]
        schedule.annotate(schedule.get_sblock("root"), "pragma_auto_unroll_max_step", unroll)
        return schedule

    def read(self, schedule: Any, row: np.ndarray) -> np.ndarray:
        """The canonical row of the schedule that `apply` made of `row`."""
        return row

    def features(self, schedules: list[Any]) -> list[np.ndarray]:
        """Per-store features of each program, `(statements, 164)`; zeros tell a cost model nothing."""
        return [np.zeros((1, 164)) for _ in schedules]

    def repack(self, row: np.ndarray) -> Any:
        """None: the programs take the workload's constants as they are."""
''',
    "model": '''
from __future__ import annotations

__all__ = ["{function}"]


def {function}() -> str:
    """A model as `tt tune` takes it: an operator as here, the path of an ONNX file, or an imported model."""
    return "op:matmul:128,128,128"
''',
    "rewrite": '''
from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["{function}"]


def {function}() -> dict[tuple[str, str], Callable[[Any, Any], list[str] | None]]:
    """Functions by domain and operator: each emits other operators and returns a value for each output."""
    return {{("com.example", "Twice"): lambda node, graph: [graph.op("Add", node.input(0), node.input(0))]}}
''',
    "recipe": '''
from __future__ import annotations

from typing import Any

__all__ = ["{function}"]


def {function}() -> dict[str, Any]:
    """The content of a recipe's TOML file; roles that are left out have their default."""
    return {{"summary": "{summary}", "batch": 32, "searcher": {{"piece": "random"}}}}
''',
    "service": '''
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tt_spec import Loop, Outcome, Pipeline, WallClock
from tt_spec.errors import OptionError
from tt_spec.pieces.sequential_scheduler import SequentialScheduler
from tt_spec.pieces.trials_stopper import TrialsStopper
from tt_spec.roles import Errand, Judges, Measurer, Store

__all__ = ["{function}"]


def {function}(url: str = "", **options: Any) -> Service:
    """Built with the options of `tt tune --server`: see `tt_spec.roles.Service`."""
    return Service(url)


class Service:
    """Searches in this very process."""

    def __init__(self, url: str) -> None:
        self.url = url

    def recipes(self) -> list[dict[str, Any]]:
        """None but what the caller sends."""
        return []

    def run(
        self, errand: Errand, pipelines: Sequence[Pipeline], measurer: Measurer, store: Store, **more: Any
    ) -> Outcome:
        """One task after the other; `more` is what `tt_spec.Loop` takes: `info`, `listeners`, `halt`."""
        more.pop("say", None)
        budget = [TrialsStopper(errand.trials or 64)]
        return Loop(pipelines, measurer, store, SequentialScheduler(), budget, WallClock(), **more).run()

    def place(self, target: str, device: str | None = None, **more: Any) -> str:
        """It has no agents that could measure for a run with --no-agent."""
        raise OptionError(f"nobody measures for this service: omit --no-agent to measure {{device or target}} here")

    def judge(self, **more: Any) -> Judges:
        """As above."""
        raise OptionError("nobody judges finalists for this service: omit --no-agent")
''',
    "command": '''
from __future__ import annotations

from collections.abc import Callable

__all__ = ["{function}"]


def {function}() -> Callable[..., None]:
    """The function behind `tt {name}`."""
    return say


def say(word: str = "hello") -> None:
    """Say a word; typer makes options of the arguments."""
    print(word)
''',
}
"""Where tt-spec has no trivial piece, or one that is no example."""

CONTRACT = '''"""{cls} keeps its role's contract."""

from __future__ import annotations

import pytest
from {package}.{module} import {cls}
from tt_spec.testing import {contract}


class Test{cls}({contract}):
    @pytest.fixture
    def piece(self):
        return {cls}()
'''

_WITH_TVM = CONTRACT.replace("import pytest\n", "import pytest\nimport tvm\n")
SPACE = _WITH_TVM.replace("import {contract}\n", "import {contract}\nfrom tvm import te\n")
SPACE += """
    @pytest.fixture
    def operator(self):
        x = te.placeholder((16, 16), name="x")
        y = te.compute((16, 16), lambda i, j: x[i, j] * 2.0, name="y")
        func = te.create_prim_func([x, y]).with_attr("global_symbol", "main")
        return tvm.IRModule({{"main": func}}), tvm.target.Target("llvm")
"""

REGISTERED = '''"""{name} is registered and can be built."""

from __future__ import annotations

import {hooks}
from tt_spec import Plugins


def test_it_is_registered_and_can_be_built():
    plugins = Plugins([("{dist}", {hooks})], installed=False)
    assert not plugins.broken
    piece = plugins.build("{role}", "{name}")
    {check}
'''

CHECKS = {
    "model": "assert piece",
    "rewrite": "assert all(callable(f) for f in piece.values())",
    "recipe": 'assert all(entry["piece"] for entry in piece.values() if isinstance(entry, dict))',
    "service": "assert piece.recipes() == []",
    "command": "assert callable(piece)",
}


class Refused(Exception):
    """The rule, what came, and what to do."""


@dataclass(frozen=True)
class Package:
    """A distribution's folder, name, import package and module of hooks."""

    folder: Path
    dist: str
    hooks: str
    registered: bool

    @property
    def name(self) -> str:
        return self.hooks.split(".")[0]

    def path(self, module: str) -> Path:
        return self.folder.joinpath("src", *module.split(".")).with_suffix(".py")


def main(
    role: Annotated[str, typer.Argument(help="What it is: " + ", ".join(ROLES))],
    name: Annotated[str, typer.Argument(help="What users type, e.g. coordinate-descent")],
    package: Annotated[Path, typer.Option(help="The distribution's folder, with pyproject.toml and src/")],
) -> None:
    try:
        written = create(role, name, package)
    except Refused as e:
        typer.echo(f"new_piece: {e}", err=True)
        raise typer.Exit(2) from None
    for path, what in written.items():
        typer.echo(f"{path}: {what}")


def create(role: str, name: str, folder: Path) -> dict[Path, str]:
    """Write everything, or nothing; returns what was done to which file. Raises `Refused`."""
    if role not in ROLES:
        raise Refused(f"there is no role {role!r}{nearest(role, ROLES)}")
    module = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or keyword.iskeyword(module):
        raise Refused(f"a name is lower-case words with hyphens, like coordinate-descent, got {name!r}")
    package = _package(folder)
    words = {
        "name": name,
        "role": role,
        "module": module,
        "function": module,
        "cls": "".join(word.capitalize() for word in name.split("-")),
        "package": package.name,
        "dist": package.dist,
        "hooks": package.hooks,
        "contract": f"{role.capitalize()}Contract",
        "check": CHECKS.get(role, ""),
        "summary": SUMMARY,
    }
    target, test = package.path(f"{package.name}.{module}"), package.folder / "tests" / f"test_{module}.py"
    for path in (target, test):
        if path.exists():
            raise Refused(f"{path} exists: choose another name, or delete it first")
    target_name = words["cls" if role in CONTRACTS else "function"]
    entry = f'Entry("{name}", "{package.name}.{module}:{target_name}", "{SUMMARY}")'
    hooks = package.path(package.hooks)
    new = _with_entry(hooks.read_text(encoding="utf-8") if hooks.exists() else "", role, name, entry, package, hooks)
    done = {target: "the piece", test: "its test", hooks: f"registers {role} {name}"}
    texts = {
        target: _module(role, words),
        test: (SPACE if role == "space" else CONTRACT if role in CONTRACTS else REGISTERED).format(**words),
        hooks: new,
    }
    if not package.registered:
        toml = package.folder / "pyproject.toml"
        lines = f'[project.entry-points.tt]\n{package.dist} = "{package.hooks}"\n'
        texts[toml] = f"{toml.read_text(encoding='utf-8').rstrip()}\n\n{lines}"
        done[toml] = "names the hooks; install the package again"
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return done


def _package(folder: Path) -> Package:
    toml = folder / "pyproject.toml"
    try:
        project = tomllib.loads(toml.read_text(encoding="utf-8"))["project"]
        dist = project["name"]
    except (OSError, tomllib.TOMLDecodeError, KeyError) as e:
        raise Refused(f"{toml} must be a package's, with [project] and a name: {type(e).__name__}: {e}") from e
    points = project.get("entry-points", {}).get("tt", {})
    hooks = next(iter(points.values()), f"{re.sub('[-.]', '_', dist)}.hooks")
    package = Package(folder, dist, hooks, bool(points))
    if not (folder / "src" / package.name).is_dir():
        raise Refused(f"{folder / 'src' / package.name} is no folder: the package's modules must be there")
    return package


def _module(role: str, words: dict[str, str]) -> str:
    title = f'"""{SUMMARY.capitalize()}."""\n'
    if role in MODULES:
        return title + MODULES[role].format(**words)
    entry = next(p.entry for p in Plugins().pieces[role].values() if p.distribution == "tt-spec")
    where, _, old = str(entry.build).partition(":")
    source = inspect.getsource(importlib.import_module(where))
    tree = ast.parse(source)
    cls = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == old)
    for node in (cls, tree):  # from the end, so that the places before stay right
        doc = node.body[0]
        about = title[:-1]
        if node is cls:
            options = re.search(r"\n *Args:\n.*", ast.get_source_segment(source, doc) or "", re.DOTALL)
            end = options.group() if options else '    """'
            about = f'"""A new piece.\n\n    Source: author (year), title, link.\n{end}'
        lines = source.splitlines(keepends=True)
        indent = " " * doc.col_offset
        source = "".join([*lines[: doc.lineno - 1], f"{indent}{about}\n", *lines[doc.end_lineno :]])
    source = source.replace("import numpy as np\n\nfrom tt_spec", "import numpy as np\nfrom tt_spec")
    return re.sub(rf"\b{old}\b", words["cls"], source)


def _with_entry(source: str, role: str, name: str, entry: str, package: Package, path: Path) -> str:
    """The hooks with one entry more."""
    if not source:
        source = f'"""{package.dist}\'s pieces."""\n\nfrom __future__ import annotations\n\n'
        source += "from tt_spec import Entry, hookimpl\n"
    hook = f"tt_{role}s"
    function = next((n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == hook), None)
    if function is None:
        return (
            f"{source.rstrip()}\n\n\n@hookimpl\ndef {hook}() -> list[Entry]:\n    return [\n        {entry},\n    ]\n"
        )
    listed = function.body[-1].value if isinstance(function.body[-1], ast.Return) else None
    if not isinstance(listed, ast.List):
        raise Refused(f"{path}: {hook} must end with return [...]; add by hand: {entry}")
    if any(isinstance(node, ast.Constant) and node.value == name for node in ast.walk(listed)):
        raise Refused(f"{path}: {role} {name!r} is registered already: choose another name")
    lines = source.splitlines(keepends=True)
    last = (listed.end_lineno or 0) - 1
    tail = lines[last].encode()[listed.end_col_offset or 0 :].decode()
    if listed.lineno - 1 < last:  # one entry a line: a line more
        if lines[last].split("]")[0].strip() or not lines[last - 1].split("#")[0].rstrip().endswith(","):
            raise Refused(f"{path}: the list of {hook} must have one entry a line, each with a comma; add: {entry}")
        return "".join([*lines[:last], f"        {entry},\n", *lines[last:]])
    head = lines[last].encode()[: listed.col_offset].decode()
    entries = [*(ast.get_source_segment(source, e) for e in listed.elts), entry]
    grown = "".join(f"        {e},\n" for e in entries)
    return "".join([*lines[:last], f"{head}[\n{grown}    ]{tail}", *lines[last + 1 :]])


if __name__ == "__main__":
    typer.run(main)
