"""Rewritten operators compute what onnxruntime computes, and a model without any is not touched."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tt_core import models, target
from tt_core.compiler.lower import lower
from tt_core.deploy.library import compile_library
from tt_core.errors import ModelError
from tt_core.models import rewrites
from tt_core.models.rewrites import whole
from tt_core_fakes import with_space
from tvm import relax

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, defs, helper, numpy_helper  # noqa: E402

CPU = {"kind": "llvm", "mcpu": "skylake", "num-cores": 2}
PLUGINS = with_space()
FLOAT, INT8, UINT8, INT64 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT64
RNG = np.random.default_rng(0)


def model(nodes, inputs, outputs, weights, opset=17):
    """An ONNX model; inputs are (name, type, shape), outputs (name, type, rank)."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(n, t, [f"{n}{d}" for d in range(rank)]) for n, t, rank in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def computed(source, inputs, **options):
    """What tt compiles and what onnxruntime computes, output by output."""
    found = models.load(source, plugins=PLUGINS, **options)
    library = compile_library(lower(found.mod, target.resolve("native"), PLUGINS, "fake"), {}, PLUGINS)
    vm = relax.VirtualMachine(library, tvm.cpu())
    out = vm["main"](*(tvm.runtime.tensor(inputs[i.name]) for i in found.inputs))
    got = [out.numpy()] if hasattr(out, "numpy") else [o.numpy() for o in out]
    return list(zip(got, found.peer.run({i.name: inputs[i.name] for i in found.inputs})[-1], strict=True))


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def recurrent(
    op, gates, *, direction="forward", states=1, lens=None, layout=0, peep=False, bias=True, steps=4, **attributes
):
    batch, size, hidden, d = 2, 3, 5, 2 if direction == "bidirectional" else 1
    weights = {"W": normal(d, gates * hidden, size), "R": normal(d, gates * hidden, hidden)}
    names = ["X", "W", "R", "", "", "", ""]
    if bias:
        weights["B"], names[3] = normal(d, 2 * gates * hidden), "B"
    if lens is not None:
        weights["L"], names[4] = np.array(lens, np.int32), "L"
    shape = (steps, batch, size) if not layout else (batch, steps, size)
    inputs = [("X", FLOAT, shape)]
    for i in range(states):
        names[5 + i] = f"S{i}"
        inputs.append((f"S{i}", FLOAT, (d, batch, hidden) if not layout else (batch, d, hidden)))
    if peep:
        weights["P"] = normal(d, 3 * hidden)
        names.append("P")
    while not names[-1]:
        names.pop()
    outs = ["Y", "Y_h", "Y_c"][: 3 if op == "LSTM" else 2]
    node = helper.make_node(op, names, outs, hidden_size=hidden, direction=direction, layout=layout, **attributes)
    ranks = [("Y", FLOAT, 4), ("Y_h", FLOAT, 3), ("Y_c", FLOAT, 3)]
    return model([node], inputs, ranks[: len(outs)], weights), {n: normal(*s) for n, _, s in inputs}


CELLS = {
    "lstm": ("LSTM", 4, {"states": 2}),
    "lstm reverse, no bias": ("LSTM", 4, {"direction": "reverse", "states": 0, "bias": False}),
    "lstm both, peepholes": ("LSTM", 4, {"direction": "bidirectional", "states": 2, "peep": True}),
    "lstm lengths": ("LSTM", 4, {"lens": [2, 4], "direction": "bidirectional"}),
    "lstm clip": ("LSTM", 4, {"clip": 0.5}),
    "lstm activations": ("LSTM", 4, {"activations": ["HardSigmoid", "Softsign", "Relu"]}),
    "gru": ("GRU", 3, {}),
    "gru reset after": ("GRU", 3, {"linear_before_reset": 1, "direction": "bidirectional"}),
    "gru lengths": ("GRU", 3, {"lens": [1, 3], "direction": "reverse"}),
    "rnn": ("RNN", 1, {"direction": "bidirectional"}),
    "rnn leaky": ("RNN", 1, {"activations": ["LeakyRelu"], "activation_alpha": [0.3]}),
    "rnn affine": ("RNN", 1, {"activations": ["Affine"], "activation_alpha": [0.3], "activation_beta": [0.1]}),
}


@pytest.mark.parametrize("steps", [4, 7])
@pytest.mark.parametrize("name", CELLS)
def test_a_recurrent_operator_computes_what_onnxruntime_does(name, steps):
    op, gates, options = CELLS[name]
    source, inputs = recurrent(op, gates, steps=steps, **options)
    for got, want in computed(source, inputs):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)


