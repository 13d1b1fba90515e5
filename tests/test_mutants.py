"""The program that tries mutants: what it leaves out, and that it tells a mutant that tests see from one that they do
not. cosmic-ray, whose changes it takes, is not in the environment."""

import sys

from workspace import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import mutants  # pyright: ignore[reportMissingImports]

CODE = """from __future__ import annotations

def twice(x: int | None, *more: float) -> int | str:
    y: int | None = 2
    return y * x
"""


def test_annotations_are_left_out():
    places = set(mutants.annotated(CODE))
    lines = CODE.splitlines()
    kept = {line: "".join(c for i, c in enumerate(lines[line - 1]) if (line, i) not in places) for line in (3, 4, 5)}
    assert kept == {3: "def twice(x: , *more: ) -> :", 4: "    y:  = 2", 5: "    return y * x"}


def test_a_mutant_that_tests_see_is_killed_and_the_working_tree_stays_as_it_is(tmp_path):
    package = tmp_path / "src" / "tt_mutated"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (module := package / "sums.py").write_text(CODE)
    (test := tmp_path / "test_sums.py").write_text(
        "from tt_mutated.sums import twice\n\ndef test_twice():\n    assert twice(2) == 4\n"
    )
    for code, survives in ((CODE, True), (CODE.replace("* x", "+ x"), True), (CODE.replace("* x", "- x"), False)):
        assert mutants.passes(module, code, [str(test)], 120.0) == survives
    assert module.read_text() == CODE
    (endless := tmp_path / "test_endless.py").write_text("import time\n\ndef test_it():\n    time.sleep(600)\n")
    assert not mutants.passes(module, CODE, [str(endless)], 5.0)
