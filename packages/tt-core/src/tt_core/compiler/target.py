"""Targets: the machine a program is compiled for."""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from tt_spec import nearest
from tt_spec.container import within_quota
from tt_spec.serial import JsonObject

from tt_core.errors import TargetError

if TYPE_CHECKING:
    from tvm.target import Target

__all__ = [
    "compiler",
    "cores",
    "device_fingerprint",
    "use_all_cores",
    "needed_flags",
    "options",
    "resolve",
    "runnable",
    "threads_of",
    "unhurried",
]

# LLVM name -> /proc/cpuinfo flag, of features whose use on a CPU without them kills the program.
_FEATURES = {
    "sse4.2": "sse4_2",
    "avx": "avx",
    "avx2": "avx2",
    "f16c": "f16c",
    "bmi2": "bmi2",
    "fma": "fma",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avxvnni": "avx_vnni",
    "avx512fp16": "avx512_fp16",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vp2intersect": "avx512_vp2intersect",
    "amx-tile": "amx_tile",
}
_O2, _O3 = 2, 3
"""LLVM's levels of optimisation; TVM takes the third unasked."""

DRIVER = Path("/sys/module/nvidia/version")
"""Where Linux says the version of NVIDIA's driver."""

_ALIASES = r"i[3-9]86|x86_64h|amd64|arm64e?|armv[4-9][a-z]*|ppc64(le)?"
"""Architectures that a triple may name beside those of `llvm_get_targets`."""
_CUDA = {
    "kind": "cuda",
    "arch": "sm_80",
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "thread_warp_size": 32,
    "registers_per_block": 65536,
}


def cores() -> int:
    """Physical cores that this process may use, by its affinity and its container's quota."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return within_quota(min(physical, allowed))


def use_all_cores(count: int | None = None) -> None:
    """Let TVM use all physical cores in this process; must come before `import tvm`, which halves the count unasked."""
    os.environ.setdefault("TVM_NUM_THREADS", str(count or cores()))


def resolve(target: str | JsonObject | Target = "native") -> Target:
    """A TVM target from "native", a kind ("cuda"), a tag, a JSON text, a dict or a TVM target.

    "native" names this CPU, switches off the features that its model has and this machine does not (virtual
    machines hide some), and sets the physical cores. Raises `TargetError` that lists what this TVM can build.
    """
    from tvm.target import Target

    if isinstance(target, Target):
        config = dict(json.loads(str(target)))
    elif isinstance(target, dict):
        config = dict(target)
    elif target == "native":
        config = _native()
    elif target == "cuda":
        config = dict(_CUDA)
    elif isinstance(target, str) and target.lstrip().startswith("{"):
        try:
            config = json.loads(target)
        except (ValueError, RecursionError) as e:
            raise TargetError(f"--target is not valid JSON: {e}") from e
    else:
        config = _from_text(str(target))
    kind = config.get("kind")
    if kind is not None and kind not in _buildable():
        raise TargetError(_unknown(str(kind)))
    if kind == "llvm":
        config.setdefault("num-cores", cores())
    try:
        found = Target(config)
    except Exception as e:  # TVM raises several types
        raise TargetError(f"TVM refuses the target {json.dumps(config)}: {_first(e)}") from e
    _check_cpu(found)
    return found


def threads_of(target: Target) -> int:
    """Threads that a program of this target runs on."""
    return int(target.attrs.get("num-cores", cores()))


def runnable(target: Target) -> str | None:
    """None if programs for the target run on this machine, else why not."""
    import tvm

    kind = str(target.kind.name)
    if kind == "llvm":
        want = str(target.attrs.get("mtriple", ""))
        here = tvm.target.codegen.llvm_get_system_triple()
        if want and want.split("-")[0] != here.split("-")[0]:
            return f"the target is for {want.split('-')[0]}, this machine is {here.split('-')[0]}"
        if missing := _missing_features(target):
            return f"the target uses {', '.join(missing)}, which this CPU does not have"
        threads, most = int(target.attrs.get("num-cores", 1)), os.cpu_count() or 1
        if threads > most:
            return f"the target has {threads} cores, this machine {most}"
        return None
    if kind == "c":
        return None
    if tvm.device(kind, 0).exist:
        return None
    return f"no {kind} device was found on this machine"


def options(target: Target) -> dict[str, bool]:
    """TVM's options with which programs for a target are compiled, candidates and deployed ones alike.

    LLVM looks for common subexpressions itself. TVM's own search, before, took 11 % of a build and changed no
    program's speed (48 rows of a detector's operators: 1.00 in the geometric mean).
    """
    return {"tirx.disable_cse_tir": True} if str(target.kind.name) == "llvm" else {}


def unhurried(target: Target) -> Target:
    """The target for programs that nobody tuned: LLVM optimises them at level 2, unless the target says less.

    At level 3 it unrolls loops of constant length that stand in others, whole: five loops over 14x14x992 became 28,000
    instructions, 3 s to compile instead of 0.03, and DenseNet-121 took 54 s to write instead of 8. Such programs run as
    fast so. A tuned one may need level 3: without it a tenth of ResNet-18's take 1.3 times as long.
    """
    from tvm.target import Target

    config = json.loads(str(target))
    if str(target.kind.name) != "llvm" or int(config.get("opt-level", _O3)) <= _O2:
        return target
    return Target({**config, "opt-level": _O2})


def device_fingerprint(target: Target) -> str:
    """The fingerprint that must be equal for two measurements to be comparable: CPU (or device) model and cores; of
    another device than a CPU also its own model and driver."""
    name = str(target.attrs.get("mcpu", "")) or str(target.kind.name)
    own = _device(str(target.kind.name))
    return "/".join([name, *own, _cpu_model(), f"{target.attrs.get('num-cores', cores())} cores"])


def compiler() -> dict[str, str]:
    """Versions of what makes a program of a row."""
    import tvm
    from tvm.target import codegen

    return {"tvm": str(tvm.__version__), "llvm": str(codegen.llvm_version_major())}


def _device(kind: str) -> list[str]:
    """Model and driver of a device that is no CPU; nothing where there is none."""
    import tvm

    if kind in ("llvm", "c") or not (device := tvm.device(kind, 0)).exist:
        return []
    driver = DRIVER.read_text(encoding="utf-8").strip() if DRIVER.is_file() else "unknown"
    return [str(device.device_name), f"driver {driver}"]


def _native() -> JsonObject:
    import tvm

    cpu = tvm.target.codegen.llvm_get_system_cpu()
    config: JsonObject = {"kind": "llvm", "mcpu": cpu, "num-cores": cores()}
    if missing := _missing_features(tvm.target.Target(config)):
        config["mattr"] = [f"-{name}" for name in missing]
    return config


def needed_flags(target: Target) -> list[str]:
    """The flags in `/proc/cpuinfo` that the target's code needs; none but for x86-64 under Linux."""
    from tvm.target import codegen

    if str(target.kind.name) != "llvm":
        return []
    triple = str(target.attrs.get("mtriple", "")) or str(codegen.llvm_get_system_triple())
    if triple.split("-")[0] not in ("x86_64", "amd64") or "linux" not in triple:
        return []
    has = set(map(str, codegen.llvm_get_cpu_features(target)))
    return sorted(flag for name, flag in _FEATURES.items() if name in has)


