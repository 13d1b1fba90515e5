"""The README's example runs."""

import re
import textwrap
from pathlib import Path

from tt_spec.testing import check

TEXT = (Path(__file__).parents[1] / "README.md").read_text()


def test_example():
    block = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert block is not None
    exec(compile(block.group(1), "README.md", "exec"), {"__name__": "readme"})


def test_the_piece_it_shows_keeps_its_contract():
    block = re.search(r"my_tt/greedy.py`:\n\n((?:    .*\n|\n)+)", TEXT)
    assert block is not None
    module: dict = {}
    exec(compile(textwrap.dedent(block.group(1)), "README.md", "exec"), module)
    (entry,) = module["tt_searchers"]()
    check("searcher", entry.build)
