"""Imports made by opening a space, and GPU spaces without a GPU. Each test in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

PREAMBLE = """
import sys

sys.modules["torch"] = None  # `import tvm` takes it along where it is: 2 s of CPU
import numpy as np
import tvm
from tt_space import InvalidRow, Sketch
from tvm import te

a, b = te.placeholder((64, 32), name="A"), te.placeholder((32, 64), name="B")
k = te.reduce_axis((0, 32), name="k")
c = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
mod = tvm.IRModule({"main": te.create_prim_func([a, b, c])})
"""


def fresh(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_cpu_space_does_not_parse_the_intrinsics_of_gpus():
    out = fresh(
        """
        target = tvm.target.Target(
            {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "cascadelake", "num-cores": 2}
        )
        programs = Sketch().open(mod, target)
        programs.apply(programs.space.sample(1, np.random.default_rng(0))[0])
        print(*sorted(m for m in sys.modules if m.startswith("tvm.s_tir.tensor_intrin")))
        """
    )
    found = set(out.split())
    assert "tvm.s_tir.tensor_intrin.x86" in found
    assert not {f"tvm.s_tir.tensor_intrin.{kind}" for kind in ("cuda", "rocm", "metal", "hexagon")} & found


def test_a_template_needs_no_intrinsics_before_its_features_are_asked_for():
    """MetaSchedule imports those of every target when nobody has put the package in place."""
    out = fresh(
        """
        from tt_space import TemplatePrograms
        from tt_space.packing import legalizers
        from tvm import relax

        target = tvm.target.Target(
            {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "cascadelake", "num-cores": 2}
        )
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((4, 32), "float32"))
        with builder.function("main", [x]):
            y = builder.emit(relax.op.matmul(x, relax.const(np.ones((32, 64), "float32"))))
            builder.emit_func_output(y)
        lowered = relax.transform.LegalizeOps(legalizers(target))(builder.get())
        (func,) = (f for f in lowered.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
        programs = TemplatePrograms(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), target)
        schedule = programs.apply(programs.space.sample(1, np.random.default_rng(0))[0])
        print(any(m.startswith("tvm.s_tir.tensor_intrin.") for m in sys.modules))
        assert programs.features([schedule])[0].shape[1] == 164
        print(*sorted(m for m in sys.modules if m.startswith("tvm.s_tir.tensor_intrin.")))
        """
    )
    before, *after = out.split()
    assert before == "False"
    assert after == ["tvm.s_tir.tensor_intrin.x86"]


def test_importing_intrinsics_again_registers_nothing_twice():
    """TVM refuses a second registration of one name."""
    out = fresh(
        """
        from tt_space.intrinsics import import_intrinsics

        target = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "num-cores": 2})
        import_intrinsics(target)
        first = sys.modules["tvm.s_tir.tensor_intrin.x86"]
        import_intrinsics(target)
        print(sys.modules["tvm.s_tir.tensor_intrin.x86"] is first)
        """
    )
    assert out.split() == ["True"]


SCRIPTS = """
from __future__ import annotations

from tvm.script import ir as I
from tvm.script import tirx as T


def outer(n):
    shape = (n, 4)

    @T.prim_func(s_tir=True)
    def plain(x: T.Buffer(shape, "float32"), y: T.Buffer(shape, "float32")):
        for i, j in T.grid(n, 4):
            with T.sblock("copy"):
                u, v = T.axis.remap("SS", [i, j])
                y[u, v] = x[u, v]

    return plain


@I.ir_module
class Module:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for i in T.serial(4):
            with T.sblock("copy"):
                u = T.axis.remap("S", [i])
                y[u] = x[u]
"""


def test_tvmscript_is_parsed_as_ever_without_the_sources_of_all_callers(tmp_path):
    """Names around a function, and functions in a class."""
    (tmp_path / "scripts.py").write_text(SCRIPTS)
    parse = """
        import inspect
        from tt_space.intrinsics import import_intrinsics

        {before}
        described, plain = [], inspect.getframeinfo

        def count(*args):
            described.append(args)
            return plain(*args)

        inspect.getframeinfo = count
        sys.path.insert(0, {folder!r})
        import scripts

        print(scripts.outer(3).script(), scripts.Module.script())
        print(len(described))
    """
    ever, lean = (
        fresh(parse.format(before=before, folder=str(tmp_path))).rsplit(maxsplit=1)
        for before in ("", 'import_intrinsics(tvm.target.Target("llvm"))')
    )
    assert "3, 4" in lean[0] and lean[0] == ever[0]
    assert int(ever[1]) > 3 * int(lean[1])


@pytest.mark.slow
def test_cuda_rows_generate_apply_and_become_cuda_source_without_a_cuda_compiler(tmp_path):
    """On GPUs most random rows ask for too many threads; those must say so, and the others must build."""
    out = fresh(
        """
        target = tvm.target.Target(
            {"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024,
             "max_shared_memory_per_block": 49152, "thread_warp_size": 32}
        )
        programs = Sketch().open(mod, target)
        space, good, why = programs.space, [], set()
        for row in space.sample(200, np.random.default_rng(0)):
            try:
                schedule = programs.apply(row)
            except InvalidRow as e:
                why.add(str(e))
                continue
            read = programs.read(schedule, row)
            assert (programs.read(programs.apply(read), read) == read).all()
            good.append(schedule)
        features = programs.features(good[:3])
        assert all(f.shape[1] == 164 and np.isfinite(f).all() for f in features)
        library = tvm.tirx.build(good[0].mod, target=target)
        source = library.imports[0].inspect_source()
        print(len(programs.traces), len(good), "__global__" in source, "threadIdx.x" in source, "__shared__" in source)
        print("\\n".join(sorted(why)))
        """,
        PATH=str(tmp_path),
    )
    counts, *why = out.splitlines()
    sketches, good, *source = counts.split()
    assert int(sketches) >= 1
    assert int(good) >= 1
    assert source == ["True", "True", "True"]
    assert why and all("VerifyGPUCode refuses the program" in w for w in why)
