"""Every registered piece keeps its role's contract."""

import functools
import warnings

import numpy as np
import pytest
from tt_core.host import Host
from tt_spec import Plugins
from tt_spec.testing import (
    CONTRACTS,
    FormatContract,
    HostContract,
    ModelFormatContract,
    SamplerContract,
    cases,
    check,
    contract_for,
    tiny_task,
)
from workspace import ROOT

RECORDING = ROOT / "recordings" / "mobilenet-1x1-96-template.json.gz"

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # tests of the plug-ins report what is broken
    PLUGINS = Plugins()

# Options that make a piece small or buildable here; functions get tmp_path.
SMALL = {"width": 8, "epochs": 3, "tune_steps": 3}
OPTIONS = {
    **{("surrogate", name): lambda tmp_path: SMALL for name in ("atformer", "lstm", "mha", "mlp")},
    ("surrogate", "tabnet"): lambda tmp_path: {**SMALL, "steps": 1},
    ("surrogate", "lightgbm"): lambda tmp_path: {"rounds": 30, "fit_rounds": 5, "tune_rounds": 5},
    ("searcher", "ppo"): lambda tmp_path: {"episodes": 16, "steps": 20, "patience": 10},
    ("store", "sqlite"): lambda tmp_path: {"path": tmp_path / "tt.db"},
    # its default backend needs no compiler: programs are pauses
    ("measurer", "local"): lambda tmp_path: {"workers": 1, "lock": tmp_path / "lock"},
}


@functools.cache
def operator():
    """A small convolution with bias, for spaces: they have templates of it."""
    from tt_core.compiler.lower import unpack
    from tt_core.prepared import prepare

    mod, target, _ = unpack(prepare("op:conv2d:1,16,8,16,3,1,1").tasks[0].payload)
    return mod, target


def pause(tmp_path):
    """A "library" of the backend without a compiler."""
    path = tmp_path / "pause.txt"
    path.write_text("0.001")
    return str(path), {"x": np.arange(3.0)}


EXTRAS = {("surrogate", "tabnet"): "pytorch_tabnet"}
"""Modules of extras that an environment may lack."""

FIXTURES = {
    ("measurer", "local"): lambda tmp_path: {"task": tiny_task(), "library": pause(tmp_path)},
    ("replay", "recordings"): lambda tmp_path: {"recordings": [RECORDING], "host": Host()},
    ("replay", "synthetic"): lambda tmp_path: {"recordings": [ROOT / "packages/tt-spec/tests/data/synthetic.txt"]},
}


class Synthesises(SamplerContract):
    """For samplers that make rows of their own."""

    subset = False


class LeavesOut(FormatContract):
    """For formats that keep only what another program understands."""

    lossless, folder = False, True


SYNTHESISES = {"adaptive"}


def entries():
    for role in CONTRACTS:
        for name in PLUGINS.names(role):
            for test in cases(contract_for(role)):
                yield pytest.param(role, name, test, id=f"{role}-{name}-{test.removeprefix('test_')}")


@pytest.mark.parametrize(("role", "name", "test"), list(entries()))
def test_keeps_its_contract(role, name, test, tmp_path):
    if (module := EXTRAS.get((role, name))) is not None:
        pytest.importorskip(module, reason=f"the extra of {name} is not installed")
    options = OPTIONS.get((role, name), lambda tmp_path: {})(tmp_path)
    factory = functools.partial(PLUGINS.build, role, name, **options)
    contract = Synthesises if role == "sampler" and name in SYNTHESISES else None
    contract = LeavesOut if (role, name) == ("format", "metaschedule") else contract
    fixtures = FIXTURES.get((role, name), lambda tmp_path: {})(tmp_path)
    if role == "space":
        fixtures["operator"] = operator()
    check(role, factory, only=test, contract=contract, **fixtures)


class TestHost(HostContract):
    @pytest.fixture
    def piece(self):
        return Host()


class TestOnnxFormat(ModelFormatContract):
    @pytest.fixture
    def piece(self):
        return PLUGINS.build("model", ".onnx")

    @pytest.fixture
    def path(self, tmp_path):
        from onnx import TensorProto, helper, save

        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
        return tmp_path / "m.onnx"


class TestExportedProgramFormat(ModelFormatContract):
    @pytest.fixture
    def piece(self):
        return PLUGINS.build("model", ".pt2")

    @pytest.fixture
    def path(self, tmp_path):
        import torch

        torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),)), tmp_path / "m.pt2")
        return tmp_path / "m.pt2"


class TestTvmScriptFormat(ModelFormatContract):
    @pytest.fixture
    def piece(self):
        return PLUGINS.build("model", ".py")

    @pytest.fixture
    def path(self, tmp_path):
        text = """
from tvm.script import ir as I
from tvm.script import relax as R


@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
        with R.dataflow():
            y = R.nn.relu(x)
            R.output(y)
        return y
"""
        (tmp_path / "m.py").write_text(text)
        return tmp_path / "m.py"


def test_every_format_is_under_its_contract():
    formats = {name for name in PLUGINS.names("model") if name.startswith(".")}
    assert formats == {".onnx", ".pt2", ".py"}


def test_no_plugin_is_broken():
    assert PLUGINS.broken == []
