"""What a package index shows of each package, and what an installer obeys."""

import re

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from workspace import OURS, PACKAGES, module, project

# The pair that works: a newer FFI ends the process with a segmentation fault.
TVM = {"apache-tvm": SpecifierSet("==0.27.0.post1"), "apache-tvm-ffi": SpecifierSet(">=0.1.14.post0,<0.1.15")}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.name)
def test_an_index_can_show_it(package):
    about = project(package)
    assert len(about["description"]) > 20 and about["readme"] == "README.md" and about["license"] == "Apache-2.0"
    assert not about.get("urls"), "the repository has no public address yet"
    text = (package / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert [link for link in links if not link.startswith("https://")] == [], "an index shows no file of the repository"
    assert (package / "src" / module(package) / "py.typed").exists()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.name)
def test_installers_get_what_works(package):
    about = project(package)
    required = {r.name: r.specifier for r in map(Requirement, about["dependencies"])}
    with_tvm = not TVM.keys().isdisjoint(required)
    # TVM's wheels are for 3.10 to 3.13; what needs no TVM sets no upper bound.
    assert about["requires-python"] == (">=3.10,<3.14" if with_tvm else ">=3.10")
    if with_tvm:
        assert {name: required.get(name) for name in TVM} == TVM
    extras = about.get("optional-dependencies", {}).values()
    listed = map(Requirement, [*about["dependencies"], *(r for extra in extras for r in extra)])
    unbounded = [r.name for r in listed if r.name not in OURS and not {s.operator for s in r.specifier} & {">=", "=="}]
    assert unbounded == [], "tools/alone.py --oldest installs lower bounds"
