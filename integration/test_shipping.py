"""The shipped program is never slower than the untuned program, operator by operator and as a whole model."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tt_core import tuning
from tt_core.compiler.backend import HOPELESS, TvmBackend, TvmCandidate
from tt_core.compiler.runtime import digest
from tt_core.deploy import finalists, shipping
from tt_core.deploy.verification import telling
from tt_core.prepared import prepare
from tt_core.stages import Stages
from tt_history.sqlite import SqliteStore
from tt_measure import WorkerPool
from tt_spec import Measurement, Pipeline, Plugins, Trial, WallClock
from tt_spec.assembly import assemble
from tt_spec.errors import FileError
from tt_spec.pieces.null_surrogate import NullSurrogate
from tt_spec.pieces.random_searcher import RandomSearcher
from tt_spec.pieces.top_sampler import TopSampler


class Here:
    """The backend in this process, with the timings that a test wants."""

    def __init__(self, task, untuned_s=1.0, models=(), wrong=(), others=1.0):
        self.backend, self.models, self.wrong = TvmBackend(), models, [tuple(w) for w in wrong]
        self.backend.open(task)
        self.untuned_s, self.ran, self.others, self.cold = untuned_s, [], others, []

    def race(self, task, codes, rounds=10, min_ms=10.0, untuned=False, cold=0):
        assert untuned
        rng = np.random.default_rng(0)
        if cold:
            self.cold.append(cold)
            seconds = [2e-3] + [2e-3 * self.others] * (len(codes) - 1)
        else:
            seconds = [1e-3 * (1 + i) for i in range(len(codes))]
        seconds.append(self.untuned_s)
        return [(s * rng.uniform(1, 1.02, rounds)).tolist() for s in seconds]

    def race_models(self, paths, inputs, seconds=6.0, rounds=10):
        return [list(m) for m in self.models]

    def check(self, task, row):
        return "it computes nonsense" if tuple(row) in self.wrong else self.backend.check(task, row)

    def run_model(self, path, inputs):
        self.ran.append(digest(Path(path)))
        return self.backend.run_model(path, inputs)


@pytest.fixture(scope="module")
def ready():
    return prepare("op:matmul:8,16,16", space="sketch")


@pytest.fixture
def pipeline(ready):
    """Knows two programs of the task, the first the faster."""
    task = ready.tasks[0]
    p = Pipeline(task, NullSurrogate(), RandomSearcher(), TopSampler())
    real = TvmBackend()
    real.open(task)
    found = real.realise(task, task.space.sample(20, np.random.default_rng(0)))
    rows = np.unique(found.codes[[w is None for w in found.why]], axis=0)[:2]
    p.restore(
        [
            Measurement(task.key, task.space.key, tuple(map(int, r)), seconds=(1e-3 * (1 + 0.01 * i),))
            for i, r in enumerate(rows)
        ]
    )
    return p


def test_an_operator_that_is_faster_untuned_stays_so(pipeline):
    task = pipeline.task
    best = tuple(pipeline.top(1)[0][0])
    won = finalists.race([pipeline], Here(task, untuned_s=2e-3), failed=pytest.fail)
    assert tuple(won.rows[task.key]) == best and won.untuned([task]) == ()
    assert won.seconds[task.key] == pytest.approx(1e-3, rel=0.03)
    same = finalists.race([pipeline], Here(task, untuned_s=1e-3), failed=pytest.fail)
    assert task.key in same.rows, "noise is no reason to throw a tuned program away"
    lost = finalists.race([pipeline], Here(task, untuned_s=9e-4), failed=pytest.fail)
    assert lost.rows == {} and lost.untuned([task]) == (task.name,)
    assert lost.seconds[task.key] == pytest.approx(9e-4, rel=0.03)


def test_wrong_finalists_leave_the_race_one_by_one(pipeline):
    task = pipeline.task
    (first, _), (second, second_s) = pipeline.top(2)
    told = []
    won = finalists.race([pipeline], Here(task, wrong=[first]), told.append)
    assert tuple(won.rows[task.key]) == tuple(second)
    assert pipeline.best_s == second_s and pipeline.errors()["wrong-result"] == 1
    none = finalists.race([pipeline], Here(task, wrong=[first, second]), told.append)
    assert none.rows == {} and none.seconds[task.key] == pytest.approx(1.0, rel=0.03), (
        "what ships is the untuned program"
    )
    assert [(m.config, m.error, m.why) for m in told] == [
        (tuple(row), "wrong-result", "it computes nonsense") for row in (first, second)
    ]


def test_once_time_is_up_the_best_is_verified_and_not_timed(pipeline, monkeypatch):
    task = pipeline.task
    (first, _), (second, second_s) = pipeline.top(2)
    here = Here(task, wrong=[first])
    monkeypatch.setattr(here, "race", lambda *args: pytest.fail("there is no time for a race"))
    told = []
    won = finalists.race([pipeline], here, told.append, enough=lambda: True)
    assert tuple(won.rows[task.key]) == tuple(second) and won.seconds[task.key] == second_s
    assert [m.config for m in told] == [tuple(first)]


def test_what_will_race_is_built_beforehand(pipeline):
    """A measurer that builds side by side is told all finalists; once time is up, those alone that are checked."""
    task = pipeline.task

    class Builder(Here):
        def __init__(self, task, **more):
            super().__init__(task, **more)
            self.prepared = []

        def prepare(self, wanted):
            self.prepared.append([(t.key, codes.tolist()) for t, codes in wanted])

    both = [row.tolist() for row, _ in pipeline.top(2)]
    here = Builder(task)
    finalists.race([pipeline], here, failed=pytest.fail)
    assert here.prepared == [[(task.key, both)], []]
    late = Builder(task)
    finalists.race([pipeline], late, failed=pytest.fail, enough=lambda: True)
    assert late.prepared == [[(task.key, both[:1])], []]


def test_several_finalists_race_only_where_something_is_at_stake(pipeline, monkeypatch):
    """Of two tasks, one of which takes 99 % of the model's latency."""
    light = dataclasses.replace(pipeline.task, key="light", name="light", weight=0.01)
    copy = Pipeline(light, NullSurrogate(), RandomSearcher(), TopSampler())
    copy.restore([dataclasses.replace(pipeline.measured(t), task_key="light") for t in _trials(pipeline)])
    here, raced = Here(pipeline.task), []
    real = here.race

    def race(task, codes, *args):
        raced.append((task.key, len(codes)))
        return real(task, codes, *args)

    monkeypatch.setattr(here, "race", race)
    monkeypatch.setattr(here, "check", lambda task, row: None)
    finalists.race([copy, pipeline], here, pytest.fail)
    assert raced == [(pipeline.task.key, 2), ("light", 1)], "the heaviest first"


