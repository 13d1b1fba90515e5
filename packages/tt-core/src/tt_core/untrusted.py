"""Models that nobody vouches for, read in the cage: `tt tune --untrusted`.

A process of its own imports, folds and lowers the model; what comes back is TVM's JSON, text. Its outputs by
onnxruntime come from another such process. Only ONNX files are taken: a `.pt2` is unpickled, a TVMScript is a program.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from tt_spec.errors import FileError, OptionError
from tt_spec.serial import JsonObject

from tt_core.cage import running
from tt_core.cage.limits import Limits
from tt_core.cage.running import Cage
from tt_core.errors import ModelError, TargetError, UserError, one_line, summary

if TYPE_CHECKING:
    import tvm
    from tt_spec import Plugins
    from tvm.target import Target

    from tt_core.compiler.lower import Lowered, Recall
    from tt_core.models.model import Arrays, Fixed, Model

__all__ = ["Suspect"]

MODULE = "module.json"
MB = 2**20
MEMORY, MEMORY_PER_BYTE = 896 * MB, 16
"""Bytes of memory, and those more for each byte of the model and what lies beside it."""

SECONDS, SECONDS_PER_MB = 90, 2
"""Seconds of the processor, and those more for each MB of it."""

MOST_SAID = 2_000


@dataclass(frozen=True)
class Suspect:
    """A model that is not trusted.

    Args:
        path: An ONNX file.
        shapes, fix, precision: As in `tt_core.models.load`.
    """

    path: Path
    shapes: Mapping[str, Sequence[int]] | None = None
    fix: Fixed | None = None
    precision: str = "exact"

    def __post_init__(self) -> None:
        if self.path.suffix.lower() != ".onnx" or not self.path.is_file():
            raise ModelError(f"--untrusted takes ONNX files (.onnx), {self.path} is none: other kinds may run programs")

    def read(
        self, target: Target, plugins: Plugins, space: str, recall: Recall = lambda key: ()
    ) -> tuple[Model, Lowered]:
        """The model, lowered for a target as `tt_core.compiler.lower.lower` does it."""
        from tt_core.compiler.lower import tasks_of
        from tt_core.models.model import Change, Input, Model, Peer, Roundings

        with tempfile.TemporaryDirectory(prefix="tt-") as name:
            found = self._run(Path(name), {"do": "read", "target": str(target), "space": space})
            mod = _module(Path(name, MODULE), self.path)
        lowered = tasks_of(mod, found["lowering"], target, plugins, space, recall)
        peer = None
        if found["peer"] is not None:
            outside = _Outputs(self)
            of = found["roundings"]
            peer = Peer(found["peer"], outside.run, of and Roundings(frozenset(of), outside.nudged))
        inputs = tuple(Input(i["name"], tuple(i["shape"]), i["dtype"], i["below"]) for i in found["inputs"])
        change = {n: Change(**c) for n, c in found["change"].items()}
        notes = (*found["notes"], _walls(found["walls"]))
        outputs, precision = tuple(found["outputs"]), found["precision"]
        return Model(self.path.stem, mod, inputs, outputs, peer, notes, precision, change), lowered

    def outputs(self, inputs: Arrays) -> tuple[list[list[np.ndarray]], list[list[np.ndarray]]]:
        """The peer's, and those of its nudged runs."""
        with tempfile.TemporaryDirectory(prefix="tt-") as name:
            for i, array in enumerate(inputs.values()):
                np.save(Path(name, f"in{i}.npy"), array, allow_pickle=False)
            found = self._run(Path(name), {"do": "outputs", "inputs": list(inputs)})
            plain, nudged = ([_arrays(Path(name), run) for run in found[kind]] for kind in ("plain", "nudged"))
        return plain, nudged

    def split(self, out: Path) -> list[JsonObject] | None:
        """`tt_core.models.split`: its steps, written to a folder; None if there is nothing to cut."""
        with tempfile.TemporaryDirectory(prefix="tt-") as name:
            found = self._run(Path(name), {"do": "split"})
            if found["plan"] is None:
                return None
            try:
                out.mkdir(parents=True, exist_ok=True)
                for file in found["files"]:
                    made = _regular(Path(name, "parts", os.path.basename(str(file))), self.path)
                    shutil.copyfile(made, out / made.name)
            except OSError as e:
                raise FileError(f"cannot write to {out}: {summary(e)}") from e
        return found["plan"]

    def _run(self, folder: Path, job: JsonObject) -> JsonObject:
        """What the process in the cage says; what it complains of is raised here."""
        beside = _beside(self.path)
        size = sum(os.path.getsize(p) for p in beside)
        memory = min(MEMORY + MEMORY_PER_BYTE * size, psutil.virtual_memory().total)
        limits = Limits(memory, SECONDS + SECONDS_PER_MB * math.ceil(size / MB), memory)
        model: JsonObject = {"path": str(self.path), "precision": self.precision}
        model |= {"shapes": {n: list(s) for n, s in (self.shapes or {}).items()}}
        model |= {"fix": {n: np.asarray(v).tolist() for n, v in (self.fix or {}).items()}}
        found = running.run(
            "tt_core.untrusted", folder, Cage(limits, tuple(beside)), {"model": model, **job}, str(self.path)
        )
        if (wrong := found.get("error")) is not None:
            raise _complaint(wrong, self.path)
        return found


