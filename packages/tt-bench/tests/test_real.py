"""Models by short names."""

from __future__ import annotations

from importlib.machinery import ModuleSpec

import pytest
from tt_bench.errors import BenchError
from tt_bench.real import INSIDE, source


def test_models_of_the_zoo_are_taken_as_they_are():
    assert source("resnet18") == ["resnet18"] and source("op:matmul:1,2,3") == ["op:matmul:1,2,3"]


@pytest.mark.parametrize("name", INSIDE)
def test_a_model_inside_the_package_is_its_newest_file_with_its_shape(name, monkeypatch, tmp_path):
    package = ModuleSpec("rapidocr_onnxruntime", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("tt_bench.real.importlib.util.find_spec", lambda asked: package)
    with pytest.raises(BenchError, match="has no file"):
        source(name)
    (tmp_path / "models").mkdir()
    word, shape = INSIDE[name]
    for version in (3, 4):
        (tmp_path / "models" / f"ch_PP-OCRv{version}_{word}_infer.onnx").touch()
    path, option, given = source(name)
    assert path.endswith(f"ch_PP-OCRv4_{word}_infer.onnx") and option == "--shape"
    assert given == "x=" + ",".join(map(str, shape))


def test_without_the_package_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setattr("tt_bench.real.importlib.util.find_spec", lambda asked: None)
    with pytest.raises(BenchError, match="install it, or omit the model"):
        source("detector")
