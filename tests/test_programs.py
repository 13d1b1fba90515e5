"""Programs beside the product: each starts, and the pages name no other. Those of tools/ have tests of their own."""

import re
import subprocess
import sys

import pytest
from workspace import ROOT

PROGRAMS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("studies/*", "benchmarks")
    for path in ROOT.glob(f"{folder}/*.py")
    if 'if __name__ == "__main__"' in path.read_text()
)
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "studies/*/*", "benchmarks/*", "recordings/*.md", "packages/*/README.md")
    for path in ROOT.glob(pattern)
    if path.suffix in (".md", ".py")
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_says_how_to_run_it(program):
    done = subprocess.run([sys.executable, program, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"python {program}" in done.stdout, "its docstring shows the command"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_programs_that_pages_name_exist(page):
    named = set(re.findall(r"\b(?:studies|benchmarks|tools)/[\w/-]+\.py\b", page.read_text()))
    assert sorted(name for name in named if not (ROOT / name).is_file()) == []


@pytest.mark.parametrize("study", sorted(p.parent for p in ROOT.glob("studies/*/study.py")), ids=lambda p: p.name)
def test_a_study_has_its_page_and_pictures(study):
    text = (study / "README.md").read_text()
    assert f"studies/{study.name}/study.py" in text, "the page says what made it"
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert [link for link in links if not (study / link).exists()] == []
