"""The doctor's checks, each on facts made up for it; integration has the real ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tt_core.doctor import checks as doctor
from tt_core.doctor.checks import Facts, as_dict, examine, lines, verdict
from tt_core.errors import InstallationError
from tt_core.requirements import installed, require_tvm
from tt_spec import Entry, Plugins, hookimpl

GB = 1e9
TOLD = {
    "target": {"target": '{"kind": "llvm"}', "llvm": 22, "threads": 4, "refused": None},
    "compiler": {"compiler": "/usr/bin/g++", "problem": None},
    "pieces": {"missing": [], "failed": [], "recipe": None},
    "noise": {"seconds": [1.0, 1.01, 0.99] * 20, "steal": 0.0},
    "states": {"rest": [1e-4] * 100, "pause": [1.02e-4] * 100, "build": [1.05e-4] * 97 + [2e-4] * 3},
}


class Misspelt:
    @hookimpl
    def tt_serchers(self) -> list[Entry]:
        return []


def plugins(*more: tuple[str, object]) -> Plugins:
    return Plugins(installed=False, extra=more)


def made_up(tmp_path: Path, **changes: object) -> Facts:
    """A machine in good order, but for the changes."""
    good = {
        "probe": lambda: TOLD,
        "plugins": plugins,
        "root": tmp_path,
        "cores": 4,
        "load": 0.1,
        "memory": (16 * GB, 32 * GB),
        "free": {"working directory": 50 * GB, "temporary files": 50 * GB},
        "distributions": ["tt-core"],
    }
    return Facts(**{**good, **changes})  # type: ignore[arg-type]


def told(**changes: object):
    return lambda: {**TOLD, **changes}


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def find(facts: Facts, name: str) -> doctor.Check:
    (check,) = (c for c in examine(facts) if c.name == name)
    assert bool(check.advice) == (check.status != "ok")
    assert "\n" not in check.found + check.advice
    return check


def test_a_machine_in_good_order_has_nothing_to_mend(tmp_path):
    checks = examine(made_up(tmp_path))
    assert [c.name for c in checks if c.status != "ok"] == []
    assert verdict(checks) == "ok"


def test_states_of_speed_are_counted_by_what_came_before(tmp_path):
    fine = find(made_up(tmp_path), "states")
    assert fine.facts["slow"] == {"rest": 0.0, "pause": 0.0, "build": pytest.approx(0.03)} and "3%" in fine.found
    shared = {"rest": [1e-4] * 90 + [1.9e-4] * 10, "pause": [1e-4] * 60 + [1.9e-4] * 40, "build": [1e-4] * 100}
    check = find(made_up(tmp_path, probe=told(states=shared)), "states")
    assert check.status == "warning" and "10% of 100 looks back to back, 40% after pauses" in check.found
    assert "1.9 times slower" in check.found and check.facts["slowdown"] == pytest.approx(1.9)
    assert check.facts["probe_s"] == pytest.approx(1e-4) and check.facts["looks"] == 300
    unknown = find(made_up(tmp_path, probe=told(states={"error": "no CPU"})), "states")
    assert unknown.found == "no CPU" and "count as they come" in unknown.advice


def test_others_who_do_not_share_the_lock_are_named(tmp_path):
    write(tmp_path, "dev/shm/tt-timing-1000.lock", "")
    assert find(made_up(tmp_path, user=1000), "lock").status == "ok"
    check = find(made_up(tmp_path, user=1001), "lock")
    assert check.facts == {"users": [1000], "container": False} and "measurer.lock=FILE" in check.advice
    write(tmp_path, ".dockerenv", "")
    assert "this is a container" in find(made_up(tmp_path, user=1000), "lock").found


def fake(**versions: str | None):
    return lambda name: versions.get(name.replace("-", "_"), installed(name))


@pytest.mark.parametrize(
    ("versions", "says"),
    [
        ({"apache_tvm_ffi": "0.1.15"}, "apache-tvm-ffi 0.1.15"),
        ({"apache_tvm_ffi": "0.1.16rc1"}, "apache-tvm-ffi 0.1.16rc1"),
        ({"apache_tvm_ffi": "0.1.13"}, "apache-tvm-ffi 0.1.13"),
        ({"apache_tvm": "0.26.0"}, "apache-tvm 0.26.0"),
        ({"apache_tvm": None}, "apache-tvm is not installed"),
    ],
)
def test_a_wrong_pair_is_caught_and_tvm_is_not_loaded(tmp_path, versions, says):
    def probe():
        pytest.fail("the probe loads TVM")

    facts = made_up(tmp_path, version=fake(**versions), probe=probe)
    check = find(facts, "tvm")
    assert check.status == "failure" and says in check.advice and "pip install 'apache-tvm" in check.advice
    assert find(facts, "target").status == find(facts, "noise").status == "warning"
    with pytest.raises(InstallationError, match=says) as e:
        require_tvm(fake(**versions))
    assert e.value.exit_code == 8


@pytest.mark.parametrize("ffi", ["0.1.14.post0", "0.1.14.post1"])
def test_the_right_pair_passes(ffi):
    require_tvm(fake(apache_tvm="0.27.0.post1", apache_tvm_ffi=ffi))


@pytest.mark.parametrize(
    ("change", "name", "status", "says"),
    [
        ({"target": {"error": "ImportError: no tvm"}}, "target", "failure", "no tvm"),
        ({"target": {**TOLD["target"], "refused": "this CPU has no avx"}}, "target", "failure", "no avx"),
        ({"target": {**TOLD["target"], "threads": 2}}, "target", "warning", "TVM_NUM_THREADS"),
        ({"compiler": {"compiler": None, "problem": "none on PATH"}}, "compiler", "warning", "none on PATH"),
        ({"compiler": {"error": "OSError: x"}}, "compiler", "warning", "OSError"),
        ({"noise": {"error": "WorkerError: it died"}}, "noise", "failure", "it died"),
        ({"noise": {"seconds": [1.0] * 80 + [2.0] * 20, "steal": 0.2}}, "noise", "warning", "hypervisor"),
        ({"noise": {"seconds": [1.0] * 80 + [2.0] * 20, "steal": 0.0}}, "noise", "warning", "evaluator.repeat"),
        ({"noise": {"seconds": [1.0] * 99 + [9.0], "steal": 0.0}}, "noise", "warning", "evaluator.repeat"),
        ({"pieces": {"missing": ["pip install 'x[y]'"], "failed": []}}, "plugins", "ok", "pip install 'x[y]'"),
        ({"pieces": {"missing": [], "failed": ["searcher 'z'"]}}, "plugins", "warning", "searcher 'z'"),
        ({"pieces": {"recipe": "recipe 'tt': no searcher"}}, "plugins", "failure", "tt-core[all]"),
        ({"pieces": {"error": "ImportError: y"}}, "plugins", "warning", "ImportError: y"),
    ],
)
def test_what_the_probe_told_is_judged(tmp_path, change, name, status, says):
    check = find(made_up(tmp_path, probe=told(**change)), name)
    assert check.status == status
    assert says in check.found + check.advice


def test_the_spread_is_that_of_the_timings(tmp_path):
    seconds = [1.0] * 50 + [1.2] * 50
    check = find(made_up(tmp_path, probe=told(noise={"seconds": seconds, "steal": 0.0})), "noise")
    assert check.facts["cv"] == pytest.approx(0.1 / 1.1)
    assert check.facts["p90_over_median"] == pytest.approx(1.2 / 1.1)
    assert check.facts["timings"] == 100


def test_a_probe_that_crashes_is_a_failure_with_its_signal(tmp_path, monkeypatch):
    program = 'import os; print(\'{"target": {"error": "x"}}\', flush=True); os.kill(os.getpid(), 11)'
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **how: run([sys.executable, "-c", program], **how))
    found = doctor._probe()
    assert found["target"] == {"error": "x"} and "signal 11" in found["died"]
    assert "signal 11" in find(made_up(tmp_path, probe=lambda: found), "noise").found


@pytest.mark.parametrize(("load", "status"), [(None, "ok"), (0.9, "ok"), (1.2, "warning"), (12.0, "warning")])
def test_load_is_held_against_the_cores(tmp_path, load, status):
    assert find(made_up(tmp_path, load=load), "cores").status == status


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "800000 100000"}, 8.0),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_a_containers_quota_is_read_and_judged(tmp_path, files, quota):
    for name, text in files.items():
        write(tmp_path, f"sys/fs/cgroup/{name}", text + "\n")
    check = find(made_up(tmp_path), "cores")
    assert check.facts["quota"] == quota
    assert check.status == ("warning" if quota is not None and quota < 4 else "ok")


@pytest.mark.parametrize(
    ("governors", "status"), [([], "ok"), (["performance"] * 2, "ok"), (["performance", "powersave"], "warning")]
)
def test_governors_of_all_processors_count(tmp_path, governors, status):
    for i, text in enumerate(governors):
        write(tmp_path, f"sys/devices/system/cpu/cpu{i}/cpufreq/scaling_governor", text + "\n")
    check = find(made_up(tmp_path), "governor")
    assert check.status == status and check.facts["governors"] == sorted(set(governors))


@pytest.mark.parametrize(
    ("available", "limit", "status"),
    [(16, None, "ok"), (3, None, "warning"), (0.5, None, "failure"), (16, 2, "failure")],
)
def test_memory_is_what_the_container_leaves(tmp_path, available, limit, status):
    if limit is not None:
        write(tmp_path, "sys/fs/cgroup/memory.max", str(int(limit * GB)))
        write(tmp_path, "sys/fs/cgroup/memory.current", str(int(1.5 * GB)))
    check = find(made_up(tmp_path, memory=(available * GB, 32 * GB)), "memory")
    assert check.status == status
    if limit is not None:
        assert check.facts["available_bytes"] == pytest.approx(0.5 * GB)


@pytest.mark.parametrize(
    ("here", "temporary", "status"),
    [(9, 9, "ok"), (0.5, 9, "warning"), (None, 9, "warning"), (9, 0.01, "failure"), (9, None, "failure")],
)
def test_disk(tmp_path, here, temporary, status):
    free = {"working directory": here, "temporary files": temporary}
    free = {place: None if left is None else left * GB for place, left in free.items()}
    assert find(made_up(tmp_path, free=free), "disk").status == status


def test_a_broken_plugin_is_named_with_its_reason(tmp_path):
    def load():
        return plugins(("wrong", Misspelt()))

    check = find(made_up(tmp_path, plugins=load), "plugins")
    assert check.status == "warning" and "wrong" in check.found and "tt_serchers" in check.found


def test_two_pieces_of_one_name_stop_tuning(tmp_path):
    class Twice:
        @hookimpl
        def tt_searchers(self) -> list[Entry]:
            return [Entry("same", dict)]

    check = find(made_up(tmp_path, plugins=lambda: plugins(("one", Twice()), ("two", Twice()))), "plugins")
    assert check.status == "failure" and "one" in check.found and "two" in check.found


def test_a_requirement_that_is_not_met_is_named(tmp_path):
    check = find(made_up(tmp_path, version=fake(rich="1.0")), "versions")
    assert check.status == "warning" and "rich 1.0 does not fulfil rich>=" in check.advice


def test_json_is_strict_and_has_the_documented_keys(tmp_path):
    data = json.loads(json.dumps(as_dict(examine(made_up(tmp_path))), allow_nan=False))
    assert list(data) == ["status", "checks"]
    for check in data["checks"]:
        assert list(check) == ["name", "status", "found", "advice", "facts"]


def test_lines_put_the_advice_below(tmp_path):
    shown = lines(examine(made_up(tmp_path, load=9.0)))
    at = next(i for i, line in enumerate(shown) if line.startswith("warning  cores"))
    assert shown[at + 1].strip().startswith("-> ")
    assert len(shown) == 14


# -- the command -----------------------------------------------------------------------------------------------------


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-m", "tt_core", *arguments], capture_output=True, text=True, env=env)


def test_the_segfaulting_pair_stops_every_command_before_tvm_is_loaded(tmp_path):
    """A newer FFI in the metadata, and a `tvm` that tells if it is imported."""
    about = tmp_path / "apache_tvm_ffi-0.1.15.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: apache-tvm-ffi\nVersion: 0.1.15\n")
    marker = tmp_path / "loaded"
    for module in ("tvm", "tvm_ffi"):
        (tmp_path / f"{module}.py").write_text(f"open({str(marker)!r}, 'w')\nimport os\nos.kill(os.getpid(), 11)\n")
    for command in (["tune", "op:matmul:16,16,16", "--trials", "1"], ["tasks", "op:matmul:16,16,16"], ["doctor"]):
        done = run(*command, PYTHONPATH=str(tmp_path))
        assert done.returncode == 8, done.stderr
        assert len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr
        assert "apache-tvm-ffi 0.1.15" in done.stderr + done.stdout
        assert not marker.exists(), f"tt {command} loaded TVM"
