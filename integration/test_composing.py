"""The last race: of programs that are as good alone, those ship that are faster inside the model."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from tt_core.compiler.backend import TvmBackend
from tt_core.compiler.runtime import Runner
from tt_core.deploy import composing, finalists, shipping
from tt_core.deploy.composing import Inside, choose, rivals
from tt_core.errors import ModelError
from tt_core.prepared import prepare
from tt_core.stages import Stages
from tt_spec import Measurement, Pipeline, Plugins, VirtualClock, WallClock
from tt_spec.errors import FileError, ProgramError
from tt_spec.pieces.null_surrogate import NullSurrogate
from tt_spec.pieces.random_searcher import RandomSearcher
from tt_spec.pieces.top_sampler import TopSampler

ALONE = finalists.Network(0, lambda task, row: None)


def row(*values: int) -> np.ndarray:
    return np.array(values)


def test_rivals_are_near_and_resemble_nobody_chosen():
    winner = row(0, 0, 0, 0)
    ranked = [(row(0, 0, 0, 1), 1.0), (winner, 1.01), (row(2, 2, 2, 0), 1.05), (row(2, 2, 0, 0), 1.1)]
    ranked += [(row(0, 0, 3, 3), 1.14), (row(5, 5, 5, 5), 1.2)]
    found = [tuple(map(int, r)) for r in rivals(ranked, winner, 3)]
    assert found == [(2, 2, 2, 0), (0, 0, 3, 3), (0, 0, 0, 1)], "three knobs, two from both, then one, the faster first"
    assert rivals(ranked, winner, 1)[0].tolist() == [2, 2, 2, 0]
    assert len(rivals(ranked, winner, 9)) == 4, "not the winner, and none of 1.2 times the best's seconds"
    many = [(row(i, 0), 1.0) for i in range(40)]
    assert len(rivals(many, row(0, 0), 40)) == composing.POOL
    assert rivals([], winner, 3) == []


def test_who_is_faster_in_nine_of_ten_rounds_and_for_more_than_nothing_is_chosen():
    lowered = SimpleNamespace(functions={"a": ["f", "g"], "b": ["h"], "c": ["k"], "step": ["s"], "untuned": ["u"]})
    lineups = [{key: row(i) for key in ("a", "b", "c", "step")} for i in range(3)]
    first = {"f": [4.0] * 10, "g": [6.0] * 10, "h": [10.0] * 10, "k": [10.0] * 10, "u": [70.0] * 10}
    second = {**first, "f_packed": [1.0] * 10, "h": [9.0] * 8 + [11.0] * 2, "k": [9.99] * 10, "u": [1.0] * 10}
    del second["f"]
    third = {**first, "f": [5.0] * 10, "g": [3.0] * 10, "h": [9.5] * 9 + [11.0]}
    better = {key: (int(r[0]), ratio) for key, (r, ratio) in choose(lowered, lineups, [first, second, third]).items()}
    assert better == {"a": (1, pytest.approx(0.7)), "b": (2, pytest.approx(0.95))}, (
        "both functions of a; b not by eight rounds; c gains a ten-thousandth of the model; a step is no function of it"
    )
    assert choose(lowered, lineups, [first, first, first]) == {}


class Inner(TvmBackend):
    """The backend, with the timings that a test wants."""

    def __init__(self, gain=0.8, composed=0.9, wrong=(), nonsense=False):
        super().__init__()
        self.gain, self.composed, self.nonsense = gain, composed, nonsense
        self.wrong, self.profiled = [tuple(w) for w in wrong], []

    def profile_models(self, paths, inputs, seconds=6.0, rounds=10):
        if self.gain is None:
            raise ProgramError("the library ended its process", error="crash")
        self.profiled.append(paths)
        names = [name for name in Runner(paths[0]).profile(inputs, 0.0) if "matmul" in name]
        seconds = [1e-3 if path.endswith("tuned.so") else 1e-3 * self.gain for path in paths]
        return [{name: [s] * rounds for name in names} for s in seconds]

    def race_models(self, paths, inputs, seconds=6.0, rounds=10):
        if len(paths) > 2 and self.composed is None:
            raise ProgramError("the library ended its process", error="crash")
        return [[s] * rounds for s in (1e-2, 1e-3, 1e-3 * (self.composed or 1.0))][: len(paths)]

    def run_model(self, path, inputs):
        found = super().run_model(path, inputs)
        return [a + 1 for a in found] if self.nonsense and "inside" in path else found

    def check(self, task, row):
        return "it computes nonsense" if tuple(row) in self.wrong else super().check(task, row)


@pytest.fixture(scope="module")
def ready():
    return prepare("op:matmul:8,16,16", space="sketch")


@pytest.fixture
def knows(ready):
    """Its operator's pipeline, with two programs that take as long."""
    task, real = ready.tasks[0], TvmBackend()
    p = Pipeline(task, NullSurrogate(), RandomSearcher(), TopSampler())
    real.open(task)
    found = real.realise(task, task.space.sample(20, np.random.default_rng(0)))
    rows = np.unique(found.codes[[w is None for w in found.why]], axis=0)[:2]
    p.restore([Measurement(task.key, task.space.key, tuple(map(int, r)), seconds=(1e-3,)) for r in rows])
    return p


