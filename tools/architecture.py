"""Draw the house, docs/architecture.svg, from what the code imports and registers.

    python tools/architecture.py           # draws it again
    python tools/architecture.py --check   # says whether it is what the code would give

Rooms of tt-core stand in the order of their imports, each above everything that it imports; the other packages stand
side by side on tt-spec. An import in a circle, or between siblings, cannot be drawn and is an error. The same sources
give the same bytes.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PICTURE = Path("docs", "architecture.svg")
BASE, RUNNER = "tt-spec", "tt-core"


# -- what the code says ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Package:
    """One distribution, as its sources show it.

    Args:
        modules: Every module by its full name, `tt_core.models.load`, with the names that it imports.
        brings: Roles of which its hooks register pieces, e.g. "searchers".
        summaries: First line of each sub-package's docstring, by its name.
    """

    name: str
    modules: dict[str, frozenset[str]]
    brings: tuple[str, ...]
    summaries: dict[str, str] = field(default_factory=dict)

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    def inside(self, room: str = "") -> list[str]:
        """Modules and sub-packages ("models/") directly within the package, or within a room of it."""
        home = f"{self.module}.{room}." if room else f"{self.module}."
        parts = [m.removeprefix(home).split(".") for m in self.modules if m.startswith(home)]
        folders = {p[0] for p in parts if len(p) > 1} | (set() if room else set(self.summaries))
        files = {p[0] for p in parts if len(p) == 1} - folders - {"hooks", "__main__"}
        return sorted(files) + [f"{f}/" for f in sorted(folders)]

    def foreign(self) -> list[str]:
        """Libraries that it imports, but the standard one and ours."""
        tops = {name.split(".")[0] for names in self.modules.values() for name in names}
        ours = {t for t in tops if t == self.module or t.startswith("tt_")}
        return sorted(tops - ours - sys.stdlib_module_names - {"tomllib", "tomli", "__future__"})

    def siblings(self) -> set[str]:
        """Our other distributions that it imports."""
        tops = {name.split(".")[0] for names in self.modules.values() for name in names}
        return {t.replace("_", "-") for t in tops if t.startswith("tt_") and t != self.module}


def read(folder: Path) -> Package:
    """A package of the workspace, from its sources alone."""
    source = folder / "src"
    modules, summaries, brings = {}, {}, []
    for path in sorted(source.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = frozenset(_imports(tree))
        if parts[-1] == "__init__" and len(parts) == 3:
            summaries[parts[1]] = (ast.get_docstring(tree) or "").split("\n")[0].removesuffix(".").replace("`", "")
        if parts[-1] == "hooks" and folder.name != BASE:
            brings += [n.name[3:] for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("tt_")]
    return Package(folder.name, modules, tuple(brings), summaries)


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module
            yield from (f"{node.module}.{a.name}" for a in node.names)


@dataclass(frozen=True)
class Floor:
    """A room of tt-core, or loose modules that stand on the same rooms.

    Args:
        room: Its name; "" for loose modules.
        about: The first line of its docstring.
        inside: Its modules, or the loose ones.
    """

    room: str
    about: str
    inside: tuple[str, ...]


def floors(core: Package) -> tuple[list[Floor], set[tuple[int, int]]]:
    """tt-core from top to bottom, and which floor imports which (indices, upper first).

    Raises `ValueError` where rooms import each other in a circle.
    """
    graph = _parts(core)
    below = {part: _reached(part, graph) for part in graph}
    for part in sorted(graph):
        if part in below[part]:
            circle = sorted(p for p in below[part] if part in below[p])
            raise ValueError(f"{core.name}: {', '.join(circle)} import each other in a circle")
    rooms = set(core.summaries)
    loose: dict[frozenset[str], list[str]] = {}
    for part in sorted(graph.keys() - rooms):
        loose.setdefault(frozenset(below[part] & rooms), []).append(part)
    groups = [({r}, Floor(r, core.summaries[r], tuple(core.inside(r)))) for r in sorted(rooms)]
    groups += [(set(parts), Floor("", "", tuple(parts))) for parts in loose.values()]
    links = {
        (i, j)
        for i, (upper, _) in enumerate(groups)
        for j, (lower, _) in enumerate(groups)
        if i != j and any(graph[part] & lower for part in upper)
    }
    order = _sorted(len(groups), links, [(not floor.room, floor.room, floor.inside) for _, floor in groups])
    place = {old: new for new, old in enumerate(order)}
    return [groups[i][1] for i in order], {(place[i], place[j]) for i, j in links}


def _parts(core: Package) -> dict[str, set[str]]:
    """The rooms and loose modules that each of them imports."""
    own = f"{core.module}."
    parts = {name.removesuffix("/") for name in core.inside()}
    graph: dict[str, set[str]] = {part: set() for part in parts}
    for name, imported in core.modules.items():
        part = name.removeprefix(own).split(".")[0]
        if part in parts:  # what the package itself re-exports binds no room to another
            found = {i.removeprefix(own).split(".")[0] for i in imported if i.startswith(own)}
            graph[part] |= (found & parts) - {part}
    return graph


def _reached(part: str, graph: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    ahead = list(graph[part])
    while ahead:
        here = ahead.pop()
        if here not in found:
            found.add(here)
            ahead += graph[here]
    return found


def _sorted(n: int, links: set[tuple[int, int]], rank: Sequence[Any]) -> list[int]:
    """Indices, every one before those it links to: by the longest way down, then by rank."""
    depth: dict[int, int] = {}

    def measure(i: int) -> int:
        if i not in depth:
            depth[i] = max((1 + measure(j) for a, j in links if a == i), default=0)
        return depth[i]

    return sorted(range(n), key=lambda i: (-measure(i), rank[i]))


def needed(links: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Links that do not follow from two others."""
    graph: dict[str, set[str]] = {}
    for i, j in links:
        graph.setdefault(str(i), set()).add(str(j))
        graph.setdefault(str(j), set())
    return sorted((i, j) for i, j in links if not any(str(j) in _reached(k, graph) for k in graph[str(i)] - {str(j)}))


