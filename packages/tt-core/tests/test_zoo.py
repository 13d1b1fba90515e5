"""The zoo's models: published parameter counts, repeatable bytes, outputs that a comparison can rely on."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache

import numpy as np
import pytest
from tt_core import zoo

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

IMAGE_MODELS = tuple(name for name in zoo.NAMES if name != "bert-tiny")
PUBLISHED_PARAMETERS = {  # torchvision's model pages; google/bert_uncased_L-2_H-128_A-2 with its pooler
    "bert-tiny": 4_385_920,
    "mobilenet_v2": 3_504_872,
    "resnet18": 11_689_512,
    "squeezenet1_1": 1_235_496,
}

build = lru_cache(zoo.build)


def feeds(name: str, seed: int, batch: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    if name == "bert-tiny":
        mask = np.tile(np.arange(128) < 100, (batch, 1))
        return {"input_ids": rng.integers(0, 30522, (batch, 128)), "attention_mask": mask.astype("int64")}
    return {"input": rng.standard_normal((batch, 3, 224, 224), "float32")}


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def test_published_counts_cover_the_zoo():
    assert set(PUBLISHED_PARAMETERS) == set(zoo.NAMES)


def test_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"resnet19.*bert-tiny, mobilenet_v2, resnet18, squeezenet1_1"):
        zoo.build("resnet19")


def test_batch_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        zoo.build("resnet18", batch=0)


def test_importing_the_zoo_loads_neither_onnx_nor_tvm():
    code = "import sys, tt_core.zoo; print([m for m in ('onnx', 'tvm') if m in sys.modules])"
    path = {"PYTHONPATH": ":".join(p for p in sys.path if p)}
    run = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("name", zoo.NAMES)
def test_same_arguments_same_bytes(name):
    assert zoo.build(name).SerializeToString() == build(name).SerializeToString()


def test_seed_changes_the_weights_and_batch_does_not():
    def weights(**arguments):
        return [t.raw_data for t in zoo.build("squeezenet1_1", **arguments).graph.initializer]

    assert weights(batch=4) == weights()
    assert weights(seed=1) != weights()


@pytest.mark.parametrize("name", zoo.NAMES)
def test_checker_passes_with_shape_inference(name):
    onnx.checker.check_model(build(name), full_check=True)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_parameter_count_is_the_published_one(name):
    tensors = [t for t in build(name).graph.initializer if t.name.endswith((".weight", ".bias"))]
    assert sum(int(np.prod(t.dims)) for t in tensors) == PUBLISHED_PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("resnet18", {"Conv": 20, "BatchNormalization": 20, "Relu": 17, "MaxPool": 1, "Add": 8, "Gemm": 1}),
        ("mobilenet_v2", {"Conv": 52, "BatchNormalization": 52, "Clip": 35, "Add": 10, "Gemm": 1}),
        ("squeezenet1_1", {"Conv": 26, "Relu": 26, "MaxPool": 3, "Concat": 8, "GlobalAveragePool": 1}),
        ("bert-tiny", {"MatMul": 16, "Softmax": 2, "LayerNormalization": 5, "Erf": 2, "Tanh": 1, "Gemm": 1}),
    ],
)
def test_node_counts_are_the_architecture(name, counts):
    kinds = [node.op_type for node in build(name).graph.node]
    assert {kind: kinds.count(kind) for kind in counts} == counts


@pytest.mark.parametrize("name", zoo.NAMES)
def test_outputs_mean_something(name):
    """Finite, of the declared shape, spread over classes, and moved by the input well above rounding."""
    run = session(build(name))
    shapes = {"logits": (1, 1000), "last_hidden_state": (1, 128, 128), "pooler_output": (1, 128)}
    outputs = [o.name for o in run.get_outputs()]
    assert outputs == (["logits"] if name in IMAGE_MODELS else ["last_hidden_state", "pooler_output"])
    for output, one, other in zip(outputs, *(run.run(None, feeds(name, s)) for s in (1, 2)), strict=True):
        assert one.shape == shapes[output]
        assert np.isfinite(one).all()
        assert 0.1 < one.std() < 10
        assert np.abs(one).max() < 100
        assert len(np.unique(one)) > 0.9 * one.size  # not clamped to 0 (ReLU) or 1 (tanh)
        assert (one - other).std() > 0.1 * one.std()


def test_padding_is_masked_out():
    run = session(build("bert-tiny"))
    inputs = feeds("bert-tiny", 1)
    hidden, pooled = run.run(None, inputs)
    inputs["input_ids"][:, 100:] = 7
    masked_hidden, masked_pooled = run.run(None, inputs)
    np.testing.assert_allclose(masked_hidden[:, :100], hidden[:, :100], atol=1e-5)
    np.testing.assert_allclose(masked_pooled, pooled, atol=1e-5)
    inputs["attention_mask"][:] = 1
    assert np.abs(run.run(None, inputs)[1] - pooled).max() > 1e-2


@pytest.mark.parametrize("name", ["bert-tiny", "squeezenet1_1"])
def test_a_batch_is_its_rows(name):
    inputs = feeds(name, 3, batch=2)
    both = session(build(name, batch=2)).run(None, inputs)
    second = session(build(name)).run(None, {key: value[1:] for key, value in inputs.items()})
    for rows, row in zip(both, second, strict=True):
        np.testing.assert_allclose(rows[1:], row, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_imports_into_relax(name):
    pytest.importorskip("tvm")
    from tvm.relax.frontend.onnx import from_onnx

    main = from_onnx(build(name))["main"]
    assert [p.name for p in main.params] == list(feeds(name, 0))
    shape = {"bert-tiny": (1, 128), **dict.fromkeys(IMAGE_MODELS, (1, 3, 224, 224))}[name]
    assert tuple(int(n) for n in main.params[0].ty.shape) == shape
