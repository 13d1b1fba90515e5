"""`op:` models: every form, every bad form."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tvm
from tt_core.errors import ModelError
from tt_core.models.load import load
from tt_core.models.ops import FORMS
from tvm import relax

GOOD = {
    "op:conv2d:1,8,14,16,3,1,1": ({"x": (1, 8, 14, 14)}, (1, 16, 14, 14), [(16, 8, 3, 3)]),
    "op:conv2d:2,4,9,6,3,2,0": ({"x": (2, 4, 9, 9)}, (2, 6, 4, 4), [(6, 4, 3, 3)]),
    "op:dwconv2d:1,8,14,3,2,1": ({"x": (1, 8, 14, 14)}, (1, 8, 7, 7), [(8, 1, 3, 3)]),
    "op:matmul:4,8,16": ({"x": (4, 16)}, (4, 8), [(16, 8)]),
    "op:batch_matmul:2,4,8,16": ({"x": (2, 4, 16), "y": (2, 8, 16)}, (2, 4, 8), []),
    "op:conv2d+bias+hardswish+add:2,4,9,6,3,2,0": (
        {"x": (2, 4, 9, 9), "residual": (2, 6, 4, 4)},
        (2, 6, 4, 4),
        [(6, 4, 3, 3), (6, 1, 1), (), ()],
    ),
    "op:matmul+bias+silu:4,8,16": ({"x": (4, 16)}, (4, 8), [(16, 8), (8,)]),
    "op:batch_matmul+add+relu6:2,4,8,16": (
        {"x": (2, 4, 16), "y": (2, 8, 16), "residual": (2, 4, 8)},
        (2, 4, 8),
        [],
    ),
}


def constants(mod) -> list[tuple[int, ...]]:
    found = []

    def visit(e) -> None:
        if isinstance(getattr(e, "value", None), tvm.runtime.Tensor):
            found.append(tuple(e.value.shape))

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


@pytest.mark.parametrize("text", GOOD)
def test_inputs_output_and_constant_weights(text):
    inputs, output, weights = GOOD[text]
    model = load(text)
    assert {i.name: i.shape for i in model.inputs} == inputs
    assert {i.dtype for i in model.inputs} == {"float32"}
    assert tuple(int(d) for d in model.mod["main"].ret_ty.shape.values) == output
    assert constants(model.mod) == weights
    assert len(model.outputs) == 1 and model.peer is None


def test_every_form_is_tested():
    assert {text.split(":")[1].split("+")[0] for text in GOOD} == set(FORMS)


def test_the_name_serves_as_a_file_name():
    name = load("op:matmul:4,8,16").name
    assert not set(name) & set(":/\\, ")
    assert name.startswith("matmul") and name != load("op:matmul:4,8,32").name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("op:", "unknown operator ''"),
        ("op:conv2d+rellu:1,8,14,16,3,1,1", "conv2d may be followed by bias, add, relu"),
        ("op:matmul+relu+relu:4,8,16", "each once, not by 'relu'"),
        ("op:conv2d+bias:1,2", "op:conv2d+bias:N,CI,HW,CO,K,S,P needs 7"),
        ("op:conv:1,2,3", "did you mean 'conv2d'"),
        ("op:matmul", "op:matmul:M,N,K"),
        ("op:matmul:", "op:matmul:M,N,K"),
        ("op:matmul:4,4", "has 2 numbers, op:matmul:M,N,K needs 3"),
        ("op:matmul:4,4,4,4", "has 4 numbers, op:matmul:M,N,K needs 3"),
        ("op:matmul:4,four,4", "whole numbers"),
        ("op:matmul:4,1.5,4", "whole numbers"),
        ("op:matmul:4,,4", "whole numbers"),
        ("op:matmul:4,4,4:x", "op:matmul:M,N,K"),
        ("op:matmul:0,4,4", "M must be positive, got 0"),
        ("op:batch_matmul:1,2,-3,4", "N must be positive, got -3"),
        ("op:conv2d:1,8,14,16,3,0,1", "S must be positive, got 0"),
        ("op:conv2d:1,8,14,16,3,1,-1", "P must be at least 0, got -1"),
        ("op:conv2d:1,8,4,16,7,1,1", "the 7 x 7 kernel is larger than the padded image of 6"),
        ("op:dwconv2d:1,8,4,7,1,0", "the 7 x 7 kernel is larger than the padded image of 4"),
    ],
)
def test_bad_forms_show_the_good_one(text, says):
    with pytest.raises(ModelError) as e:
        load(text)
    assert says in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("kind", ["C1D", "C2D", "C3D", "DIL", "DEP", "GRP", "T2D", "CBR", "TBG", "NRM", "GMM", "SFM"])
def test_the_names_of_tvms_table_are_its_shapes(kind):
    """Without an index the first; all operands are inputs, of the shapes that TVM's own function gives."""
    from tvm.s_tir.meta_schedule.testing.te_workload import create_te_workload

    for text, index in ((f"op:{kind}", 0), (f"op:{kind}:3", 3)):
        model = load(text)
        *operands, result = [tuple(int(d) for d in p.shape) for p in create_te_workload(kind, index).params]
        assert [i.shape for i in model.inputs] == operands
        assert tuple(int(d) for d in model.mod["main"].ret_ty.shape.values) == result
        assert model.name == text.removeprefix("op:").replace(":", "-")
        assert len({i.name for i in model.inputs}) == len(operands)


def test_the_table_does_not_pull_in_the_slow_intrinsics():
    code = "import sys, tt_core.models as m; m.load('op:C2D'); print('tvm.s_tir.tensor_intrin' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


@pytest.mark.parametrize("text", ["op:GMM:4", "op:GMM:-1", "op:GMM:x", "op:GMM:", "op:GMM:1:2", "op:GMM:1,128,128,128"])
def test_a_bad_index_shows_the_shapes(text):
    with pytest.raises(ModelError, match="op:GMM:INDEX has the shapes 0: 1x128x128x128, 1: 1x512x32x512"):
        load(text)


def test_what_tvm_no_longer_builds_is_not_offered():
    with pytest.raises(ModelError) as e:
        load("op:C2D_WIN_NHWC")
    assert "unknown operator" in str(e.value)
    assert "C2D_WIN_NHWC" not in str(e.value).split("known:")[1]
