"""Jobs read here and apart are the same, and so is what is refused."""

from __future__ import annotations

import json

import pytest
from tt_service import reading
from tt_service.reading import APART, Misread, read_apart, read_here
from tt_service_house import house, job_of
from tt_spec.pieces.synthetic import synthetic_task


def large() -> bytes:
    """A job that is read apart: its workload's name is long, and in letters that JSON may escape."""
    job = job_of(synthetic_task(), synthetic_task("other"), trials=8)
    job.tasks[1].payload = "A" * (APART + 4 & ~3)
    job.tasks[0].workload = "größer\n\u2028\r"
    return job.model_dump_json().encode()


def test_a_job_is_the_same_wherever_it_was_read():
    body = large()
    assert read_apart(body) == read_here(body)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("flops", -1.0, r"body\.tasks\.1\.flops: Input should be greater than or equal to 0"),
        ("key", "no key", r"body\.tasks\.1\.key: "),
        ("payload", "AAA", "not base64"),
    ],
)
def test_what_is_no_job_is_refused_in_the_same_words(field, value, says):
    job = json.loads(large())
    job["tasks"][1][field] = value
    told = []
    for read in (read_here, read_apart):
        with pytest.raises(Misread, match=says) as e:
            read(json.dumps(job).encode())
        told.append((e.value.status, str(e.value)))
    assert told[0] == told[1] and told[0][0] == 422


def test_apart_the_bounds_are_checked_first():
    with pytest.raises(Misread, match="nested deeper") as e:
        read_apart(b"[" * 1000)
    assert e.value.status == 400


def test_a_reader_that_dies_or_hangs_refuses_its_job_alone(monkeypatch):
    monkeypatch.setattr(reading, "READ_S", 0.01)
    with pytest.raises(Misread, match=r"takes more than 0\.01 s to read"):
        read_apart(large())
    monkeypatch.undo()
    monkeypatch.setattr("tt_spec.child.command", lambda *_: ["sh", "-c", "cat > /dev/null; kill -9 $$"])
    with pytest.raises(Misread, match="killed"):
        read_apart(large())


def test_a_server_takes_a_large_job(tmp_path):
    with house(tmp_path) as here:
        here.agent()
        answer = here.http._client.post("/v1/jobs", content=large(), headers={"Content-Type": "application/json"})
        assert answer.status_code == 201, answer.text
        (job,) = here.server.desk.jobs.values()
        assert job.spec == read_here(large())