@pytest.mark.parametrize(("raced_s", "wins"), [({0: 2e-3}, 1), ({0: 2e-3, 1: 3e-3}, 0), ({0: 1.1e-3}, 0)])
def test_a_finalist_that_disappoints_races_with_those_that_looked_slower(pipeline, monkeypatch, raced_s, wins):
    """Two programs, of which the search told 1 and 1.5 ms; what the race tells is given."""
    task, rows = pipeline.task, [row for row, _ in pipeline.top(2)]
    pipeline.restore([dataclasses.replace(m, seconds=(1.5e-3,)) for m in [pipeline.measured(_trials(pipeline)[1])]])
    here, heats = Here(task), []

    def race(task, codes, *args):
        heats.append([next(i for i, row in enumerate(rows) if tuple(row) == tuple(c)) for c in codes])
        return [[raced_s.get(i, 1.5e-3)] * 10 for i in heats[-1]] + [[1.0]]

    monkeypatch.setattr(here, "race", race)
    won = finalists.race([pipeline], here, pytest.fail)
    assert tuple(won.rows[task.key]) == tuple(rows[wins])
    assert heats == ([[0], [0, 1]] if raced_s[0] > 1.5e-3 else [[0]])


@pytest.mark.parametrize(
    ("others", "megabytes", "forms", "first"),
    [(0.9, 100, 2, False), (1.1, 100, 2, True), (1.0, 100, 2, True), (0.9, 1, 2, True), (0.9, 100, 1, False)],
)
def test_the_form_that_is_faster_with_weights_from_memory_ships(pipeline, others, megabytes, forms, first):
    """Two programs, of which the second is 1 % slower alone; of a network that does not fit the cache it says nothing
    how fast each is with warm weights."""
    task, here, said = pipeline.task, Here(pipeline.task, others=others), []
    (best, _), (second, _) = pipeline.top(2)
    names = {tuple(best): "long", tuple(second): None if forms == 2 else "long"}
    network = finalists.Network(megabytes << 20, lambda task, row: names[tuple(row)])
    won = finalists.race([pipeline], here, pytest.fail, network=network, say=said.append)
    assert tuple(won.rows[task.key]) == tuple(best if first else second)
    expected = 1e-3 if megabytes == 1 else 2e-3 * min(1, others)
    assert won.seconds[task.key] == pytest.approx(expected, rel=0.03)
    assert here.cold == ([100 << 20] if megabytes == 100 else [])
    another = not first and forms == 2
    assert said == (
        [f"{task.name}: what ships is not the fastest alone, but with weights from memory"] if another else []
    )


