"""MetaSchedule's databases, made and loaded by the stock library, and histories."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tt_core.compiler.lower import unpack
from tt_core.exchange import metaschedule, worker
from tt_core.exchange.metaschedule import RECORDS, WORKLOADS
from tt_core.prepared import prepare
from tt_history import SqliteStore, exchange
from tt_history.cli import run
from tt_space.intrinsics import import_intrinsics
from tt_spec import LeftOut, Measurement, Plugins, Task, child
from tvm import relax, te
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

PLUGINS = Plugins()
FORM = PLUGINS.build("format", "metaschedule")


class Pretends:
    """Builds nothing, and gives each candidate a time of its own; every seventh fails."""

    def __init__(self):
        self.seconds: list[float | None] = []

    def builder(self):
        @derived_object
        class Builder(ms.builder.PyBuilder):
            def build(self, build_inputs):
                return [ms.builder.BuilderResult("nowhere", None) for _ in build_inputs]

        return Builder()

    def runner(self):
        outer = self

        def told(seconds):
            done = ms.runner.RunnerResult(
                None if seconds is None else [seconds], "crashed" if seconds is None else None
            )
            return ms.runner.RunnerFuture(lambda: True, lambda: done)

        @derived_object
        class Runner(ms.runner.PyRunner):
            def run(self, runner_inputs):
                found = []
                for _ in runner_inputs:
                    n = len(outer.seconds)
                    outer.seconds.append(None if n % 7 == 6 else 1e-3 / (n + 1))
                    found.append(told(outer.seconds[-1]))
                return found

        return Runner()


def product():
    """A matrix product, as a TVM user writes one."""
    a, b = (te.placeholder((64, 64), name=n) for n in "AB")
    k = te.reduce_axis((0, 64), name="k")
    c = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")})


@pytest.fixture(scope="module")
def stock(tmp_path_factory) -> tuple[Path, list[float | None]]:
    """A database that stock `tune_tir` wrote, and the seconds in it."""
    folder, pretends = tmp_path_factory.mktemp("stock"), Pretends()
    target = tvm.target.Target({"kind": "llvm", "mcpu": "znver3", "num-cores": 2})
    import_intrinsics(target)
    ms.tune_tir(
        product(),
        target,
        str(folder),
        max_trials_global=24,
        num_trials_per_iter=12,
        builder=pretends.builder(),
        runner=pretends.runner(),
        cost_model="random",
        measure_callbacks=[ms.measure_callback.AddToDatabase()],
        strategy=ms.search_strategy.EvolutionarySearch(
            population_size=24, init_measured_ratio=0.0, genetic_max_fail_count=2
        ),
        seed=3,
    )
    return folder, pretends.seconds


@pytest.fixture(scope="module")
def read(stock):
    return list(FORM.read(stock[0]))


def test_a_stock_database_becomes_rows_of_the_sketch_space(stock, read, tmp_path):
    folder, seconds = stock
    (task,) = (i for _, i in read if isinstance(i, Task))
    mod, target, space = unpack(task.payload)
    assert space == "sketch" and task.space.name == "sketch" and "C" in task.name and task.flops == 2 * 64**3
    found = [i for _, i in read if isinstance(i, Measurement)]
    left = Counter(i.why for _, i in read if isinstance(i, LeftOut))
    assert len(found) + sum(left.values()) == len(seconds) >= 20 and len(found) > len(seconds) / 2
    assert not left.keys() - {"of a sketch, with other post-processing", "of no sketch of this version's"}
    assert {m.seconds for m in found if not m.error} <= {(s,) for s in seconds if s is not None}
    assert {m.error for m in found} == {None, "run"} and {m.device for m in found} == {"metaschedule/znver3"}
    programs = PLUGINS.build("space", "sketch").open(mod, target)
    by_line = (folder / RECORDS).read_text().splitlines()
    for where, m in [(w, i) for w, i in read if isinstance(i, Measurement)][:3]:
        trace, *_ = json.loads(by_line[int(where.split()[-1]) - 1])[1]
        plain = Schedule(mod, debug_mask="none", error_render_level="none")
        tvm.s_tir.schedule.Trace.apply_json_to_schedule(trace, plain)
        ours = programs.apply(np.array(m.config))
        assert tvm_ffi.structural_equal(plain.mod, ours.mod, map_free_vars=True), "the row is the same program"


class Told:
    """A format that gives items that were read before."""

    def __init__(self, items):
        self.items = items

    def read(self, path):
        return iter(self.items)


def test_a_history_becomes_a_database_that_stock_applies(read, tmp_path):
    (task,) = (i for _, i in read if isinstance(i, Task))
    with closing(SqliteStore(tmp_path / "tt.db")) as store:
        first, again = (exchange.take(store, Told(read), Path("stock")) for _ in range(2))
        assert first["added"] and not again["added"], "twice adds nothing"
        kept, best = list(store.query()), store.best(task.key)
        done = exchange.export(store, FORM, tmp_path / "out")
    assert done["written"] == len(kept) and not done["left_out"]
    mod, target, _ = unpack(task.payload)
    database = ms.database.JSONDatabase(work_dir=str(tmp_path / "out"))
    assert len(database) == len(kept)
    applied = database.query_schedule(mod, target, "main")
    ours = PLUGINS.build("space", "sketch").open(mod, target).apply(np.array(best.config))
    assert tvm_ffi.structural_equal(applied.mod, ours.mod, map_free_vars=True)
    again = [i for _, i in FORM.read(tmp_path / "out") if isinstance(i, Measurement)]
    assert sorted((m.config, m.seconds, m.error) for m in again) == sorted((m.config, m.seconds, m.error) for m in kept)


def test_applying_the_database_to_a_model_builds_our_program_and_templates_are_counted(tmp_path):
    prepared = prepare("op:conv2d:1,16,12,16,3,1,1", space="both")
    task = next(t for t in prepared.tasks if t.op == "conv2d")
    mod, target, _ = unpack(task.payload)
    programs = PLUGINS.build("space", "both").open(mod, target)
    rng = np.random.default_rng(0)
    rows = task.space.sample(60, rng)
    parts = {
        part: [r for r in rows if task.space.decode(r)["space"] == part][:2]
        for part in ("sketch", "template", "winograd")
    }
    assert all(parts.values())
    sketches = parts["sketch"]
    store = SqliteStore(tmp_path / "tt.db")
    store.remember([task])
    chosen = [r for some in parts.values() for r in some]
    store.append(
        [
            Measurement(task.key, task.space.key, tuple(map(int, r)), task.space.decode(r), (1e-3 * (i + 1),))
            for i, r in enumerate(chosen)
        ]
    )
    done = exchange.export(store, FORM, tmp_path / "out")
    store.close()
    assert (done["rows"], done["written"]) == (6, 4), "templates apply to the plain workload, Winograd does not"
    assert done["left_out"] == {"rows that take constants in another form": 2}
    database = ms.database.JSONDatabase(work_dir=str(tmp_path / "out"))
    name = prepared.lowered.functions[task.key][0]
    with target, database:
        applied = relax.transform.MetaScheduleApplyDatabase()(prepared.lowered.mod)
    best = database.query_schedule(mod, target, "main")
    theirs, ours = applied[name], best.mod["main"]
    assert tvm_ffi.structural_equal(theirs.body, ours.body, map_free_vars=True)
    first = programs.apply(sketches[0])
    assert tvm_ffi.structural_equal(first.mod["main"].body, ours.body, map_free_vars=True), "the fastest row's program"


# -- what comes from outside ----------------------------------------------------------------------------------------


@pytest.fixture
def copy(stock, tmp_path) -> Path:
    return Path(shutil.copytree(stock[0], tmp_path / "bad"))


def test_a_cut_last_line_doubled_ids_and_foreign_targets_are_read_past_and_named(copy, read):
    lines = (copy / RECORDS).read_text().splitlines()
    workload = (copy / WORKLOADS).read_text()
    (copy / WORKLOADS).write_text(workload + workload)
    foreign, other, lost = (json.loads(lines[0]) for _ in range(3))
    foreign[1][2] = {"kind": "abacus"}
    other[0], lost[0] = 1, 7
    more = [json.dumps(x) for x in (foreign, other, lost)]
    (copy / RECORDS).write_text("\n".join([*lines, *more, lines[0][:200]]))
    found = list(FORM.read(copy))
    n = len(lines)
    told = " | ".join(i.why for _, i in found if isinstance(i, LeftOut))
    assert f"line {n + 1}: a foreign target" in told and f"line {n + 3}: there is no workload 7" in told
    assert f"{RECORDS}, line {n + 4}: cut" in told and f"{WORKLOADS}, line 2: workload" in told
    assert len([i for _, i in found if isinstance(i, Measurement)]) == 1 + len(
        [i for _, i in read if isinstance(i, Measurement)]
    )


def said(capsys, folder: Path, code: int = 6) -> str:
    assert run(["import", str(folder), "--format", "metaschedule", "--history", str(folder.parent / "tt.db")]) == code
    out, err = capsys.readouterr()
    if code:
        assert not out and len(err.splitlines()) == 1
        with closing(SqliteStore(folder.parent / "tt.db")) as store:
            assert list(store.query()) == []
    return err


def test_a_workload_that_tvm_cannot_read_or_that_crashes_it_is_one_line(copy, capsys, monkeypatch):
    content = json.loads((copy / WORKLOADS).read_text().splitlines()[0])
    (copy / WORKLOADS).write_text(json.dumps([content[0], content[1][:-400]]) + "\n")
    assert f"{WORKLOADS}, line 1: " in said(capsys, copy)
    crash = 'import ctypes, sys, os; os.write(int(sys.argv[1]), b\'{"at": "line 5"}\\n\'); ctypes.string_at(0)'
    monkeypatch.setattr(child, "command", lambda module: [sys.executable, "-c", crash])
    assert "line 5: TVM crashed (SIGSEGV)" in said(capsys, copy)


@pytest.fixture
def here(monkeypatch):
    """The worker's reading in this process, which opens each workload once."""
    opened = {}

    def reads(path, what, folder):
        told = []

        class Says:
            def at(self, where):
                pass

            def message(self, **fields):
                told.append(fields)

        worker._Reading(Path(folder), Says(), opened=opened).all()
        yield from told

    monkeypatch.setattr(metaschedule, "_worker", reads)


