"""onnxslim makes the same of a model whether or not its inference of shapes sees the weights."""

from __future__ import annotations

import onnx
import onnxslim
import pytest
from onnxslim import core
from tt_core.models.sources.onnx_slim import LARGE, simplified
from tt_core.models.zoo import build


def copied(model):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


@pytest.mark.parametrize("name", ["bert-tiny", "squeezenet1_1"])
def test_a_model_becomes_the_same_without_its_weights_being_read_again(name, monkeypatch):
    model = build(name)
    want = onnxslim.slim(copied(model), model_check=False)
    seen, infer = [], core.shape_infer

    def watched(given):
        seen.append(max(len(t.raw_data) for t in given.graph.initializer))
        return infer(given)

    monkeypatch.setattr(core, "shape_infer", watched)
    got = simplified(copied(model), {})
    assert core.shape_infer is watched, "nobody else's onnxslim is changed"
    assert seen and max(seen) < LARGE < max(len(t.raw_data) for t in got.graph.initializer)
    assert list(got.graph.node) == list(want.graph.node)
    assert list(got.graph.initializer) == list(want.graph.initializer)
    assert {v.name: v for v in got.graph.value_info} == {v.name: v for v in want.graph.value_info}
    assert list(got.graph.output) == list(want.graph.output)


def test_a_model_that_onnxslim_does_not_take_leaves_it_as_it_was(monkeypatch):
    infer = core.shape_infer
    monkeypatch.setattr(core, "optimize", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        simplified(build("squeezenet1_1"), {})
    assert core.shape_infer is infer