def _missing_features(target: Target) -> list[str]:
    """Features whose code the target allows and which would kill a program on this CPU."""
    from tvm.target import codegen

    flags = _cpu_flags()
    if not flags:  # not Linux on x86-64
        return []
    has = set(map(str, codegen.llvm_get_cpu_features(target)))
    return sorted(name for name, flag in _FEATURES.items() if name in has and flag not in flags)


def _check_cpu(target: Target) -> None:
    """Refuse what LLVM does not: for an unknown CPU it builds generic code, on an unknown triple it crashes."""
    from tvm.target import codegen

    if str(target.kind.name) != "llvm":
        return
    if int(target.attrs.get("num-cores", 1)) < 1:
        raise TargetError(f"the target's num-cores must be at least 1, got {target.attrs['num-cores']}")
    arch = str(target.attrs.get("mtriple", "")).split("-")[0]
    archs = sorted(map(str, codegen.llvm_get_targets()))
    if arch and arch not in archs and not re.fullmatch(_ALIASES, arch):
        raise TargetError(f"LLVM cannot build for the triple {target.attrs['mtriple']!r}{nearest(arch, archs)}")
    cpu = str(target.attrs.get("mcpu", ""))
    known = sorted(map(str, codegen.llvm_get_cpu_archlist(target)))
    if cpu and known and cpu not in known:
        raise TargetError(f"LLVM knows no CPU {cpu!r} for this target{nearest(cpu, known)}")


def _from_text(text: str) -> JsonObject:
    """`llvm -mcpu=skylake -num-cores=4`, the older way to write it, or a tag such as `nvidia/geforce-rtx-3090`."""
    from tvm.target import Target

    words = text.split()
    if not words:
        raise TargetError(_unknown(text))
    if words[0] not in _buildable():
        try:
            return dict(json.loads(str(Target(text))))
        except Exception as e:
            raise TargetError(_unknown(text)) from e
    config: JsonObject = dict(_CUDA) if words[0] == "cuda" else {"kind": words[0]}
    for word in words[1:]:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not equals:
            raise TargetError(f"cannot read {word!r} in target {text!r}: write -name=value, or give the target as JSON")
        config[name] = (
            int(value) if re.fullmatch("[0-9]{1,18}", value) else value.split(",") if name == "mattr" else value
        )
    return config


def _buildable() -> list[str]:
    import tvm

    kinds = [str(k) for k in tvm.target.Target.list_kinds()]
    return sorted(k for k in kinds if tvm.get_global_func(f"target.build.{k}", allow_missing=True) is not None)


def _unknown(text: str) -> str:
    known = ["native", *_buildable()]
    close = difflib.get_close_matches(text, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"unknown target {text!r}{hint} This TVM can build for: {', '.join(known)}"


def _cpu_flags() -> set[str]:
    for line in _cpuinfo():
        if line.startswith("flags"):
            return set(line.split(":", 1)[1].split())
    return set()


def _cpu_model() -> str:
    import platform

    for line in _cpuinfo():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _cpuinfo() -> list[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            return f.read().splitlines()
    except OSError:
        return []


def _first(e: BaseException) -> str:
    lines = [x.strip() for x in str(e).splitlines() if x.strip()]
    return lines[0] if lines else type(e).__name__
