"""Importing a package, or its hooks, loads no heavy library and no sibling."""

import importlib.util
import json
import subprocess
import sys

import pytest
from workspace import PACKAGES, module, project

HEAVY = {"tvm", "tvm_ffi", "torch", "sklearn", "forestci", "scipy", "xgboost", "lightgbm", "onnx", "onnxruntime"}
HEAVY |= {"pytest"}


def targets():
    for package in PACKAGES:
        yield package.name, module(package)
        for hooks in project(package).get("entry-points", {}).get("tt", {}).values():
            yield package.name, hooks


def loaded(name: str) -> set[str]:
    """Top-level modules that a fresh process has after importing `name`."""
    code = f"import {name}, json, sys; print(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    return set(json.loads(out.stdout.splitlines()[-1]))


@pytest.mark.parametrize(("package", "name"), sorted(targets()))
def test_import_is_light(package, name):
    assert importlib.util.find_spec(name.split(".")[0]) is not None, f"{package} is not installed"
    own = {package.replace("-", "_"), "tt_spec"}
    found = {m for m in loaded(name) if m in HEAVY or (m.startswith("tt_") and m not in own)}
    assert not found, f"importing {name} also loads {', '.join(sorted(found))}"


def test_the_check_can_fail():
    assert "pytest" in loaded("tt_spec.testing") & HEAVY
