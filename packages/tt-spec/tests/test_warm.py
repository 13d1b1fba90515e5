"""What plug-ins want measured first."""

from __future__ import annotations

import numpy as np
import pytest
from tt_spec import Plugins, hookimpl
from tt_spec.testing import wide_task
from tt_spec.warm import warm_rows


def advice(answer: object) -> object:
    class Hooks:
        @hookimpl
        def tt_warm_start(self, task):
            if isinstance(answer, Exception):
                raise answer
            return answer

    return Hooks()


def rows(*answers: object) -> list[list[int]]:
    extra = [(f"plug-{i}", advice(a)) for i, a in enumerate(answers)]
    found = warm_rows(wide_task(), Plugins(extra, installed=False))
    assert found.dtype == np.int64 and found.shape[1] == 4
    return sorted(found.tolist())


def test_all_plugins_are_asked():
    assert rows() == []
    assert rows([[1, 2, 3, 4]], None, [], np.array([[4, 3, 2, 1], [0, 0, 0, 0]])) == [
        [0, 0, 0, 0],
        [1, 2, 3, 4],
        [4, 3, 2, 1],
    ]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (OSError("no library"), "OSError: no library"),
        ([1, 2, 3, 4], r"rows must be \(n, 4\) integers"),
        ([[1, 2, 3]], r"got \(1, 3\) int64"),
        ([[0.5, 0, 0, 0]], "float64"),
        ([[1, 2], [3]], "ValueError"),
        ("hello", r"got \(\) <U5"),
    ],
)
def test_bad_advice_is_left_out_and_named(answer, why):
    with pytest.warns(UserWarning, match=rf"plug-in plug-0 \?: tt_warm_start failed and is left out: .*{why}"):
        assert rows(answer, [[1, 2, 3, 4]]) == [[1, 2, 3, 4]]