# -- the picture ----------------------------------------------------------------------------------------------------

WIDTH, EDGE, LINE, ROW = 1000, 16, 16, 46
BOLD, CLEAR = ' font-weight="600"', ' stroke="#ffffff" stroke-width="6" paint-order="stroke"'
INK, PALE, ROOM, LOOSE, LEAF, STONE = "#1f2933", "#66727f", "#dbeafe", "#f1f5f9", "#fef3c7", "#d9e8d5"


def draw(root: Path) -> str:
    """The picture as SVG. Raises `ValueError` for imports that the house does not have."""
    packages = {p.name: p for p in (read(f.parent) for f in sorted(root.glob("packages/*/pyproject.toml")))}
    for name, package in packages.items():
        wrong = package.siblings() - ({BASE} if name != BASE else set())
        if wrong:
            raise ValueError(f"{name} imports {', '.join(sorted(wrong))}: packages of ours import {BASE} alone")
    leaves = [p for name, p in packages.items() if name not in (BASE, RUNNER)]
    canvas = _Canvas()
    bottom = _core(canvas, packages[RUNNER])
    ground = _leaves(canvas, leaves, bottom + 54)
    height = _base(canvas, packages[BASE], ground + 30)
    _between(canvas, leaves, bottom, ground)
    return canvas.svg(height + EDGE)