@dataclass
class _Outputs:
    """The peer of a suspect: one process computes all that is asked for the same inputs."""

    suspect: Suspect
    _last: tuple[Any, Any] | None = field(default=None, repr=False)

    def run(self, inputs: Arrays) -> list[list[np.ndarray]]:
        return self._of(inputs)[0]

    def nudged(self, inputs: Arrays) -> list[list[np.ndarray]]:
        return self._of(inputs)[1]

    def _of(self, inputs: Arrays) -> tuple[list[list[np.ndarray]], list[list[np.ndarray]]]:
        if self._last is None or self._last[0] is not inputs:
            self._last = inputs, self.suspect.outputs(inputs)
        return self._last[1]


def _beside(path: Path) -> list[str]:
    """The model's file and those beside it, where its weights may lie: no hidden ones and no links."""
    whole = path.resolve()
    with os.scandir(whole.parent) as entries:
        others = [e.path for e in entries if e.is_file(follow_symlinks=False) and not e.name.startswith(".")]
    return sorted({str(whole), *others})


def _regular(path: Path, source: Path) -> Path:
    """A file that the process left; no link, which might name one of ours."""
    if path.is_symlink() or not path.is_file():
        raise ModelError(f"{source}: the process that read it left no {path.name}")
    return path


def _arrays(folder: Path, files: Sequence[str]) -> list[np.ndarray]:
    return [np.load(_regular(folder / os.path.basename(f), folder), allow_pickle=False) for f in files]


def _module(path: Path, source: Path) -> tvm.IRModule:
    import tvm

    try:
        return tvm.ir.load_json(_regular(path, source).read_text(encoding="utf-8"))
    except Exception as e:  # TVM raises several types
        raise ModelError(f"{source}: the process that read it left no usable module: {summary(e)}") from e


def _complaint(wrong: JsonObject, source: Path) -> UserError:
    """The mistake that the process found, as it would be raised here."""
    text, code = one_line(str(wrong.get("text")))[:MOST_SAID] or f"{source} cannot be read", wrong.get("code")
    if code == OptionError.exit_code:
        return OptionError(text)
    return TargetError(text) if code == TargetError.exit_code else ModelError(text)


def _walls(found: Sequence[str]) -> str:
    told = {"landlock": "other files", "seccomp": "the network and other processes"}
    kept = [f"{what} ({name})" for name, what in told.items() if name in found]
    open_ = [f"{what} ({name})" for name, what in told.items() if name not in found]
    text = "the model was read by a process with limits on memory, time and files"
    text += f", kept from {' and '.join(kept)}" if kept else ""
    return text + (f"; this system cannot keep it from {' and '.join(open_)}" if open_ else "")


# -- in the cage -------------------------------------------------------------------------------------------------------


def _main() -> None:
    job, folder, walls = running.enter()
    from tt_core.compiler.lean import tvm_without_torch

    tvm_without_torch()
    source = job["model"]["path"]
    try:
        content = {"read": _read, "outputs": _outputs, "split": _split}[job["do"]](job, folder)
    except UserError as e:
        content = {"error": {"text": str(e), "code": e.exit_code}}
    except Exception as e:  # whatever a hostile file brings about
        content = {"error": {"text": f"{source} cannot be imported: {summary(e)}", "code": ModelError.exit_code}}
    running.answer(folder, {**content, "walls": walls})


def _load(job: JsonObject) -> Model:
    from tt_core.models.load import load

    of = job["model"]
    return load(of["path"], of["shapes"], None, of["fix"], of["precision"])


def _read(job: JsonObject, folder: Path) -> JsonObject:
    import tvm

    from tt_core.compiler.lower import lowered
    from tt_core.compiler.target import resolve

    model = _load(job)
    mod, notes = lowered(model.mod, resolve(job["target"]), None, job["space"])
    (folder / MODULE).write_text(tvm.ir.save_json(mod), encoding="utf-8")
    peer = model.peer
    return {
        "inputs": [asdict(i) for i in model.inputs],
        "outputs": model.outputs,
        "notes": model.notes,
        "lowering": notes,
        "precision": model.precision,
        "change": {n: asdict(c) for n, c in model.change.items()},
        "peer": peer and peer.name,
        "roundings": sorted(peer.roundings.outputs) if peer and peer.roundings else None,
    }


def _outputs(job: JsonObject, folder: Path) -> JsonObject:
    peer = _load(job).peer
    assert peer is not None, "nobody asks without one"
    inputs = {n: np.load(folder / f"in{i}.npy") for i, n in enumerate(job["inputs"])}

    def kept(kind: str, runs: list[list[np.ndarray]]) -> list[list[str]]:
        for i, run in enumerate(runs):
            for j, array in enumerate(run):
                np.save(folder / f"{kind}{i}.{j}.npy", array, allow_pickle=False)
        return [[f"{kind}{i}.{j}.npy" for j in range(len(run))] for i, run in enumerate(runs)]

    plain = kept("plain", peer.run(inputs))
    return {"plain": plain, "nudged": kept("nudged", peer.roundings.run(inputs) if peer.roundings else [])}


def _split(job: JsonObject, folder: Path) -> JsonObject:
    from tt_core.models.split import PLAN, split

    of = job["model"]
    found = split(Path(of["path"]), folder / "parts", of["shapes"], of["fix"])
    if found is None:
        return {"plan": None}
    return {"plan": found.order, "files": [PLAN, *(step["file"] for step in found.order)]}


if __name__ == "__main__":
    _main()
