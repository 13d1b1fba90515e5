"""Recording and comparing in processes of their own, killed or out of disk space on the way: what is finished stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tt_bench import compare, files
from tt_bench.recording import Recording
from tt_bench_toy import recorded, task

HERE = Path(__file__).parent
RECORD = """
import resource, signal, sys, time
from pathlib import Path
import tt_bench_toy
from tt_bench.errors import BenchError
from tt_bench.record import record

out, last, room = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
host = tt_bench_toy.SyntheticHost()
truth = tt_bench_toy.measured

def slow(*args):
    print(len(host.calls), flush=True)
    if len(host.calls) == last:
        time.sleep(1000)
    return truth(*args)

tt_bench_toy.measured = slow
if room:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
try:
    record(host, "op:toy", out, most=1000, long=(3, 60))
except BenchError as e:
    print(e)
    sys.exit(6)
print("measured", len(host.calls))
"""
COMPARE = """
import sys
from pathlib import Path
from tt_bench import compare
from tt_core.host import Host

if __name__ == "__main__":
    path, out = map(Path, sys.argv[1:])
    compare.compare(Host(), compare.units([path], []), ["random"], out, seeds=4, trials=40, jobs=2,
                    say=lambda text: print(text, flush=True))
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def told(process: subprocess.Popen[str], word: str) -> None:
    """Wait until it has printed a line with this word."""
    assert process.stdout is not None
    assert any(word in line for line in process.stdout), f"it ended without a word of {word!r}"


def whole(path: Path) -> list[tuple[object, ...]]:
    (part,) = files.load(path).parts
    assert part.complete
    return [(m.config, m.seconds, m.error, m.cost) for m in part.measured]


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> list[tuple[object, ...]]:
    """What a recording holds that nothing disturbed."""
    out = tmp_path_factory.mktemp("straight") / "x"
    assert start(RECORD, out, 0, 0).communicate()[0].splitlines()[-1] == "measured 101"
    return whole(out.with_suffix(".db"))


def test_a_killed_recording_goes_on(tmp_path, straight):
    process = start(RECORD, tmp_path / "x", 30, 0)
    told(process, "30")
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = [m for m in files.load(tmp_path / "x.db").parts[0].measured if m.error != "invalid"]
    assert 29 <= len(kept) < 68 and not (tmp_path / "x.json.gz").exists()
    last = start(RECORD, tmp_path / "x", 0, 0).communicate()[0].splitlines()[-1]
    assert last == f"measured {101 - len(kept)}", "nothing is measured twice"
    assert whole(tmp_path / "x.db") == whole(tmp_path / "x.json.gz") == straight


def test_a_recording_whose_disk_fills_keeps_what_is_finished_and_goes_on(tmp_path, straight):
    process = start(RECORD, tmp_path / "x", 0, 300_000)
    said = process.communicate()[0].splitlines()
    assert process.returncode == 6 and "x.db" in said[-1] and len(said) > 5, "it says so in one line"
    kept = [m for m in files.load(tmp_path / "x.db").parts[0].measured if m.error != "invalid"]
    assert 5 < len(kept) < 68
    last = start(RECORD, tmp_path / "x", 0, 0).communicate()[0].splitlines()[-1]
    assert last == f"measured {101 - len(kept)}"
    assert whole(tmp_path / "x.db") == straight


@pytest.mark.slow
def test_a_killed_comparison_goes_on_with_the_same_bytes(tmp_path):
    path = tmp_path / "toy.json.gz"
    files.write_t4(Recording("op:toy", "template", (recorded(task("a", 60)),), "toy", {}), path)

    def runs(out: Path) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in (out / "runs").glob("*[0-9].json")}

    process = start(COMPARE, path, tmp_path / "a")
    told(process, "1 of 4 runs")
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=60)
    for worker in alive:
        worker.kill()
    assert not alive, "no worker is left behind"
    before = runs(tmp_path / "a")
    assert before
    again = start(COMPARE, path, tmp_path / "a").communicate()[0].splitlines()
    assert sum("trials" in line for line in again) == 4 - len(before), "what was finished is not run again"
    after = runs(tmp_path / "a")
    assert len(after) == 4 and before.items() <= after.items()
    os.makedirs(tmp_path / "b")
    (tmp_path / "a" / "thinking").rename(tmp_path / "b" / "thinking")
    start(COMPARE, path, tmp_path / "b").communicate()
    assert runs(tmp_path / "b") == after, "the same seed and table, the same bytes"
    assert compare.read(tmp_path / "b").of("random", "toy [template]")
