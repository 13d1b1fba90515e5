"""Prove that a change leaves the search as it was: the rows asked in replay, by two commits.

    hatch run python tools/same_rows.py 11f30a4 HEAD

Clones each commit, lets its own code replay three recorded models (recordings/) with recipes tt, autotvm and dynatune
and one seed, and compares the bytes of all rows in the order in which they were asked. Thinking costs nothing on the
virtual clock, so that only decisions can differ. Exit code 1 if they do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODELS = ("resnet18", "mobilenet", "encoder")
RECIPES = ("tt", "autotvm", "dynatune")

REPLAY = """
import hashlib, json, sys
from pathlib import Path
from tt_bench import replay, runs
from tt_bench.files import load
from tt_bench.thinking import Thoughts
from tt_core.host import Host

asked = hashlib.sha256()
count = 0
measure = replay.Replay.measure


def counted(self, task, codes, bar):
    global count
    count += len(codes)
    asked.update(task.key.encode() + codes.astype("int64").tobytes())
    return measure(self, task, codes, bar)


replay.Replay.measure = counted
try:  # before assembly, the bench left out the wrapper that tt tune has
    from tt_spec.pieces.light_scheduler import LightScheduler
    from tt_spec.recipe import Recipe

    build = Recipe.build
    wrapped = lambda self, piece: LightScheduler(piece, self.light)
    Recipe.build = lambda self, role, **more: (
        wrapped(self, build(self, role, **more)) if role == "scheduler" else build(self, role, **more)
    )
except ImportError:
    pass
pattern, recipe, seed, trials = sys.argv[1:5]
parts = [load(path).parts[0] for path in sorted(Path("recordings").glob(pattern + "-template.json.gz"))]
done = runs.tune(Host(), parts, recipe, (), int(seed), int(trials), thoughts=Thoughts(), unrecorded="nearest")
print(json.dumps([count, len(parts), asked.hexdigest()[:16], done.true_s[-1]]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs=2)
    parser.add_argument("--trials", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    differ = 0
    with tempfile.TemporaryDirectory(prefix="tt-same-") as folder:
        clones = [_clone(commit, Path(folder, str(i))) for i, commit in enumerate(options.commits)]
        for model in MODELS:
            for recipe in RECIPES:
                found = [_rows(c, model, recipe, options.seed, options.trials) for c in clones]
                same = found[0] == found[1]
                differ += not same
                rows, tasks, digest, _ = found[0]
                print(f"{model:10} {recipe:9} {tasks} operators, {rows} rows: {digest}", end=" ")
                print("the same" if same else f"DIFFERS: {found[1]}", flush=True)
    sys.exit(int(differ > 0))


def _clone(commit: str, folder: Path) -> Path:
    """A checkout of the commit."""
    full = subprocess.run(["git", "rev-parse", commit], cwd=ROOT, check=True, capture_output=True, text=True)
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    subprocess.run(["git", "checkout", "-q", full.stdout.strip()], cwd=folder, check=True)
    return folder


def _rows(clone: Path, model: str, recipe: str, seed: int, trials: int) -> list[object]:
    """Rows asked, operators, digest and final latency of one replay by the clone's own sources."""
    sources = os.pathsep.join(str(p) for p in sorted(clone.glob("packages/*/src")))
    env = {**os.environ, "PYTHONPATH": sources, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", REPLAY, f"{model}-*", recipe, str(seed), str(trials)]
    done = subprocess.run(command, cwd=clone, env=env, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{clone.name}, {recipe}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
