"""A whole model is compared element by element: one broken operator in it is found, a right program is not refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tt_core.compiler import target
from tt_core.compiler.backend import TvmBackend
from tt_core.compiler.primfunc import as_module
from tt_core.deploy import library as files
from tt_core.deploy import shipping, verification
from tt_core.deploy.finalists import Winners
from tt_core.deploy.nudging import Nudged, share
from tt_core.errors import VerificationError
from tt_core.prepared import Prepared, prepare
from tt_core.stages import Stages
from tt_space.machine import vector_unit
from tt_spec import Plugins, WallClock
from tvm import relax

from .mutants import mutants

BROKEN = (
    "a factor of 1.001",
    "one lane is off by a thousandth",
    "the tail of an eighth is zero",
    "the last row is not written",
    "the last step of a sum is left out",
    "a lane too far is loaded",
    "through float16",
    "a loop ends one short",
)


_RNG = np.random.default_rng(0)
FIRST, SECOND = (_RNG.normal(size=(32, 32)).astype("float32") for _ in range(2))
LANES = vector_unit(target.resolve("native")).lanes("float32")
COLUMNS = np.tile(np.geomspace(1e4, 1e-2, LANES), 32 // LANES).astype("float32")
"""The last lanes of a vector are small, however many this machine's has: weights are packed in as many."""


