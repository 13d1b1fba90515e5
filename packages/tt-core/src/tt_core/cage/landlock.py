"""Landlock: from now on this process sees only the files that it was given. Linux 5.13 and newer, no privileges needed.

Source: Salaün (2021), Landlock: unprivileged access control, https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

__all__ = ["restrict"]

_CREATE, _ADD, _SELF = 444, 445, 446
"""Numbers of the system calls, the same on all machines."""

_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
_NEW_IN = {1: (1 << 13) - 1, 2: 1 << 13, 3: _TRUNCATE, 5: 1 << 15}
"""Rights on files, by the version of the interface that knows them first."""

_NET, _SCOPED = 0b11, 0b11
"""TCP's bind and connect, since version 4; sockets without a file and signals of processes outside, since 6."""


def restrict(read: Iterable[str], write: Iterable[str]) -> bool:
    """Whether the kernel holds this process, and all that it will start, to these files.

    Args:
        read: Folders, with all below them, and files. What does not exist is left out.
        write: The same, for what may be read, written and made.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    rights = sum(bits for since, bits in _NEW_IN.items() if since <= version)
    fields = [rights, *([_NET] if version >= 4 else []), *([_SCOPED] if version >= 6 else [])]
    ruleset = libc.syscall(_CREATE, struct.pack(f"={len(fields)}Q", *fields), ctypes.c_size_t(8 * len(fields)), 0)
    if ruleset < 0:
        return False
    try:
        for path in read:
            _allow(libc, ruleset, path, _READ_FILE | _READ_DIR)
        for path in write:
            _allow(libc, ruleset, path, rights & ~1)
        return libc.syscall(_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(found).st_mode):
            rights &= _READ_FILE | _WRITE_FILE | _TRUNCATE
        libc.syscall(_ADD, ruleset, 1, struct.pack("=Qi", rights, found), 0)
    finally:
        os.close(found)
