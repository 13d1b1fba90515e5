"""Where a file lies: on a disk of this machine, or on a file system that others reach over a network."""

from __future__ import annotations

import os
import re

__all__ = ["network"]

_KINDS = r"nfs\d?|cifs|smb\w*|9p|afs|ceph|lustre|gpfs|beegfs|glusterfs|ocfs2|gfs2|fuse\.(sshfs|glusterfs|ceph\S*|s3fs)"


def network(path: str, table: str = "/proc/self/mounts") -> str | None:
    """The kind of network file system that a path lies on, "nfs4" say; None on any other, or where nobody tells."""
    try:
        with open(table, encoding="utf-8", errors="replace") as f:
            mounts = [line.split(" ")[1:3] for line in f if line.count(" ") >= 2]
    except OSError:
        return None
    here, kind, longest = os.path.realpath(path), "", -1
    for point, found in mounts:
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), point)
        inside = here == point or here.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:  # of two on one place the later covers the earlier
            kind, longest = found, len(point)
    return kind if re.fullmatch(_KINDS, kind) else None
