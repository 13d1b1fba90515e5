"""`tt doctor`: whether this machine and this installation can tune, and what would make it better.

Every check is a function of plain facts; `facts` collects those of this machine.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import psutil
from tt_spec import PluginError, Plugins, child
from tt_spec.container import cpu_quota
from tt_spec.serial import JsonObject
from tt_spec.windows import SHARE, Reference

from tt_core.compiler.target import cores
from tt_core.errors import InstallationError, one_line
from tt_core.requirements import installed, require_tvm, unmet, wants

__all__ = ["Check", "Facts", "examine", "facts", "verdict"]

GB = 1e9
PROBE_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Check:
    """One finding.

    Args:
        name: What was looked at; stable.
        status: "failure" is what stops tuning, "warning" what makes it slower, less exact or incomplete.
        found: What there is, one line.
        advice: What to do, one line; empty for "ok".
        facts: The same as data; keys are stable.
    """

    name: str
    status: Literal["ok", "warning", "failure"]
    found: str
    advice: str = ""
    facts: JsonObject = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """The facts that the checks look at.

    Args:
        version: A distribution's version, or None.
        probe: What `tt_core.doctor.probe` told, and under "died" why it ended early; called only if TVM may be loaded.
        root: Where /proc and /sys lie.
        load: Load average of the last minute; None where there is none.
        free: Bytes free by place: "working directory", "temporary files"; None if nothing can be written there.
        memory: Bytes available, and in all, of the machine.
        user: The user's number.
    """

    version: Callable[[str], str | None] = installed
    probe: Callable[[], JsonObject] = dict
    plugins: Callable[[], Plugins] = Plugins
    root: Path = Path("/")
    cores: int = 1
    load: float | None = None
    memory: tuple[float, float] = (math.inf, math.inf)
    free: Mapping[str, float | None] = field(default_factory=dict)
    distributions: Sequence[str] = ()
    user: int | None = None


def examine(of: Facts) -> list[Check]:
    """All checks, in a fixed order."""
    pair = tvm_pair(of.version)
    told = of.probe() if pair.status == "ok" else {}
    governors = _governors(of.root)
    return [
        pair,
        target(told, of.cores),
        compiler(told),
        processors(of.cores, of.load, cpu_quota(of.root)),
        governor(governors),
        noise(told, of.cores, of.load, governors),
        states(told, of.cores),
        neighbours(of.root, of.user),
        memory(*_contained(of.root, *of.memory), of.cores),
        disk(of.free),
        pieces(of.plugins, told),
        rewrites(of.plugins),
        versions(of.distributions, of.version),
    ]


def verdict(checks: Sequence[Check]) -> str:
    """The worst status."""
    return max((c.status for c in checks), key=("ok", "warning", "failure").index)


def lines(checks: Sequence[Check]) -> list[str]:
    """For people: a line per finding, below it what to do."""
    found = []
    for c in checks:
        found.append(f"{c.status:<8} {c.name:<9} {one_line(c.found)}")
        if c.advice:
            found.append(f"{'':<18} -> {one_line(c.advice)}")
    return found


def as_dict(checks: Sequence[Check]) -> JsonObject:
    """The output of `tt doctor --json`; docs/doctor.md describes it."""
    return {"status": verdict(checks), "checks": [asdict(c) for c in checks]}


# -- checks -----------------------------------------------------------------------------------------------------------


def tvm_pair(version: Callable[[str], str | None]) -> Check:
    pair = {name: version(name) for name in ("apache-tvm", "apache-tvm-ffi")}
    found = ", ".join(f"{name} {v or 'missing'}" for name, v in pair.items())
    try:
        require_tvm(version)
    except InstallationError as e:
        return Check("tvm", "failure", found, str(e), pair)
    return Check("tvm", "ok", found, facts=pair)


def target(told: JsonObject, cores: int) -> Check:
    of = told.get("target")
    if of is None or "error" in of:
        return _unknown("target", told, "TVM does not work here: install it again, see the check tvm")
    found = f"{of['target']}, LLVM {of['llvm']}, {of['threads']} threads"
    if of["refused"]:
        return Check("target", "failure", found, f"{of['refused']}: give --target", of)
    if of["threads"] != cores:
        advice = f"TVM_NUM_THREADS or OMP_NUM_THREADS holds tt run to {of['threads']} of {cores} cores: unset it"
        return Check("target", "warning", found, advice, of)
    return Check("target", "ok", found, facts=of)


def compiler(told: JsonObject) -> Check:
    of = told.get("compiler")
    if of is None or "error" in of:
        return _unknown("compiler", told, "see the check target", "warning")
    why = of["problem"]
    if why is None:
        return Check("compiler", "ok", f"{of['compiler']} links libraries", facts=of)
    advice = (
        "--out needs a C++ compiler to link the library: install g++ or clang, or set CXX; tuning itself needs none"
    )
    return Check("compiler", "warning", why, advice, of)


def processors(cores: int, load: float | None, quota: float | None) -> Check:
    of = {"cores": cores, "load": load, "quota": quota}
    busy = 0.0 if load is None else load / cores
    found = f"{cores} physical cores, load {'unknown' if load is None else f'{load:.2f}'}"
    if quota is not None and quota < cores:
        found += f", the container may use {quota:g}"
        advice = (
            f"candidates would wait for the quota while they are timed: taskset -c 0-{max(0, int(quota) - 1)} tt tune"
        )
        return Check("cores", "warning", found, advice, of)
    if busy > 0.25:
        return Check("cores", "warning", found, "other work disturbs every timing: end it, or tune when it is done", of)
    return Check("cores", "ok", found, facts=of)


def governor(found: Sequence[str]) -> Check:
    of = {"governors": list(found)}
    if not found:
        return Check("governor", "ok", "the system shows no frequency control (usual in virtual machines)", facts=of)
    if set(found) <= {"performance"}:
        return Check("governor", "ok", "performance", facts=of)
    return Check(
        "governor",
        "warning",
        ", ".join(found),
        "clocks change between timings: cpupower frequency-set -g performance",
        of,
    )


def noise(told: JsonObject, cores: int, load: float | None, governors: Sequence[str]) -> Check:
    """A kernel timed for 2 s: the spread says how large a difference between two programs must be to be seen."""
    of = told.get("noise")
    if of is None or "error" in of:
        return _unknown("noise", told, "no candidate can be timed: see the checks target and plugins")
    seconds = np.asarray(of["seconds"])
    p10, median, p90 = np.percentile(seconds, [10, 50, 90])
    cv, tail = float(seconds.std() / seconds.mean()), float(p90 / median)
    data = {
        "timings": len(seconds),
        "median_s": float(median),
        "p10_s": float(p10),
        "p90_s": float(p90),
        "cv": cv,
        "p90_over_median": tail,
        "steal": of["steal"],
    }
    found = f"coefficient of variation {cv:.1%}, p90 {tail:.3f} times the median, {len(seconds)} timings of one kernel"
    if cv <= 0.05 and tail <= 1.05:
        return Check("noise", "ok", found, facts=data)
    if of["steal"] > 0.01:
        advice = f"the hypervisor took {of['steal']:.0%} of the processor: use a machine of your own"
    elif load is not None and load / cores > 0.25:
        advice = "other work runs here: end it, or tune when it is done"
    elif governors and set(governors) - {"performance"}:
        advice = "clocks change: cpupower frequency-set -g performance"
    else:
        advice = "nothing here explains it; time candidates more often: --set evaluator.repeat=7"
    return Check("noise", "warning", found, advice, data)


def states(told: JsonObject, cores: int) -> Check:
    """How often the processors were in a slow state, of a hundred looks with the probe: back to back, after pauses, and
    after builds."""
    of = told.get("states")
    if of is None or "error" in of:
        return _unknown("states", told, "nothing tells this machine's states: timings count as they come", "warning")
    every = np.concatenate([np.asarray(v) for v in of.values()])
    reference = Reference()
    reference.look(every.tolist())
    assert reference.seconds is not None
    slow = {name: float(np.mean(np.asarray(v) > (1 + SHARE) * reference.seconds)) for name, v in of.items()}
    away = every[every > (1 + SHARE) * reference.seconds] / reference.seconds
    factor = float(np.median(away)) if len(away) else 1.0
    data = {"probe_s": reference.seconds, "slow": slow, "slowdown": factor, "looks": len(every)}
    shares = ", ".join(f"{slow[name]:.0%} {words}" for name, words in _INTERVALS.items() if name in slow)
    if max(slow.values()) <= 0.05:
        return Check("states", "ok", f"one state of speed: slow in {shares}", facts=data)
    found = f"slow in {shares}; then {factor:.1f} times slower"
    advice = "timings that meet a slow state are made again, which takes longer: "
    advice += "end other work, or use a machine whose cores are its own" if cores > 1 else "end other work"
    return Check("states", "warning", found, advice, data)


_INTERVALS = {"rest": "of 100 looks back to back", "pause": "after pauses", "build": "after builds"}


def neighbours(root: Path, user: int | None) -> Check:
    """Who else may tune on these processors and does not share our timing lock: other users, other containers."""
    locks = (re.fullmatch(r"tt-timing-([0-9]+)\.lock", p.name) for p in root.glob("dev/shm/tt-timing-*.lock"))
    others = sorted({int(m[1]) for m in locks if m} - {user})
    contained = any((root / name).exists() for name in (".dockerenv", "run/.containerenv"))
    of = {"users": others, "container": contained}
    found = [f"{len(others)} other users have tuned here"] * bool(others) + ["this is a container"] * contained
    if not found:
        return Check("lock", "ok", "nobody else is known to tune on this machine", facts=of)
    whose = "other containers'" if contained else "other users'"
    advice = (
        f"{whose} timings may collide with yours: all of you give --set measurer.lock=FILE, one file that all can write"
    )
    return Check("lock", "warning", "; ".join(found), advice, of)


def memory(available: float, total: float, cores: int) -> Check:
    """A worker with TVM takes about 0.4 GB, the runner 0.6; large models take more."""
    of = {"available_bytes": available, "total_bytes": total}
    found = f"{available / GB:.1f} GB available of {total / GB:.1f}"
    if available < 1.0 * GB:
        return Check("memory", "failure", found, "tuning needs 1 GB at least: end other programs", of)
    if available < (1.0 + cores) * GB:
        fit = max(1, int(available / GB) - 1)
        advice = f"candidates may be stopped for want of it: end other programs, or --set measurer.workers={fit}"
        return Check("memory", "warning", found, advice, of)
    return Check("memory", "ok", found, facts=of)


def disk(free: Mapping[str, float | None]) -> Check:
    of = dict(free)
    found = ", ".join(
        f"{place}: {'not writable' if left is None else f'{left / GB:.1f} GB free'}" for place, left in free.items()
    )
    scratch = free.get("temporary files")
    if scratch is None or scratch < 0.1 * GB:
        return Check("disk", "failure", found, "workers and the linker need 0.1 GB for temporary files: set TMPDIR", of)
    if any(left is None for left in free.values()):
        return Check("disk", "warning", found, "give --history and --out in a folder that can be written", of)
    if any(left is not None and left < 1.0 * GB for left in free.values()):
        return Check("disk", "warning", found, "a large model and its history may not fit: free some space", of)
    return Check("disk", "ok", found, facts=of)


def pieces(load: Callable[[], Plugins], told: JsonObject) -> Check:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plugins = load()
    except PluginError as e:
        return Check("plugins", "failure", str(e), "no command can choose a piece before that is fixed")
    seen = told.get("pieces", {})
    failed = [f"{b.distribution} {b.version}: {b.why}" for b in plugins.broken] + seen.get("failed", [])
    missing, count = seen.get("missing", []), sum(len(p) for p in plugins.pieces.values())
    of = {"pieces": count, "failed": failed, "missing": missing}
    if (why := seen.get("recipe")) is not None:
        return Check("plugins", "failure", why, "the default recipe lacks a piece: pip install 'tt-core[all]'", of)
    found = f"{count} pieces" + (f"; {len(missing)} need an extra: {'; '.join(missing)}" if missing else "")
    if "error" in seen:
        failed.append(seen["error"])
    if failed:
        advice = "these are left out: upgrade or uninstall their distribution"
        return Check("plugins", "warning", f"{found}; failed: {'; '.join(failed)}", advice, of)
    return Check("plugins", "ok", found, facts=of)


def rewrites(load: Callable[[], Plugins]) -> Check:
    """Families of ONNX operators that are rewritten before TVM imports a model."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            names = load().names("rewrite")
    except PluginError:
        names = []
    found = f"ONNX operators are rewritten of the families {', '.join(names)}" if names else "no ONNX operator is"
    return Check("rewrites", "ok", found, facts={"rewrites": names})


