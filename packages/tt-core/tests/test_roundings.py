"""What roundings make of the last places of floats is measured in onnxruntime, and a wrong kernel is still found."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tt_core import models, target
from tt_core.compiler.arrays import compare
from tt_core.compiler.lower import lower
from tt_core.compiler.primfunc import rounds
from tt_core.deploy.nudging import Nudged
from tt_core.deploy.verification import MODEL_TOLERANCE, verify, wanted
from tt_core.errors import VerificationError
from tt_core.models.model import Model, Peer, Roundings
from tt_core.models.rewrites import integer
from tt_core.models.sources import onnx_peer
from tt_core.models.sources.roundings import PHASE, SIZE, nudged
from tt_core_fakes import with_space
from tt_core_quantised import by_onnxruntime, deep, image
from tt_core_running import outputs
from tvm import te

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

pytestmark = pytest.mark.slow
PLUGINS = with_space()


@pytest.fixture(scope="module")
def quantised(tmp_path_factory):
    return {kind: by_onnxruntime(deep(), tmp_path_factory.mktemp(kind), kind) for kind in ("dynamic", "qdq")}


@pytest.mark.parametrize("kind", ["dynamic", "qdq"])
def test_a_quantised_model_agrees_as_far_as_its_own_roundings_carry(quantised, kind):
    model = models.load(quantised[kind], plugins=PLUGINS)
    got = outputs(model, image(), PLUGINS)
    assert set(verify(wanted(model, image(), got), got)) == {"the untuned program", "onnxruntime"}


MISTAKES = {
    "no zero point": ("_centred", lambda real: lambda q, g, axis=None: g.cast(q.values, np.int32)),
    "a zero point off by one": ("_centred", lambda real: lambda *a: a[1].op("Add", real(*a), np.int32(1))),
    "saturated sums": ("convolved", lambda real: lambda *a: clipped(real(*a), a[-1])),
    "truncated sums": ("convolved", lambda real: lambda *a: coarse(real(*a), a[-1])),
    "a scale 2 % off": ("convolved", lambda real: lambda *a: scaled(real(*a), a[-1])),
}
"""What of `integer` is replaced, and by what."""


def clipped(x, g):
    return g.cast(g.op("Clip", g.cast(x, np.float32), np.float32(-(2**13)), np.float32(2**13)), np.int32)


def coarse(x, g):
    return g.op("Mul", g.op("Div", x, np.int32(1024)), np.int32(1024))


def scaled(x, g):
    return g.cast(g.op("Mul", g.cast(x, np.float32), np.float32(1.02)), np.int32)


@pytest.mark.parametrize("kind", ["dynamic", "qdq"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_kernel_of_a_quantised_model_is_found(quantised, kind, mistake, monkeypatch):
    name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(integer, name, wrong(getattr(integer, name)))
    model = models.load(quantised[kind], plugins=PLUGINS)
    got = outputs(model, image(), PLUGINS)
    with pytest.raises(VerificationError, match="onnxruntime"):
        verify(wanted(model, image(), got), got)


@pytest.mark.parametrize(("kind", "functions"), [("dynamic", 16), ("qdq", 8)])
def test_what_quantises_is_computed_in_the_layout_of_the_convolutions_and_fused_with_them(quantised, kind, functions):
    lowered = lower(models.load(quantised[kind], plugins=PLUGINS).mod, target.resolve("native"), PLUGINS, "fake")
    names = [t.name for t in lowered.tasks]
    assert sum("transpose" in n for n in names) == 1, "the image comes"
    assert len(names) <= functions and not any("isfinite" in n for n in names)
    for name in names:
        assert "conv2d" not in name or "relu" in name or "round" in name, "its tail is fused with it"
    convolutions = sorted(t.weight for t in lowered.tasks if t.op == "conv2d")
    assert convolutions == ([1, 5] if kind == "dynamic" else [1, 1, 4]), "scales make no task of their own"


def session(model):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("kind", ["dynamic", "qdq"])
def test_a_nudge_of_nothing_changes_nothing_and_a_large_one_does(quantised, kind):
    of = nudged(quantised[kind])
    assert of is not None and of.outputs == {0}
    (want,) = session(quantised[kind]).run(None, image())

    def at(size: float) -> np.ndarray:
        sizes = {SIZE: np.array(size, "float32"), PHASE: np.array(1, "float32")}
        return session(of.model).run(None, image() | sizes)[0]

    np.testing.assert_array_equal(at(0.0), want)
    assert not np.array_equal(at(0.1), want)


def test_a_model_that_rounds_nothing_is_not_nudged():
    assert nudged(deep()) is None
    assert models.load(deep(), plugins=PLUGINS).peer.roundings is None


def linear(rounded: bool):
    """QLinearConv of bytes, exact throughout; with `rounded` an addition whose floats each program rounds itself."""
    weights = {
        "s": np.array(0.02, "float32"),
        "z": np.array(128, "uint8"),
        "w": np.random.default_rng(0).integers(0, 255, (4, 4, 3, 3)).astype("uint8"),
    }
    node = helper.make_node("QLinearConv", ["x", "s", "z", "w", "s", "z", "s", "z"], ["y"], pads=[1, 1, 1, 1])
    nodes = [node]
    if rounded:
        node.output[0] = "c"
        inputs = ["c", "s", "z", "c", "s", "z", "s", "z"]
        nodes.append(helper.make_node("QLinearAdd", inputs, ["y"], domain="com.microsoft"))
    graph = helper.make_graph(
        nodes,
        "bytes",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 4, 9, 9])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, [1, 4, 9, 9])],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def test_integers_are_exact_where_nothing_before_them_is_float():
    model = models.load(linear(False), plugins=PLUGINS)
    assert model.peer.roundings is None and model.inputs[0].below == 256
    x = {"x": np.random.default_rng(2).integers(0, 256, (1, 4, 9, 9)).astype("uint8")}
    got = outputs(model, x, PLUGINS)
    assert verify(wanted(model, x, got), got)["onnxruntime"] == "equal"
    got[0][0, 0, 0, 0] ^= 1
    with pytest.raises(VerificationError, match="1 of 324 values differ"):
        verify(wanted(model, x, got), got)


def test_integers_behind_a_rounding_may_miss_by_a_step_in_one_place():
    model = models.load(linear(True), plugins=PLUGINS)
    assert model.peer.roundings.outputs == {0}
    x = {"x": np.random.default_rng(2).integers(0, 256, (1, 4, 9, 9)).astype("uint8")}
    (want,) = model.peer.run(x)[-1]
    near = np.argmin(np.abs(want.astype(int) - 128))  # not at an end
    one, two = want.copy(), want.copy()
    one.flat[near] += 1
    two.flat[near] += 2
    assert set(verify(wanted(model, x, [one]), [one])) == {"the untuned program", "onnxruntime"}
    with pytest.raises(VerificationError, match="by 2 at most"):
        verify(wanted(model, x, [two]), [two])


def fake(plain: np.ndarray, *draws: np.ndarray) -> Model:
    roundings = Roundings(frozenset({0}), lambda inputs: [[d] for d in draws])
    return Model("m", None, (), ("y",), Peer("onnxruntime", lambda inputs: [[plain], [plain]], roundings))


def test_what_is_allowed_follows_the_draws_in_the_worst_value_and_on_average():
    want = np.ones(100, "float32")
    moved = want.copy()
    moved[0] += 0.02
    model = fake(want, want, moved)
    good = want.copy()
    good[7] += 0.025  # one value, elsewhere
    assert "3.0e-03 on average" in verify(wanted(model, {}, [want]), [good])["onnxruntime"]
    for bad in (want + np.float32(0.02), np.where(np.arange(100) == 7, 1.04, want).astype("float32")):
        with pytest.raises(VerificationError, match=r"onnxruntime|untuned"):
            verify(wanted(model, {}, [bad]), [bad])
    with pytest.raises(VerificationError, match=f"{MODEL_TOLERANCE:.1e}"):
        verify(wanted(fake(want, want), {}, [want]), [want * np.float32(1.002)])


def test_a_reference_that_cannot_be_nudged_says_so_and_allows_no_more():
    def fails(inputs):
        raise RuntimeError("no kernel")

    want, said = np.ones(4, "float32"), []
    peer = Peer("onnxruntime", lambda inputs: [[want], [want]], Roundings(frozenset({0}), fails))
    model = Model("m", None, (), ("y",), peer)
    verify(wanted(model, {}, [want], said.append), [want])
    assert said == ["onnxruntime cannot say what the model's roundings do: RuntimeError: no kernel"]
    with pytest.raises(VerificationError):
        verify(wanted(model, {}, [want]), [want * np.float32(1.01)])


def test_without_onnxruntime_nothing_is_measured(quantised, monkeypatch):
    monkeypatch.setattr(onnx_peer, "_installed", lambda: None)
    model = models.load(quantised["qdq"], plugins=PLUGINS)
    assert model.peer.run(image()) == [] and model.peer.roundings.run(image()) == []


def test_a_program_that_rounds_to_bytes_may_miss_by_one_in_one_of_a_thousand():
    want = np.full(2000, 100, "uint8")
    got = want.copy()
    got[:2] += 1
    assert compare(got, want) and compare(got, want, rounded=True) is None
    got[2] += 1
    assert compare(got, want, rounded=True) == "3 of 2000 values differ"
    got[:] = want
    got[0] += 2
    assert compare(got, want, rounded=True) == "1 of 2000 values differ"
    assert compare(got.astype("int32"), (got + 1).astype("int32"), rounded=True)


def casting(dtype: str) -> tvm.tirx.PrimFunc:
    x = te.placeholder((8,), dtype, name="x")
    return te.create_prim_func([x, te.compute((8,), lambda i: x[i].astype("uint8"), name="y")])


def test_only_casts_of_floats_to_bytes_are_roundings():
    assert rounds(casting("float32")) and not rounds(casting("int32"))


def test_outputs_that_are_missing_or_that_nudging_does_not_explain_are_named():
    want = np.ones(4, "float32")
    model = Model("m", None, (), ("y", "z"), None)
    with pytest.raises(VerificationError, match=r"has 1 outputs, the untuned program has 2"):
        verify(wanted(model, {}, [want, want]), [want])
    still = Nudged([want, want], lambda seeds: [[want, want] for _ in seeds])
    verify(wanted(model, {}, [want, want]), [want, want], still)
    off = want + np.float32(MODEL_TOLERANCE / 2)  # within the bound, but nothing explains it
    with pytest.raises(VerificationError, match=r"output 'z' of m does not match the untuned program"):
        verify(wanted(model, {}, [want, want]), [want, off], still)


def test_a_model_is_nudged_until_that_explains_a_difference_and_eight_times_at_most():
    want, asked = np.ones(4, "float32"), []

    def run(seeds):
        asked.extend(seeds)
        return [[want + np.float32(1e-4 if seed == 2 else 0)] for seed in seeds]

    nudged = Nudged([want], run)
    assert nudged.fault(0, want) is None and asked == [0]
    assert nudged.fault(0, want + np.float32(1e-4)) is None and asked == [0, 1, 2]
    assert nudged.fault(0, want - np.float32(1e-4)) is None and asked == [0, 1, 2]
    assert nudged.fault(0, want + np.float32(0.5)) is not None and asked == list(range(8))
    assert nudged.fault(0, want + np.float32(0.5)) is not None and len(asked) == 8


def test_of_truth_values_no_rounding_allows_another():
    want = np.array([True, False])
    verify(wanted(fake(want, want, ~want), {}, [want]), [want])
    with pytest.raises(VerificationError):
        verify(wanted(fake(want, want, ~want), {}, [want]), [~want])
