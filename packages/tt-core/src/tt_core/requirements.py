"""The requirements in tt-core's own metadata, checked without importing any of them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable

from packaging.requirements import Requirement

from tt_core.errors import InstallationError

__all__ = ["installed", "require_tvm", "unmet", "wants"]

_TVM = ("apache-tvm", "apache-tvm-ffi")


def installed(distribution: str) -> str | None:
    """The version of a distribution, None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def wants(distribution: str) -> list[Requirement]:
    """The requirements of a distribution here, its extras left out; none if it is not installed."""
    try:
        texts = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = [Requirement(text) for text in texts]
    return [r for r in found if r.marker is None or r.marker.evaluate({"extra": ""})]


def unmet(requirement: Requirement, version: Callable[[str], str | None] = installed) -> str | None:
    """None if the requirement is fulfilled, else what came: "numpy 1.20 does not fulfil numpy>=1.26"."""
    found = version(requirement.name)
    wanted = f"{requirement.name}{requirement.specifier}"
    if found is None:
        return f"{requirement.name} is not installed, {wanted} is needed"
    if requirement.specifier.contains(found, prereleases=True):
        return None
    return f"{requirement.name} {found} does not fulfil {wanted}"


def require_tvm(version: Callable[[str], str | None] = installed) -> None:
    """Raise `InstallationError` unless the pinned pair of TVM and its FFI is installed; imports neither.

    TVM 0.27 with a newer FFI ends the process with a segmentation fault as soon as it derives a design space, although
    its metadata allows the pair.
    """
    pair = [r for r in wants("tt-core") if r.name in _TVM]
    problems = [why for r in pair if (why := unmet(r, version)) is not None]
    if problems:
        fix = " ".join(f"'{r.name}{r.specifier}'" for r in pair)
        raise InstallationError(
            f"TVM cannot be used: {'; '.join(problems)}; other pairs end in a segmentation fault: pip install {fix}"
        )