def test_a_run_looks_for_what_is_fast_with_the_weights_of_its_network(tmp_path, monkeypatch):
    """Winograd's weights of F(m, 3) are (m + 2)^2 / 9 times as long as the convolution's 36,864 bytes, and two threads
    read all of them where they compute strips: the target has two."""
    made: list[Any] = []
    monkeypatch.setattr(finalists, "COLD", 1)
    monkeypatch.setattr(tuning, "assemble", lambda *args, **more: made.append(assemble(*args, **more)) or made[-1])
    few: Any = {"trials": 8, "recipe": "random", "history": None, "log": False}
    tuning.tune("op:conv2d:1,32,8,32,3,1,1", out=tmp_path / "c.so", target={"kind": "llvm", "num-cores": 2}, **few)
    p = next(p for p in made[0].pipelines if p.task.op == "conv2d")
    added, forms = p._told.expected - p._told.seconds, [p.space.decode(row) for row in p.rows]
    outputs = [knobs.get("winograd.outputs", knobs.get("steps.outputs")) for knobs in forms]
    sizes = np.array([1 if m is None else (m + 2) ** 2 / 9 for m in outputs]) * 36_864
    again = np.array([finalists.AGAIN * (knobs["space"] == "winograd") for knobs in forms]) * sizes
    assert added == pytest.approx((sizes - 36_864 + again) / finalists.READ)
    assert 0 < np.count_nonzero(again) < len(again)


@pytest.mark.parametrize(
    ("seconds", "megabytes", "others", "races"),
    [(1.25e-3, 0, 0.9, True), (1.35e-3, 0, 0.9, False), (1.9e-3, 32, 1.1, True), (2.7e-3, 32, 0.9, False)],
)
def test_a_form_that_looked_slower_alone_races_with_weights_from_memory(pipeline, seconds, megabytes, others, races):
    """The second program, in another form, took longer than the first, which reads so many megabytes more. Who is
    expected to be faster is the one whom another form has to beat."""
    second = pipeline.measured(_trials(pipeline)[1])
    pipeline.restore([dataclasses.replace(second, seconds=(seconds,))])
    here, (best, _) = Here(pipeline.task, others=others), pipeline.top(1)[0]
    longer = {tuple(best): megabytes * 10**6}
    network = finalists.Network(100 << 20, lambda task, row: tuple(row), lambda task, row: longer.get(tuple(row), 0))
    won = finalists.race([pipeline], here, pytest.fail, network=network)
    assert (tuple(won.rows[pipeline.task.key]) == second.config) is races
    late = finalists.race([pipeline], here, pytest.fail, lambda: True, network)
    assert (tuple(late.rows[pipeline.task.key]) == second.config) is (seconds == 1.9e-3), "without a race"


def test_what_a_network_adds_is_the_reading_of_longer_weights(pipeline):
    """32 MB take a millisecond; 16 MB that a second thread reads, too, as long as 8."""
    (row, _), *_ = pipeline.top(1)
    for megabytes, again, expected in ((32, 0, 1e-3), (32, 16 * 10**6, 1.25e-3), (1, 16 * 10**6, 0.0)):
        lengths = [lambda task, row, n=n: n for n in (32 * 10**6, again)]
        network = finalists.Network(megabytes << 20, lambda task, row: None, *lengths)
        assert network.surcharge_s(pipeline.task, row) == pytest.approx(expected)


