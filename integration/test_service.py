"""The tuning service as real processes over real HTTP: killed, stopped and started again, nothing is lost or double."""

from __future__ import annotations

import signal
import time

import pytest
from tt_service import wire

from .conftest import tool

chaos = tool("service_chaos")


@pytest.mark.slow
def test_whatever_is_killed_cut_or_repeated_the_history_holds_what_the_agents_logs_hold(tmp_path):
    with chaos.yard(tmp_path, share=0.1, seed=3) as here:
        acts = ["server", "stop", "agent", "disk", "clock", "server"]
        assert chaos.ride(here, acts, agents=3, seed=3, each=32, operators=3) == []
        assert sum(n for what, n in here.proxy.did.items() if what) > 5


def test_the_chaos_of_the_service_finds_what_was_lost_and_what_is_double(tmp_path, monkeypatch):
    with chaos.yard(tmp_path) as here:
        real = here.rows
        monkeypatch.setattr(here, "rows", lambda: [*real()[1:], real()[-1]])
        lost, untold = chaos.ride(here, [], agents=1, seed=0, each=16)
    assert "the agents' logs hold 16 results: 1 are not in the history, which has 1 more" in lost
    assert "the job's events tell of 16 results" in untold


def test_sigterm_ends_a_server_in_five_seconds_with_long_polls_open(tmp_path):
    with chaos.yard(tmp_path) as here:
        here.serve()
        here.agent("a")
        job = here.job(trials=64)
        here.reaches(job, 10**9)
        began = time.monotonic()
        here.server.send_signal(signal.SIGTERM)
        assert here.server.wait(10) in (0, -signal.SIGTERM)
        assert time.monotonic() - began < 5.0, "its agent waits in a long poll"


def test_an_agent_delivers_after_days_offline(tmp_path):
    with chaos.yard(tmp_path) as here:
        here.serve()
        here.agent("a")
        job = here.job(trials=10**6)
        here.reaches(job, 20)
        here.kill_server()
        time.sleep(1.0)
        here.agents["a"].kill()
        here.agents["a"].wait()
        here.serve()
        here.http.post(f"/v1/jobs/{job.id}/cancel", None, wire.JobOut)
        here.agent("a")
        assert here.delivered()
        logged, _ = here.logs()
        assert sorted((m.config, m.seconds) for m in here.rows()) == sorted(logged)
