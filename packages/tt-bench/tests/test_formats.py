"""T4 of any tuner, and cache files of Kernel Tuner."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tt_bench import files
from tt_bench.kernel_tuner import KernelTunerFormat
from tt_bench.streamed import members
from tt_bench.t4_format import T4Format
from tt_spec import Content, Knob, Measurement, RunRecord, Space, Task
from tt_spec.errors import FormatError
from tt_spec.exchange import LeftOut, check
from tt_spec.testing import FormatContract
from tt_spec.testing.strategies import MEASUREMENTS, RUNS

SPACE = Space((Knob("tile", "tile", ((1, 4), (2, 2))), Knob("most", "choice", (0.5, math.inf))))
TASK = Task("t", "conv \N{SNOWMAN}", "conv2d", "llvm", (SPACE,), 1e9, shapes="1x8 -> 1x8", payload=b"\x00p")


class TestT4(FormatContract):
    @pytest.fixture
    def piece(self):
        return T4Format()


class TestKernelTuner(FormatContract):
    @pytest.fixture
    def piece(self):
        return KernelTunerFormat()


def read(piece, path) -> tuple[list[Task], list[Measurement], list[LeftOut]]:
    items = [item for _, item in piece.read(path)]
    for item in items:
        check(item)
    kinds = (Task, Measurement, LeftOut)
    return tuple([i for i in items if isinstance(i, k)] for k in kinds)  # type: ignore[return-value]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=st.lists(MEASUREMENTS, max_size=5), runs=st.lists(RUNS, max_size=2), packed=st.booleans())
def test_a_history_reads_back_equal(tmp_path_factory, rows, runs, packed):
    path = tmp_path_factory.mktemp("round") / ("x.json.gz" if packed else "x.json")
    T4Format().write(path, Content([TASK], runs, iter(rows), len(rows)))
    items = [i for _, i in T4Format().read(path)]
    assert repr([i for i in items if isinstance(i, Measurement)]) == repr(rows)
    assert repr([i for i in items if isinstance(i, RunRecord)]) == repr(runs)
    assert [i for i in items if isinstance(i, Task)] == [TASK]


def test_a_history_is_t4_for_others(tmp_path):
    rows = [
        Measurement("t", SPACE.key, (1, 1), SPACE.decode((1, 1)), (1e-3, 3e-3), 9, cost={"build": 0.5}, at=1.7e9),
        Measurement("t", SPACE.key, (0, 0), SPACE.decode((0, 0)), error="run-timeout"),
    ]
    T4Format().write(tmp_path / "x.json", Content([TASK], [], iter(rows), 2))
    told = json.loads((tmp_path / "x.json").read_text())
    assert told["schema_version"] == "1.0.0" and told["metadata"]["timeunit"] == "seconds"
    good, late = told["results"]
    assert good["configuration"] == {"tile": [2, 2], "most": "inf"} and good["times"]["runtimes"] == [1e-3, 3e-3]
    assert good["times"]["compilation_time"] == 0.5 and good["timestamp"] == "2023-11-14T22:13:20+00:00"
    assert good["measurements"][0] == {"name": "time", "value": 2e-3, "unit": "s"} and good["invalidity"] == "correct"
    assert late["invalidity"] == "timeout" and late["times"]["runtimes"] == []


def test_a_recording_is_read_as_records(recording, tmp_path):
    files.write_t4(recording, tmp_path / "x.json.gz")
    tasks, found, _ = read(T4Format(), tmp_path / "x.json.gz")
    assert tasks == [p.whole for p in recording.parts]
    assert [m.config for m in found] == [m.config for p in recording.parts for m in p.measured]
    assert [m.seconds for m in found] == [m.seconds for p in recording.parts for m in p.measured]
    assert {(m.device, m.origin) for m in found} == {("toy/2 cores", "record")}


# -- Kernel Tuner -----------------------------------------------------------------------------------------------------

HEAD = {
    "device_name": "GPU X",
    "kernel_name": "vector_add",
    "problem_size": [48, 64],
    "tune_params_keys": ["block", "how", "fast"],
    "tune_params": {"fast": [True, False, 1], "block": [32, 64], "how": ["a", "b"]},
    "objective": "time",
    "cache": {},
}
GOOD = {
    "block": 64, "how": "b", "fast": True, "time": 0.04, "times": [0.05, 0.04, 0.03], "GFLOP/s": 12.5,
    "compile_time": 440.0,
    "verification_time": 0, "benchmark_time": 1.5, "strategy_time": 0, "framework_time": 0.8,
    "timestamp": "2022-12-23 12:11:26.5+00:00",
}  # fmt: skip
ONE = {"block": 32, "how": "a", "fast": 1, "time": 0.02}
BAD = {"block": 32, "how": "b", "fast": False, "time": "RuntimeFailedConfig", "compile_time": 3.0}
NEW = {"block": 128, "how": "a", "fast": True, "__error__": "CompilationFailedConfig", "timestamp": "2022-12-23"}
POWER = {"block": 64, "how": "a", "fast": True, "nvml_power": 40.0}


def cache(path: Path, *entries, closed: bool = True) -> Path:
    """A file as Kernel Tuner appends to it, one result after the other."""
    lines = [json.dumps({",".join(str(e.get(k)) for k in HEAD["tune_params_keys"]): e})[1:-1] for e in entries]
    text = json.dumps(HEAD, indent="")[:-3] + "".join(f"\n{line}," for line in lines)
    path.write_text(text[:-1] + "}\n}" if closed else text)
    return path


@pytest.mark.parametrize("closed", [True, False])
def test_a_cache_becomes_records_in_seconds_with_its_parameters_as_knobs(tmp_path, closed):
    path = cache(tmp_path / "c.json", GOOD, ONE, BAD, NEW, POWER, closed=closed)
    (task,), (good, one, bad, new), (power,) = read(KernelTunerFormat(), path)
    assert (task.name, task.op, task.shapes) == ("vector_add", "kernel:vector_add", "48x64")
    names = {k.name: k.choices for k in task.space.knobs}
    assert repr(names) == repr({"block": (32, 64, 128), "how": ("a", "b"), "fast": (True, False, 1)})
    assert good.seconds == pytest.approx((5e-5, 4e-5, 3e-5)) and good.runs == 3 and good.config == (1, 1, 0)
    assert good.cost == pytest.approx({"build": 0.44, "run": 1.5e-3}) and good.at == 1671797486.5
    assert good.knobs == {"block": 64, "how": "b", "fast": True} and good.device == "GPU X"
    assert one.config == (0, 0, 2) and one.seconds == (2e-5,), "1 is not True"
    assert (bad.error, bad.config, new.error, new.config) == ("run", (0, 1, 1), "build", (2, 0, 0))
    assert "no time was measured" in power.why
    assert {m.task_key for m in (good, one, bad, new)} == {task.key} and {good.space_key} == {task.space.key}


def test_the_order_of_results_changes_no_row(tmp_path):
    one, two = (cache(tmp_path / f"{i}.json", *rows) for i, rows in enumerate([(NEW, GOOD, ONE), (ONE, GOOD, NEW)]))
    a, b = (read(KernelTunerFormat(), p) for p in (one, two))
    assert a[0] == b[0] and {repr(m) for m in a[1]} == {repr(m) for m in b[1]}


def foreign(path: Path, *results, unit: str | None = "milliseconds", **more) -> Path:
    """A T4 file as Kernel Tuner writes it: everything behind the results."""
    path.write_text(json.dumps({"results": results, "schema_version": "1.0.0", "metadata": {"timeunit": unit}, **more}))
    return path


def result(block: int, runtimes: list[float], invalidity: str = "correct", **more):
    times = {"compilation": 440.0, "benchmark": 1.5, "framework": 0.1, "runtimes": runtimes}
    time = {"name": "time", "value": 0.04, "unit": "ms"}
    return {
        "configuration": {"block": block, "how": "a"}, "times": times, "invalidity": invalidity, "correctness": 1,
        "measurements": [time], "objectives": ["time"], "timestamp": "2022-12-23 12:11:26.5+00:00", **more,
    }  # fmt: skip


def test_t4_of_another_tuner_becomes_records_of_the_kernel_that_the_file_is_named_after(tmp_path):
    rows = [result(256, [0.05, 0.03]), result(8, [], "compile"), result(16, []), result(16, [], "timeout")]
    path = foreign(tmp_path / "gemm.json", *rows, result(8, [], measurements=[]))
    (task,), (good, bad, one, late), (nothing,) = read(T4Format(), path)
    assert (task.name, task.op) == ("gemm", "kernel:gemm")
    assert [k.choices for k in task.space.knobs] == [(8, 16, 256), ("a",)]
    assert good.seconds == pytest.approx((5e-5, 3e-5)) and good.config == (2, 0) and good.cost["build"] == 0.44
    assert one.seconds == pytest.approx((4e-5,)) and (bad.error, late.error) == ("build", "run-timeout")
    assert "neither runtimes" in nothing.why


def cut(path: Path, at: int) -> Path:
    path.write_text(path.read_text()[:at])
    return path


OURS = '{"schema_version":"1.0.0","metadata":{"tt":{"history":1}}'
MISTAKES = {
    "unit": (lambda p: foreign(p, result(8, [1.0]), unit="hours"), "x.json: metadata.timeunit is seconds"),
    "version": (lambda p: foreign(p, result(8, [1.0]), schema_version="2.0.0"), "T4 schema 2.0.0, this tt-bench reads"),
    "empty": (lambda p: foreign(p), "T4 without results"),
    "negative": (lambda p: foreign(p, result(8, [-1.0])), "line 1, results 1: seconds must be finite and positive"),
    "nan": (lambda p: foreign(p, result(8, [math.nan])), "line 1, results 1: seconds must be finite and positive"),
    "text": (lambda p: foreign(p, result(8, ["1"])), "results 1: times are a list of numbers"),  # type: ignore[list-item]
    "verdict": (lambda p: foreign(p, result(8, [1.0], "fine")), "results 1: invalidity is one of"),
    "other": (lambda p: foreign(p, result(8, [1.0]), result(8, [1.0], configuration={"x": 1})), "this result has x"),
    "date": (lambda p: foreign(p, result(8, [1.0], timestamp="noon")), "timestamp is an ISO date, got 'noon'"),
    "cut": (lambda p: cut(foreign(p, result(8, [1.0])), 90), "x.json, line 1: no JSON, or cut off"),
    "more": (lambda p: p.write_text('{"a": 1}\n{}'), "line 2: the file goes on after the end"),
    "twice": (lambda p: p.write_text('{"a": 1,\n"a": 2}'), "line 2: 'a' is there twice"),
    "nested": (lambda p: p.write_text('{"results": ' + "[" * 100_000), "x.json, line 1: nested too deeply"),
    "claims": (
        lambda p: p.write_text(OURS.replace("1}", '1,"records":1000000000}') + ',"results":[]}'),
        "has 0 of 1,000,000,000 records",
    ),
    "later": (lambda p: p.write_text(OURS.replace("1}", "2}") + "}"), "of version 2"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_with_its_place(tmp_path, mistake):
    make, told = MISTAKES[mistake]
    make(tmp_path / "x.json")
    with pytest.raises(FormatError) as caught:
        list(T4Format().read(tmp_path / "x.json"))
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_mistakes_in_a_cache_name_their_line(tmp_path):
    path = tmp_path / "c.json"
    good = cache(path, ONE, GOOD).read_text()
    last = good.count("\n") - 1
    for old, new, told in (
        ('"time": 0.02', '"time": -1', f"line {last}: seconds must be finite and positive"),
        ('"time": 0.02', '"time": "soon"', f"line {last}: times are a list of numbers"),
        ('"times": [0.05', '"times": [NaN', f"line {last + 1}: seconds must be finite and positive"),
        ('"fast": true, ', "", f"line {last + 1}: the parameters are block, fast, how, this result has block, how"),
        ("2022-12", "2022-13", f"line {last + 1}: timestamp is an ISO date"),
        ('"device_name"', '"device"', f"line {last}: no cache of Kernel Tuner: device_name must come before"),
        ("[0.05, 0.04, 0.03]", "[0.05, 0.04,, 0.03]", f"line {last + 1}: no JSON, or cut off"),
    ):
        assert old in good
        path.write_text(good.replace(old, new, 1))
        with pytest.raises(FormatError) as caught:
            list(KernelTunerFormat().read(path))
        assert told in str(caught.value), old
    path.write_text(json.dumps({k: v for k, v in HEAD.items() if k != "tune_params"}))
    with pytest.raises(FormatError, match="no cache of Kernel Tuner: tune_params must come"):
        list(KernelTunerFormat().read(path))


# -- element by element -----------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=3), x, max_size=3),
    max_leaves=8,
)


@settings(max_examples=30, deadline=None)
@given(
    whole=st.dictionaries(st.text(max_size=4), JSON, max_size=3),
    apart=st.lists(JSON, max_size=4) | st.dictionaries(st.text(max_size=3), JSON, max_size=4),
    indent=st.none() | st.integers(0, 2),
)
def test_elements_are_what_json_reads(tmp_path_factory, whole, apart, indent):
    path = tmp_path_factory.mktemp("json") / "x"
    path.write_text(json.dumps({**whole, "apart": apart}, indent=indent, ensure_ascii=False), encoding="utf-8")
    found = list(members(path, frozenset({"apart"})))
    assert {m.name: m.value for m in found if not m.element} == {k: v for k, v in whole.items() if k != "apart"}
    elements = [m for m in found if m.element]
    wanted = [("", v) for v in apart] if isinstance(apart, list) else list(apart.items())
    assert [(m.key, m.value) for m in elements] == wanted
    assert [m.element for m in elements] == list(range(1, len(wanted) + 1))
    text = path.read_text(encoding="utf-8").split("\n")
    assert all(json.dumps(m.value, ensure_ascii=False)[:1] in text[m.line - 1] for m in elements)


def test_a_value_longer_than_a_chunk_is_read_whole(tmp_path):
    path, long = tmp_path / "x", "\N{SNOWMAN}" * 200_000
    path.write_text(json.dumps({"apart": [long, 12, long], "n": 12}, ensure_ascii=False), encoding="utf-8")
    assert [m.value for m in members(path, frozenset({"apart"}))] == [long, 12, long, 12]