def test_a_race_reads_as_many_weights_as_the_network_that_ships(pipeline):
    """Those of programs that are longer than the model's count once for each call."""
    task = dataclasses.replace(pipeline.task, weight=3.0)
    p = Pipeline(task, NullSurrogate(), RandomSearcher(), TopSampler())
    p.restore(pipeline.measured(t) for t in _trials(pipeline))
    here = Here(task)
    network = finalists.Network(100 << 20, lambda task, row: tuple(row), lambda task, row: 5 << 20)
    finalists.race([p], here, pytest.fail, network=network)
    assert here.cold == [115 << 20]


def test_the_best_of_each_other_form_races(ready, monkeypatch):
    """Twelve programs of four forms, all of the first faster than those of the second, and so on."""
    task = ready.tasks[0]
    p = Pipeline(task, NullSurrogate(), RandomSearcher(), TopSampler())
    rows = np.unique(task.space.sample(400, np.random.default_rng(0)), axis=0)[:12]
    p.restore(
        Measurement(task.key, task.space.key, tuple(map(int, row)), seconds=(1e-3 * (1 + 0.03 * i),))
        for i, row in enumerate(rows)
    )
    forms = {tuple(row): "abcd"[i // 3] for i, row in enumerate(rows)}
    here, raced = Here(task), []

    def race(task, codes, rounds, ms, untuned, cold):
        raced.append([forms[tuple(row)] for row in codes])
        return [[1.0] * rounds] * (len(codes) + 1)

    monkeypatch.setattr(here, "race", race)
    monkeypatch.setattr(here, "check", lambda task, row: None)
    finalists.race([p], here, pytest.fail, network=finalists.Network(100 << 20, lambda t, row: forms[tuple(row)]))
    assert raced == [[*"aaa", *"bcd"]], "the best three, and one of each other form"


def test_forms_of_a_convolutions_weights_race_with_weights_from_memory():
    ready = prepare("op:conv2d:1,32,16,32,3,1,1")
    (task,) = [t for t in ready.tasks if t.op == "conv2d"]
    network, backend = finalists.Network.of(ready.lowered, 1 << 20), TvmBackend()
    backend.open(task)
    found = backend.realise(task, task.space.sample(200, np.random.default_rng(0)))
    rows = found.codes[[why is None for why in found.why]]
    forms = {network.form(task, row): row for row in rows}
    assert set(forms) == {None, ("winograd", "winograd 2"), ("winograd", "winograd 4")}
    assert network.several(task) and not network.cold
    plain = 9 * 32 * 32 * 4
    assert {network.form(task, row): network.extra(task, row) for row in forms.values()} == {
        None: 0,
        ("winograd", "winograd 2"): plain * 7 // 9,
        ("winograd", "winograd 4"): 3 * plain,
    }
    times = backend.race(task, np.stack(list(forms.values())), 3, 0.1, False, 1 << 20)
    assert [len(t) for t in times] == [3, 3, 3] and all(s > 0 for t in times for s in t)
    assert all(backend.check(task, row) is None for row in forms.values())


def test_weights_as_they_are_race_with_no_other_form(pipeline):
    here, best = Here(pipeline.task, others=0.5), pipeline.top(1)[0][0]
    pipeline.restore([dataclasses.replace(pipeline.measured(_trials(pipeline)[1]), seconds=(1.5e-3,))])
    network = finalists.Network(100 << 20, lambda task, row: None if tuple(row) == tuple(best) else "long")
    won = finalists.race([pipeline], here, pytest.fail, network=network)
    assert tuple(won.rows[pipeline.task.key]) == tuple(best) and here.cold == []


def test_of_two_forms_the_wrong_one_does_not_ship(pipeline):
    task, told = pipeline.task, []
    (best, _), (second, _) = pipeline.top(2)
    network = finalists.Network(100 << 20, lambda task, row: tuple(row))
    won = finalists.race([pipeline], Here(task, wrong=[second], others=0.5), told.append, network=network)
    assert tuple(won.rows[task.key]) == tuple(best) and [m.config for m in told] == [tuple(second)]


def _trials(pipeline):
    return [Trial(tuple(map(int, row)), (s,)) for row, s in pipeline.top(2)]


@pytest.mark.parametrize(("after", "untuned"), [(1.2e-3, True), (1e-3, False), (5e-4, False)])
def test_a_model_that_is_faster_untuned_ships_untuned(ready, pipeline, tmp_path, after, untuned):
    before = [1e-3 + 1e-6 * (-1) ** i for i in range(10)]
    here = Here(pipeline.task, models=[before, [after] * 10])
    plain = tmp_path / "untuned.so"
    shipping.write_untuned(ready, plain, Plugins())
    said = []
    shipment = shipping.Shipment(ready, plain, here, {}, Plugins(), Stages(WallClock(), None, said.append))
    shipped = shipping.ship(shipment, finalists.leaders([pipeline]), tmp_path / "m.so")
    assert shipped.untuned == ((pipeline.task.name,) if untuned else ())
    assert shipped.after_s == pytest.approx(1e-3 if untuned else after)
    assert any("untuned" in text for text in said) == untuned
    assert digest(tmp_path / "m.so") in here.ran, "what ships is the file that was verified"
    assert len(here.ran) == (1 if untuned else 2)
    sidecar = json.loads((tmp_path / "m.so.json").read_text())
    assert (sidecar["tasks"][0]["knobs"] is None) == untuned
    assert sidecar["latency_after_s"] == shipped.after_s and shipped.verified


def test_a_disk_that_fills_while_the_library_is_linked_is_an_error_and_not_the_end(ready, tmp_path, monkeypatch):
    """LLVM ends the process where it cannot write: it writes to memory, and Python to the disk."""

    def full(path, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(FileError, match=r"cannot write .*m\.so: OSError: .*No space left on device"):
            shipping.write_untuned(ready, tmp_path / "m.so", Plugins())
    assert list(tmp_path.iterdir()) == []
    shipping.write_untuned(ready, tmp_path / "m.so", Plugins())


@pytest.mark.parametrize(("never", "runs"), [(False, 2), (True, 4)])
def test_a_model_whose_output_is_not_finite_is_verified_on_other_inputs(ready, pipeline, tmp_path, never, runs):
    plain, asked, said = tmp_path / "untuned.so", [], []

    class Overflows(Here):
        def run_model(self, path, inputs):
            asked.append(inputs)
            (out,) = super().run_model(path, inputs)
            return [out if len(asked) > 1 and not never else out * np.float32(np.nan)]

    here = Overflows(pipeline.task, models=[[1e-3] * 10, [1.0] * 10])
    shipping.write_untuned(ready, plain, Plugins())
    rng = np.random.default_rng(0)
    inputs = {i.name: rng.normal(size=i.shape).astype(i.dtype) for i in ready.model.inputs}
    tried = telling(ready.model, inputs, lambda given: here.run_model(str(plain), given), said.append).inputs
    assert len(asked) == runs and list(tried) == list(inputs)
    assert any("tells nothing of output" in text and "not finite" in text for text in said) == never


def test_the_untuned_program_takes_part_and_a_hopeless_one_is_timed_once(pipeline, monkeypatch):
    backend = TvmBackend()
    backend.open(pipeline.task)
    rows = np.stack([row for row, _ in pipeline.top(2)])
    assert [len(s) for s in backend.race(pipeline.task, rows, 3, 0.01, True)[:2]] == [3, 3]
    monkeypatch.setattr(TvmBackend, "_probe", lambda self, task: None)  # no window is made again
    slow = backend._open[pipeline.task.key].untuned()
    runs = {True: 0, False: 0}

    def run(self, n):
        runs[self._library is slow] += 1
        return 1.01 * HOPELESS if self._library is slow else 1.0

    monkeypatch.setattr(TvmCandidate, "run", run)
    assert [len(s) for s in backend.race(pipeline.task, rows, 5, 0.01, True)] == [5, 5, 1]
    assert runs == {True: 2, False: 2 * (2 + 2 * 5)}


def test_a_race_after_the_machine_changed_its_state_tells_what_programs_took(pipeline, monkeypatch):
    """Arithmetic on registers takes as long in many a state in which the probe takes 1.6 times as long."""
    backend = TvmBackend()
    backend.open(pipeline.task)
    rows = np.stack([row for row, _ in pipeline.top(2)])
    backend._state = time.monotonic(), 1e-4
    monkeypatch.setattr(TvmBackend, "_probe", lambda self, task: lambda: 1.6e-4)
    monkeypatch.setattr(TvmCandidate, "run", lambda self, n: 2e-4)
    assert backend.race(pipeline.task, rows, 3, 0.01) == [[2e-4] * 3] * 2


def test_a_finalist_that_was_found_wrong_stays_so_in_the_history(tmp_path, kept, monkeypatch):
    real, caught = WorkerPool.check, []

    def race(self, task, codes, *args):  # or an operator this small may ship untuned
        return [[1e-6]] * len(codes) + [[1.0]]

    def check(self, task, row):
        if not caught:
            caught.append(tuple(map(int, row)))
            return "it computes nonsense"
        return real(self, task, row)

    monkeypatch.setattr(WorkerPool, "race", race)
    monkeypatch.setattr(WorkerPool, "check", check)
    tuning.tune("op:matmul:8,16,16", trials=8, recipe="random", history=tmp_path / "h.db", out=tmp_path / "m.so")
    store = SqliteStore(tmp_path / "h.db")
    *measured, wrong = store.query()
    assert len(measured) == 8 and wrong.config == caught[0]
    assert (wrong.error, wrong.why, wrong.run_id) == ("wrong-result", "it computes nonsense", measured[0].run_id)
    assert store.best(wrong.task_key, wrong.device).config != wrong.config
    store.close()


def test_a_winner_whose_check_could_not_tell_is_named(tmp_path, kept, monkeypatch):
    said = []
    monkeypatch.setattr(WorkerPool, "race", lambda self, task, codes, *args: [[1e-6]] * len(codes) + [[1.0]])
    monkeypatch.setattr(WorkerPool, "doubts", lambda self, task, row: ["normal numbers: it is the same everywhere"])
    where = {"history": tmp_path / "h.db", "out": tmp_path / "m.so"}
    tuning.tune("op:matmul:8,16,16", trials=2, recipe="random", say=said.append, **where)
    assert "matmul: comparing its outputs tells nothing on normal numbers: it is the same everywhere" in said


@pytest.fixture
def crashing(tmp_path, monkeypatch):
    """Workers whose backend kills them at a method, as often as asked; `tune` with them."""
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent / "crashing"), *sys.path])
    monkeypatch.setattr("tt_core.assembly.BACKEND", "crashing_backend:backend")
    monkeypatch.setenv("TT_CRASH_COUNT", str(tmp_path / "crashes"))

    def tune(method, times, **more):
        monkeypatch.setenv("TT_CRASH", f"{method}:{times}")
        said = []
        result = tuning.tune(
            "op:matmul:8,16,16",
            trials=8,
            recipe="random",
            history=tmp_path / "h.db",
            out=tmp_path / "m.so",
            say=said.append,
            **more,
        )
        assert result.failure is None, result.failure
        assert (tmp_path / "m.so").exists() and result.verified and math.isfinite(result.after_s or math.inf)
        store = SqliteStore(tmp_path / "h.db")
        told = [m for m in store.query() if m.origin == "finalist"]
        store.close()
        return result, said, told

    return tune