def network() -> Any:
    """Two products; the columns of the second are from 10,000 down to 0.01 large."""
    first, second, columns = map(relax.const, (FIRST, SECOND, COLUMNS))
    x = relax.Var("x", relax.TensorType((8, 32), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            hidden = builder.emit(relax.op.nn.relu(relax.op.matmul(x, first)))
            out = builder.emit_output(relax.op.multiply(relax.op.matmul(hidden, second), columns))
        builder.emit_func_output(out)
    return builder.get()


@dataclass
class Network:
    """The network, its library, inputs and outputs, and what an element may be off by."""

    ready: Prepared
    path: Path
    backend: TvmBackend
    inputs: dict[str, np.ndarray]
    want: list[np.ndarray]

    def outputs(self, mod: Any, path: Path) -> list[np.ndarray]:
        """Those of the network with other functions."""
        built = files.compile_library(replace(self.ready.lowered, mod=mod), {})
        files.write(built, path, shipping._sidecar(self.ready))
        return self.backend.run_model(str(path), self.inputs)

    def verify(self, got: list[np.ndarray], nudged: bool = True) -> None:
        plain, by = str(self.path), share(self.ready.lowered.mod)
        measured = Nudged(self.want, lambda seeds: self.backend.nudge_model(plain, self.inputs, by, seeds))
        want = verification.wanted(self.ready.model, self.inputs, self.want)
        verification.verify(want, got, measured if nudged else None)


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    ready, path, backend = prepare(network()), tmp_path_factory.mktemp("net") / "untuned.so", TvmBackend()
    shipping.write_untuned(ready, path, Plugins())
    inputs = {"x": np.random.default_rng(1).normal(size=(8, 32)).astype("float32")}
    return Network(ready, path, backend, inputs, backend.run_model(str(path), inputs))


def broken(net: Network, name: str) -> list[Any]:
    """The network with its last product broken that way, in one place each."""
    lowered = net.ready.lowered
    task = next(t for t in lowered.tasks if "multiply" in t.name)
    (function,) = lowered.functions[task.key]
    found = []
    for mutant in mutants(as_module(lowered.mod[function]), name, 1):
        mod = lowered.mod.clone()
        mod.update_func(mod.get_global_var(function), mutant["main"].without_attr("global_symbol"))
        found.append(mod)
    return found


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_operator_in_a_network_is_found(net, tmp_path, name):
    made = broken(net, name)
    assert made, "nothing was broken"
    for mod in made:
        with pytest.raises(VerificationError, match="untuned program"):
            net.verify(net.outputs(mod, tmp_path / "broken.so"))


def test_small_outputs_are_not_lost_beside_large_ones(net, tmp_path):
    (mod,) = broken(net, "the tail of an eighth is zero")
    got = net.outputs(mod, tmp_path / "broken.so")
    net.verify(got, nudged=False)  # over the largest output nothing shows
    with pytest.raises(VerificationError, match="of 256 values"):
        net.verify(got)


def test_right_programs_of_a_network_pass(net):
    """Exact ones, and one whose every sum is in another order."""
    x, first, second = (a.astype("float64") for a in (net.inputs["x"], FIRST, SECOND))
    net.verify([((np.maximum(x @ first, 0) @ second) * COLUMNS).astype("float32")])
    hidden, other = np.zeros((8, 32), "float32"), np.zeros((8, 32), "float32")
    for i in range(31, -1, -1):
        hidden += net.inputs["x"][:, i : i + 1] * FIRST[i]
    for i in range(31, -1, -1):
        other += np.maximum(hidden[:, i : i + 1], 0) * SECOND[i]
    assert not np.array_equal(other * COLUMNS, net.want[0])
    net.verify([other * COLUMNS])


def test_a_network_with_a_broken_operator_ships_untuned(net, tmp_path, monkeypatch):
    (mod,) = broken(net, "the tail of an eighth is zero")
    built = files.compile_library(replace(net.ready.lowered, mod=mod), {})
    monkeypatch.setattr(files, "compile_library", lambda *_: built)
    monkeypatch.setattr(net.backend, "race_models", lambda paths, *_: [[1.0] * 10, [0.5] * 10][: len(paths)])
    said: list[str] = []
    shipment = shipping.Shipment(
        net.ready, net.path, net.backend, {}, Plugins(), Stages(WallClock(), None, said.append)
    )
    shipped = shipping.ship(shipment, Winners({}, {t.key: 1.0 for t in net.ready.tasks}), tmp_path / "out.so")
    assert shipped.after_s == shipped.before_s and any("does not match the untuned program" in text for text in said)
    assert np.array_equal(net.backend.run_model(str(tmp_path / "out.so"), net.inputs)[0], net.want[0])


@pytest.fixture(scope="module")
def remembers(tmp_path_factory):
    """A model whose state is half of what it was and what came in."""
    x, state = (relax.Var(name, relax.TensorType((4, 8), "float32")) for name in ("x", "state"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, state]):
        with builder.dataflow():
            after = builder.emit(relax.op.add(x, relax.op.multiply(state, relax.const(0.5))))
            y, last = builder.emit_output(relax.op.nn.relu(after)), builder.emit_output(after)
        builder.emit_func_output(relax.Tuple([y, last]))
    ready = prepare(builder.get(), target="native", plugins=Plugins())
    ready = replace(ready, model=replace(ready.model, outputs=("y", "state_out")))
    path = tmp_path_factory.mktemp("remembers") / "untuned.so"
    shipping.write_untuned(ready, path, Plugins())
    return ready, path


@pytest.mark.parametrize("wrong_in", [None, 1, 4])
def test_a_model_with_states_is_followed_over_ten_steps(remembers, tmp_path, wrong_in):
    """Each step gets the states that the shipped library has computed; a fault in one of them is found."""
    ready, untuned = remembers
    runs: dict[Path, list[tuple[dict[str, np.ndarray], list[np.ndarray]]]] = {}

    class Followed(TvmBackend):
        def run_model(self, path, inputs):
            outputs = super().run_model(path, inputs)
            own = runs.setdefault(Path(path), [])
            own.append((inputs, outputs))
            return [o + (Path(path) != untuned and len(own) == wrong_in) for o in outputs]

        def race_models(self, paths, inputs, seconds=6.0, rounds=10):
            return [[1.0] * 10, [0.5] * 10][: len(paths)]

    said: list[str] = []
    shipment = shipping.Shipment(ready, untuned, Followed(), {}, Plugins(), Stages(WallClock(), None, said.append))
    shipped = shipping.ship(shipment, Winners({}, {t.key: 1.0 for t in ready.tasks}), tmp_path / "out.so")
    assert all("over 10 steps" in text for text in shipped.verified.values())
    plain = runs.pop(untuned)
    ((_, tuned),) = runs.items()
    assert len(tuned) == (wrong_in or 10) and (wrong_in is not None) == any("cannot ship" in text for text in said)
    assert wrong_in != 4 or any("in step 4 with its states fed back" in text for text in said)
    for (given, _), (before, outputs) in zip(tuned[1:], tuned, strict=False):
        assert np.array_equal(given["state"], outputs[1]) and not np.array_equal(given["x"], before["x"])
    assert len(plain) == 10 + (wrong_in or 0)
