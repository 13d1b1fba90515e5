"""docs/hooks.md has every hook with its exact signature, and no other."""

import inspect
import re
from pathlib import Path

import pytest
from tt_spec.hooks import Specs

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "hooks.md").read_text()
HOOKS = [name for name in vars(Specs) if name.startswith("tt_")]


def signature(name: str) -> str:
    of = inspect.signature(getattr(Specs, name))
    parameters = [p for n, p in of.parameters.items() if n != "self"]
    return name + str(of.replace(parameters=parameters)).replace("'", "")


@pytest.mark.parametrize("name", HOOKS)
def test_hook_is_documented(name):
    section = re.search(rf"^### {name}\n\n    (.*)\n\n(\S.*)", TEXT, re.MULTILINE)
    assert section is not None, f"docs/hooks.md needs a section '### {name}' with the signature and a sentence"
    assert section.group(1) == signature(name)


def test_no_other_hook_is_documented():
    assert re.findall(r"^### (\S+)", TEXT, re.MULTILINE) == HOOKS