class _Canvas:
    """Lines of SVG; arrows are drawn over boxes, text over both."""

    def __init__(self) -> None:
        self.boxes: list[str] = []
        self.arrows: list[str] = []
        self.texts: list[str] = []

    def box(self, x: int, y: int, width: int, height: int, fill: str, stroke: str = "none") -> None:
        shape = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6"'
        self.boxes.append(f'{shape} fill="{fill}" stroke="{stroke}"/>')

    def text(self, x: int, y: int, text: str, size: int = 13, fill: str = INK, more: str = "") -> None:
        if text:
            self.texts.append(f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}"{more}>{escape(text)}</text>')

    def arrow(self, path: str, stroke: str = PALE, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        self.arrows.append(f'<path d="{path}" stroke="{stroke}"{dash} fill="none" marker-end="url(#tip)"/>')

    def svg(self, height: int) -> str:
        opening = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
            ' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">'
        )
        tip = (
            '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0 L8 4 L0 8 Z" fill="{PALE}"/></marker>'
        )
        parts = [opening, "<!-- python tools/architecture.py draws this: do not edit it -->", f"<defs>{tip}</defs>"]
        parts.append(f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>')
        return "\n".join([*parts, *self.boxes, *self.arrows, *self.texts, "</svg>"]) + "\n"


def _core(canvas: _Canvas, core: Package) -> int:
    """tt-core's floors from the roof down, arcs at their right; returns where it ends."""
    found, links = floors(core)
    top, width = 44, 720
    canvas.text(EDGE + 12, 34, core.name, 17, more=BOLD)
    canvas.text(EDGE + 90, 34, "a model in, a faster library out; imports go downwards only", 13, PALE)
    for i, floor in enumerate(found):
        y = top + i * ROW
        canvas.box(EDGE + 12, y, width, ROW - 8, ROOM if floor.room else LOOSE)
        if floor.room:
            canvas.text(EDGE + 24, y + 25, f"{floor.room}/", 14, more=BOLD)
            canvas.text(EDGE + 112, y + 18, _cut(floor.about, 94), 13)
            canvas.text(EDGE + 112, y + 34, _cut(", ".join(floor.inside), 92), 12, PALE)
        else:
            canvas.text(EDGE + 24, y + 25, _cut(", ".join(floor.inside), 108), 12)
    right = EDGE + 12 + width
    for i, j in needed(links):
        a, b = top + i * ROW + ROW // 2, top + j * ROW + ROW // 2 - 8
        out = right + 14 + 30 * (j - i)
        canvas.arrow(f"M{right} {a} C{out} {a} {out} {b} {right + 3} {b}")
    bottom = top + len(found) * ROW + 20
    canvas.text(EDGE + 12, bottom - 10, f"needs {', '.join(core.foreign())}", 12, PALE)
    canvas.box(EDGE, 10, WIDTH - 2 * EDGE, bottom - 8, "none", PALE)
    return bottom + 2


def _leaves(canvas: _Canvas, leaves: list[Package], top: int) -> int:
    """The packages side by side; returns where the longest ends."""
    gap = 8
    width = (WIDTH - 2 * EDGE - gap * (len(leaves) - 1)) // len(leaves)
    columns = [_column(p, width) for p in leaves]
    height = 36 + LINE * max(len(c) for c in columns) + 8
    for i, (package, lines) in enumerate(zip(leaves, columns, strict=True)):
        x = EDGE + i * (width + gap)
        canvas.box(x, top, width, height, LEAF)
        canvas.text(x + 8, top + 22, package.name, 14, more=BOLD)
        for k, (text, faint) in enumerate(lines):
            canvas.text(x + 8, top + 44 + k * LINE, text, 12, PALE if faint else INK)
    return top + height


def _column(package: Package, width: int) -> list[tuple[str, bool]]:
    """The lines of a package's column, and whether each is pale: what it brings, its modules, its libraries."""
    lines = [(f"brings {name}", True) for name in package.brings]
    lines += [("", True), *((name, False) for name in package.inside())]
    foreign = [_cut(name, width // 9) for name in package.foreign()]
    if foreign:
        lines += [("", True), *((text, True) for text in _wrapped(["needs", *foreign], width // 9))]
    return lines


def _base(canvas: _Canvas, base: Package, top: int) -> int:
    lines = _wrapped([f"{n}," for n in base.inside()[:-1]] + base.inside()[-1:], 130)
    height = 34 + LINE * len(lines)
    canvas.box(EDGE, top, WIDTH - 2 * EDGE, height, STONE)
    canvas.text(EDGE + 12, top + 22, base.name, 17, more=BOLD)
    canvas.text(EDGE + 90, top + 22, "the vocabulary: types, roles, hooks, ask and tell, the loop, contracts", 13, PALE)
    for k, text in enumerate(lines):
        canvas.text(EDGE + 12, top + 42 + k * LINE, text, 12)
    return top + height


def _between(canvas: _Canvas, leaves: list[Package], bottom: int, ground: int) -> None:
    """Imports of tt-spec, one arrow per package, and what the runner finds by hooks, dashed."""
    gap = 8
    width = (WIDTH - 2 * EDGE - gap * (len(leaves) - 1)) // len(leaves)
    for i, package in enumerate(leaves):
        x = EDGE + i * (width + gap) + width // 2
        if BASE in package.siblings():
            canvas.arrow(f"M{x} {ground} V{ground + 28}")
        if package.brings:
            canvas.arrow(f"M{x} {bottom} V{bottom + 48}", dashed=True)
    canvas.text(EDGE + 24 + width // 2, bottom + 30, "found by name, through hooks: no import", 12, PALE, CLEAR)
    canvas.arrow(f"M{EDGE // 2} {bottom - 30} V{ground + 40} H{EDGE - 2}")
    canvas.boxes.append(f'<path d="M{EDGE} {bottom - 30} H{EDGE // 2}" stroke="{PALE}"/>')


def _wrapped(words: Iterable[str], wide: int) -> list[str]:
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > wide:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _cut(text: str, most: int) -> str:
    """The text, or as many whole words of it as fit, or the beginning of the first."""
    if len(text) <= most:
        return text
    kept, space, _ = text[: most - 2].rpartition(" ")
    return f"{kept.rstrip(',:')} …" if space else f"{text[: most - 1]}…"


# -- the command ----------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """0: drawn, or as the code says; 1: stale, or a house that cannot be drawn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="draw nothing; exit with 1 if the picture is stale")
    asked = parser.parse_args(arguments)
    try:
        picture = draw(root)
    except ValueError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    path = root / PICTURE
    if asked.check:
        if path.is_file() and path.read_bytes() == picture.encode():
            return 0
        print(f"{PICTURE.as_posix()} is not what the code says: python tools/architecture.py", file=sys.stderr)
        return 1
    path.write_bytes(picture.encode())
    print(f"written to {PICTURE.as_posix()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
