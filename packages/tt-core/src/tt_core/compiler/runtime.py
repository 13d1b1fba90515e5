"""Running a deployed file: what TVM's runtime alone can do, with the sidecar's names."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from tt_spec import Noise
from tt_spec.serial import JsonObject
from tt_spec.windows import Windows, state

from tt_core.compiler.arrays import INTEGERS_BELOW, is_float, nudged, random_array
from tt_core.compiler.peak import probe
from tt_core.errors import ModelError, summary

if TYPE_CHECKING:
    import tvm

__all__ = ["Runner", "Timed", "digest", "read_sidecar", "sidecar_path"]

MOST_THREADS = 4096


def sidecar_path(path: str | Path) -> Path:
    """`model.so` -> `model.so.json`."""
    return Path(f"{path}.json")


@dataclass(frozen=True)
class Timed:
    """Seconds of each execution, and the machine's state meanwhile; None where nothing tells."""

    seconds: list[float]
    noise: Noise | None


class Runner:
    """A deployed library, loaded.

    Args:
        path: The `.so` that `tt tune --out` wrote, its `.so.json` beside it. Raises `ModelError` if either is missing
            or damaged, before the library is loaded: a damaged one may end the process.
    """

    def __init__(self, path: str | Path) -> None:
        import tvm
        from tvm import relax

        self.path = path = Path(path)
        self.sidecar = read_sidecar(path)
        if digest(path) != self.sidecar["sha256"]:
            raise ModelError(
                f"{path} is not the library that {sidecar_path(path)} describes (sha256): write both again"
            )
        kind = json.loads(self.sidecar["target"])["kind"]
        try:
            self._device = tvm.cpu() if kind in ("llvm", "c") else tvm.device(kind, 0)
            self._vm = relax.VirtualMachine(tvm.runtime.load_module(str(path.resolve())), self._device)
        except Exception as e:
            raise ModelError(f"TVM cannot load {path}: {summary(e)}") from e
        self._tensor = lambda a: tvm.runtime.tensor(a, self._device)

    def random_inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Random inputs of the recorded shapes, dtypes and ranges."""
        rng = np.random.default_rng(seed)
        return {
            i["name"]: random_array(i["shape"], i["dtype"], rng, i.get("below", INTEGERS_BELOW))
            for i in self.sidecar["inputs"]
        }

    def __call__(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs. Raises `ModelError` if the library does not take these inputs."""
        return _flat(self._called(self._arguments(inputs)))

    def nudged(self, inputs: dict[str, np.ndarray], share: float, seed: int) -> list[np.ndarray]:
        """The outputs where every float that passes between operators is nudged; see `nudged` of
        `tt_core.compiler.arrays`. The library is used for this from then on."""
        import tvm

        rng = np.random.default_rng(seed)

        def nudge(_: object, name: str, before: bool, result: object, *arguments: object) -> None:
            if before or name.startswith("vm.") or not arguments:
                return
            made: Any = arguments[-1]  # where a program writes
            if isinstance(made, tvm.runtime.Tensor) and is_float(held := made.numpy()):
                made.copyfrom(nudged(held, share, rng))

        self._vm.set_instrument(nudge)
        return self({name: nudged(a, share, rng) for name, a in inputs.items()})

    def profile(self, inputs: dict[str, np.ndarray], seconds: float) -> dict[str, float]:
        """Seconds that each function takes in an execution of the model, all its calls together, by name: medians of
        executions for about `seconds` and one at least, after one to warm up. The library is used for this from then
        on."""
        arguments, main = self._arguments(inputs), self._vm["main"]
        began: list[float] = []
        spent: dict[str, float] = {}

        def watch(_: object, name: str, before: bool, *rest: object) -> None:
            now = time.perf_counter()
            if before:
                began.append(time.perf_counter())
            else:
                spent[name] = spent.get(name, 0.0) + now - began.pop()

        self._vm.set_instrument(watch)
        self._called(arguments)
        found: dict[str, list[float]] = {}
        end = time.perf_counter() + seconds
        while not found or time.perf_counter() < end:
            spent.clear()
            main(*arguments)
            for name, s in spent.items():
                found.setdefault(name, []).append(s)
        return {name: float(np.median(all_)) for name, all_ in found.items()}

    def time(
        self,
        inputs: dict[str, np.ndarray],
        seconds: float = 3.0,
        least: int = 3,
        warm: bool = True,
        state_s: float | None = None,
    ) -> Timed:
        """Time executions for about `seconds` and at least `least` times, after one to warm up if `warm`.

        An execution counts if the machine was in its reference state before and after it (`tt_spec.windows`); half of
        the time at most goes into those that do not. Where none counts, the others are told as they were: nothing is
        corrected by what the probe says, which knows the machine and not the model.

        Args:
            state_s: The probe's seconds in that state; None looks for it.
        """
        arguments = self._arguments(inputs)
        main = self._vm["main"]
        if warm:
            self._called(arguments)
            self._device.sync()

        def once(n: int) -> float:
            start = time.perf_counter()
            for _ in range(n):
                main(*arguments)
            self._device.sync()
            return (time.perf_counter() - start) / n

        tell = self.probe()
        windows = (
            None if tell is None else Windows(once, tell, state_s or state(tell), sensitivity=0.0, most_s=seconds / 2)
        )
        found: list[float] = []
        end = time.perf_counter() + seconds
        while len(found) < least or time.perf_counter() < end:
            found.append((windows or once)(1))
        return Timed(found, None if windows is None else windows.noise())

    def probe(self) -> Callable[[], float] | None:
        """The program that tells the machine's state (`tt_core.compiler.peak.probe`), or None where none can."""
        import tvm

        if self._device.dlpack_device_type() == tvm.cpu().dlpack_device_type():
            with suppress(Exception):  # a TVM without a code generator runs models all the same
                return probe(self.sidecar["target"])
        return None

    def _called(self, arguments: list[tvm.runtime.Tensor]) -> tvm.runtime.Object:
        try:
            return self._vm["main"](*arguments)
        except Exception as e:  # TVM raises several types
            raise ModelError(f"{self.path} does not run on the inputs of its sidecar: {summary(e)}") from e

    def _arguments(self, inputs: dict[str, np.ndarray]) -> list[tvm.runtime.Tensor]:
        return [self._tensor(inputs[i["name"]]) for i in self.sidecar["inputs"]]