def test_the_steps_of_an_lstm_share_their_functions():
    source, _ = recurrent("LSTM", 4, states=2)
    found = models.load(source, plugins=PLUGINS)
    tasks = lower(found.mod, target.resolve(CPU), PLUGINS, "fake").tasks
    assert max(t.weight for t in tasks if t.op == "matmul") >= 3
    assert sum(t.op == "matmul" for t in tasks) <= 3


@pytest.mark.slow
def test_a_long_series_is_one_loop_whose_step_is_a_task():
    source, inputs = recurrent("LSTM", 4, states=2, direction="bidirectional", steps=1000)
    found = models.load(source, plugins=PLUGINS)
    lowered = lower(found.mod, target.resolve(CPU), PLUGINS, "fake")
    assert sorted(t.weight for t in lowered.tasks if t.name.startswith("step")) in ([1000, 1000], [2000])
    assert len(lowered.tasks) < 12
    for got, want in computed(source, inputs):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def body(name, nodes, inputs, outputs):
    infos = [[helper.make_tensor_value_info(n, t, shape) for n, t, shape in side] for side in (inputs, outputs)]
    return helper.make_graph(nodes, name, *infos)


def long_loop(trips, stops=False):
    """A running mean and the number of the step; it may stop when the number passes 40."""
    node = helper.make_node
    nodes = [
        node("Cast", ["i"], ["fi"], to=FLOAT),
        node("Mul", ["s", "half"], ["s_half"]),
        node("Add", ["s_half", "x"], ["moved"]),
        node("Add", ["moved", "fi"], ["s_out"]),
        node("Add", ["n", "one"], ["n_out"]),
        node("ReduceSum", ["s_out"], ["total"], keepdims=0),
        node("Less", ["n_out", "forty"], ["go"]) if stops else helper.make_node("Identity", ["c"], ["go"]),
    ]
    BOOL = TensorProto.BOOL
    inside = body(
        "step",
        nodes,
        [("i", INT64, []), ("c", BOOL, []), ("s", FLOAT, [2, 3]), ("n", FLOAT, [])],
        [("go", BOOL, []), ("s_out", FLOAT, [2, 3]), ("n_out", FLOAT, []), ("total", FLOAT, [])],
    )
    scalar = {"half": np.float32(0.5), "one": np.float32(1), "zero": np.float32(0), "forty": np.float32(40)}
    weights = scalar | {"trips": np.array(trips, np.int64), "yes": np.array(True)}
    loop = node("Loop", ["trips", "yes", "x", "zero"], ["last", "count", "totals"], body=inside)
    outputs = [("last", FLOAT, 2), ("count", FLOAT, 0), ("totals", FLOAT, 1)]
    return model([loop], [("x", FLOAT, (2, 3))], outputs, weights)


@pytest.mark.parametrize(
    ("trips", "stops"), [(5, False), (100, False), pytest.param(100, True, marks=pytest.mark.slow)]
)
def test_a_loop_computes_what_onnxruntime_does(trips, stops):
    source = long_loop(trips, stops)
    for got, want in computed(source, {"x": normal(2, 3)}):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    tasks = lower(models.load(source, plugins=PLUGINS).mod, target.resolve(CPU), PLUGINS, "fake").tasks
    assert any(t.weight == 100 for t in tasks) == (trips == 100 and not stops)


