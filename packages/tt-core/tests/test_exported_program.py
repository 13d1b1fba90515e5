"""PyTorch exported programs: imported, bound to shapes, computed by PyTorch for comparison; refusals in one line."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import tvm
from tt_core.errors import ModelError
from tt_core.models.load import load
from tt_core.models.model import FLOAT16_NOTE, Input, Model
from tt_core_fakes import CORE
from tvm import relax

torch = pytest.importorskip("torch")


class Net(torch.nn.Module):
    """Two inputs, one of them token ids, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows = torch.nn.Embedding(100, 8)
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8))

    def forward(self, image, ids):
        x = torch.relu(self.norm(self.conv(image))).mean((2, 3)) + self.rows(ids).mean(1) * self.scale
        return x, torch.softmax(x, -1)


class Unsupported(torch.nn.Module):
    def forward(self, x):
        return torch.relu(torch.linalg.svdvals(x))


def export(half: bool = False, dynamic: bool = False):
    net = Net().eval()
    image = torch.zeros(2, 3, 8, 8)
    if half:
        net, image = net.half(), image.half()
    batch = {0: torch.export.Dim("batch", min=1, max=16)}
    shapes = {"image": batch, "ids": batch} if dynamic else None
    return torch.export.export(net, (image, torch.zeros(2, 5, dtype=torch.int64)), dynamic_shapes=shapes)


def inputs(model: Model) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    image, ids = model.inputs
    return {
        "image": rng.standard_normal(image.shape).astype(image.dtype),
        "ids": rng.integers(0, ids.below, ids.shape),
    }


def computed(model: Model, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    vm = relax.VirtualMachine(relax.build(model.mod, "llvm"), tvm.cpu())
    return [a.numpy() for a in vm["main"](*(tvm.runtime.tensor(given[i.name]) for i in model.inputs))]


def message(source: object, **shapes: tuple[int, ...]) -> str:
    with pytest.raises(ModelError) as e:
        load(source, shapes, CORE)
    assert "\n" not in str(e.value)
    return str(e.value)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "net.pt2"
    torch.export.save(export(), str(path))
    return path


def test_a_file_computes_what_pytorch_computes(saved):
    model = load(saved, plugins=CORE)
    assert model.name == "net"
    assert model.inputs == (Input("image", (2, 3, 8, 8), "float32"), Input("ids", (2, 5), "int64", below=100))
    assert len(model.outputs) == 2 and model.peer is not None and model.peer.name == "PyTorch"
    given = inputs(model)
    with torch.no_grad():
        want = [t.numpy() for t in Net().eval()(*(torch.from_numpy(a) for a in given.values()))]
    for got in (computed(model, given), *model.peer.run(given)):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_dynamic_dimensions_are_fixed_by_the_user():
    program = export(dynamic=True)
    assert "--shape image=1,3,8,8" in message(program)
    model = load(program, {"image": (3, 3, 8, 8), "ids": (3, 5)}, CORE)
    assert [i.shape for i in model.inputs] == [(3, 3, 8, 8), (3, 5)]
    given = inputs(model)
    assert model.peer is not None
    for a, b in zip(computed(model, given), model.peer.run(given)[0], strict=True):
        assert a.shape == (3, 8)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert "3 in input 'image' and 4 in 'ids'" in message(program, image=(3, 3, 8, 8), ids=(4, 5))
    assert "exported for 1 to 16" in message(program, image=(17, 3, 8, 8), ids=(17, 5))


@pytest.mark.parametrize("dynamic", [False, True])
def test_float16_becomes_float32_between_inputs_and_outputs(dynamic):
    shapes = {"image": (2, 3, 8, 8), "ids": (2, 5)} if dynamic else {}
    model = load(export(half=True, dynamic=dynamic), shapes, CORE)
    assert model.notes == (FLOAT16_NOTE.format("model"),)
    assert [i.dtype for i in model.inputs] == ["float16", "int64"]
    given = inputs(model)
    with torch.no_grad():
        net = Net().eval().half().float()
        want = [t.numpy() for t in net(torch.from_numpy(given["image"]).float(), torch.from_numpy(given["ids"]))]
    for a, b in zip(computed(model, given), want, strict=True):
        assert a.dtype == "float16"
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)  # rounded once, at the end
    assert not [t for t in model.mod.script().splitlines() if 'dtype="float16"' in t and "conv2d" in t]


def test_an_unsupported_operator_is_found_in_the_users_source():
    text = message(torch.export.export(Unsupported(), (torch.zeros(4, 4),)))
    assert "_linalg_svd" in text and "node 1" in text
    line = Unsupported.forward.__code__.co_firstlineno + 1
    assert f"line {line} of {__file__.rsplit('/', 1)[-1]}" in text
    assert "torch.onnx.export" in text


@pytest.mark.parametrize("size", [0, 1, 100, 0.5, 0.99])
def test_a_truncated_file_is_one_line(saved, tmp_path, size, capfd):
    data = saved.read_bytes()
    path = tmp_path / "cut.pt2"
    path.write_bytes(data[: size if isinstance(size, int) else int(size * len(data))])
    assert f"{path} is not a usable PyTorch exported program" in message(path)
    assert "Traceback" not in capfd.readouterr().err


def test_other_files_of_pytorch_show_how_to_export(tmp_path):
    for name in ("net.pt2", "net.pt", "net.pth"):
        torch.save(Net().state_dict(), tmp_path / name)
        assert "torch.export.export(model, (example,))" in message(tmp_path / name)
    assert "torch.export.export(module, (example,))" in message(Net())


def test_a_missing_pytorch_says_what_to_install(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install 'tt-core[torch]'" in message(saved)


def test_an_unknown_input_name_shows_the_nearest():
    assert "did you mean 'image'" in message(export(), imag=(2, 3, 8, 8))
