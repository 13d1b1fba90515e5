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
            "x=1,3,48,96",
            "--trials",
            "16",
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
            "16",
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

    def race(self, task, codes, rounds=10, min_ms=10.0, untuned=False, cold=0):
        return [*([1e-6] * rounds for _ in codes), [1e-5] * rounds]  # no finalist is left out for being slow

    monkeypatch.setattr(KeptPool, "race", race)
    monkeypatch.setattr(KeptPool, "check", lambda self, task, row: "the output differs")
    said: list[str] = []
    out = tmp_path / "m.so"
    result = tt_core.tune("op:matmul:16,16,16", trials=4, history=None, recipe="random", out=out, say=said.append)
    assert any("matmul" in text and "the output differs" in text for text in said)
    assert result.tasks[0].config == {} and result.verified and out.exists()


def test_what_the_model_computes_is_compared_output_by_output():
    from tt_core.deploy.verification import verify, wanted
    from tt_core.errors import VerificationError
    from tt_core.models.model import Model

    model = Model("m", None, (), ("first", "second"))
    good = [np.ones(4, "float32"), np.ones(4, "float32")]
    bad = [np.ones(4, "float32"), np.ones(4, "float32") + 0.01]
    assert set(verify(wanted(model, {}, good), good)) == {"the untuned program"}
    with pytest.raises(VerificationError, match="second"):
        verify(wanted(model, {}, good), bad)


def test_an_output_worse_conditioned_than_the_tolerance_may_differ_as_onnxruntime_from_itself():
    """Against onnxruntime three times its own disagreement is allowed, but never against the untuned program."""
    from tt_core.deploy.verification import verify, wanted
    from tt_core.errors import VerificationError
    from tt_core.models.model import Model, Peer

    want = [np.ones(4, "float32")]
    near = [np.ones(4, "float32") * np.float32(1.005)]

    def model(*results: float) -> Model:
        peer = Peer("onnxruntime", lambda inputs: [[np.ones(4, "float32") * np.float32(r)] for r in results])
        return Model("m", None, (), ("y",), peer)

    assert set(verify(wanted(model(1, 1.002), {}, near), near)) == {"the untuned program", "onnxruntime"}
    with pytest.raises(VerificationError, match="untuned"):
        verify(wanted(model(1, 1.002), {}, want), near)
    for doubt in (1, 1.001):
        with pytest.raises(VerificationError, match="onnxruntime"):
            verify(wanted(model(1, doubt), {}, near), near)
    far = [want[0] * np.float32(1.1)]
    with pytest.raises(VerificationError, match="onnxruntime"):
        verify(wanted(model(1, 1.03), {}, far), far)
    assert set(verify(wanted(model(), {}, near), near)) == {"the untuned program"}  # the peer is not installed


def test_where_onnxruntime_disagrees_with_itself_other_inputs_are_taken():
    """As a detector of text on noise: what it finds is lost in the far tail of its sigmoid."""
    from tt_core.deploy.verification import telling, verify
    from tt_core.models.model import Model, Peer

    x, said = np.random.default_rng(0).normal(size=64).astype("float32"), []

    def ways(inputs, always=False):
        apart = 0.05 if always or inputs["x"].min() < 0 else 1e-4
        return [[inputs["x"]], [inputs["x"] * np.float32(1 + apart)]]

    def run(given):
        return [given["x"] * np.float32(1.03 if given["x"].min() < 0 else 1.0002)]

    want = telling(Model("m", None, (), ("y",), Peer("onnxruntime", ways)), {"x": x}, run, said.append)
    assert want.inputs["x"].min() > 0 and said == []
    assert verify(want, want.untuned)["onnxruntime"] == "equal within 1.0e-03 of the largest magnitude"
    never = Model("m", None, (), ("y",), Peer("onnxruntime", lambda inputs: ways(inputs, True)))
    want = telling(never, {"x": x}, run, said.append)
    (line,) = said
    assert "onnxruntime tells little of output 'y': its own two results differ by 4.8e-02" in line
    assert verify(want, want.untuned)["onnxruntime"] == "equal within 1.4e-01 of the largest magnitude"


def test_inputs_are_chosen_by_the_tuned_program_and_the_untuned_one_runs_once():
    """A model that takes 20 s untuned: every further run of it is over the minutes."""
    from tt_core.deploy.verification import telling
    from tt_core.models.model import Model

    x, asked, said = np.random.default_rng(0).normal(size=64).astype("float32"), [], []
    model = Model("m", None, (), ("y",), None)

    def tuned(given):  # tells nothing of negative numbers
        return [given["x"] if given["x"].min() > 0 else np.zeros_like(given["x"])]

    def untuned(given):
        asked.append(given["x"])
        return tuned(given)

    want = telling(model, {"x": x}, untuned, said.append, tuned)
    assert len(asked) == 1 and asked[0].min() > 0 and said == []
    np.testing.assert_array_equal(want.untuned[0], want.inputs["x"])
    want = telling(model, {"x": x}, untuned, said.append, lambda given: [given["x"]])
    assert want.inputs["x"].min() > 0 and said == [], "a wrong program's outputs choose nothing"
    telling(model, {"x": x}, lambda given: [np.zeros(64, "float32")], said.append, tuned)
    assert any("tells nothing of output 'y'" in text for text in said)


def test_a_peer_that_cannot_run_the_model_is_left_out_aloud():
    from tt_core.deploy.verification import verify, wanted
    from tt_core.models.model import Model, Peer

    def fails(inputs):
        raise RuntimeError("no kernel for this operator")

    said: list[str] = []
    ones = [np.ones(4, "float32")]
    model = Model("m", None, (), ("y",), Peer("onnxruntime", fails))
    assert set(verify(wanted(model, {}, ones, said.append), ones)) == {"the untuned program"}
    assert said == ["onnxruntime cannot run the model: RuntimeError: no kernel for this operator"]
