"""The zoo's models: published parameter counts, repeatable bytes, outputs that a comparison can rely on."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache

import numpy as np
import pytest
from tt_core.models import zoo

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
import onnx
import onnxruntime as ort

TEXT_MODELS = ("bert-tiny", "transformer-encoder")
IMAGE_MODELS = tuple(name for name in zoo.NAMES if name not in TEXT_MODELS)
LARGE = ("alexnet", "transformer-encoder", "vgg16")  # 240 to 550 MB of weights: built without them
SMALL = tuple(name for name in zoo.NAMES if name not in LARGE)
PUBLISHED_PARAMETERS = {  # torchvision's model pages; google/bert_uncased_L-2_H-128_A-2 with its pooler
    "alexnet": 61_100_840,
    "bert-tiny": 4_385_920,
    "inception_v2": 11_295_240 - 10_016,  # the published Caffe model's, less its convolutions' biases
    "mobilenet_v2": 3_504_872,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "squeezenet1_1": 1_235_496,
    # 12 layers of Devlin et al.'s BERT-base: 4 x (768^2 + 768) + 2 x 768 x 3072 + 3072 + 768 + 4 x 768 each
    "transformer-encoder": 12 * 7_087_872,
    "vgg16": 138_357_544,
}
MULTIPLY_ADDS = {"alexnet": 0.714e9, "resnet18": 1.814e9, "resnet50": 4.089e9, "vgg16": 15.470e9}  # torchvision's pages

build = lru_cache(zoo.build)


class Shapes(zoo.Graph):
    """A graph whose drawn weights have names and shapes and no values."""

    def constant(self, array, dtype="float32", name=None):
        if name is None:
            return super().constant(array, dtype)
        self.initializers.append(onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=array.shape))
        return zoo.Value(name, array.shape[-1])

    def _drawn(self, shape, std):
        return np.broadcast_to(np.float32(0), shape)

    def weight(self, name, shape, gain, center=True):
        return self.constant(self._drawn(shape, gain), name=name)


@lru_cache
def sketch(name: str, batch: int = 1) -> onnx.ModelProto:
    """The model without values, with the shape of every tensor."""
    graph = Shapes(np.random.default_rng(0))
    zoo.ARCHITECTURES[name](graph, batch)
    return onnx.shape_inference.infer_shapes(graph.model(name), check_type=True, strict_mode=True)


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
    with pytest.raises(ValueError, match=r"resnet19.*alexnet, bert-tiny, .*resnet18, resnet50, .*vgg16"):
        zoo.build("resnet19")


def test_batch_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        zoo.build("resnet18", batch=0)


def test_importing_the_zoo_loads_neither_onnx_nor_tvm():
    code = "import sys, tt_core.models.zoo; print([m for m in ('onnx', 'tvm') if m in sys.modules])"
    path = {"PYTHONPATH": ":".join(p for p in sys.path if p)}
    run = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("name", SMALL)
def test_same_arguments_same_bytes(name):
    assert zoo.build(name).SerializeToString() == build(name).SerializeToString()


def test_seed_changes_the_weights_and_batch_does_not():
    def weights(**arguments):
        return [t.raw_data for t in zoo.build("squeezenet1_1", **arguments).graph.initializer]

    assert weights(batch=4) == weights()
    assert weights(seed=1) != weights()


@pytest.mark.parametrize("name", SMALL)
def test_checker_passes_with_shape_inference(name):
    onnx.checker.check_model(build(name), full_check=True)


def test_a_model_without_values_has_the_shapes_of_the_model():
    def shapes(model):
        return [(t.name, tuple(t.dims)) for t in model.graph.initializer]

    for name in ("resnet18", "bert-tiny"):
        assert shapes(sketch(name)) == shapes(build(name))
        assert [n.op_type for n in sketch(name).graph.node] == [n.op_type for n in build(name).graph.node]


@pytest.mark.parametrize("name", zoo.NAMES)
def test_parameter_count_is_the_published_one(name):
    tensors = [t for t in sketch(name).graph.initializer if t.name.endswith((".weight", ".bias"))]
    assert sum(int(np.prod(t.dims)) for t in tensors) == PUBLISHED_PARAMETERS[name]


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_multiply_adds_are_the_published_ones(name):
    model = sketch(name)
    dims = {t.name: tuple(t.dims) for t in model.graph.initializer}
    values = [*model.graph.input, *model.graph.value_info, *model.graph.output]
    dims.update({v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in values})
    layers = [n for n in model.graph.node if n.op_type in ("Conv", "Gemm")]
    work = sum(np.prod(dims[n.output[0]], dtype=float) * np.prod(dims[n.input[1]][1:]) for n in layers)
    assert work == pytest.approx(MULTIPLY_ADDS[name], rel=2e-3)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_every_model_takes_a_batch(name):
    """Shapes are inferred and agree with the declared ones, of which the first dimension is the batch."""
    model = sketch(name, batch=3)
    for value in (*model.graph.input, *model.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_value == 3
    assert PUBLISHED_PARAMETERS[name] == sum(
        int(np.prod(t.dims)) for t in model.graph.initializer if t.name.endswith((".weight", ".bias"))
    )


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("resnet18", {"Conv": 20, "BatchNormalization": 20, "Relu": 17, "MaxPool": 1, "Add": 8, "Gemm": 1}),
        ("mobilenet_v2", {"Conv": 52, "BatchNormalization": 52, "Clip": 35, "Add": 10, "Gemm": 1}),
        ("squeezenet1_1", {"Conv": 26, "Relu": 26, "MaxPool": 3, "Concat": 8, "GlobalAveragePool": 1}),
        (
            "inception_v2",
            {"Conv": 69, "BatchNormalization": 69, "AveragePool": 7, "MaxPool": 5, "Concat": 10, "Gemm": 1},
        ),
        ("resnet50", {"Conv": 53, "BatchNormalization": 53, "Relu": 49, "MaxPool": 1, "Add": 16, "Gemm": 1}),
        ("vgg16", {"Conv": 13, "Relu": 15, "MaxPool": 5, "Gemm": 3}),
        ("alexnet", {"Conv": 5, "Relu": 7, "MaxPool": 3, "Gemm": 3}),
        ("transformer-encoder", {"MatMul": 96, "Softmax": 12, "LayerNormalization": 24, "Erf": 12}),
        ("bert-tiny", {"MatMul": 16, "Softmax": 2, "LayerNormalization": 5, "Erf": 2, "Tanh": 1, "Gemm": 1}),
    ],
)
def test_node_counts_are_the_architecture(name, counts):
    kinds = [node.op_type for node in sketch(name).graph.node]
    assert {kind: kinds.count(kind) for kind in counts} == counts


@pytest.mark.parametrize("name", (*SMALL, pytest.param("alexnet", marks=pytest.mark.slow)))
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


@pytest.mark.parametrize("name", SMALL)
def test_imports_into_relax(name):
    pytest.importorskip("tvm")
    from tvm.relax.frontend.onnx import from_onnx

    main = from_onnx(build(name))["main"]
    assert [p.name for p in main.params] == list(feeds(name, 0))
    shape = {"bert-tiny": (1, 128), **dict.fromkeys(IMAGE_MODELS, (1, 3, 224, 224))}[name]
    assert tuple(int(n) for n in main.params[0].ty.shape) == shape
