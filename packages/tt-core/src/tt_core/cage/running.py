"""A module run in the cage, and what became of it.

The module is run as a program with one argument, a folder. There it finds `job.json`, and there alone it may write; its
last deed is `answer.json`. First of all it calls `enter`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tt_spec import child
from tt_spec.serial import JsonObject

from tt_core.cage import landlock, limits, seccomp
from tt_core.cage.limits import Limits
from tt_core.errors import ModelError, one_line

__all__ = ["ANSWER", "Cage", "answer", "enter", "run"]

JOB, ANSWER, SAID = "job.json", "answer.json", "said"

SLOWER = 20
"""Seconds that may pass for each of the processor's, on a machine that others use, too."""

MOST_SAID = 2_000

SYSTEM = ("/usr", "/lib", "/lib64", "/nix", "/proc", "/sys", "/etc/ld.so.cache", "/etc/localtime")
"""Where libraries lie, and what they ask of the machine."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


@dataclass(frozen=True)
class Cage:
    """What a process in it may do.

    Args:
        read: Files that it may read besides the interpreter's and the system's.
    """

    limits: Limits
    read: tuple[str, ...] = ()


def run(module: str, folder: Path, cage: Cage, job: JsonObject, what: str) -> JsonObject:
    """The answer of a module that was run in the cage; raises `ModelError` in which `what` names what it read.

    Args:
        folder: Empty, and the only one in which it may write; what it wrote there is to be mistrusted.
    """
    (folder / JOB).write_text(json.dumps({"cage": asdict(cage), "path": child.path(), **job}), encoding="utf-8")
    with (folder / SAID).open("wb") as said:
        process = subprocess.Popen(
            [*child.command(module), str(folder)],
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        code = process.wait(SLOWER * cage.limits.seconds)
    except subprocess.TimeoutExpired:
        code = -signal.SIGXCPU
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    found = _answer(folder, cage.limits.file)
    if found is None:
        raise ModelError(f"{what}: {_end(code, folder, cage.limits)}")
    return found


def enter() -> tuple[JsonObject, Path, list[str]]:
    """Shut this process in: the job, the folder, and what the kernel holds it to besides the limits."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    cage = job["cage"]
    limits.restrict(Limits(**cage["limits"]))
    python = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *sys.path, *job["path"]}
    read = (*SYSTEM, *DEVICES, *sorted(p for p in python if p), *cage["read"])
    walls = {"landlock": landlock.restrict(read, (str(folder), "/dev/null")), "seccomp": seccomp.restrict()}
    return job, folder, [name for name, holds in walls.items() if holds]


def answer(folder: Path, content: JsonObject) -> None:
    """Leave the answer, whole or not at all."""
    part = folder / f"{ANSWER}.part"
    part.write_text(json.dumps(content), encoding="utf-8")
    part.replace(folder / ANSWER)


def _environment(folder: Path) -> dict[str, str]:
    """Nothing of ours but how to find modules: others may hold secrets. One thread, which costs memory each."""
    kept = {
        k: os.environ[k] for k in ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TVM_LIBRARY_PATH") if k in os.environ
    }
    single = dict.fromkeys(("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    mine = {"HOME": str(folder), "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(child.path())}
    return {**kept, **single, **mine, "MALLOC_ARENA_MAX": "2", "PYTHONDONTWRITEBYTECODE": "1"}


def _answer(folder: Path, most: int) -> JsonObject | None:
    """The answer, if there is a usable one: a regular file of JSON."""
    try:
        found = os.open(folder / ANSWER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(found, encoding="utf-8") as f:
            content = json.loads(f.read(most))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _end(code: int, folder: Path, most: Limits) -> str:
    """How a process ended that left no answer."""
    with (folder / SAID).open("rb") as f:
        f.seek(max(0, f.seek(0, os.SEEK_END) - MOST_SAID))
        lines = [text for raw in f.read().splitlines() if (text := one_line(raw.decode("utf-8", "replace")))]
    last = lines[-1] if lines else ""
    if code == -signal.SIGXCPU or code == -signal.SIGKILL:
        return f"reading it takes more than the {most.seconds} seconds of the processor that it may have"
    if "MemoryError" in last or "bad_alloc" in last or "annot allocate" in last:
        return f"reading it takes more than the {most.memory / 2**20:.0f} MB of memory that it may have"
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    return f"the process that read it {how}{f': {last}' if last else ''}"
