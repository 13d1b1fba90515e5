"""Task keys are what they were: a history stays valid, whatever rewriting, pass or space is added."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tt_core.prepared import prepare

RECORDINGS = sorted((Path(__file__).parent.parent / "recordings").glob("*.json.gz"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda p: p.name.removesuffix(".json.gz"))
def test_a_recorded_operator_keeps_its_key(path):
    with gzip.open(path) as f:
        recorded = json.load(f)["metadata"]["tt"]
    tasks = [json.loads(t["task"]) for t in recorded["tasks"]]
    ready = prepare(recorded["model"], target=tasks[0]["target"], space=recorded["space"])
    found = {t.key for t in ready.lowered.tasks}
    assert {t["key"] for t in tasks} <= found
