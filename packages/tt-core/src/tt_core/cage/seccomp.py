"""Seccomp: from now on this process starts no other, opens no socket and touches no other process. Linux on x86-64 and
64-bit Arm, no privileges needed.

Source: Drewry (2012), dynamic seccomp policies using BPF filters,
https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from dataclasses import dataclass

__all__ = ["restrict"]

_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2
_CLONE_THREAD, _X32 = 0x10000, 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Instructions of the filter: load a word of `seccomp_data`, three jumps, return."""

_NUMBER, _MACHINE, _FIRST, _THIRD = 0, 4, 16, 32
"""Places in `seccomp_data`: the call's number, the machine, the low words of its first and third argument."""

_ALLOW, _ERROR = 0x7FFF0000, 0x00050000

_EVERYWHERE = (424, 425, 434, 438)
"""pidfd_send_signal, io_uring_setup, pidfd_open and pidfd_getfd; clone3 stands apart."""

_CLONE3 = 435


@dataclass(frozen=True)
class _Machine:
    """Numbers of system calls.

    Args:
        audit: The machine's own number.
        refused: socket, socketpair, connect, bind, listen, accept, accept4, sendto, execve, execveat, kill, tkill,
            ptrace, process_vm_readv, process_vm_writev, kcmp, mount, umount2, pivot_root, chroot, setns, unshare, bpf,
            perf_event_open, userfaultfd, keyctl, add_key, request_key, open_by_handle_at, setrlimit, init_module,
            finit_module and kexec_load; on x86-64 fork and vfork.
        clone: Refused but for threads.
        prlimit: Refused but for reading.
    """

    audit: int
    refused: tuple[int, ...]
    clone: int
    prlimit: int


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


_MACHINES = {
    "x86_64": _Machine(
        0xC000003E,
        _numbers(
            "41 53 42 49 50 43 288 44 59 322 62 200 101 310 311 312 165"
            " 166 155 161 308 272 321 298 323 250 248 249 304 160 175 313 246 57 58"
        ),
        56,
        302,
    ),
    "aarch64": _Machine(
        0xC00000B7,
        _numbers(
            "198 199 203 200 201 202 242 206 221 281 129 130 117 270 271 272"
            " 40 39 41 51 268 97 280 241 282 219 217 218 265 164 105 273 104"
        ),
        220,
        261,
    ),
}


def restrict() -> bool:
    """Whether the kernel refuses these calls from now on, in this thread and all that it starts."""
    machine = _MACHINES.get(platform.machine())
    if machine is None or struct.calcsize("P") != 8:
        return False
    program = b"".join(_program(machine))
    code = ctypes.create_string_buffer(program, len(program))
    wanted = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))) != 0:
        return False
    return libc.prctl(_SECCOMP, ctypes.c_ulong(_FILTER), wanted, ctypes.c_ulong(0), ctypes.c_ulong(0)) == 0


def _program(machine: _Machine) -> list[bytes]:
    """The filter: 8 bytes an instruction; a jump skips as many as it says for yes and for no."""
    refuse = _step(_RETURN, _ERROR | errno.EPERM)
    steps = [_step(_LOAD, _MACHINE), _step(_EQUAL, machine.audit, 1, 0), refuse]
    steps += [_step(_LOAD, _NUMBER), _step(_AT_LEAST, _X32, 0, 1), refuse]
    for number in (*machine.refused, *_EVERYWHERE):
        steps += [_step(_EQUAL, number, 0, 1), refuse]
    # its flags lie in memory, which a filter cannot read: libraries take clone instead
    steps += [_step(_EQUAL, _CLONE3, 0, 1), _step(_RETURN, _ERROR | errno.ENOSYS)]
    steps += [_step(_EQUAL, machine.clone, 0, 3), _step(_LOAD, _FIRST), _step(_ANY_BIT, _CLONE_THREAD, 4, 0), refuse]
    steps += [_step(_EQUAL, machine.prlimit, 0, 2), _step(_LOAD, _THIRD), _step(_EQUAL, 0, 0, 1)]
    return [*steps, _step(_RETURN, _ALLOW), refuse]


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)
