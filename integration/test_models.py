"""Real models: trained ONNX files of the package rapidocr-onnxruntime, and the zoo."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from .conftest import KeptPool, events


@pytest.fixture(scope="module")
def models() -> Path:
    found = importlib.util.find_spec("rapidocr_onnxruntime")
    assert found is not None and found.origin is not None, "pip install rapidocr-onnxruntime"
    return Path(found.origin).parent / "models"


@pytest.mark.slow
def test_classifier_with_dynamic_shapes_tunes_and_verifies(here, models):
    path = str(models / "ch_ppocr_mobile_v2.0_cls_infer.onnx")
    missing = here("tune", path, code=3).stderr
    assert "'x'" in missing and "--shape x=" in missing
    result = events(
        here(
            "tune",
            path,
            "--shape",
            "x=1,3,48,192",
            "--trials",
            "64",
            "--set",
            "scheduler.trials=1",
            "--set",
            "batch=1",
            "--recipe",
            "random",
            "--out",
            "cls.so",
            "--json",
        ).stdout
    )[-1]
    assert set(result["verified"]) == {"the untuned program", "onnxruntime"}
    assert result["after_s"] < result["before_s"]
    assert len(result["tasks"]) > 40


@pytest.mark.slow
def test_bert_tiny_with_two_integer_inputs_verifies(here):
    result = events(
        here(
            "tune",
            "bert-tiny",
            "--trials",
            "40",
            "--set",
            "scheduler.trials=4",
            "--set",
            "batch=4",
            "--recipe",
            "random",
            "--out",
            "bert.so",
            "--json",
        ).stdout
    )[-1]
    assert set(result["verified"]) == {"the untuned program", "onnxruntime"}
    assert result["after_s"] < result["before_s"]


def test_a_program_that_computes_something_else_never_ships(tmp_path, kept, monkeypatch):
    """The finalists' check says no: the run says so, names the operator and ships it untuned."""
    import tt_core

    def race(self, task, codes, rounds=10, min_ms=10.0, untuned=False):
        return [*([1e-6] * rounds for _ in codes), [1e-5] * rounds]  # no finalist is left out for being slow

    monkeypatch.setattr(KeptPool, "race", race)
    monkeypatch.setattr(KeptPool, "check", lambda self, task, row: "the output differs")
    said: list[str] = []
    out = tmp_path / "m.so"
    result = tt_core.tune("op:matmul:16,16,16", trials=4, history=None, recipe="random", out=out, say=said.append)
    assert any("matmul" in text and "the output differs" in text for text in said)
    assert result.tasks[0].config == {} and result.verified and out.exists()


def test_what_the_model_computes_is_compared_output_by_output():
    from tt_core.deploy.verification import verify
    from tt_core.errors import VerificationError
    from tt_core.models.model import Model

    model = Model("m", None, (), ("first", "second"))
    good = [np.ones(4, "float32"), np.ones(4, "float32")]
    bad = [np.ones(4, "float32"), np.ones(4, "float32") + 0.01]
    assert set(verify(model, {}, good, good)) == {"the untuned program"}
    with pytest.raises(VerificationError, match="second"):
        verify(model, {}, bad, good)


def test_an_output_worse_conditioned_than_the_tolerance_may_differ_as_onnxruntime_from_itself():
    """Against onnxruntime three times its own disagreement is allowed, but never against the untuned program."""
    from tt_core.deploy import verification as deploy
    from tt_core.errors import VerificationError
    from tt_core.models.model import Model, Peer

    want = [np.ones(4, "float32")]
    near = [np.ones(4, "float32") * np.float32(1.005)]

    def model(*results: float) -> Model:
        peer = Peer("onnxruntime", lambda inputs: [[np.ones(4, "float32") * np.float32(r)] for r in results])
        return Model("m", None, (), ("y",), peer)

    assert set(deploy.verify(model(1, 1.002), {}, near, near)) == {"the untuned program", "onnxruntime"}
    with pytest.raises(VerificationError, match="untuned"):
        deploy.verify(model(1, 1.002), {}, near, want)
    for doubt in (1, 1.001):
        with pytest.raises(VerificationError, match="onnxruntime"):
            deploy.verify(model(1, doubt), {}, near, near)
    with pytest.raises(VerificationError, match="onnxruntime"):  # doubt excuses 2e-2 at most
        deploy.verify(model(1, 2), {}, [want[0] * np.float32(1.03)], [want[0] * np.float32(1.03)])
    assert set(deploy.verify(model(), {}, near, near)) == {"the untuned program"}  # the peer is not installed


def test_a_peer_that_cannot_run_the_model_is_left_out_aloud():
    from tt_core.deploy.verification import verify
    from tt_core.models.model import Model, Peer

    def fails(inputs):
        raise RuntimeError("no kernel for this operator")

    said: list[str] = []
    ones = [np.ones(4, "float32")]
    model = Model("m", None, (), ("y",), Peer("onnxruntime", fails))
    assert set(verify(model, {}, ones, ones, said.append)) == {"the untuned program"}
    assert said == ["onnxruntime cannot run the model: RuntimeError: no kernel for this operator"]
