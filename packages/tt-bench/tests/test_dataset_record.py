"""Recording a data set: which rows, that nothing is measured twice, and that a stopped session goes on."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tt_bench import dataset, dataset_record
from tt_bench.dataset_record import Plan, Rows, read_list, record
from tt_bench.errors import BenchError
from tt_bench_toy import SyntheticHost, SyntheticPool, measured, space, task
from tt_history import SqliteStore
from tt_spec import Knob, Measurement, Realised, Space, Task, Trial, UserError
from tt_spec.errors import PieceError

LINES = [("op:a", "*"), ("op:b", "*")]


def joined(name: str = "a", tiles: int = 12) -> Task:
    """A task with templates, Winograd's among them, and sketches."""
    knobs = [Knob("space", "choice", ("template", "winograd", "sketch"), prior=(5.0, 2.0, 1.0))]
    for i, k in enumerate(space(tiles).knobs):
        active = (k.active_if[0] + 1, k.active_if[1]) if k.active_if else None
        knobs.append(dataclasses.replace(k, name=f"{k.name}{i}", active_if=active))
    return dataclasses.replace(task(name, tiles), spaces=(Space(tuple(knobs), name="template+winograd+sketch"),))


def trial(t: Task, row: np.ndarray, runs: int = 3) -> Trial:
    """By the toy's truth, whatever the algorithm; the row is the one asked."""
    own = dataclasses.replace(t, spaces=(space(len(t.space.knobs[-4].choices)),))
    m = measured(own, row[-4:], 0.01, runs)
    return Trial(tuple(map(int, row)), m.seconds, m.runs, m.error, m.why, m.cost)


class Pool(SyntheticPool):
    """Measures rows of joined spaces too."""

    def measure(self, task, codes, bar):
        for row in codes:
            self.calls.append((ord(task.name[0]), *map(int, row)))
            yield trial(task, row, self.runs)

    def realise(self, task, codes):
        refused = (codes[:, -4] == 1) & (codes[:, -1] == 2)
        return Realised(np.array(codes), tuple("too wide" if r else None for r in refused))