def versions(distributions: Sequence[str], version: Callable[[str], str | None]) -> Check:
    """The given distributions and what they require."""
    needs = {d: wants(d) for d in distributions}
    names = sorted({*distributions, *(r.name for of in needs.values() for r in of), *_OPTIONAL})
    of = {"python": platform.python_version(), "platform": platform.platform(), **{n: version(n) for n in names}}
    found = ", ".join(f"{name} {v}" for name, v in of.items() if v is not None)
    problems = [f"{d}: {why}" for d, of_d in needs.items() for r in of_d if (why := unmet(r, version)) is not None]
    if problems:
        return Check("versions", "warning", found, f"{'; '.join(problems)}: pip install what is asked for", of)
    return Check("versions", "ok", found, facts=of)


_OPTIONAL = ("onnx", "onnxruntime", "onnxslim", "xgboost", "torch", "scikit-learn")


def _unknown(name: str, told: JsonObject, advice: str, status: Literal["warning", "failure"] = "failure") -> Check:
    """The findings that the probe lacks: because it was not started, ended early, or met an error."""
    if not told:
        return Check(name, "warning", "not looked at: TVM must not be loaded", "fix the check tvm first")
    return Check(name, status, told.get(name, {}).get("error") or told.get("died", "the probe did not say"), advice)


