"""The metadata that a package index shows of each package and that an installer obeys."""

import re
import sys
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from test_star import imports
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


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.name)
def test_what_it_imports_it_declares(package):
    about = project(package)
    listed = [*about["dependencies"], *(r for e in about.get("optional-dependencies", {}).values() for r in e)]
    declared = {canonicalize_name(Requirement(r).name) for r in listed}
    sources = [path.read_text() for path in (package / "src").rglob("*.py")]
    modules = {name.split(".")[0] for source in sources for _, name in imports(source)}
    owners = packages_distributions()
    foreign = modules - sys.stdlib_module_names - {"tomllib", module(package)}  # tomllib: only since Python 3.11
    undeclared = [m for m in foreign if not declared & {canonicalize_name(d) for d in [m, *owners.get(m, [])]}]
    assert undeclared == [], "what only another dependency brings may go away"
