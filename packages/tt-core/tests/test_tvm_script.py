"""TVMScript files: what TVM's printer writes comes back, nothing in the file is run, refusals name the line."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tt_core.errors import ModelError
from tt_core.models.load import load
from tt_core.models.model import Input
from tt_core_fakes import CORE
from tvm import relax, te


def matmul() -> tvm.tirx.PrimFunc:
    a, b = te.placeholder((4, 16), name="a"), te.placeholder((16, 8), name="b")
    k = te.reduce_axis((0, 16), name="k")
    return te.create_prim_func([a, b, te.compute((4, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")])


def network(rows: object = 4) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 8), "float32"))
    weight = relax.const(np.arange(64, dtype="float32").reshape(8, 8))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.relu(builder.emit(relax.op.matmul(x, weight))))
        builder.emit_func_output(out)
    return builder.get()


@pytest.fixture
def read(tmp_path):
    def read(text: str | bytes, **shapes: tuple[int, ...]):
        path = tmp_path / "script.py"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(path, shapes, CORE)

    return read


@pytest.fixture
def message(read):
    def message(text: str | bytes, **shapes: tuple[int, ...]) -> str:
        with pytest.raises(ModelError) as e:
            read(text, **shapes)
        assert "\n" not in str(e.value)
        return str(e.value)

    return message


OPERATOR = matmul().script()


@pytest.mark.parametrize(
    "text",
    [
        OPERATOR,
        tvm.IRModule({"main": matmul()}).script(),
        '"""A comment."""\nimport tvm\nfrom tvm.script import ir as I, tirx as T\n\n' + OPERATOR,
    ],
)
def test_a_primfunc_is_an_operator(read, text):
    model = read(text)
    assert model.inputs == (Input("a", (4, 16), "float32"), Input("b", (16, 8), "float32"))
    assert tuple(int(d) for d in model.mod["main"].ret_ty.shape.values) == (4, 8)
    assert model.name == "script"


def test_an_operator_computes_what_the_script_says(read):
    vm = relax.VirtualMachine(relax.build(read(OPERATOR).mod, "llvm"), tvm.cpu())
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((4, 16), "float32"), rng.standard_normal((16, 8), "float32")
    got = vm["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b)).numpy()
    np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-5)


def test_a_relax_module_is_a_model_with_its_constants(read):
    model = read(network().script(show_meta=True))
    assert model.inputs == (Input("x", (4, 8), "float32"),)
    vm = relax.VirtualMachine(relax.build(model.mod, "llvm"), tvm.cpu())
    x = np.ones((4, 8), "float32")
    want = np.maximum(x @ np.arange(64, dtype="float32").reshape(8, 8), 0)
    np.testing.assert_allclose(vm["main"](tvm.runtime.tensor(x)).numpy(), want, rtol=1e-5)


def test_constants_that_were_not_printed_are_missed_at_their_line(message):
    text = network().script()
    line = next(i for i, x in enumerate(text.splitlines(), 1) if "metadata[" in x)
    said = message(text)
    assert f"line {line} " in said and "show_meta=True" in said


def test_symbolic_dimensions_are_fixed_by_the_user(read, message):
    text = network(tvm.tirx.Var("n", "int64")).script(show_meta=True)
    assert "--shape x=1,8" in message(text)
    assert read(text, x=(3, 8)).inputs[0].shape == (3, 8)


@pytest.mark.parametrize(
    "line", ["import os", "print(1)", "x = open('mark', 'w')", "from os import *", "def f(): pass"]
)
@pytest.mark.parametrize("before", [True, False])
def test_nothing_but_the_definition_may_stand_in_the_file(message, tmp_path, line, before):
    text = f"{line}\n{OPERATOR}" if before else f"{OPERATOR}\n{line}\n"
    number = 1 if before else len(OPERATOR.splitlines()) + 1
    assert f"line {number}: a TVMScript file holds one @T.prim_func" in message(text)
    assert not (tmp_path / "mark").exists()


def test_one_definition_is_tuned(message):
    assert "has 2 decorated definitions" in message(f"{OPERATOR}\n\n{OPERATOR}")
    assert "has 0 decorated definitions" in message("")
    two = tvm.IRModule({"one": matmul(), "two": matmul()}).script()
    assert "one, two" in message(two)


BODY = """
@T.prim_func(s_tir=True)
def main(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.sblock("b"):
            v = T.axis.spatial(4, i)
            B[v] = A[v] + T.float32(1)
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("B[v] = A[v]", "A[v] = B[v]", "the outputs of an operator are its last parameters"),
        ("B[v] = A[v]", "B[v] = B[v]", None),
        ("range(4)", "range(n)", "line 4 is not TVMScript: Undefined variable: n"),
        ("range(4)", "range(", "is not TVMScript: SyntaxError"),
        (
            '        with T.sblock("b"):\n            v = T.axis.spatial(4, i)\n            B[v] = A[v]',
            "        B[i] = A[i]",
            None,
        ),
        ("A: T.Buffer((4,)", "A: T.Buffer((n,)", "n"),
        ('A: T.Buffer((4,), "float32"), ', "", None),
    ],
)
def test_half_right_operators(read, message, old, new, says):
    assert old in BODY
    text = BODY.replace(old, new)
    if says is not None:
        assert says in message(text)
        return
    try:
        read(text)
    except ModelError as e:
        assert "\n" not in str(e)


def test_an_operator_needs_blocks(message):
    text = (
        "@T.prim_func\ndef main(A: T.Buffer((4,), 'float32'), B: T.Buffer((4,), 'float32')):\n    for i in range(4):\n"
    )
    assert "T.sblock" in message(text + "        B[i] = A[i] + T.float32(1)")


def test_an_operator_keeps_its_shape(message):
    assert "omit --shape" in message(OPERATOR, a=(1, 1))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_scripts_are_one_line(tmp_path_factory, data):
    text = OPERATOR
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        size = data.draw(st.integers(0, 12))
        text = text[:start] + data.draw(st.text(max_size=4)) + text[start + size :]
    path = tmp_path_factory.mktemp("damaged") / "script.py"
    path.write_text(text, encoding="utf-8")
    try:
        load(path, None, CORE)
    except ModelError as e:
        assert "\n" not in str(e)