@pytest.fixture
def shipped(ready, knows, tmp_path):
    """Ships with a measurer; the sidecar, what was said, and which programs failed."""

    def ship(measurer, clock=None, minutes=None):
        measurer.open(knows.task)
        said, failed, plain = [], [], tmp_path / "untuned.so"
        shipping.write_untuned(ready, plain, Plugins())
        inside = Inside([knows], ALONE, failed.append, after_s=1.0)
        stages = Stages(clock or WallClock(), minutes, said.append)
        shipment = shipping.Shipment(ready, plain, measurer, {}, Plugins(), stages, inside)
        result = shipping.ship(shipment, finalists.leaders([knows]), tmp_path / "m.so")
        assert result.verified and Runner(tmp_path / "m.so")(Runner(plain).random_inputs())
        return json.loads((tmp_path / "m.so.json").read_text()), said, failed

    return ship


def test_who_wins_inside_the_model_ships(knows, shipped):
    (_, _), (other, _) = knows.top(2)
    measurer = Inner()
    sidecar, said, failed = shipped(measurer)
    (task,) = sidecar["tasks"]
    assert task["knobs"] == json.loads(json.dumps(knows.task.space.decode(other))) and not failed
    assert task["latency_s"] == pytest.approx(0.8e-3), "its rival's seconds by what both took inside"
    assert sidecar["latency_after_s"] == pytest.approx(0.9e-3)
    assert [len(paths) for paths in measurer.profiled] == [2]
    assert any("1 of 1 programs that ship" in t for t in said)


@pytest.mark.parametrize(
    "why",
    [
        "nobody is faster inside",
        "the composed model is slower",
        "wrong",
        "crash",
        "no library",
        "full disk",
        "hurry",
        "long",
        "the composed model crashes",
        "the composed model computes nonsense",
    ],
)
def test_else_who_won_alone_ships(knows, shipped, monkeypatch, why):
    (best, _), (other, _) = knows.top(2)
    measurer = {
        "nobody is faster inside": Inner(gain=1.1),
        "the composed model is slower": Inner(composed=1.1),
        "wrong": Inner(wrong=[other]),
        "crash": Inner(gain=None),
        "no library": Inner(),
        "full disk": Inner(),
        "hurry": Inner(),
        "long": Inner(),
        "the composed model crashes": Inner(composed=None),
        "the composed model computes nonsense": Inner(nonsense=True),
    }[why]
    if why == "long":
        monkeypatch.setattr(composing, "LONGEST_S", 0.9e-3)
    if why in ("no library", "full disk"):

        def written(*args):
            raise (ModelError if why == "no library" else FileError)("it cannot be made")

        monkeypatch.setattr(composing, "_written", written)
    clock = VirtualClock() if why == "hurry" else None
    sidecar, said, failed = shipped(measurer, clock, 0.02 if why == "hurry" else None)
    (task,) = sidecar["tasks"]
    assert task["knobs"] == json.loads(json.dumps(knows.task.space.decode(best)))
    assert sidecar["latency_after_s"] == pytest.approx(1e-3) and not any("but inside the model" in t for t in said)
    assert any("those that won alone do" in t for t in said) == why.startswith("the composed model c")
    assert [m.config for m in failed] == ([tuple(map(int, other))] if why == "wrong" else [])
    assert any("could not race inside the model" in t for t in said) == (why in ("crash", "no library", "full disk"))
    assert bool(measurer.profiled) == (why not in ("crash", "no library", "full disk", "hurry", "long"))


def test_a_library_says_what_its_functions_take(ready, tmp_path):
    """All that a model calls, in every execution alike."""
    path = tmp_path / "m.so"
    shipping.write_untuned(ready, path, Plugins())
    inputs = Runner(path).random_inputs()
    runner = Runner(path)
    plain = runner(inputs)
    profile = runner.profile(inputs, 0.05)
    (matmul,) = [s for name, s in profile.items() if name in ready.lowered.functions[ready.tasks[0].key]]
    assert 0 < matmul < sum(profile.values())
    assert profile.keys() == runner.profile(inputs, 0.0).keys()
    assert all(np.array_equal(a, b) for a, b in zip(plain, runner(inputs), strict=True))
