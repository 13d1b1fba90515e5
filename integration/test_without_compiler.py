"""A process that has neither TVM nor what imports it resolves recipes, assembles them and tunes."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, warnings
absent = ("tvm", "tvm_ffi", "tt_core", "tt_space")
sys.modules.update(dict.fromkeys(absent))  # importing them fails from here on
warnings.simplefilter("ignore")  # what needs them is left out with a warning
from tt_spec import Plugins, RunInfo, VirtualClock
from tt_spec.assembly import assemble, start_models
from tt_spec.pieces.memory_store import MemoryStore
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.recipe import resolve

plugins = Plugins()
recipe = resolve(sys.argv[1], ["batch=8"], plugins, elsewhere=("space", "measurer"))
start_models(recipe)
clock, store = VirtualClock(), MemoryStore()
measurer, budget = SyntheticMeasurer(noise=0), plugins.build("stopper", "trials", trials=32)
tasks = [synthetic_task("a"), synthetic_task("b")]
made = assemble(recipe, tasks, measurer, clock=clock, budget=[budget])
done = made.loop(measurer, store, clock, info=RunInfo("r", tuple(tasks), {})).run()
if done.failure:
    raise done.failure
assert {b.distribution for b in plugins.broken} == {"tt-core", "tt-space"}, plugins.broken
assert all(sys.modules.get(name) is None for name in absent)
print(recipe.space, done.trials, len(list(store.query())))
"""


@pytest.mark.parametrize("recipe", ["tt", "autotvm"])
def test_a_process_without_a_compiler_tunes(recipe):
    done = subprocess.run([sys.executable, "-c", PROGRAM, recipe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["both", "32", "32"]
