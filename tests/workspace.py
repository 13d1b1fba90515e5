"""The packages of this repository."""

import sys
from pathlib import Path

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