def test_wrong_seconds_and_lines_are_a_mistake(copy, here, capsys):
    (good, *_) = (copy / RECORDS).read_text().splitlines()
    for seconds, told in (("[-1.0]", "finite and positive"), ("[NaN]", "finite and positive"), ('["x"]', "could not")):
        record = json.loads(good)
        record[1][1] = json.loads(seconds)
        (copy / RECORDS).write_text(f"{good}\n{json.dumps(record)}\n")
        assert f"{RECORDS}, line 2: " in (err := said(capsys, copy)) and told in err
    trace = json.loads(good)
    trace[1][0] = {"a": 1}
    for line in ("[0]", "{}", "[0, [[], [], 1]]", "[" * 100_000, json.dumps(trace)):
        (copy / RECORDS).write_text(f"{line}\n{good}\n")
        assert f"{RECORDS}, line 1: " in said(capsys, copy), line


def test_200_damaged_files_of_records_end_in_one_line_or_an_import(copy, here, capsys):
    content, rng, codes = (copy / RECORDS).read_bytes().splitlines(keepends=True)[0], random.Random(0), []
    for _ in range(200):
        data, at = bytearray(content), rng.randrange(len(content))
        data[at : at + rng.choice((0, 1, 1, 50))] = rng.choice((b"", b"\xff", b"9", b"[", b"}", b"-", b"null", b"0"))
        (copy / RECORDS).write_bytes(data)
        codes.append(run(["import", str(copy), "--format", "metaschedule", "--history", "no.db", "--dry-run"]))
        out, err = capsys.readouterr()
        assert (codes[-1] == 0 and not err) or (codes[-1] == 6 and not out and len(err.splitlines()) == 1), err
    assert set(codes) == {0, 6}