@pytest.mark.parametrize("method", ["race", "check"])
def test_finalists_that_crash_are_told_to_the_history_and_the_next_one_ships(crashing, monkeypatch, method):
    for module in (finalists, shipping):  # neither the operator nor the whole model is to ship untuned by chance
        monkeypatch.setattr(module, "beats", lambda *args: False)
    monkeypatch.setattr(finalists, "WITHIN", math.inf)
    result, said, told = crashing(method, 2)
    assert told and all(m.error == "run" and "SIGSEGV" in m.why for m in told)
    assert sum("a finalist failed" in text for text in said) == len(told)
    assert result.untuned == () and result.tasks[0].config, "a tuned program ships"


def test_where_every_finalist_crashes_the_untuned_program_ships(crashing, monkeypatch):
    for module in (finalists, shipping):  # neither the operator nor the whole model is to ship untuned by chance
        monkeypatch.setattr(module, "beats", lambda *args: False)
    result, _, told = crashing("check", 1000)
    assert len(told) >= 1 and all(m.error == "run" for m in told)
    assert result.tasks[0].config == {} and math.isfinite(result.tasks[0].best_s)


@pytest.mark.parametrize(("method", "times"), [("race_models", 1), ("run_model", 2)])
def test_a_tuned_model_that_crashes_ships_untuned(crashing, method, times):
    """The untuned one runs first, while the other is compiled: that run is made again when it is asked for."""
    result, said, told = crashing(method, times)
    assert any("ships untuned" in text and "SIGSEGV" in text for text in said) and not told
    assert result.untuned == tuple(t.name for t in result.tasks) and result.before_s == result.after_s