def digest(path: Path) -> str:
    """SHA-256 of a file, hexadecimal. Raises `ModelError` if it cannot be read."""
    found = hashlib.sha256()
    try:
        with path.open("rb") as f:
            while block := f.read(1 << 20):
                found.update(block)
    except OSError as e:
        raise ModelError(f"{path} cannot be read: {e.strerror or e}") from e
    return found.hexdigest()


def read_sidecar(path: Path) -> JsonObject:
    """The JSON beside a deployed library. Raises `ModelError` that names the file or the entry that is wrong."""
    if not os.path.isfile(path):  # unlike pathlib's, it takes any text
        raise ModelError(f"no file {path}: make one with tt tune MODEL --out FILE.so")
    beside = sidecar_path(path)
    try:
        content = json.loads(beside.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{beside} is missing: it lies beside the library that tt tune --out wrote") from None
    except (OSError, ValueError, RecursionError) as e:
        raise ModelError(f"{beside} is not a sidecar of tt: {summary(e)}") from e
    wrong = _wrong(content)
    if wrong is not None:
        raise ModelError(f"{beside} is not a sidecar of tt: {wrong}")
    return content


def _wrong(content: Any) -> str | None:
    """The fault in a sidecar's content that `Runner` cannot use, or None."""
    if not isinstance(content, dict):
        return f"it must be a JSON object, got {type(content).__name__}"
    for key, kind in (("inputs", list), ("target", str), ("threads", int), ("sha256", str)):
        if type(content.get(key)) is not kind:
            return f"{key!r} is missing or of the wrong type"
    if not 1 <= content["threads"] <= MOST_THREADS:
        return f"'threads' must be 1 to {MOST_THREADS}, got {content['threads']}"
    try:
        target = json.loads(content["target"])
    except (ValueError, RecursionError):
        target = None
    if not isinstance(target, dict) or not isinstance(target.get("kind"), str):
        return "'target' is not a target's JSON"
    for i, given in enumerate(content["inputs"]):
        try:
            name, shape, dtype = given["name"], given["shape"], np.dtype(_numpy(given["dtype"]))
        except (KeyError, TypeError, ValueError, IndexError):
            return f"input {i} needs 'name', 'shape' and 'dtype'"
        if type(given["dtype"]) is not str:  # numpy takes None for float64
            return f"input {i} needs the name of a dtype"
        if type(name) is not str or type(shape) is not list or any(type(d) is not int or d < 0 for d in shape):
            return f"input {i} needs a name and a shape of whole numbers"
        if dtype.kind not in "fiub" or math.prod(shape) * dtype.itemsize > psutil.virtual_memory().total:
            return f"input {i} is {given['dtype']} of shape {shape}, which this machine cannot hold"
    return None


def _numpy(dtype: str) -> str:
    return "float32" if dtype == "bfloat16" else dtype


def _flat(out: tvm.runtime.Object) -> list[np.ndarray]:
    if hasattr(out, "numpy"):
        return [out.numpy()]
    return [a for part in out for a in _flat(part)]