@pytest.mark.parametrize("reads", [True, False])
def test_a_long_loop_that_does_not_read_its_counter_or_its_state(reads):
    """TVM drops parameters that a function does not read; the loop must not pass them."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["s" if reads else "x", "w"], ["m"]),
        node("Tanh", ["m"], ["s_out"]),
        helper.make_node("Identity", ["c"], ["go"]),
    ]
    inside = body(
        "step",
        nodes,
        [("i", INT64, []), ("c", TensorProto.BOOL, []), ("s", FLOAT, [1, 6])],
        [("go", TensorProto.BOOL, []), ("s_out", FLOAT, [1, 6])],
    )
    weights = {"trips": np.array(50, np.int64), "yes": np.array(True), "w": normal(6, 6)}
    source = model(
        [node("Loop", ["trips", "yes", "x"], ["y"], body=inside)], [("x", FLOAT, (1, 6))], [("y", FLOAT, 2)], weights
    )
    for got, want in computed(source, {"x": normal(1, 6)}):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("back", [0, 1])
def test_a_long_scan_computes_what_onnxruntime_does(axis, back):
    node = helper.make_node
    nodes = [
        node("MatMul", ["s", "w"], ["sw"]),
        node("Add", ["sw", "x"], ["a"]),
        node("Tanh", ["a"], ["s_out"]),
        node("Mul", ["s_out", "k"], ["y"]),
    ]
    inside = body(
        "step",
        nodes,
        [("s", FLOAT, [2, 3]), ("x", FLOAT, [2, 3]), ("k", FLOAT, [])],
        [("s_out", FLOAT, [2, 3]), ("y", FLOAT, [2, 3])],
    )
    directions = {"scan_input_directions": [back, 0], "scan_output_directions": [1 - back]}
    axes = {"scan_input_axes": [axis, 0], "scan_output_axes": [axis]}
    scan = node("Scan", ["first", "xs", "ks"], ["last", "ys"], body=inside, num_scan_inputs=2, **directions, **axes)
    shape = (50, 2, 3) if axis == 0 else (2, 50, 3)
    inputs = [("first", FLOAT, (2, 3)), ("xs", FLOAT, shape), ("ks", FLOAT, (50,))]
    source = model([scan], inputs, [("last", FLOAT, 2), ("ys", FLOAT, 3)], {"w": normal(3, 3)})
    for got, want in computed(source, {n: normal(*s) for n, _, s in inputs}):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    tasks = lower(models.load(source, plugins=PLUGINS).mod, target.resolve(CPU), PLUGINS, "fake").tasks
    assert any(t.weight == 50 for t in tasks)


def quantised(op, names, weights, out=UINT8, rank=2, domain="", inputs=(("x", UINT8, (4, 6)),), **attributes):
    return model([helper.make_node(op, names, ["y"], domain=domain, **attributes)], inputs, [("y", out, rank)], weights)


SCALES = {"xs": np.float32(0.1), "xz": np.uint8(7), "ys": np.float32(0.3), "yz": np.uint8(9)}
INTEGERS = {
    "ConvInteger": lambda: quantised(
        "ConvInteger",
        ["x", "w", "xz", "wz"],
        {"w": ints(4, 3, 3, 3), **SCALES, "wz": np.int8(3)},
        TensorProto.INT32,
        4,
        inputs=(("x", UINT8, (1, 3, 8, 8)),),
        pads=[1, 1, 1, 1],
    ),
    "QLinearConv": lambda: quantised(
        "QLinearConv",
        ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"],
        {
            **SCALES,
            "w": ints(4, 3, 3, 3) // 2,
            "ws": np.abs(normal(4)) / 100,
            "wz": np.zeros(4, np.int8),
            "b": np.arange(4, dtype=np.int32) * 100,
        },
        UINT8,
        4,
        inputs=(("x", UINT8, (1, 3, 8, 8)),),
        pads=[1, 1, 1, 1],
    ),
    "QLinearMatMul": lambda: quantised(
        "QLinearMatMul",
        ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"],
        {**SCALES, "w": ints(6, 5) // 2, "ws": np.float32(0.02), "wz": np.int8(-2)},
    ),
    "QLinearAdd": lambda: quantised(
        "QLinearAdd",
        ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"],
        {**SCALES, "w": (ints(6).astype(int) + 128).astype(np.uint8), "ws": np.float32(0.02), "wz": np.uint8(5)},
        domain="com.microsoft",
    ),
}


def ints(*shape):
    return RNG.integers(-128, 128, shape).astype(np.int8)


@pytest.mark.parametrize("op", INTEGERS)
def test_an_integer_operator_is_exact(op):
    source = INTEGERS[op]()
    shape = [d.dim_value for d in source.graph.input[0].type.tensor_type.shape.dim]
    for got, want in computed(source, {"x": RNG.integers(0, 256, shape).astype(np.uint8)}):
        np.testing.assert_array_equal(got, want)


def long_sum(kind, terms):
    """Sums of 255 * 127 each, which float32 does not hold beyond 518 terms; and what stands for their operands."""
    if kind == "ConvInteger":
        names, weights = ["x", "w"], {"w": np.full((3, terms // 9, 3, 3), 127, np.int8)}
        shapes = {"x": (1, terms // 9, 4, 5)}
    else:
        names, weights = ["x", "w"], {"w": np.full((terms, 3), 127, np.int8)}
        shapes = {"x": (2, terms)}
    inputs = [("x", UINT8, shapes["x"])]
    if kind == "both unknown":
        inputs, shapes["w"] = [*inputs, ("w", INT8, (terms, 3))], (terms, 3)
        weights = {}
    op = "ConvInteger" if kind == "ConvInteger" else "MatMulInteger"
    source = model([helper.make_node(op, names, ["y"])], inputs, [("y", TensorProto.INT32, len(shapes["x"]))], weights)
    given = {"x": np.full(shapes["x"], 255, np.uint8), "w": np.full((terms, 3), 127, np.int8)}
    given["x"][..., -1, 0] = 254  # odd sums: the last place counts
    return source, {n: given[n] for n in shapes}


@pytest.mark.parametrize(
    ("kind", "terms", "products"),
    [
        ("ConvInteger", 450, 1),
        ("ConvInteger", 4608, 9),
        ("MatMulInteger", 518, 1),
        ("MatMulInteger", 519, 2),
        ("both unknown", 1028, 2),
        ("MatMulInteger", 20_000, 0),
    ],
)
def test_integer_sums_are_exact_in_float32_or_cut_until_they_are(kind, terms, products):
    source, inputs = long_sum(kind, terms)
    text = models.load(source, plugins=PLUGINS).mod["main"].script()
    made = re.findall(r'Tensor\([^=]*dtype="(\w+)"\) = R\.(?:nn\.conv2d|matmul)\(', text)
    assert made == (["float32"] * products or ["int32"])
    for got, want in computed(source, inputs):
        np.testing.assert_array_equal(got, want)


@settings(deadline=None, max_examples=200)
@given(
    weights=st.lists(st.integers(-128, 127), min_size=1, max_size=9),
    zero=st.none() | st.integers(0, 255),
    limit=st.integers(1, 200_000),
)
def test_no_part_of_a_sum_that_is_called_exact_is_too_large(weights, zero, limit):
    w = np.array(weights, np.int32).reshape(-1, 1)
    source = model([helper.make_node("Identity", ["x"], ["y"])], [("x", UINT8, (1, len(w)))], [("y", UINT8, 2)], {})
    graph = rewrites.Graph(source, {}, frozenset())
    most = 255 if zero is None else max(zero, 255 - zero)
    a, b = whole.Whole("x", most, 255), whole.Whole(graph.const(w), 128, 255)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole, "LARGEST", limit)
        said = whole._exact(a, b, [len(w)], 0, (0,), graph)
    largest = 0  # over all zero points, values and parts of the sum: all terms of one sign
    for z in range(256) if zero is None else [zero]:
        reach = np.stack([w[:, 0] * -z, w[:, 0] * (255 - z)])
        largest = max(largest, int(reach.max(0).clip(0).sum()), int(-reach.min(0).clip(None, 0).sum()))
    assert not said or largest <= limit
    assert said or largest > limit or (zero is not None and limit < 2 * largest), "needlessly careful"


def test_a_product_behind_dequantised_operands_is_computed_in_integers():
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "xs", "xz"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["f"], axis=1),
        helper.make_node("MatMul", ["d", "f"], ["y"]),
    ]
    weights = {**SCALES, "w": ints(6, 5), "ws": np.abs(normal(5))}
    source = model(nodes, [("x", FLOAT, (4, 6))], [("y", FLOAT, 2)], weights)
    assert 'dtype="int32"' in models.load(source, plugins=PLUGINS).mod["main"].script()
    for got, want in computed(source, {"x": normal(4, 6)}):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


MICROSOFT = {
    "FusedMatMul": (["x", "w"], {"w": (5, 8)}, {"transB": 1, "alpha": 0.5}),
    "QuickGelu": (["x"], {}, {"alpha": 1.5}),
    "BiasGelu": (["x", "w"], {"w": (8,)}, {}),
    "FastGelu": (["x", "w"], {"w": (8,)}, {}),
    "SkipLayerNormalization": (["x", "s", "w", "b"], {"s": (2, 4, 8), "w": (8,), "b": (8,)}, {"epsilon": 1e-5}),
    "Attention": (["x", "w", "b"], {"w": (8, 24), "b": (24,)}, {"num_heads": 2, "unidirectional": 1}),
    "MultiHeadAttention": (["x", "k", "v"], {"k": (2, 6, 8), "v": (2, 6, 8)}, {"num_heads": 2}),
}


@pytest.mark.parametrize("op", MICROSOFT)
def test_an_operator_of_onnxruntime_computes_what_it_does(op):
    names, shapes, attributes = MICROSOFT[op]
    node = helper.make_node(op, names, ["y"], domain="com.microsoft", **attributes)
    source = model([node], [("x", FLOAT, (2, 4, 8))], [("y", FLOAT, 3)], {n: normal(*s) for n, s in shapes.items()})
    for got, want in computed(source, {"x": normal(2, 4, 8)}):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("sides", ["A", "B", "AB"])
def test_a_product_whose_batch_stands_behind_the_rows(sides, turned):
    """transBatch of FusedMatMul: (rows, batch, ...) instead of (batch, rows, ...), and trans with it."""
    shapes = {"A": [3, 4, 8], "B": [3, 8, 5]}
    for side in shapes:
        if turned:
            shapes[side][1:] = shapes[side][:0:-1]
        if side in sides:
            shapes[side][:2] = shapes[side][1::-1]
    options = {f"transBatch{side}": 1 for side in sides} | {"transA": turned, "transB": turned}
    node = helper.make_node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft", **options)
    source = model([node], [("x", FLOAT, shapes["A"])], [("y", FLOAT, 3)], {"w": normal(*shapes["B"])})
    for got, want in computed(source, {"x": normal(*shapes["A"])}):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_few_bits(bits):
    k, n, block = 32, 6, 16
    packed = RNG.integers(0, 256, (n, k // block, block * bits // 8)).astype(np.uint8)
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=k, N=n, bits=bits, block_size=block
    )
    weights = {"w": packed, "s": normal(n, k // block)}
    source = model([node], [("x", FLOAT, (3, k))], [("y", FLOAT, 2)], weights)
    for got, want in computed(source, {"x": normal(3, k)}):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-2)


def test_a_short_time_fourier_transform():
    window = np.hanning(16).astype(np.float32)
    node = helper.make_node("STFT", ["x", "step", "window"], ["y"])
    source = model([node], [("x", FLOAT, (1, 128, 1))], [("y", FLOAT, 4)], {"step": np.int64(8), "window": window})
    for got, want in computed(source, {"x": normal(1, 128, 1)}):
        np.testing.assert_allclose(got, want, atol=2e-5)


# -- control flow and --fix -------------------------------------------------------------------------------------------


RESIZED = {
    "some axes": ({"axes": [3, 2]}, {"scales": np.float32([3, 2])}, (1, 2, 8, 15)),
    "sizes of some axes": ({"axes": [2, 3]}, {"sizes": np.int64([9, 10])}, (1, 2, 9, 10)),
    "not larger": (
        {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
        {"sizes": np.int64([8, 20])},
        (1, 2, 8, 10),
    ),
    "not smaller": (
        {"axes": [2, 3], "keep_aspect_ratio_policy": "not_smaller"},
        {"sizes": np.int64([8, 5])},
        (1, 2, 8, 10),
    ),
    "antialias, larger": ({"antialias": 1, "mode": "linear"}, {"scales": np.float32([1, 1, 2, 2])}, (1, 2, 8, 10)),
}


def resized(attributes, given):
    """A Resize of opset 19, its scales or sizes constants."""
    names = ["x", "", *(name if name in given else "" for name in ("scales", "sizes"))]
    node = helper.make_node("Resize", names, ["y"], **{"mode": "nearest", **attributes})
    return model([node], [("x", FLOAT, (1, 2, 4, 5))], [("y", FLOAT, 4)], given, opset=19)


@pytest.mark.parametrize("name", RESIZED)
def test_a_resize_of_some_axes_computes_what_onnxruntime_does(name):
    *how, shape = RESIZED[name]
    for got, want in computed(resized(*how), {"x": normal(1, 2, 4, 5)}):
        assert got.shape == shape
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_a_resize_that_tvm_would_get_wrong_is_refused_by_name():
    source = resized({"antialias": 1, "mode": "linear"}, {"scales": np.float32([1, 1, 0.5, 0.6])})
    with pytest.raises(ModelError, match=r"at the Resize, node 0 .* without antialiasing.*tt split"):
        models.load(source, plugins=PLUGINS)


DEPTH = defs.get_schema("SpaceToDepth")


@pytest.mark.skipif("mode" not in DEPTH.attributes, reason="this onnx knows one order only")
@pytest.mark.parametrize("mode", ["CRD", "DCR"])
def test_space_to_depth_has_two_orders(mode):
    """Of an opset that onnxruntime may not know: the values are those of the standard's formula."""
    node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2, mode=mode)
    source = model([node], [("x", FLOAT, (1, 3, 4, 6))], [("y", FLOAT, 4)], {}, opset=DEPTH.since_version)
    x = normal(1, 3, 4, 6)
    lowered = lower(models.load(source, plugins=PLUGINS).mod, target.resolve("native"), PLUGINS, "fake")
    vm = relax.VirtualMachine(compile_library(lowered, {}, PLUGINS), tvm.cpu())
    parts = x.reshape(1, 3, 2, 2, 3, 2).transpose((0, 1, 3, 5, 2, 4) if mode == "CRD" else (0, 3, 5, 1, 2, 4))
    np.testing.assert_array_equal(vm["main"](tvm.runtime.tensor(x)).numpy(), parts.reshape(1, 12, 2, 3))


