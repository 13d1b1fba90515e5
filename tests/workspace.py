"""The packages of this repository."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(p.parent for p in ROOT.glob("packages/*/pyproject.toml"))
OURS = {p.name for p in PACKAGES}


def project(package: Path) -> dict:
    """The `[project]` table."""
    return tomllib.loads((package / "pyproject.toml").read_text())["project"]


def module(package: Path) -> str:
    """The import name."""
    return package.name.replace("-", "_")


def program(path: Path) -> ModuleType:
    """A program's file, imported as a module; dataclasses in it can look themselves up."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = found
    spec.loader.exec_module(found)
    return found
