"""A piece that raises, hangs or grows ends its job, not the server, which goes on with the next one."""

from __future__ import annotations

import os
import re

from tt_service import wire
from tt_service.runner import Bounds
from tt_service_house import house, job_of

BAD = """
import sys, time
from tt_spec import Entry, hookimpl
from tt_spec.pieces.random_searcher import RandomSearcher

class Bad(RandomSearcher):
    def __init__(self, how: str = "raise"):
        self.how = how
    def propose(self, ctx, n):
        if self.how == "raise":
            import os
            raise RuntimeError(f"a defect among {os.listdir()}")
        if self.how == "sleep":
            time.sleep(3600)
        if self.how == "spin":
            while True:
                pass
        if self.how == "leave":
            import os
            os._exit(5)
        held = []
        while True:
            held.append(bytearray(2**27))

@hookimpl
def tt_searchers():
    return [Entry("bad", Bad, "raises, hangs or grows")]
"""

HOW = {
    "raise": "RuntimeError: a defect among \\[\\]",
    "sleep": "thought for more than 8 s and said nothing",
    "grow": "memory|MemoryError",
    "leave": "its process ended by itself \\(exit 5",
}


def test_it_ends_its_job_alone(tmp_path, monkeypatch):
    site = tmp_path / "site"
    (site / "bad_dist-1.0.dist-info").mkdir(parents=True)
    (site / "bad_dist-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-dist\nVersion: 1.0\n")
    (site / "bad_dist-1.0.dist-info" / "entry_points.txt").write_text("[tt]\nbad-dist = bad_dist_hooks\n")
    (site / "bad_dist_hooks.py").write_text(BAD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    bounds = Bounds(cpu_s=60, memory_bytes=1200 * 2**20, silent_s=8.0)
    with house(tmp_path, bounds=bounds) as here:
        here.agent()
        jobs = {}
        for how in HOW:
            asked = job_of(sets=["batch=8", "searcher=bad", f'searcher.how="{how}"'])
            jobs[how] = here.http.post("/v1/jobs", asked, wire.JobOut, wait_s=60)
        for how, said in HOW.items():
            end = here.ended(jobs[how])[-1].text
            assert end.startswith("failed: ") and "\n" not in end, end
            assert re.search(said, end), f"{how}: {end}"
        good = here.http.post("/v1/jobs", job_of(trials=8), wire.JobOut, wait_s=60)
        assert here.ended(good)[-1].text == "done: 8 trials are spent"
