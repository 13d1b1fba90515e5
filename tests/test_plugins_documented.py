"""docs/plugins.md: its blocks are the files of integration/third_party, its commands name what exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

from tt_spec.roles import ROLES
from workspace import ROOT

TEXT = (ROOT / "docs" / "plugins.md").read_text()
PLUGIN = ROOT / "integration" / "third_party"
BLOCKS = re.findall(r"(?:`(\S+)`:\n\n)?```(\w+)\n(.*?)```", TEXT, re.DOTALL)


def commands():
    for _, language, block in BLOCKS:
        if language == "sh":
            yield from (shlex.split(line, comments=True) for line in block.splitlines())


def test_every_block_is_a_file_of_the_plugin_or_a_command():
    shown = {path: block for path, language, block in BLOCKS if language != "sh"}
    assert set(shown) == {"pyproject.toml", "src/acme_tt/hooks.py", "src/acme_tt/climb.py", "tests/test_pieces.py"}
    for path, block in shown.items():
        assert block == (PLUGIN / path).read_text(), f"{path} differs from the block in docs/plugins.md"


def test_the_tool_is_called_as_the_document_says(tmp_path):
    (call,) = [c for c in commands() if c[0] == "python"]
    folder = tmp_path / "acme-tt"
    (folder / "src" / "acme_tt").mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[project]\nname = "acme-tt"\n')
    (tmp_path / "tt").mkdir()
    (tmp_path / "tt" / "tools").symlink_to(ROOT / "tools")
    done = subprocess.run([sys.executable, *call[1:]], cwd=tmp_path / "tt", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (folder / "src" / "acme_tt" / "hillclimb.py").exists()
    listed = re.search(r"Roles: ([\w,\s]+)\.", TEXT)
    assert listed is not None and listed.group(1).replace("\n", " ").split(", ") == list(ROLES)


def test_the_run_is_the_one_that_is_tested():
    (call,) = [c for c in commands() if "tune" in c]
    source = (ROOT / "integration" / "test_third_party.py").read_text()
    used = [call[call.index("tune") + 1], *[c for c in call if "=" in c and not c.startswith("ACME_CSV")]]
    assert len(used) == 4 and all(f'"{text}"' in source for text in used)
