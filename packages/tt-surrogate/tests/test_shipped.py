"""The weights that come with the package."""

from __future__ import annotations

import warnings

import pytest
from tt_surrogate import XGB
from tt_surrogate.beforehand import SHIPPED, WIDTHS
from tt_surrogate.weights import read

FILES = sorted(SHIPPED.glob("*.safetensors"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_a_file_is_small_whole_and_says_where_it_learned(path):
    assert path.stat().st_size <= 5 << 20
    found = read(path, widths=WIDTHS)
    assert found.card["device"] and found.card["metrics"]["apart"]["operators"] >= 20
    assert path.with_name(path.name + ".md").read_text().startswith(f"# Weights of `{found.model}`")


def test_the_default_recipes_draft_has_them():
    model = XGB("knobs", "regression", weights="shipped")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = model._before()
    assert before is not None and {"conv2d", "dwconv2d", "matmul"} <= set(before.ops)
    assert any(name.startswith("template.tile") for name in before.columns)
