"""Mutants of modules, drawn at random, and how many of them the tests kill; the changes are cosmic-ray's.

    pip install cosmic-ray
    hatch run python tools/mutants.py packages/tt-measure/src/tt_measure/pool.py --tests packages/tt-measure/tests

Each mutant is a copy of the module's package with one change, put before the others on the path of a process of its
own that runs the tests until the first fails; the working tree stays as it is. Beside them the tests run without a
change, and have to pass. Annotations are left out: nothing reads them. A mutant that does not end counts as killed.
The folder keeps the results, so that the same command goes on where it was ended, and with a larger `--draw` draws on.
Exit code 1 if one survives.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutant:
    """A change of a module: cosmic-ray's operator, and which of the places where it applies."""

    operator: str
    place: int

    @property
    def name(self) -> str:
        return f"{self.operator} {self.place}"

    def changed(self, code: str) -> str | None:
        """The module's text with it; None where cosmic-ray cannot make it (8.7: of `except a.b`)."""
        from cosmic_ray.mutating import mutate_code  # pyright: ignore[reportMissingImports]
        from cosmic_ray.plugins import get_operator  # pyright: ignore[reportMissingImports]

        with suppress(AttributeError):
            return mutate_code(code, get_operator(self.operator)(), self.place)
        return None


def mutants(path: Path) -> Iterator[Mutant]:
    """All of one module, in an order that depends on its text alone."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path  # pyright: ignore[reportMissingImports]
    from cosmic_ray.plugins import get_operator, operator_names  # pyright: ignore[reportMissingImports]

    idle, nodes = set(annotated(path.read_text())), list(ast_nodes(get_ast_from_path(path)))
    for name in sorted(n for n in operator_names() if not get_operator(n).arguments()):
        operator = get_operator(name)()
        starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        yield from (Mutant(name, i) for i, start in enumerate(starts) if tuple(start) not in idle)


def annotated(code: str) -> Iterator[tuple[int, int]]:
    """Every `(line, column)` within an annotation."""
    lines = code.splitlines()
    for node in ast.walk(ast.parse(code)):
        notes = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        for note in [n for n in notes if isinstance(n, ast.expr)]:
            for line in range(note.lineno, (note.end_lineno or note.lineno) + 1):
                first = note.col_offset if line == note.lineno else 0
                last = note.end_col_offset if line == note.end_lineno else len(lines[line - 1])
                yield from ((line, column) for column in range(first, last or 0))


def passes(path: Path, code: str, tests: Sequence[str], limit_s: float) -> bool:
    """Whether the tests pass with this text in place of a module's."""
    package = path.parent
    while (package.parent / "__init__.py").exists():
        package = package.parent
    with tempfile.TemporaryDirectory(prefix="tt-mutant-") as folder:
        copy = Path(folder, "path", package.name)
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / path.relative_to(package)).write_text(code)
        first = os.pathsep.join(p for p in (str(copy.parent), os.environ.get("PYTHONPATH", "")) if p)
        own = f"--basetemp={folder}/pytest"
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", own, *tests],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": first},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", type=Path, nargs="+")
    parser.add_argument("--tests", nargs="+", required=True, help="what pytest is given, the fastest first")
    parser.add_argument("--draw", type=int, default=25, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="mutants at once")
    parser.add_argument("--limit-s", type=float, default=1200.0, help="of one mutant's tests")
    parser.add_argument("--again", action="store_true", help="try survivors again")
    parser.add_argument("--folder", type=Path, default=Path("mutants"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    left = 0
    for module in options.modules:
        left += _module(module.resolve(), options)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} s of CPU")
    return left > 0


def _module(path: Path, options: argparse.Namespace) -> int:
    """Try a module's mutants; returns how many survive."""
    notes = options.folder / f"{path.stem}-{options.seed}.json"
    known: dict[str, str] = json.loads(notes.read_text()) if notes.exists() else {}
    original = path.read_text()
    every = list(mutants(path))
    order = random.Random(f"{options.seed}-{path.name}").sample(every, len(every))
    drawn = list(islice(((m, code) for m in order if (code := m.changed(original)) is not None), options.draw))
    todo = [(m, c) for m, c in drawn if known.get(m.name) is None or (options.again and known[m.name] == "survived")]

    def tried(one: tuple[Mutant, str]) -> None:
        mutant, code = one
        known[mutant.name] = "survived" if passes(path, code, options.tests, options.limit_s) else "killed"
        notes.write_text(json.dumps(known, indent=1))
        print(f"{path.name} {mutant.name}: {known[mutant.name]}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        sound = pool.submit(passes, path, original, options.tests, options.limit_s) if todo else None
        list(pool.map(tried, todo))
        if sound is not None and not sound.result():
            raise SystemExit(f"the tests do not pass on {path.name} as it is")
    survivors = [(m, code) for m, code in drawn if known[m.name] == "survived"]
    for mutant, code in survivors:
        diff = difflib.unified_diff(original.splitlines(), code.splitlines(), mutant.name, n=0, lineterm="")
        print("\n".join(diff))
    print(f"{path.name}: {len(drawn)} of {len(every)} drawn, {len(drawn) - len(survivors)} killed")
    return len(survivors)


if __name__ == "__main__":
    sys.exit(main())