# -- facts ------------------------------------------------------------------------------------------------------------


def facts() -> Facts:
    """Those of this machine and process."""
    used = psutil.virtual_memory()
    ours = {p.dist.name for p in importlib.metadata.entry_points(group="tt") if p.dist} | {"tt-core", "tt-spec"}
    return Facts(
        probe=_probe,
        cores=cores(),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        memory=(float(used.available), float(used.total)),
        free={"working directory": _free(lambda: "."), "temporary files": _free(tempfile.gettempdir)},
        distributions=sorted(ours),
        user=os.getuid() if hasattr(os, "getuid") else None,
    )


def _probe() -> JsonObject:
    """The findings that the probe told before it ended, however it ended."""
    told: JsonObject = {}
    try:
        done = subprocess.run(
            child.command("tt_core.doctor.probe"), capture_output=True, timeout=PROBE_TIMEOUT_S, check=False
        )
        out, err, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as e:
        out, err, code = e.stdout or b"", b"", None
    for line in out.decode(errors="replace").splitlines():
        told.update(json.loads(line))
    if code is None:
        told["died"] = f"the probe took longer than {PROBE_TIMEOUT_S:g} s"
    elif code:
        tail = " | ".join(err.decode(errors="replace").strip().splitlines()[-3:])
        told["died"] = f"the probe ended with {'signal ' + str(-code) if code < 0 else code}: {tail[-300:]}"
    return told


def _free(folder: Callable[[], str]) -> float | None:
    try:
        path = folder()
        with tempfile.TemporaryFile(dir=path):
            return float(psutil.disk_usage(path).free)
    except OSError:
        return None


def _governors(root: Path) -> list[str]:
    paths = sorted(root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))
    return sorted({text for p in paths if (text := _text(p))})


def _contained(root: Path, available: float, total: float) -> tuple[float, float]:
    """The same within the container's limit."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        texts = [_text(root / "sys/fs/cgroup" / name) for name in (limit, used)]
        if all(t.isdigit() for t in texts):
            most, taken = map(float, texts)
            return min(available, max(0.0, most - taken)), min(total, most)
    return available, total


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
