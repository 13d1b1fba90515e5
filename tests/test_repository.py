"""The files of a repository besides its packages: licence, citation, changelog, hooks, nothing that tuning writes."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess

import pytest
from workspace import PACKAGES, ROOT, project

yaml = pytest.importorskip("yaml")

VERSIONS = {project(p)["version"] for p in PACKAGES}


def test_the_licence_is_the_one_that_packages_declare():
    text = (ROOT / "LICENSE").read_text()
    assert {project(p)["license"] for p in PACKAGES} == {"Apache-2.0"}
    assert text.lstrip().startswith("Apache License") and "END OF TERMS AND CONDITIONS" in text


def test_the_citation_names_this_version_and_the_five_papers():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0" and {str(cited["version"])} == VERSIONS
    assert all(r["type"] and r["title"] and r["authors"] and r["year"] for r in cited["references"])
    names = ["AdaTune", "DynaTune", "Chameleon", "Adaptive Workflow with AutoTVM", "ATFormer"]
    titles = [r["title"] for r in cited["references"]]
    assert len(titles) == len(names)
    assert all(name in title for name, title in zip(names, titles, strict=True))


def test_the_changelog_has_this_version():
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased" and {headings[1]} == VERSIONS


@pytest.mark.parametrize("name", ["tt.db", "tt.db-wal", "tt.runs/3f1c.jsonl", "m.so", "m.so.json", "report.html"])
def test_git_leaves_out_what_tuning_writes(name):
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no clone")
    assert subprocess.run(["git", "check-ignore", "-q", name], cwd=ROOT).returncode == 0
    assert subprocess.run(["git", "check-ignore", "-q", "recordings/mine.json.gz"], cwd=ROOT).returncode == 1


def test_the_hooks_need_nothing_from_outside():
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert {r["repo"] for r in repos} == {"local"}
    for hook in repos[0]["hooks"]:
        assert hook["language"] == "system"
        named = re.findall(r"\S+/\S+\.py", hook["entry"])
        assert all((ROOT / path).exists() for path in named), hook["entry"]


def test_local_links_lead_somewhere():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)", page.read_text())
        if not link.startswith("http") and not (page.parent / link).exists()
    ]
    assert broken == []


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()
    assert [p.name for p in ROOT.glob("docs/*.md") if p.name != "README.md" and f"]({p.name})" not in index] == []


README = (ROOT / "README.md").read_text()


def test_the_readme_is_read_in_a_minute():
    assert "pip install hatch && hatch run tt tune resnet18 --minutes 5 --out resnet18.so\nhatch run test\n" in README
    prose = re.sub(r"\]\([^)]+\)", "]", README)
    assert len(prose.split()) <= 450, "everything else is a page under docs/"
    (picture,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert (ROOT / picture).stat().st_size < 150_000


@pytest.mark.parametrize("page", ["README.md", "docs/tuning.md"])
def test_the_call_in_a_page_has_arguments_that_exist(page):
    from tt_core import tune
    from tt_core.request import Asked

    (call,) = re.findall(r"tt_core\.tune\((.*)\)\n", (ROOT / page).read_text())
    assert set(re.findall(r"(\w+)=", call)) <= {*inspect.signature(tune).parameters, *Asked.__annotations__}


def test_the_recipe_in_the_docs_is_one_and_kinds_may_be_added(tmp_path):
    from tt_spec.recipe import resolve

    whole, kinds = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "recipes.md").read_text(), re.DOTALL)
    path = tmp_path / "mine.toml"
    path.write_text(whole)
    assert resolve(str(path)).describe()["searcher"] == {"piece": "anneal", "chains": 64}
    path.write_text(f"{whole}\n{kinds}")
    told = resolve(str(path)).describe()["kind"]
    assert told == {"matmul": {"searcher": {"piece": "evolve"}, "draft": {"piece": "none"}}}