def branching(count=12):
    """`If` on an input, whose branches are too long to compute both."""

    def branch(op, name):
        nodes = [helper.make_node(op, ["x" if i == 0 else f"{name}{i - 1}", "x"], [f"{name}{i}"]) for i in range(count)]
        out = helper.make_tensor_value_info(f"{name}{count - 1}", FLOAT, [3])
        return helper.make_graph(nodes, name, [], [out])

    nodes = [
        helper.make_node("Equal", ["rate", "wanted"], ["is"]),
        helper.make_node("If", ["is"], ["y"], then_branch=branch("Add", "t"), else_branch=branch("Sub", "e")),
    ]
    inputs = [("x", FLOAT, [3]), ("rate", INT64, [])]
    return model(nodes, inputs, [("y", FLOAT, 1)], {"wanted": np.int64(16000)})


@pytest.mark.parametrize("rate", ["16000", "8000", 16000])
def test_a_fixed_input_chooses_the_branch_and_is_no_input_any_more(rate):
    found = models.load(branching(), plugins=PLUGINS, fix={"rate": rate})
    assert [i.name for i in found.inputs] == ["x"]
    for got, want in computed(branching(), {"x": normal(3)}, fix={"rate": rate}):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_branch_that_stays_open_names_its_condition_and_the_way_out():
    with pytest.raises(ModelError, match=r"at the If, node 1 .*'is'.*--fix") as e:
        models.load(branching(), plugins=PLUGINS)
    assert "\n" not in str(e.value)


