"""Running a deployed file: what TVM's runtime alone can do, with the sidecar's names."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from tt_core.errors import ModelError

__all__ = ["Runner", "sidecar_path"]


def sidecar_path(path: str | Path) -> Path:
    """`model.so` -> `model.so.json`."""
    return Path(f"{path}.json")


class Runner:
    """A deployed library, loaded.

    Args:
        path: The `.so` that `tt tune --out` wrote, its `.so.json` beside it. Raises `ModelError` if either is missing
            or damaged.
    """

    def __init__(self, path: str | Path) -> None:
        import tvm
        from tvm import relax

        path = Path(path)
        self.sidecar = read_sidecar(path)
        kind = json.loads(self.sidecar["target"]).get("kind", "llvm")
        self._device = tvm.cpu() if kind in ("llvm", "c") else tvm.device(kind, 0)
        try:
            self._vm = relax.VirtualMachine(tvm.runtime.load_module(str(path.resolve())), self._device)
        except Exception as e:
            raise ModelError(f"TVM cannot load {path}: {str(e).splitlines()[0]}") from e
        self._tensor = lambda a: tvm.runtime.tensor(a, self._device)

    def random_inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Random inputs of the recorded shapes, dtypes and ranges."""
        from tt_core.backend import random_array
        from tt_core.indices import DEFAULT

        rng = np.random.default_rng(seed)
        return {
            i["name"]: random_array(i["shape"], i["dtype"], rng, i.get("below", DEFAULT))
            for i in self.sidecar["inputs"]
        }

    def __call__(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        return _flat(self._vm["main"](*self._arguments(inputs)))

    def time(self, inputs: dict[str, np.ndarray], seconds: float = 3.0) -> list[float]:
        """Seconds of each execution, for about `seconds` and at least 3 times, after one to warm up."""
        arguments = self._arguments(inputs)
        main = self._vm["main"]
        main(*arguments)
        self._device.sync()
        found: list[float] = []
        end = time.perf_counter() + seconds
        while len(found) < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            main(*arguments)
            self._device.sync()
            found.append(time.perf_counter() - start)
        return found

    def _arguments(self, inputs: dict[str, np.ndarray]) -> list[Any]:
        return [self._tensor(inputs[i["name"]]) for i in self.sidecar["inputs"]]


def read_sidecar(path: Path) -> dict[str, Any]:
    """The JSON beside a deployed library."""
    if not path.exists():
        raise ModelError(f"no file {path}: make one with tt tune MODEL --out {path}")
    beside = sidecar_path(path)
    try:
        content = json.loads(beside.read_text(encoding="utf-8"))
        return {**content, "inputs": content["inputs"], "target": content["target"]}
    except FileNotFoundError:
        raise ModelError(f"{beside} is missing: it lies beside the library that tt tune --out wrote") from None
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise ModelError(f"{beside} is not a sidecar of tt: {e}") from e


def _flat(out: Any) -> list[np.ndarray]:
    if hasattr(out, "numpy"):
        return [out.numpy()]
    return [a for part in out for a in _flat(part)]
