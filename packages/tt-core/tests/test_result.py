"""A result written down and read again, by this version and by others."""

import json
import math

from tt_core.causes import Cause, Causes
from tt_core.result import LeftOut, Result, TaskResult

TASK = TaskResult("conv2d", "conv2d", 2.0, 1e9, 1e-3, 16, 4, {"build": 1}, {"tile": [1, 4]})
RESULT = Result(
    "m", "over", (TASK, TaskResult("copy", "copy", 1.0, 0.0, math.inf, 0, 0, {}, {})), 16, 4, "r", 9.0, math.inf,
    (LeftOut("x", 1.0, math.inf), LeftOut("y", 1.0, 2e-3)), "m.so", 2e-2, 1e-2, {"peer": "equal"}, ("conv2d",),
    causes=Causes((Cause(3, "build", "no"),)),
)  # fmt: skip


def written() -> dict:
    return json.loads(json.dumps(RESULT.as_dict(), allow_nan=False))


def test_it_comes_back_as_it_was():
    assert Result.of(written()) == RESULT


def test_another_version_had_fewer_fields_or_has_more():
    older = {k: v for k, v in written().items() if k not in ("causes", "left_out", "untuned", "failure")}
    read = Result.of(older)
    assert (read.causes, read.left_out, read.untuned, read.failure) == (Causes(), (), (), None)
    assert read.tasks == RESULT.tasks and read.estimate_s == math.inf and read.after_s == RESULT.after_s
    newer = {**written(), "mood": "good"}
    newer["tasks"][0]["mood"] = newer["left_out"][0]["mood"] = newer["causes"]["found"][0]["mood"] = "bad"
    assert Result.of(newer) == RESULT
