"""The contract of formats in which histories are exchanged."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tt_spec.errors import FormatError
from tt_spec.exchange import Content, LeftOut, check
from tt_spec.roles import Writes, capabilities
from tt_spec.space import Knob, Space
from tt_spec.types import Measurement, Noise, RunRecord, Task

__all__ = ["FormatContract"]

_RUBBISH = (b"", b"\x00\xff no such thing", b"\x1f\x8b\x08", b"[" * 10_000, b"{}\n{}\n", b"PAR1PAR1", b"a,b\n1,2,3\n")


class FormatContract:
    """Subclass it and override `piece`."""

    lossless = True
    """Whether it keeps all that a record, task or run says; one that does not counts what it leaves out."""

    folder = False
    """Whether what it writes is a folder."""

    @pytest.fixture
    def piece(self) -> Any:
        """A format."""
        raise NotImplementedError("override the fixture `piece`")

    def test_reads_what_it_wrote(self, piece: Any) -> None:
        if Writes not in capabilities("format", piece):
            return
        content, rows = example_content(), _records()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "them"
            left = piece.write(path, content)
            items = list(piece.read(path))
        assert all(isinstance(where, str) and where for where, _ in items), "every item has its place, for messages"
        found = [i for _, i in items if isinstance(i, Measurement)]
        for _, item in items:
            check(item)
        gone = sum(left.values())
        assert len(found) + gone == len(rows), f"{len(rows)} records: {len(found)} came back, {left} were left out"
        if self.lossless:
            for a, b in zip(rows, found, strict=True):
                assert a == b, f"a record must come back as it was: {a} became {b}"
                assert repr(a) == repr(b), f"a value changed its type: {a} became {b}"
            assert [i for _, i in items if isinstance(i, Task)] == list(content.tasks), "tasks come back as they were"
            assert [i for _, i in items if isinstance(i, RunRecord)] == list(content.runs), (
                "runs come back as they were"
            )
            first = next(n for n, (_, i) in enumerate(items) if isinstance(i, Measurement))
            last = max(n for n, (_, i) in enumerate(items) if isinstance(i, Task))
            assert last < first, "tasks come before their records, whose spaces explain them"

    def test_writes_all_or_nothing(self, piece: Any) -> None:
        if Writes not in capabilities("format", piece):
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "them"
            piece.write(path, example_content())
            before = _contents(Path(folder))
            broken = example_content()
            with pytest.raises(ZeroDivisionError):
                piece.write(path, Content(broken.tasks, broken.runs, _breaks(), broken.rows))
            assert _contents(Path(folder)) == before, "a failed export must leave what was there, and nothing beside it"

    def test_an_unwritable_place_is_named_in_one_line(self, piece: Any) -> None:
        if Writes not in capabilities("format", piece):
            return
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "file").write_bytes(b"")
            _one_line("them", lambda: piece.write(Path(folder) / "file" / "them", example_content()))

    def test_rubbish_is_refused_in_one_line(self, piece: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "them"
            for content in _RUBBISH:
                path.write_bytes(content)
                _one_line("them", lambda: list(piece.read(path)))
                assert path.read_bytes() == content, "reading leaves the file alone"

    def test_what_is_no_file_is_refused_in_one_line(self, piece: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            _one_line("them", lambda: list(piece.read(Path(folder) / "them")))
            (Path(folder) / "them").symlink_to(folder if not self.folder else "/dev/null")
            _one_line("them", lambda: list(piece.read(Path(folder) / "them")))

    def test_a_cut_file_ends_in_one_line_or_in_fewer_items(self, piece: Any) -> None:
        if Writes not in capabilities("format", piece) or self.folder:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "them"
            piece.write(path, example_content())
            whole = path.read_bytes()
            for size in range(0, len(whole), max(1, len(whole) // 20)):
                path.write_bytes(whole[:size])
                try:
                    items = list(piece.read(path))
                except FormatError as e:
                    assert "them" in str(e) and "\n" not in str(e), "one line that names the file"
                    continue
                rows = [i for _, i in items if not isinstance(i, LeftOut)]
                assert len(rows) <= len(_records()) + 2, "a part of a file is no more than the file"


def _one_line(name: str, call: Any) -> None:
    with pytest.raises(FormatError) as caught:
        call()
    assert name in str(caught.value) and "\n" not in str(caught.value), "one line that names the file"


def _contents(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def example_content() -> Content:
    """A task, a run, and records of all kinds."""
    task = Task(
        "t1", "conv \N{SNOWMAN}", "conv2d", '{"kind":"llvm"}', (_space(),), 1e6, 2.0, b"\x00pay", "1x8 -> 1x8", "w1"
    )
    run = RunRecord("r1", 1.7e9, None, None, {"seed": 0, "tile": (1, 2), "most": math.inf})
    rows = _records()
    return Content([task], [run], iter(rows), len(rows))


def _space() -> Space:
    return Space(
        (
            Knob("tile", "tile", ((1, 16), (4, 4))),
            Knob("most", "choice", (0.5, math.inf)),
            Knob("on", "choice", (True,)),
        )
    )


def _records() -> list[Measurement]:
    space = _space()
    valid = Measurement(
        "t1",
        space.key,
        (1, 1, 0),
        space.decode((1, 1, 0)),
        (1e-9, 0.1 + 0.2),
        3,
        why="two agree",
        cost={"build": 0.25, "run": 1.0 / 3},
        device="d1",
        versions={"tvm": "0.27"},
        at=1.7e9 + 1 / 3,
        run_id="r1",
        noise=Noise(3, 1, 1.0625, 0.1),
    )
    why = 'line one\r\nline "two", 3;\ttab\rend \N{SNOWMAN}\u2028\x85\x0c\\n'
    failed = Measurement("t1", space.key, (0, 0, 0), space.decode((0, 0, 0)), error="build", why=why, at=1.7e9)
    unknown = Measurement(
        "t2", "s2", (7,), {"a b": ("x", None, 1), "": [1.5, {"c": False}]}, (1.0,), cost={"run": math.inf}, at=0.0
    )
    return [valid, failed, unknown, Measurement("t1", space.key, (0, 1, 0), {}, error="invalid", origin="random")]


def _breaks() -> Iterator[Measurement]:
    yield from _records()
    raise ZeroDivisionError
