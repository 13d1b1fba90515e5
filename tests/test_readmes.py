"""Every package opens with one phrase and an example of at most twenty lines that its tests run."""

import re

import pytest
from workspace import PACKAGES


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.name)
def test_readme_has_a_short_example_that_is_run(package):
    text = (package / "README.md").read_text()
    assert text.startswith(f"# {package.name}\n\n"), "the title is the distribution's name"
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert block is not None, "a README opens with an example in Python"
    assert len(block.group(1).splitlines()) <= 20, "an example has at most twenty lines"
    opening = text[text.index("\n") : block.start()].strip()
    assert opening and len(opening.split()) <= 60, "one phrase comes before the example"
    assert (package / "tests" / "test_readme.py").exists(), "tests/test_readme.py runs the example"
