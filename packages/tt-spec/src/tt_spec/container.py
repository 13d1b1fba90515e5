"""The processors that a container's quota leaves, which affinity and counts of processors do not show.

Source: Linux, Documentation/admin-guide/cgroup-v2.rst (`cpu.max`) and scheduler/sched-bwc.rst (`cpu.cfs_quota_us`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["cpu_quota", "within_quota"]


def within_quota(count: int, root: Path = Path("/")) -> int:
    """`count` processors, or as many whole ones as the quota is worth, at least one.

    More threads than that use the quota up early in each period and wait for the rest of it, all at once.
    """
    quota = cpu_quota(root)
    return max(1, count if quota is None else min(count, int(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Processors that this process's control groups may use, the least of all that enclose it; None without a limit.

    Args:
        root: Where the trees `proc` and `sys` lie.
    """
    found = [q for folder in _folders(root) if (q := _quota(folder)) is not None]
    return min(found, default=None)


def _folders(root: Path) -> Iterator[Path]:
    """The process's groups and those around them: version 2, then version 1."""
    top = root / "sys/fs/cgroup"
    for controllers, group in _groups(root):
        if controllers == "":
            mounts = [top, top / "unified"]
        elif "cpu" in controllers.split(","):
            mounts = [top / "cpu", top / "cpu,cpuacct", top / "cpuacct,cpu"]
        else:
            continue
        path = PurePosixPath(group)
        # a container that sees its host's path, but its own tree: the groups of that path are missing, the top is there
        inside = [p.relative_to("/") for p in (path, *path.parents) if p.is_absolute() and ".." not in p.parts]
        for mount in mounts:
            yield from (mount / p for p in inside)
            yield mount


def _groups(root: Path) -> list[tuple[str, str]]:
    """Controllers and path of each hierarchy that the process is in; both tops where they cannot be read."""
    lines = _text(root / "proc/self/cgroup").splitlines()
    parts = [line.split(":", 2) for line in lines]
    found = [(p[1], p[2]) for p in parts if len(p) == 3]
    return found if any(c == "" or "cpu" in c.split(",") for c, _ in found) else [("", "/"), ("cpu", "/")]


def _quota(folder: Path) -> float | None:
    words = _text(folder / "cpu.max").split()
    if len(words) != 2:
        words = [_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")]
    try:
        quota, period = float(words[0]), float(words[1])
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
