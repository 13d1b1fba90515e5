"""Writes the list of operators that no data set holds: python tools/held_out.py [--check]

They are those of recordings/, of ResNet-18, SqueezeNet, the encoder and the text detector of rapidocr at 320 x 320.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from tt_bench import files
from tt_bench.held_out import LIST, signature
from tt_core.prepared import prepare
from tt_spec import Task

ROOT = Path(__file__).parent.parent
MODELS = ("resnet18", "squeezenet1_1", "transformer-encoder")
HEAD = """\
# Held out of every data set, by shapes: kind, first input, outputs; see held_out.py.
# Written by tools/held_out.py: the operators of recordings/, resnet18, squeezenet1_1, transformer-encoder and of
# rapidocr's text detector at 320 x 320.
"""


def tasks() -> list[Task]:
    """Of all that is held out."""
    found = [p.whole for f in sorted((ROOT / "recordings").glob("*-sketch.json.gz")) for p in files.load(f).parts]
    for name in MODELS:
        found += prepare(name, space="template").tasks
    package = importlib.util.find_spec("rapidocr_onnxruntime")
    if package is None or package.origin is None:
        sys.exit("the detector is inside the package rapidocr-onnxruntime: install it")
    detector = Path(package.origin).parent / "models" / "ch_PP-OCRv4_det_infer.onnx"
    return [*found, *prepare(str(detector), shapes={"x": (1, 3, 320, 320)}, space="template").tasks]


def main() -> None:
    """Write the list, or say whether it is as it would be written."""
    text = HEAD + "\n".join(sorted({signature(t) for t in tasks()})) + "\n"
    if "--check" in sys.argv[1:]:
        sys.exit(None if LIST.read_text(encoding="utf-8") == text else f"{LIST} is out of date: run {sys.argv[0]}")
    LIST.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
