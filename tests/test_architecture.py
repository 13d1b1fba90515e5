"""docs/architecture.svg is what tools/architecture.py draws from the code, and the tool says when it is not."""

from __future__ import annotations

import re

import pytest
from workspace import OURS, ROOT, program

architecture = program(ROOT / "tools" / "architecture.py")


def test_the_picture_is_what_the_code_says():
    assert architecture.main(["--check"]) == 0, "python tools/architecture.py draws it again"


def test_every_package_and_room_stands_in_it():
    shown = set(re.findall(r"<text [^>]*>([^<]+)</text>", (ROOT / architecture.PICTURE).read_text()))
    assert shown >= OURS
    rooms = {p.parent.name for p in (ROOT / "packages" / "tt-core" / "src" / "tt_core").glob("*/__init__.py")}
    assert rooms and shown >= {f"{room}/" for room in rooms}


def test_the_page_names_what_exists():
    text = (ROOT / "docs" / "architecture.md").read_text()
    modules = {name for p in OURS for name in architecture.read(ROOT / "packages" / p).modules}
    dotted = re.findall(r"`(tt_\w+(?:\.\w+)+)`", text)
    assert len(dotted) > 30
    lost = [name for name in dotted if name not in modules and name.rpartition(".")[0] not in modules]
    assert lost == []
    files = [name for name in re.findall(r"`([\w/-]+/[\w/]*(?:\.py)?)`", text) if name.startswith("tt_")]
    assert len(files) == 5
    assert [f for f in files if not list(ROOT.glob(f"packages/*/src/{f}"))] == []


SOURCES = {
    "tt-spec/src/tt_spec/types.py": "import numpy",
    "tt-core/src/tt_core/errors.py": "import tt_spec",
    "tt-core/src/tt_core/compiler/__init__.py": '"""Programs."""',
    "tt-core/src/tt_core/compiler/lower.py": "from tt_core import errors",
    "tt-core/src/tt_core/models/__init__.py": '"""Models in."""',
    "tt-core/src/tt_core/models/load.py": "from tt_core.compiler import lower",
    "tt-core/src/tt_core/tuning.py": "def tune():\n    from tt_core.models.load import load",
    "tt-search/src/tt_search/hooks.py": "from tt_spec import Entry\ndef tt_searchers(): ...",
    "tt-search/src/tt_search/anneal.py": "import numpy",
}


@pytest.fixture
def house(tmp_path):
    """A small workspace, drawn."""

    def write(path, text):
        file = tmp_path / "packages" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    (tmp_path / "docs").mkdir()
    for path, text in SOURCES.items():
        write(path, text)
        write(f"{path.split('/')[0]}/pyproject.toml", "")
    assert architecture.main([], tmp_path) == 0
    assert architecture.main(["--check"], tmp_path) == 0
    return tmp_path, write


def test_rooms_stand_above_what_they_import(house):
    floors, links = architecture.floors(architecture.read(house[0] / "packages" / "tt-core"))
    assert [f.room or f.inside for f in floors] == [("tuning",), "models", "compiler", ("errors",)]
    assert links == {(0, 1), (1, 2), (2, 3)}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tt-search/src/tt_search/evolve.py", ""),
        ("tt-search/src/tt_search/anneal.py", "import torch"),
        ("tt-search/src/tt_search/hooks.py", "from tt_spec import Entry\ndef tt_samplers(): ..."),
        ("tt-core/src/tt_core/models/load.py", "from tt_core import errors"),
        ("tt-core/src/tt_core/deploy/__init__.py", '"""Models out."""'),
    ],
    ids=["a module", "a library", "a role", "an import", "a room"],
)
def test_the_check_can_fail(house, path, text, capsys):
    house[1](path, text)
    assert architecture.main(["--check"], house[0]) == 1
    assert "python tools/architecture.py" in capsys.readouterr().err
    assert architecture.main([], house[0]) == 0 == architecture.main(["--check"], house[0])


def test_a_circle_of_rooms_is_an_error(house, capsys):
    house[1]("tt-core/src/tt_core/compiler/lower.py", "def f():\n    from tt_core.models import load")
    assert architecture.main([], house[0]) == 1
    assert "compiler, models import each other in a circle" in capsys.readouterr().err


def test_an_import_between_siblings_is_an_error(house, capsys):
    house[1]("tt-search/src/tt_search/anneal.py", "from tt_core import tuning")
    assert architecture.main(["--check"], house[0]) == 1
    assert "tt-search imports tt-core" in capsys.readouterr().err
