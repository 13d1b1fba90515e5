"""The TVM backend with a space that can be told to compute something else; comparing outputs by hand."""

from __future__ import annotations

import json
import zlib
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm
from tt_core import models, target
from tt_core.compiler import backend as module
from tt_core.compiler import lower
from tt_core.compiler.arrays import compare, random_array
from tt_core.compiler.backend import TvmBackend, TvmCandidate
from tt_core.compiler.reference import Recent
from tt_core.compiler.runtime import Timed
from tt_core_fakes import FakePrograms, with_space
from tt_spec import Knob, Space, operator_features
from tt_spec.hooks import Entry, hookimpl
from tt_spec.plugins import Plugins
from tvm import te

SPACE = Space((Knob("program", "choice", ("right", "wrong", "lazy", "none", "slow")),), name="fake")
RIGHT, WRONG, LAZY, NONE, SLOW = (np.array([i]) for i in range(5))
M, N, K = 4, 8, 16


def program(change: str) -> tvm.IRModule:
    """`op:matmul:4,8,16` wrongly: scaled by 1.01, or leaving one column unwritten."""
    a, b = te.placeholder((M, K), name="a"), te.placeholder((K, N), name="b")
    k = te.reduce_axis((0, K), name="k")
    c = te.compute((M, N), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    if change == "wrong":
        c = te.compute((M, N), lambda i, j: c[i, j] * 1.01, name="d")
        return tvm.IRModule({"main": te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")})
    out = te.extern(
        (M, N),
        [a, b],
        lambda ins, outs: tvm.tirx.Evaluate(tvm.tirx.const(0, "int32")),
        name="nothing",
        dtype="float32",
    )
    return tvm.IRModule({"main": te.create_prim_func([a, b, out]).with_attr("global_symbol", "main")})


class Programs(FakePrograms):
    space = SPACE

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.applied = 0

    def apply(self, row: np.ndarray) -> tvm.s_tir.Schedule:
        self.applied += 1
        kind = SPACE.knobs[0].choices[int(row[0])]
        if kind == "none":
            raise ValueError("there is no such program")
        return tvm.s_tir.Schedule(program(kind) if kind in ("wrong", "lazy") else self.mod)

    def read(self, schedule: tvm.s_tir.Schedule, sketch: int) -> np.ndarray:
        return np.array([0 if sketch == int(SLOW[0]) else sketch])  # "slow" is the right one by another row

    def features(self, schedules: list[tvm.s_tir.Schedule]) -> list[np.ndarray]:
        return [np.full((2, 164), float(i)) for i in range(len(schedules))]


PLUGINS = with_space(Programs)


@pytest.fixture(scope="module")
def task():
    mod = models.load(f"op:matmul:{M},{N},{K}").mod
    (task,) = lower.lower(mod, target.resolve({"kind": "llvm", "num-cores": 1}), PLUGINS, "fake").tasks
    return task


@pytest.fixture
def backend(task, monkeypatch):
    monkeypatch.setattr(module, "Plugins", lambda: PLUGINS)
    backend = TvmBackend()
    backend.open(task)
    return backend


def test_another_workload_under_an_open_key_is_refused(backend, task):
    """Keys are made of a hash of 64 bits; a worker knows a task by nothing else."""
    on = target.resolve({"kind": "llvm", "num-cores": 1})
    (other,) = lower.lower(models.load(f"op:matmul:{M},{N},{N}").mod, on, PLUGINS, "fake").tasks
    with pytest.raises(ValueError, match="another workload is open here under its key"):
        backend.open(replace(other, key=task.key))
    backend.open(replace(task, payload=renamed(task.payload)))


def renamed(payload: bytes) -> bytes:
    """The same workload, its variables called otherwise."""
    content = json.loads(zlib.decompress(payload))
    graph = json.loads(content["mod"])
    for name in {n["data"]["name"] for n in graph["nodes"] if n["type"] == "ir.Var"}:
        graph["nodes"][name]["data"] += "_again"
    return zlib.compress(json.dumps({**content, "mod": json.dumps(graph)}).encode())


def test_a_right_program_runs_and_passes(backend, task):
    candidate = backend.build(task, RIGHT)
    assert 0 < candidate.run(10) < 1
    assert candidate.check() is None
    assert candidate.apply_s >= 0
    assert backend.check(task, RIGHT) is None


def test_a_wrong_program_fails_and_says_by_how_much(backend, task):
    why = backend.build(task, WRONG).check()
    assert why is not None and "1.00e-02" in why


def test_a_program_that_writes_nothing_does_not_pass_with_what_another_left(backend, task):
    assert backend.check(task, RIGHT) is None
    assert backend.check(task, LAZY) is not None


def test_a_right_program_passes_after_a_wrong_one(backend, task):
    assert backend.check(task, WRONG) is not None
    assert backend.check(task, RIGHT) is None


def test_rows_are_realised_with_the_reason_where_there_is_no_program(backend, task):
    codes = np.stack([SLOW, NONE, RIGHT])
    done = backend.realise(task, codes)
    np.testing.assert_array_equal(done.codes, np.stack([RIGHT, NONE, RIGHT]))
    assert done.why == (None, "there is no such program", None)
    np.testing.assert_array_equal(codes, np.stack([SLOW, NONE, RIGHT]))


def test_features_are_of_the_rows_that_have_a_program(backend, task):
    statements, ok = backend.features(task, np.stack([RIGHT, NONE, WRONG]))
    assert statements.operator.tolist() == [operator_features(task).tolist()] * 2
    np.testing.assert_array_equal(ok, [True, False, True])
    assert len(statements) == 2
    np.testing.assert_array_equal(statements.values, np.repeat([[0.0], [1.0]], 2, axis=0) * np.ones(164))
    np.testing.assert_array_equal(statements.offsets, [0, 2, 4])
    nothing, ok = backend.features(task, NONE[None])
    assert len(nothing) == 0 and not ok.any()


def test_a_row_without_a_program_raises_its_reason(backend, task):
    with pytest.raises(ValueError, match="there is no such program"):
        backend.build(task, NONE)


def test_a_program_that_was_realised_is_not_made_again(backend, task):
    programs = backend._open[task.key].programs
    backend.realise(task, RIGHT[None])
    before = programs.applied
    backend.build(task, RIGHT)
    backend.features(task, RIGHT[None])
    assert programs.applied == before


def test_the_program_of_an_assured_row_is_made_where_it_is_built(task, monkeypatch):
    class Assured(Programs):
        def assured(self, codes):
            return codes[:, 0] == RIGHT[0]

    monkeypatch.setattr(module, "Plugins", lambda: with_space(Assured))
    backend = TvmBackend()
    backend.open(task)
    programs: Any = backend._open[task.key].programs
    done = backend.realise(task, np.stack([RIGHT, NONE, WRONG]))
    assert done.why == (None, "there is no such program", None) and done.codes[:, 0].tolist() == [0, 3, 1]
    assert programs.applied == 2, "all but the assured row's"
    assert backend.build(task, RIGHT).check() is None and programs.applied == 3


def test_a_space_that_can_reopen_is_told_the_tasks_space(task, monkeypatch):
    told = []

    class Builder:
        def legalizers(self, target):
            return {}

        def open(self, mod, target):
            raise AssertionError("its space is known")

        def reopen(self, mod, target, space):
            told.append(space)
            return Programs(mod)

    class Hooks:
        @hookimpl
        def tt_spaces(self):
            return [Entry("fake", Builder)]

    monkeypatch.setattr(module, "Plugins", lambda: Plugins(installed=False, extra=[("fake", Hooks())]))
    TvmBackend().open(task)
    assert told == [SPACE]


def test_a_row_whose_candidate_is_held_is_not_built_again(backend, task, monkeypatch):
    built = []
    compiled = module._Workload.compile
    monkeypatch.setattr(module._Workload, "compile", lambda work, *of: (built.append(of), compiled(work, *of))[1])
    held = backend.build(task, RIGHT)
    assert len(built) == 2, "the program, and the untuned one that its check asks for"
    assert backend.check(task, RIGHT) is None and len(backend.race(task, RIGHT[None], 2, 0.1, True)) == 2
    assert backend.build(task, RIGHT) is held and len(built) == 2
    del held
    backend.build(task, RIGHT)
    assert len(built) == 3


def test_races_in_a_row_look_at_the_machines_states_once(backend, task, monkeypatch):
    looks = []
    monkeypatch.setattr(module, "state", lambda tell: (looks.append(tell()), 1e-4)[1])
    for _ in range(3):
        backend.race(task, RIGHT[None], 2, 0.1)
    assert len(looks) == 1
    monkeypatch.setattr(module, "STATE_S", -1.0)
    backend.race(task, RIGHT[None], 2, 0.1)
    assert len(looks) == 2


def test_kept_programs_are_bounded(backend, task, monkeypatch):
    monkeypatch.setattr(module, "SCHEDULES", 2)
    backend.realise(task, np.stack([RIGHT, WRONG, LAZY]))
    assert len(backend._shared.schedules) == 2


def test_opening_twice_keeps_the_workload(backend, task):
    before = backend._open[task.key]
    backend.open(task)
    assert backend._open[task.key] is before


def test_another_space_than_the_tasks_is_refused(task, monkeypatch):
    """A worker with another version of tt-space must not read rows by its own meaning."""
    from dataclasses import replace

    monkeypatch.setattr(module, "Plugins", lambda: PLUGINS)
    other = Space(SPACE.knobs, version="2", name="fake")
    with pytest.raises(ValueError, match=f"{SPACE.key}.*{other.key}"):
        TvmBackend().open(replace(task, spaces=(other,)))


def halves(wrong: bool) -> tvm.IRModule:
    """Both halves of (4, 8) rows, the first scaled by 1.01 where `wrong`."""
    x = te.placeholder((4, 8), name="x")
    first = te.compute((4, 4), lambda i, j: x[i, j] * (1.01 if wrong else 1.0), name="first")
    second = te.compute((4, 4), lambda i, j: x[i, j + 4] * 1.0, name="second")
    return tvm.IRModule({"main": te.create_prim_func([x, first, second]).with_attr("global_symbol", "main")})


@pytest.mark.parametrize("wrong", [False, True])
def test_every_output_of_a_program_is_checked(wrong):
    cpu = target.resolve({"kind": "llvm", "num-cores": 1})
    work = module._Workload(halves(False), cpu, None, module._Shared())
    why = TvmCandidate(work, work.compile(halves(wrong)), 0.0).check()
    assert (why is not None and "output 0" in why and "1.00e-02" in why) if wrong else why is None


def test_integers_given_to_a_program_index_what_is_there():
    """Of a table of one row only row 0 exists; of a long one, more than the first two are used."""
    for rows, most in ((1, 0), (1000, 999)):
        table, ids = te.placeholder((rows, 4), name="table"), te.placeholder((64,), "int32", name="ids")
        taken = te.compute((64, 4), lambda i, j: table[ids[i], j], name="taken")  # noqa: B023
        func = te.create_prim_func([table, ids, taken]).with_attr("global_symbol", "main")
        work = module._Workload(
            tvm.IRModule({"main": func}), target.resolve({"kind": "llvm", "num-cores": 1}), None, module._Shared()
        )
        table, ids, _ = (a.numpy() for a in work.arguments())
        assert most // 2 <= ids.max() <= most
        np.testing.assert_array_equal(work.reference().draws()[0].want[0], table[ids])


def test_what_a_check_could_not_tell_is_said_after_it(backend, task, monkeypatch):
    backend._open[task.key]._reference = None
    assert backend.doubts(task, RIGHT) == []
    assert backend.check(task, RIGHT) is None and backend.doubts(task, RIGHT) == []
    x = te.placeholder((4, 8), name="x")
    same = te.compute((4, 8), lambda i, j: x[i, j] * 0.0 + 1.0, name="same")
    mod = tvm.IRModule({"main": te.create_prim_func([x, same]).with_attr("global_symbol", "main")})
    work = module._Workload(mod, target.resolve({"kind": "llvm", "num-cores": 1}), None, module._Shared())
    assert TvmCandidate(work, work.untuned(), 0.0).check() is None
    assert len(work.doubts()) == 3 and all("the same everywhere" in text for text in work.doubts())


def test_racing_times_each_row_in_every_round(backend, task):
    seconds = backend.race(task, np.stack([RIGHT, WRONG]), rounds=3, min_ms=0.1)
    assert [len(s) for s in seconds] == [3, 3]
    assert all(s > 0 for row in seconds for s in row)


def test_copies_of_a_constant_take_turns_over_all_runs():
    x, weights = (tvm.runtime.tensor(np.full(100, v, "float32")) for v in (1.0, 2.0))
    work = SimpleNamespace(
        arguments=lambda repacked: [x, weights], device=tvm.cpu(), zeros=nullcontext, sync=lambda: None
    )
    called: list[Any] = []
    one, two = (
        TvmCandidate(work, {"main": lambda *args: called.append(args)}, 0.0, repacked)
        for repacked in (SimpleNamespace(position=1), None)
    )
    first, second = module._with_cold([one, two], 1000)
    assert first(4) > 0 and second(2) > 0
    assert all(a is x and np.array_equal(b.numpy(), weights.numpy()) for a, b in called)
    copies = [id(b) for _, b in called]
    assert len(set(copies)) == 3 and copies == copies[:3] * 2, "1,000 bytes are three copies of 400, whoever runs"


def test_the_process_says_what_it_has(backend):
    assert backend.threads() >= 1
    assert backend.loaded("tt_core.compiler.backend")
    assert not backend.loaded("no.such.module")


def f32(*values: float) -> np.ndarray:
    return np.array(values, "float32")


nan, inf = np.nan, np.inf


@pytest.mark.parametrize(
    ("got", "want", "equal"),
    [
        (f32(1, 2), f32(1, 2), True),
        # 1e-4 of the largest magnitude, 100, is 1e-2: for the small value, too
        (f32(100, 0.009), f32(100, 0), True),
        (f32(100, 0.011), f32(100, 0), False),
        (f32(0.00011), f32(0.0001), False),
        (f32(-100, 0.009), f32(-100, 0), True),
        # a model that gives zeros is compared absolutely
        (f32(0.00009), f32(0), True),
        (f32(0.00011), f32(0), False),
        (f32(nan, 1), f32(nan, 1), True),
        (f32(1, nan), f32(nan, 1), False),
        (f32(nan, 1), f32(1, 1), False),
        (f32(1, 1), f32(nan, 1), False),
        (f32(nan, nan), f32(nan, nan), True),
        (f32(inf, 1), f32(inf, 1), True),
        (f32(-inf, 1), f32(inf, 1), False),
        (f32(inf, 1), f32(1, 1), False),
        (f32(inf, 1), f32(nan, 1), False),
        # the infinite value is no magnitude to be relative to
        (f32(inf, 1.1), f32(inf, 1), False),
        (f32(), f32(), True),
        (np.array([1, 2]), np.array([1, 2]), True),
        (np.array([1, 3]), np.array([1, 2]), False),
        (np.array([True, False]), np.array([True, True]), False),
        (np.array([1.0 + 1e-11]), np.array([1.0]), True),
        (np.array([1.0 + 1e-9]), np.array([1.0]), False),
        (np.array([1.01], "float16"), np.array([1.0], "float16"), True),
        (np.array([1.05], "float16"), np.array([1.0], "float16"), False),
        # halves overflow when they are subtracted as halves
        (np.array([-60000], "float16"), np.array([60000], "float16"), False),
    ],
)
def test_comparisons_by_hand(got, want, equal):
    why = compare(got, want)
    assert (why is None) == equal, why


def test_what_is_said_of_a_difference():
    assert compare(f32(1, 2), f32(1)) == "shape (2,) instead of (1,)"
    assert compare(np.array([1, 3, 4]), np.array([1, 2, 3])) == "2 of 3 values differ"
    assert "5.00e-01" in str(compare(f32(1, 2), f32(2, 2)))
    assert compare(f32(1, 2), f32(2, 2), tolerance=0.5) is None


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int32", "int64", "uint8", "bool"])
def test_random_inputs_have_their_dtype_and_vary(dtype):
    a = random_array((64, 3), dtype, np.random.default_rng(0))
    assert a.shape == (64, 3) and str(a.dtype) == dtype
    assert len(np.unique(a)) > 1
    if not dtype.startswith("float"):
        assert set(np.unique(a).tolist()) <= {0, 1}
    np.testing.assert_array_equal(a, random_array([64, 3], dtype, np.random.default_rng(0)))


def test_random_integers_stay_below_their_bound_and_their_types_largest():
    a = random_array((1000,), "int64", np.random.default_rng(0), below=30000)
    assert 20000 < a.max() < 30000 and a.min() >= 0
    assert random_array((1000,), "int8", np.random.default_rng(0), below=30000).min() >= 0


def test_a_race_of_models_that_is_late_ends_after_four_rounds(monkeypatch):
    """Minutes are minutes on a machine that others use: there an execution took ten times as long as a round."""
    now = 0.0

    class Slow:
        def __init__(self, path):
            pass

        def probe(self):
            return None

        def time(self, inputs, seconds, least=3, warm=True, state_s=None):
            nonlocal now
            now += 2.0 * (least + warm)
            return Timed([2.0] * least, None)

    monkeypatch.setattr("tt_core.compiler.backend.Runner", Slow)
    monkeypatch.setattr("tt_core.compiler.backend.time.perf_counter", lambda: now)
    assert TvmBackend().race_models(["a", "b"], {}, 6.0, 10) == [[2.0] * 4] * 2
    assert now == 4 * 2 * 2.0, "four rounds, none of them with another execution to warm up"


@pytest.mark.parametrize(("each_s", "warm"), [(0.01, True), (0.31, False)])
def test_a_model_longer_than_a_round_of_the_race_does_not_warm_up_again(monkeypatch, each_s, warm):
    told = []

    class Loaded:
        def __init__(self, path):
            self.path = path

        def probe(self):
            return None

        def time(self, inputs, seconds, least=3, warm=True, state_s=None):
            told.append((self.path, least, warm))
            return Timed([each_s] * least, None)

    monkeypatch.setattr("tt_core.compiler.backend.Runner", Loaded)
    assert TvmBackend().race_models(["a", "b"], {}, 6.0, 10) == [[each_s] * 10] * 2
    first = [[(model, 1, False), (model, 3, False)][: 2 if warm else 1] for model in "ab"]
    there = [("a", 1, warm), ("b", 1, warm)]
    assert told == [*first[0], *first[1], *[*there, *there[::-1]] * 4, *there], (
        "there and back, so that a drift cancels"
    )


@pytest.mark.parametrize(
    ("first_s", "later_s", "found"), [(0.99, 0.31, [0.31] * 10), (0.99, 0.93, [0.93]), (1.2, 0.31, [1.2])]
)
def test_a_model_whose_first_execution_is_long_is_looked_at_again(monkeypatch, first_s, later_s, found):
    """Its pages are read then; one of more than a second costs too much for that."""
    told = []

    class Cold:
        def __init__(self, path):
            self.path = path

        def probe(self):
            return None

        def time(self, inputs, seconds, least=3, warm=True, state_s=None):
            cold = self.path == "b" and "b" not in told
            told.append(self.path)
            return Timed([0.3001 if self.path == "a" else first_s if cold else later_s] * least, None)

    monkeypatch.setattr("tt_core.compiler.backend.Runner", Cold)
    assert TvmBackend().race_models(["a", "b"], {}, 6.0, 10) == [[0.3001] * 10, found]


def test_a_library_is_timed_on_free_processors_and_run_for_its_outputs_on_the_workers_own(monkeypatch):
    did = []

    class Loaded:
        def __init__(self, path):
            did.append("load")

        def __call__(self, inputs):
            return []

        def nudged(self, inputs, share, seed):
            return []

        def probe(self):
            return None

        def time(self, *args, **options):
            return Timed([1.0], None)

        def profile(self, *args):
            return {}

    monkeypatch.setattr("tt_core.compiler.backend.Runner", Loaded)
    monkeypatch.setattr("tt_core.compiler.seat.Seat.build", lambda self: did.append("own"))
    monkeypatch.setattr("tt_core.compiler.seat.Seat.run", lambda self: did.append("free"))
    backend = TvmBackend()
    assert backend.run_model("a", {}) == [] and backend.nudge_model("a", {}, 1e-6, (1, 2)) == [[], []]
    backend.race_models(["a"], {}, 1.0, 2)
    backend.profile_models(["a"], {}, 1.0, 2)
    assert did == ["own", "load", "own", "load", "free", "load", "free", "load"]


@pytest.mark.parametrize(("each_s", "rounds"), [(0.1, 10), (4.0, 4)])
def test_functions_of_libraries_take_turns(monkeypatch, each_s, rounds):
    """There and back; a few rounds have to do where the time is long over."""
    now, told = 0.0, []

    class Loaded:
        def __init__(self, path):
            self.path = path

        def profile(self, inputs, seconds):
            nonlocal now
            now += each_s
            told.append((self.path, seconds))
            return {"matmul": 1.0 + len(told), self.path: 2.0}

    monkeypatch.setattr("tt_core.compiler.backend.Runner", Loaded)
    monkeypatch.setattr("tt_core.compiler.backend.time.perf_counter", lambda: now)
    a, b = TvmBackend().profile_models(["a", "b"], {}, 6.0, 10)
    assert [path for path, _ in told] == [*"baab" * (rounds // 2)] and {s for _, s in told} == {0.3}
    assert a["a"] == b["b"] == [2.0] * rounds
    assert a["matmul"] == [1.0 + i for i, (path, _) in enumerate(told, 1) if path == "a"]


@pytest.mark.parametrize("many", [2**12, 2**14])
def test_a_program_that_computes_most_of_it_again_and_again_is_not_built(many):
    """Each element sums a whole row that the operator sums once: 2^24 operations may pass, 2^28 may not."""
    x = te.placeholder((many,), name="x")
    k, again = te.reduce_axis((0, many), name="k"), te.reduce_axis((0, many), name="again")
    total = te.compute((1,), lambda i: te.sum(x[k], axis=k), name="total")
    once = te.compute((many,), lambda i: x[i] - total[0], name="once")
    each = te.compute((many,), lambda i: te.sum(x[again] - x[i], axis=again), name="each")
    mods = [tvm.IRModule({"main": te.create_prim_func([x, out])}) for out in (once, each)]

    class Sketches:
        def apply(self, row):
            return tvm.s_tir.Schedule(mods[int(row[0])])

    work = module._Workload(mods[0], target.resolve("native"), Sketches(), module._Shared())
    assert work.schedule(np.array([0])).mod is not None
    if many == 2**12:
        assert work.schedule(np.array([1])).mod is not None
    else:
        with pytest.raises(ValueError, match="times the operator's arithmetic"):
            work.schedule(np.array([1]))


def test_what_a_wrong_program_was_compared_with_counts_as_kept(backend, task):
    backend._open[task.key]._reference, backend._shared.recent = None, Recent()
    assert backend.check(task, WRONG) is not None
    assert list(backend._shared.recent._references) == [backend._open[task.key].reference()]
