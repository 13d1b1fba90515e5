"""The machine's states on a run's page."""

from tt_bench.states import section_states
from tt_spec import Measurement, Noise


def row(noise, error=None):
    return Measurement("t", "s", (0,), seconds=() if error else (1.0,), error=error, noise=noise)


def test_windows_left_out_and_timings_that_were_corrected():
    page = section_states([row(Noise(6, 2, 1.01, 0.01)), row(Noise(2, 0, 1.8, 0.03)), row(None, "build")])
    assert "2 of 10, 20%" in page and "1 of 2, 50%" in page and "0.0" in page
    assert "Those 1 timings are corrected" in page and "1.80 to 1.80" in page


def test_nothing_where_nothing_tells():
    assert section_states([row(None), row(None, "run")]) == ""


def test_a_steady_machine_has_no_corrected_timing():
    assert "corrected" not in section_states([row(Noise(6, 0, 1.0, 0.0))])
