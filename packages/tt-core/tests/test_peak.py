"""The program that tells in which state the machine is."""

import json

import numpy as np
import pytest
import tvm
from tt_core.compiler.peak import PROBE_BYTES, PROBE_READS, exchange, probe
from tt_core.compiler.target import resolve


def native(threads):
    return tvm.target.Target({**json.loads(str(resolve("native"))), "num-cores": threads})


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_each_thread_multiplies_what_its_neighbour_wrote(threads):
    s, target = exchange(native(threads)), native(threads)
    shapes = [[int(d) for d in p.shape] for p in s.mod["main"].params]
    rng = np.random.default_rng(0)
    x, y, _ = (rng.random(shape, "float32") for shape in shapes)
    rows, lanes = len(x), y.shape[1]
    assert 2 * lanes * 4 * rows == PROBE_BYTES and len(y) == threads
    args = [tvm.runtime.tensor(a) for a in (x, y, np.zeros(shapes[2], "float32"))]
    tvm.tirx.build(s.mod, target=target)["main"](*args)
    want = PROBE_READS * 2 * np.einsum("kn,tv->tnv", x, np.roll(y, -1, axis=0))
    np.testing.assert_allclose(args[2].numpy(), np.repeat(want[:, :, None], 2, axis=2), rtol=1e-4)


def test_the_probe_is_made_once_for_a_target_and_tells_seconds():
    about = str(native(2))
    tell = probe(about)
    assert probe(about) is tell
    assert all(0 < tell() < 1 for _ in range(3))
