"""The evaluators on a machine that jumps between two states, as shared virtual processors do."""

import numpy as np
import pytest
from tt_measure import Adaptive, Fixed, Racing
from tt_spec import Bar, Reference, Windows
from tt_spec.testing.machine import TwoStates

PAIRS = 60


def chosen(evaluator, windows, fast_s, slow_s, seconds=2e-4, suffers=0.8, seed=0):
    """How often the faster of two programs 5 % apart was found, and the share of timings within 5 % of their median."""
    rng = np.random.default_rng(seed)
    machine = TwoStates(rng, fast_s, slow_s)
    reference = Reference()
    reference.look([machine.probe() for _ in range(1500)])
    right, values = 0, []
    for _ in range(PAIRS):
        found = {}
        for slower in rng.permutation(2):
            machine.sleep(0.1 + 0.1 * rng.random())  # builds
            run = machine.candidate(seconds * (1.05 if slower else 1.0), suffers)
            assert reference.seconds is not None
            watched = Windows(run, machine.probe, reference.seconds, reference.sensitivity("t"))
            timing = evaluator.evaluate(watched if windows else run, Bar(), rng)
            if windows:
                reference.tell("t", watched.seen())
            found[slower] = float(np.median(timing.seconds))
        right += found[0] < found[1]
        values.append(found[0])
    return right / PAIRS, float(np.mean(np.abs(np.log(values / np.median(values))) <= 0.05))


@pytest.mark.parametrize("states", [(0.01, 0.01), (0.1, 0.1), (0.005, 0.02), (0.0015, 0.018), (0.1, 0.01)])
@pytest.mark.parametrize("evaluator", [Fixed(slow_factor=0), Adaptive(), Racing()])
def test_windows_order_two_programs_that_bare_timings_mistake(evaluator, states):
    right, near = chosen(evaluator, True, *states)
    bare, bare_near = chosen(evaluator, False, *states)
    assert right >= 0.95 and right > bare
    assert near >= 0.9 and near > bare_near


def test_on_a_steady_machine_nothing_changes():
    for evaluator in (Fixed(), Adaptive(), Racing()):
        assert chosen(evaluator, True, 1e9, 1e-9) == chosen(evaluator, True, 1e9, 1e-9)
        assert chosen(evaluator, True, 1e9, 1e-9)[0] == 1.0
