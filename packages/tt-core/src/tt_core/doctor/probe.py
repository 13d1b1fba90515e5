"""The part of `tt doctor` that needs TVM loaded, as a process: `python -m tt_core.doctor.probe`.

One JSON object per line, `{"target": …}`, `{"compiler": …}`, `{"noise": …}`, `{"states": …}`, `{"pieces": …}`, each
written as soon as it is known; `{"…": {"error": text}}` where looking failed. A process of its own, so that a crash
ends only this.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable

from tt_spec import PluginError, Plugins
from tt_spec.errors import OptionError
from tt_spec.serial import JsonObject

from tt_core.compiler.lean import tvm_without_torch
from tt_core.compiler.target import cores, use_all_cores
from tt_core.errors import summary

__all__ = ["PROBE_S", "main"]

PROBE_S = 2.0
"""Length of the timing probe, seconds."""
STATES_WINDOWS = 100
"""Looks at the machine's state after each kind of interval."""
_ROUND_MS = 10.0
"""Length of one timing in it: that of a repeat while tuning."""


def main() -> None:
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print must not disturb the lines
    use_all_cores()
    tvm_without_torch()
    parts: dict[str, Callable[[], JsonObject]] = {
        "target": _target,
        "compiler": _compiler,
        "noise": _noise,
        "states": _states,
        "pieces": _pieces,  # last: what crashes in a stranger's module hides nothing else
    }
    for name, look in parts.items():
        try:
            found = look()
        except Exception as e:  # whatever is wrong here is what the user wants to know
            found = {"error": summary(e)}
        print(json.dumps({name: found}), file=out, flush=True)


def _target() -> JsonObject:
    import tvm

    from tt_core.compiler.target import resolve, runnable

    target = resolve("native")
    return {
        "target": str(target),
        "llvm": int(tvm.target.codegen.llvm_version_major()),
        "threads": int(tvm.get_global_func("runtime.NumThreads")()),
        "refused": runnable(target),
    }


def _compiler() -> JsonObject:
    from tvm.support import cc

    from tt_core.deploy.library import link_problem

    return {"compiler": cc.get_cc(), "problem": link_problem()}


def _pieces() -> JsonObject:
    """Pieces that cannot be imported, `missing` an extra or `failed`, and why the default `recipe` cannot be used."""
    from tt_spec.recipe import resolve

    plugins = Plugins()
    found: JsonObject = {"missing": [], "failed": [], "recipe": None}
    for role, pieces in plugins.pieces.items():
        for name, piece in pieces.items():
            try:
                plugins.factory(role, name)
            except PluginError as e:
                found["missing"].append(str(e))
            except Exception as e:  # a stranger's module may fail in any way
                found["failed"].append(f"{role} {name!r} of {piece.distribution} {piece.version}: {summary(e)}")
    try:
        resolve("tt", (), plugins)
    except OptionError as e:
        found["recipe"] = str(e)
    return found


def _noise() -> JsonObject:
    """Seconds of one small kernel, timed again and again as candidates are: in a worker, under the timing lock."""
    import numpy as np
    import psutil
    from tt_spec.recipe import resolve

    from tt_core.assembly import BACKEND
    from tt_core.prepared import prepare

    recipe = resolve("tt")
    task = prepare("op:matmul:128,128,128", plugins=recipe.plugins).tasks[0]
    measurer = recipe.build("measurer", backend=BACKEND, workers=1, threads=cores())
    try:
        rng = np.random.default_rng(0)
        real = measurer.realise(task, task.space.sample(32, rng))
        rows = real.codes[[i for i, why in enumerate(real.why) if why is None]][:4]
        tried = measurer.race(task, rows, 2, 1.0)
        best = min(range(len(rows)), key=lambda i: min(tried[i]))
        rounds = max(20, int(1e3 * PROBE_S / _ROUND_MS))
        before = psutil.cpu_times()
        seconds = measurer.race(task, rows[best : best + 1], rounds, _ROUND_MS)[0]
        after = psutil.cpu_times()
    finally:
        measurer.close()
    spent = sum(after) - sum(before)
    steal = getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)
    return {"seconds": [float(s) for s in seconds], "steal": steal / spent if spent > 0 else 0.0}


def _states() -> JsonObject:
    """Seconds of the probe of `tt_core.compiler.peak`: back to back, after pauses of 50 ms, and after compiling for as
    long on this core, as between two candidates."""
    import tvm

    from tt_core.compiler.peak import probe
    from tt_core.compiler.target import resolve

    target = resolve("native")
    tell = probe(str(target))
    tell()

    def after(what: Callable[[], object]) -> list[float]:
        found = []
        for _ in range(STATES_WINDOWS):
            what()
            found.append(tell())
        return found

    func = tvm.te.create_prim_func([tvm.te.placeholder((64, 64), name="x")])
    return {
        "rest": after(lambda: None),
        "pause": after(lambda: time.sleep(0.05)),
        "build": after(lambda: tvm.tirx.build(func, target=target)),
    }


if __name__ == "__main__":
    main()
    sys.stdout.flush()
