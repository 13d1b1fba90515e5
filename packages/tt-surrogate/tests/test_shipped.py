"""The weights that come with the package."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.testing.examples import statements
from tt_surrogate import XGB, ATFormer
from tt_surrogate.beforehand import WIDTHS
from tt_surrogate.weights import SHIPPED, read

NAMES = {"knobs.safetensors": "xgb", "atformer.safetensors": "atformer"}
FILES = sorted(SHIPPED.glob("*.safetensors"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_a_file_is_small_whole_and_says_where_it_learned(path):
    assert sum(p.stat().st_size for p in FILES) <= 5 << 20
    found = read(path, NAMES[path.name], WIDTHS)
    assert found.card["device"] and found.card["metrics"]["apart"]["operators"] >= 20
    assert found.card["split"]["held_out_learned"] == [], "what weights are judged on they have not seen"
    assert path.with_name(path.name + ".md").read_text().startswith(f"# Weights of `{found.model}`")


def test_the_default_recipes_draft_has_them():
    model = XGB("knobs", "regression", weights="shipped")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = model._before()
    assert before is not None and {"conv2d", "dwconv2d", "matmul"} <= set(before.ops)
    assert any(name.startswith("template.tile") for name in before.columns)


def test_recipe_atformer_has_those_of_its_model():
    model, conv = ATFormer(weights="shipped"), replace(synthetic_task("a", knobs=3), op="conv2d")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.prestart()
    assert (model.foreknows(conv) or "").endswith("cores") and model.width < 512, "its options are the file's"
    assert np.ptp(model.predict(conv, statements(8, np.random.default_rng(0))).mean) > 0