def test_short_branches_are_both_computed_and_one_is_selected():
    for rate in (16000, 1):
        for got, want in computed(branching(2), {"x": normal(3), "rate": np.array(rate)}):
            np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize(
    ("fix", "says"),
    [
        ({"rat": "1"}, "did you mean 'rate'"),
        ({"rate": "a"}, "int64 numbers"),
        ({"rate": "1,2"}, "2 values"),
        ({"rate": "1.5"}, "int64"),
    ],
)
def test_a_value_that_does_not_fit_is_one_line(fix, says):
    with pytest.raises(ModelError, match=says) as e:
        models.load(branching(), plugins=PLUGINS, fix=fix)
    assert "\n" not in str(e.value)


def test_only_an_onnx_model_takes_values():
    with pytest.raises(ModelError, match="--fix x"):
        models.load("op:matmul:4,8,16", plugins=PLUGINS, fix={"x": "1"})


# -- models that need nothing -----------------------------------------------------------------------------------------

KEYS = {
    "bert-tiny": "9048b26f74b83455",
    "squeezenet1_1": "968f1e9bc87843da",
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": "8f74b1e59a1757a3",
}
"""Digests of the task keys of models whose ONNX needs no rewriting, since reshapes stand in the way of no fusion."""


@pytest.mark.together
@pytest.mark.parametrize("name", KEYS)
def test_a_model_that_needs_no_rewriting_keeps_its_task_keys(name):
    source, shapes = name, None
    if name.endswith(".onnx"):
        rapidocr = pytest.importorskip("rapidocr_onnxruntime")
        source, shapes = Path(rapidocr.__file__).parent / "models" / name, {"x": (1, 3, 48, 192)}
    found = models.load(source, shapes, plugins=PLUGINS)
    lowered = lower(found.mod, target.resolve(CPU), PLUGINS, "fake")
    keys = " ".join(sorted(t.key for t in lowered.tasks))
    assert hashlib.sha256(keys.encode()).hexdigest()[:16] == KEYS[name]
    assert not lowered.notes