class Host(SyntheticHost):
    """A machine with an operator per model; `op:held` is held out, `op:none` cannot be loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared: list[str] = []
        self.pools = 0

    def prepare(self, model, *, target="native", tasks="*", space="template"):
        self.prepared.append(model)
        name = model.removeprefix("op:")
        if name == "none":
            raise UserError("unknown operator 'none'")
        found = joined(name) if name in "ab" else task(name, 8)
        if name == "held":
            found = dataclasses.replace(found, shapes="1x56x56x64, 3x3x64x64 -> 1x56x56x64")
        return SimpleNamespace(target="toy", tasks=[found])

    def measurer(self, evaluator=None, threads=None):
        self.pools += 1
        return Pool(3, self.calls)


def origins(folder, name: str) -> dict[tuple[str, str], int]:
    """Rows of an operator by algorithm and origin."""
    store = SqliteStore(folder / "record.db")
    found: dict[tuple[str, str], int] = {}
    for m in store.query(f"key-{name}-12"):
        kind = (("template", "winograd", "sketch")[m.config[0]], m.origin)
        found[kind] = found.get(kind, 0) + 1
    store.close()
    return found


def test_half_are_sketches_and_half_of_either_mutants(tmp_path):
    host = Host()
    done, failed = record(host, LINES, tmp_path / "set", Plan(rows=200))
    assert not failed and done.rows == 400 and len(host.calls) == len(set(host.calls)) + 32, "16 rows of each again"
    found = origins(tmp_path / "set", "a")
    sketches = {o: n for (a, o), n in found.items() if a == "sketch"}
    assert abs(sketches["random"] - sketches["mutant"]) <= 32
    assert abs(sketches["random"] + sketches["mutant"] - 100) <= 16
    both = [sum(n for (a, _), n in found.items() if a == name) for name in ("template", "winograd")]
    assert 5 * both[1] == pytest.approx(2 * both[0], rel=0.3), "algorithms in turns, by their priors"
    for _, codes, seconds, again in dataset.read(tmp_path / "set"):
        assert len(codes) == 200 and np.isfinite(again).sum() == 16
        timed = np.sort(seconds[np.isfinite(again)])
        assert timed[0] == seconds.min() and timed[-1] == seconds[np.isfinite(seconds)].max()


def test_mutants_are_faster_than_random_rows():
    t = joined(tiles=40)
    rows = Rows(t, [], Plan(rows=320))
    median = {}
    while rows.tried < 320 and (asked := rows.next(32)) is not None:
        origin, codes = asked
        found = [Measurement.of(trial(t, row), t, origin=origin) for row in codes]
        median.setdefault((origin, int(codes[0, 0] == 2)), []).extend(m.latency_s for m in found if m.seconds)
        rows.take(found)
    assert len(median) == 4
    for half in (0, 1):
        assert np.median(median["mutant", half]) < 0.8 * np.median(median["random", half])


@pytest.mark.parametrize("after", [1, 40, 100, 130])
def test_a_stopped_session_goes_on_and_measures_nothing_twice(tmp_path, after):
    host = Host()
    record(host, LINES, tmp_path / "set", Plan(rows=60), lambda: "interrupted" if len(host.calls) >= after else None)
    assert after <= len(host.calls) <= after + 16
    record(host, LINES, tmp_path / "set", Plan(rows=60))
    assert len(host.calls) == len(set(host.calls)) + 32 and len(set(host.calls)) == 120
    assert host.prepared == ["op:a", "op:b"], "an operator that is known needs no model"
    calls = len(host.calls)
    done, _ = record(host, LINES, tmp_path / "set", Plan(rows=60))
    assert len(host.calls) == calls and done.rows == 0, "a finished recording measures nothing"
    record(host, LINES, tmp_path / "set", Plan(rows=70))
    assert len(host.calls) == calls + 20, "more rows of each can be asked for later"


def test_minutes_bound_a_session(tmp_path, monkeypatch):
    now = iter(range(0, 10**6, 2))
    monkeypatch.setattr("tt_bench.dataset_record.time.monotonic", lambda: float(next(now)))
    host = Host()
    done, _ = record(host, LINES, tmp_path / "set", Plan(rows=200, minutes=1.0))
    assert 0 < len(host.calls) < 60 and done.rows == len(host.calls), "what was measured is in the data set"


def test_what_is_held_out_is_never_measured_and_a_bad_line_stops_no_other(tmp_path):
    host, said = Host(), []
    lines = [("op:held", "*"), ("op:none", "*"), ("op:c", "*")]
    done, failed = record(host, lines, tmp_path / "set", Plan(rows=20), say=said.append)
    assert done.held_out == ["held"] and failed == ["op:none: unknown operator 'none'"]
    assert {chr(c[0]) for c in host.calls} == {"c"} and any("op:none" in s for s in said)
    again, _ = record(host, lines, tmp_path / "set", Plan(rows=20))
    assert again.held_out == ["held"]


def test_an_operator_that_no_worker_can_open_costs_the_others_nothing(tmp_path, monkeypatch):
    def realise(self, task, codes):
        if task.name == "a":
            raise PieceError("the backend cannot open task 'a': out of memory")
        return whole(self, task, codes)

    whole = Pool.realise
    monkeypatch.setattr(Pool, "realise", realise)
    done, failed = record(Host(), LINES, tmp_path / "set", Plan(rows=20))
    assert done.rows == 20 and len(failed) == 1 and "out of memory" in failed[0]
    monkeypatch.undo()
    done, failed = record(Host(), LINES, tmp_path / "set", Plan(rows=20))
    assert done.rows == 20 and not failed, "the next session tries again"


def test_a_small_space_is_recorded_to_its_end(tmp_path):
    host = Host()
    record(host, [("op:c", "*")], tmp_path / "set", Plan(rows=10_000))
    ((t, codes, _, _),) = dataset.read(tmp_path / "set")
    assert len(codes) == sum(r[0] != 1 or r[3] != 2 for r in t.space.enumerate())


def test_workers_start_anew_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset_record, "RENEW", 1)
    host = Host()
    record(host, LINES, tmp_path / "set", Plan(rows=20))
    assert host.pools >= 3


def test_another_device_tvm_or_history_is_refused(tmp_path, monkeypatch):
    record(Host(), LINES[:1], tmp_path / "set", Plan(rows=20))
    other = Host()
    monkeypatch.setattr(other, "device", lambda target: "another machine")
    with pytest.raises(BenchError, match="begun on toy/2 cores, this is another machine"):
        record(other, LINES, tmp_path / "set", Plan(rows=20))
    monkeypatch.setattr(other, "versions", lambda: {"tvm": "1"})
    with pytest.raises(BenchError, match="begun with TVM 0, this is 1"):
        record(other, LINES, tmp_path / "set", Plan(rows=20))
    store = SqliteStore(tmp_path / "record.db")
    store.begin_run({"recipe": "tt"})
    store.close()
    with pytest.raises(BenchError, match="holds other runs"):
        record(Host(), LINES, tmp_path, Plan(rows=20))


KILLED = """
import sys, time
from pathlib import Path
from test_dataset_record import LINES, Host, Pool
from tt_bench.dataset_record import Plan, record

host, last, measure = Host(), int(sys.argv[2]), Pool.measure

def slow(self, task, codes, bar):
    for trial in measure(self, task, codes, bar):
        print(len(host.calls), flush=True)
        if len(host.calls) == last:
            time.sleep(1000)
        yield trial

Pool.measure = slow
record(host, LINES, Path(sys.argv[1]), Plan(rows=60))
print("measured", len(host.calls))
"""


def test_a_killed_recording_of_a_data_set_goes_on(tmp_path):
    def start(last: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", KILLED, str(tmp_path / "set"), str(last)]
        return subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True)

    process = start(75)
    assert process.stdout is not None and any(line == "75\n" for line in process.stdout)
    process.kill()
    process.wait()
    store = SqliteStore(tmp_path / "set" / "record.db")
    kept = sum(m.error != "invalid" for m in store.query())
    store.close()
    assert kept == 74, "all but the one in hand"
    assert start(0).communicate()[0].splitlines()[-1] == f"measured {120 + 32 - kept}", "nothing is measured twice"
    assert sum(len(codes) for _, codes, _, _ in dataset.read(tmp_path / "set")) == 120


def test_lists(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("# models\nop:matmul:1,2,3  # a comment\n\nmobilenet_v2@8 tasks=*conv*\nmy file.onnx\n")
    assert read_list(path) == [("op:matmul:1,2,3", "*"), ("mobilenet_v2@8", "*conv*"), ("my file.onnx", "*")]
    path.write_text("# nothing\n")
    with pytest.raises(BenchError, match="a list without models"):
        read_list(path)
    with pytest.raises(BenchError, match="no list of models"):
        read_list(tmp_path / "none.txt")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BenchError, match="no list of models"):
        read_list(path)
