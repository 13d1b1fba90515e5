"""Real candidates recorded, replayed, compared and drawn, each by the command."""

from __future__ import annotations

import json
from statistics import median

import pytest

OPERATOR = "op:matmul:32,48,64"


@pytest.mark.slow
def test_record_bench_and_report(here, tmp_path, monkeypatch):
    monkeypatch.setattr("tt_bench.record.PILOT", 16)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # a comparison sets them for its processes
        monkeypatch.setenv(name, "2")
    here("record", OPERATOR, "--most", "12", "--runs", "20", "--long-rows", "2", "--long-runs", "60", "--out", "x")
    data = json.loads(_unzipped(tmp_path / "x.json.gz"))
    assert data["schema_version"] == "1.0.0" and 4 <= len(data["results"]) <= 12
    timed = [len(r["times"]["runtimes"]) for r in data["results"] if r["invalidity"] == "correct"]
    assert set(timed) == {60}, "so few are all among the fastest"
    assert all(r["times"]["compilation_time"] > 0 for r in data["results"])
    assert all(any(m["name"] == "statements" for m in r["measurements"]) for r in data["results"])

    again = here(
        "record", OPERATOR, "--most", "12", "--runs", "20", "--long-rows", "2", "--long-runs", "60", "--out", "x"
    )
    assert "measured" not in again.stdout, "a finished recording measures nothing"

    for source, out, recipes in (("x.db", "a", ["random,oracle"]), ("x.json.gz", "b", ["random", "oracle"])):
        named = [text for r in recipes for text in ("--recipes", r)]
        here("bench", "--models", source, *named, "--seeds", "2", "--trials", "4", "--out", out)
    runs = [{p.name: p.read_text() for p in (tmp_path / d / "runs").glob("*[0-9].json")} for d in "ab"]
    assert len(runs[0]) == 4 and runs[0].keys() == runs[1].keys()
    for a, b in zip(*(map(json.loads, (r[k] for k in sorted(r))) for r in runs), strict=True):
        assert a["seen_s"] == b["seen_s"] and len(a["seen_s"]) == 4
    oracle = [json.loads(text) for name, text in runs[0].items() if name.startswith("oracle")]
    known = sorted(median(r["times"]["runtimes"]) for r in data["results"] if r["invalidity"] == "correct")
    for run in oracle:
        assert run["true_s"][0] == pytest.approx(known[0]), "its first row is the fastest"
        assert run["true_s"][-1] <= known[3] * (1 + 1e-6), "and so are the others; which ships is up to their noise"
    here("report", "a")
    wrong = here("record", "op:matmul:8,8,8", "--out", "x", code=6)
    assert "choose another --out" in wrong.stderr and wrong.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_tuning_run_is_drawn(here, tmp_path):
    here("tune", OPERATOR, "--trials", "12", "--recipe", "random", "--set", "batch=6")
    here("report", "--out", "page.html")
    text = (tmp_path / "page.html").read_text()
    assert 'id="curve-matmul"' in text and 'id="curve-model"' in text
    for heading in (
        "Convergence",
        "Where the time went",
        "Schedule",
        "Slots per operator",
        "Best configurations",
        "Knob importance",
    ):
        assert f"<h2>{heading}</h2>" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    before = (tmp_path / "tt.db").read_bytes()
    assert "must end with .html" in here("report", "--out", "tt.db", code=2).stderr
    assert (tmp_path / "tt.db").read_bytes() == before, "a slip costs no history"
    none = here("report", "--history", "none.db", code=6)
    assert "no event logs" in none.stderr


def _unzipped(path):
    import gzip

    return gzip.decompress(path.read_bytes())
