"""CPU milliseconds a row of statement features over the recordings, and whether they are those that were recorded.

    hatch run python benchmarks/features.py [--batch 64] [--rows 256] [--only resnet18]

For each recording: rows asked, how many were interpreted, CPU ms a row of all of them as a worker answers (rows that
are not interpreted are replayed and given to TVM), of TVM alone (8 rows), how many differ from the recorded statements,
and what is not interpreted, with the reason. The first question of a space, which compares 16 rows with TVM, is not
counted; its seconds stand beside. Recordings whose space is another today are named. Last, the means over the rest.
About a minute.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from tt_bench.files import load
from tt_core.compiler.backend import TvmBackend
from tt_core.compiler.lower import unpack
from tt_spec import Plugins, operator_features


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, default=Path("recordings"))
    parser.add_argument("--batch", type=int, default=64, help="rows asked at once")
    parser.add_argument("--rows", type=int, default=256, help="rows of each recording, spread over it")
    parser.add_argument("--only", default="", help="part of a file's name")
    options = parser.parse_args()
    paths = [p for p in sorted(options.recordings.glob("*.json.gz")) if options.only in p.name]
    print(f"{'recording':32} rows interpreted  ms a row   TVM's   first s  differ")
    lines = [line for p in paths if (line := _one(p, options.batch, options.rows)) is not None]
    if lines:
        print(f"{'mean':47} {np.mean([x[0] for x in lines]):9.3f} {np.mean([x[1] for x in lines]):7.2f}")


def _one(path: Path, batch: int, rows: int) -> tuple[float, float] | None:
    part, name = load(path).parts[0], path.name.removesuffix(".json.gz")
    at = np.unique(np.linspace(0, len(part.rows) - 1, min(rows, len(part.rows))).astype(int))
    at = np.array([i for i in at if part.statements[i] is not None])
    codes, backend = part.widen(part.rows)[at], TvmBackend()
    try:
        backend.open(part.whole)
    except ValueError as e:  # what a row means has changed since
        print(f"{name:32} not measured: {e}", flush=True)
        return None
    first = time.process_time()
    backend.features(part.whole, codes[np.unique(codes[:, 0], return_index=True)[1]])  # of each joined space one
    first = time.process_time() - first
    backend = _again(backend)
    began = time.process_time()
    found = [backend.features(part.whole, codes[i : i + batch])[0] for i in range(0, len(codes), batch)]
    mine = 1e3 * (time.process_time() - began) / len(codes)
    values = [s.values[s.offsets[i] : s.offsets[i + 1]] for s in found for i in range(len(s))]
    assert all((s.operator == operator_features(part.whole)).all() for s in found)
    differ = sum(not _same(v, part.statements[i]) for v, i in zip(values, at, strict=True))
    mod, target, space = unpack(part.whole.payload)
    programs = Plugins().build("space", space).open(mod, target)
    began = time.process_time()
    programs.features([programs.apply(r) for r in codes[:: max(1, len(codes) // 8)][:8]])
    theirs = 1e3 * (time.process_time() - began) / 8
    told = programs.interpret(codes)
    count = sum(f is not None for f in told)
    figures = f"{len(codes):4} {count:9} {mine:10.3f} {theirs:7.2f} {first:9.2f} {differ:7}"
    print(f"{name:32} {figures}{_why(programs)}", flush=True)
    return mine, theirs


def _again(backend: TvmBackend) -> TvmBackend:
    """The backend without the schedules that it keeps."""
    backend._shared.schedules.clear()
    return backend


def _same(a: np.ndarray, b: np.ndarray | None) -> bool:
    return b is not None and a.shape == b.shape and np.allclose(a, b, rtol=1e-5, atol=1e-6)


def _why(programs) -> str:
    """Rows that are left to TVM, and why."""
    notes = []
    for part in getattr(programs, "parts", [programs]):
        asked = getattr(part, "interpret", None)
        if asked is None:
            notes.append(f"{part.space.name}: not interpreted")
        elif asked.refusal is not None:
            notes.append(f"{part.space.name}: {asked.refusal}")
        else:
            notes += [f"{n} rows: {why}" for why, n in asked.unknown.items()]
    return "  " + "; ".join(notes) if notes else ""


if __name__ == "__main__":
    main()
