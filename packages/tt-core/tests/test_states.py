"""Which inputs of a model are states."""

from types import SimpleNamespace

import numpy as np
import pytest
from tt_core.deploy.states import following, paired
from tt_core.models.model import Input

STATE = ((2, 1, 128), "float32")
SERIES = ((1, 512), "float32")


@pytest.mark.parametrize(
    ("inputs", "outputs", "found"),
    [
        (["state"], ["output", "stateN"], {"state": "stateN"}),
        (["h", "c"], ["hn", "cn"], {"h": "hn", "c": "cn"}),
        (["h0", "c0"], ["mask", "hN", "cN"], {"h0": "hN", "c0": "cN"}),
        (["in_cache0", "in_cache1"], ["out_cache0", "out_cache1"], {f"in_cache{i}": f"out_cache{i}" for i in "01"}),
        (["past_key_values.0.key"], ["present.0.key"], {}),
        (["past.0.key", "past.1.key"], ["present.0.key"], {"past.0.key": "present.0.key"}),
        (["hiddenIn"], ["hiddenOut"], {"hiddenIn": "hiddenOut"}),
        (["init_state"], ["final_state"], {"init_state": "final_state"}),
        (["input"], ["output"], {}),
        (["151"], ["153"], {}),
        (["h0"], ["h1", "h2"], {}),
    ],
)  # fmt: skip
def test_states_are_known_by_their_names(inputs, outputs, found):
    assert paired(dict.fromkeys(inputs, STATE), dict.fromkeys(outputs, STATE)) == found


def test_another_shape_or_dtype_is_no_state():
    assert paired({"state": STATE}, {"stateN": SERIES}) == {}
    assert paired({"state": STATE}, {"stateN": (STATE[0], "float16")}) == {}


def test_a_step_gets_the_states_of_the_one_before_and_new_inputs():
    model = SimpleNamespace(
        inputs=(Input("x", (2, 3), "float32"), Input("state", (4,), "float32")), outputs=("y", "stateN")
    )
    inputs = {"x": np.zeros((2, 3), "float32"), "state": np.zeros(4, "float32")}
    outputs = [np.ones((2, 3), "float32"), np.arange(4, dtype="float32")]
    after = following(model, inputs, outputs, np.random.default_rng(0))
    assert after is not None and list(after) == ["x", "state"] and np.array_equal(after["state"], outputs[1])
    assert after["x"].shape == (2, 3) and after["x"].any()
    again = following(model, after, outputs, np.random.default_rng(1))
    assert again is not None and not np.array_equal(again["x"], after["x"])


def test_a_model_without_states_has_no_step_after():
    model = SimpleNamespace(inputs=(Input("x", (4,), "float32"),), outputs=("y",))
    one = np.zeros(4, "float32")
    assert following(model, {"x": one}, [one], np.random.default_rng(0)) is None
