"""Cost models over statements: megabytes of weights, seconds to load them, programs scored and learned a second, and
seconds of a fine-tuning.

    hatch run python benchmarks/networks.py [--programs 10000]

Of random programs of three statements in ten operators, by `atformer` as the study trains it (96 wide) and of the
paper's size (512), and by what it is compared with. Learning is one epoch, or 10 trees of XGBoost; `50 epochs` are the
paper's training, on as many programs as the data set of Zen 5 has with half of each operator's rows. Fine-tuned, with
what the pieces choose, is each on a run's rows after one and after sixteen batches of sixteen of ten operators.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import Group, Plugins, Statements
from tt_spec.testing.examples import wide_task

MODELS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("atformer, 96 wide", "atformer", {"width": 96}),
    ("atformer, 512 wide (the paper's)", "atformer", {"width": 512}),
    ("mha, 96 wide", "mha", {"width": 96}),
    ("mlp", "mlp", {}),
    ("xgb, depth 6", "xgb", {"inputs": "statements", "rounds": 10, "max_depth": 6}),
)
PROGRAMS = 27_000
"""Learned from in an epoch of the study."""

OWN = (16, 256)
"""Rows of each of ten operators that a fine-tuning learns from."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=10_000)
    options = parser.parse_args()
    print(
        f"{'model':34} {'MB':>6} {'load s':>7} {'scored a second':>16} {'learned a second':>17} {'50 epochs, min':>15}"
        + "".join(f"{f'tuned on {10 * n}, s':>19}" for n in OWN)
    )
    for name, piece, settings in MODELS:
        size, load_s, scored, learned, tuned = measured(piece, settings, options.programs)
        minutes = f"{50 * PROGRAMS / learned / 60:15.1f}" if piece != "xgb" else f"{'':15}"
        print(f"{name:34} {size:6.2f} {load_s:7.3f} {scored:16,.0f} {learned:17,.0f} {minutes}", end="")
        print("".join(f"{seconds:19.2f}" for seconds in tuned), flush=True)


def measured(piece: str, settings: dict[str, Any], programs: int) -> tuple[float, float, float, float, list[float]]:
    """Megabytes, seconds to load, programs scored and learned a second, and seconds of fine-tuning on `OWN` rows."""
    settings = settings if piece == "xgb" else {**settings, "epochs": 1}
    model: Any = Plugins().build("surrogate", piece, **settings)
    groups = [drawn(programs // 10, i) for i in range(10)]
    began = time.perf_counter()
    model.pretrain(groups, np.random.default_rng(0), lambda progress: True)
    learned = programs / (time.perf_counter() - began)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "weights")
        model.save(path, {"device": "none"})
        began = time.perf_counter()
        loaded: Any = Plugins().build("surrogate", piece, weights=path, **settings)
        task, X, _ = groups[0]
        loaded.predict(task, X[:1])
        load_s = time.perf_counter() - began
        began = time.perf_counter()
        for task, X, _ in groups:
            loaded.predict(task, X)
        scored = programs / (time.perf_counter() - began)
        return path.stat().st_size / 1e6, load_s, scored, learned, [tuned(loaded, n) for n in OWN]


def tuned(loaded: Any, own: int) -> float:
    """Seconds in which a model learns on from so many rows of each of ten operators, the second time."""
    groups = [drawn(own, 100 + i) for i in range(10)]
    loaded.fit(groups, np.random.default_rng(0))  # what is loaded at the first fit is loaded
    began = time.perf_counter()
    loaded.fit(groups, np.random.default_rng(1))
    return time.perf_counter() - began


def drawn(programs: int, seed: int) -> Group:
    """Random programs of three statements and labels."""
    rng = np.random.default_rng(seed)
    values, offsets = rng.random((3 * programs, 164)) * 10, 3 * np.arange(programs + 1)
    return wide_task(), Statements(values, offsets, np.zeros((programs, 10))), rng.random(programs)


if __name__ == "__main__":
    main()
