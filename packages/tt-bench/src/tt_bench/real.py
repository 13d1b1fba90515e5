"""Models that people ship, by short names: those inside the package rapidocr-onnxruntime, and the zoo's."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tt_bench.errors import BenchError

__all__ = ["INSIDE", "source"]

INSIDE = {
    "detector": ("det", (1, 3, 320, 320)),
    "recogniser": ("rec", (1, 3, 48, 320)),
    "classifier": ("cls", (1, 3, 48, 192)),
}
"""A word of the file's name and the shape of its input, by name."""


def source(model: str) -> list[str]:
    """The arguments of `tt tune` that name a model: of `INSIDE` its file and `--shape`, any other as it is. Raises
    `BenchError` if the package is not installed."""
    if model not in INSIDE:
        return [model]
    word, shape = INSIDE[model]
    package = importlib.util.find_spec("rapidocr_onnxruntime")  # importing it wants OpenCV
    if package is None or package.origin is None:
        raise BenchError(f"model {model!r} is inside the package rapidocr-onnxruntime: install it, or omit the model")
    files = sorted((Path(package.origin).parent / "models").glob(f"*_{word}_infer.onnx"))
    if not files:
        raise BenchError(f"the package rapidocr-onnxruntime has no file *_{word}_infer.onnx for the model {model!r}")
    return [str(files[-1]), "--shape", f"x={','.join(map(str, shape))}"]
