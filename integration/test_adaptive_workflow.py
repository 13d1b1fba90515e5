"""Recipe adaptive-workflow: its parts together, each alone, and a run that starts from another one's history."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tt_bench.files import load
from tt_bench.recording import Recorded
from tt_bench.runs import tune
from tt_bench.stats import quality
from tt_core.host import Host
from tt_spec import RunInfo, VirtualClock
from tt_spec.pieces.memory_store import MemoryStore
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.recipe import resolve
from tt_spec.types import Batch

from .conftest import events

RECORDINGS = Path(__file__).parents[1] / "recordings"
KNOBS = ("surrogate.inputs=knobs", "draft=none", "searcher.chains=16", "searcher.steps=40", "batch=16")


def recorded(name: str) -> Recorded:
    (part,) = (p for p in load(RECORDINGS / f"{name}-template.json.gz").parts if len(p.rows) > 1)
    return part


@pytest.mark.parametrize(
    ("sets", "pieces"),
    [
        ((), ("KMeans", "FromHistory", "AdaptiveStop")),
        (("transfer=none",), ("KMeans", "NoneType", "AdaptiveStop")),
        (("sampler=diverse",), ("Diverse", "FromHistory", "AdaptiveStop")),
        (("stopper=patience", "stopper.cap=800"), ("KMeans", "FromHistory", "Patience")),
    ],
    ids=["whole", "no transfer", "no clusters", "another stop"],
)
def test_every_part_can_be_left_out(sets, pieces):
    recipe = resolve("adaptive-workflow", [*KNOBS, *sets])
    assert tuple(type(recipe.build(r)).__name__ for r in ("sampler", "transfer", "stopper")) == pieces
    tasks = [synthetic_task("first", 5, 6), synthetic_task("second", 5, 6)]
    measurer, heard = SyntheticMeasurer(), []

    class Hears:
        def __getattr__(self, event):
            return lambda **what: heard.append(what.get("batch"))

    made = Host().assemble(recipe, tasks, measurer, trials=96)
    info = RunInfo("run", tuple(tasks))
    outcome = made.loop(measurer, MemoryStore(), VirtualClock(), info=info, listeners=[Hears()]).run()
    assert outcome.failure is None and outcome.trials == 96
    batches = [b for b in heard if isinstance(b, Batch)]
    assert ("stopper" in batches[-1].info) == (pieces[2] == "AdaptiveStop")
    assert any("transfer" in b.info for b in batches) == (pieces[1] == "FromHistory")


def test_a_second_task_of_a_run_starts_from_the_first():
    recipe = resolve("adaptive-workflow", [*KNOBS, "stopper=none", "sampler=diverse"])
    tasks = [synthetic_task("first", 5, 6), synthetic_task("second", 5, 6)]
    made = Host().assemble(recipe, tasks, measurer := SyntheticMeasurer(noise=0))
    first, second = made.pipelines
    for _ in range(3):
        batch = first.ask(16)
        first.tell(batch.id, list(measurer.measure(first.task, batch.codes, None)))
    batch = second.ask(16)
    assert batch.info["transfer"]["tasks"] == {"first (model)": 48}
    assert batch.origin.count("random") == 4 and second.known_trials() == 0


def test_rows_of_recorded_neighbours_bring_a_better_first_batch():
    """The operator itself is left out of what is lent."""
    part = recorded("resnet18-64")
    others = [recorded(n) for n in ("resnet18-128", "resnet18-256", "resnet18-512")]
    after: dict[str, list[float]] = {"scratch": [], "transfer": []}
    for seed in range(3):
        for name, sets in (("scratch", ["transfer=none"]), ("transfer", [])):
            run = tune(Host(), [part], "adaptive-workflow", [*KNOBS, "sampler=diverse", *sets], seed, 16, lent=others)
            assert len(run.t) == 16 and set(run.task) == {0}, "foreign rows cost no trial"
            after[name].append(float(quality(run, part.best_s)[-1]))
    assert np.mean(after["transfer"]) > np.mean(after["scratch"])


def test_the_task_itself_is_never_lent():
    part = recorded("encoder-qkv")
    run = tune(Host(), [part], "adaptive-workflow", [*KNOBS, "transfer.judge=2"], 0, 16, lent=[part])
    alone = tune(Host(), [part], "adaptive-workflow", [*KNOBS, "transfer=none"], 0, 16)
    assert run.true_s == alone.true_s, "nothing is lent, so nothing is guided"


@pytest.mark.slow
def test_a_run_of_the_command_starts_from_another_operators_history(here):
    options = ["--space", "template", "--set", "batch=12", "--history", "tt.db", "--json"]
    search = ["--recipe", "adaptive-workflow", "--set", "searcher.chains=8", "--set", "searcher.steps=20"]
    told = here("tune", "op:matmul:64,64,96", *options, "--recipe", "random", "--trials", "24")
    assert not any("foreign" in e.get("text", "") for e in events(told.stdout))
    lines = events(here("tune", "op:matmul:64,96,96", *options, *search, "--trials", "16").stdout)
    (note,) = (e["text"] for e in lines if e["event"] == "note" and "foreign" in e["text"])
    assert "its first cost model learned from" in note and "of matmul (near)" in note
    first = next(e for e in lines if e["event"] == "batch_measured")
    assert first["info"]["transfer"]["rows"] > 0 and "transfer" in first["batch"]["origin"]
    assert first["restored"] == 0 and first["info"]["stopper"]["im"] == 256
    assert lines[-1]["restored"] == 0 and lines[-1]["trials"] == 16, "foreign rows are no trials"
