"""Targets: forms, the native one, and refusals that list what can be built."""

from __future__ import annotations

import json

import psutil
import pytest
import tvm
from tt_core.compiler import target as targets
from tt_core.compiler.target import cores, device_fingerprint, resolve, runnable
from tt_core.errors import TargetError


def refusal(target: object) -> str:
    with pytest.raises(TargetError) as e:
        resolve(target)
    assert "\n" not in str(e.value)
    return str(e.value)


def test_native_is_this_cpu_with_its_physical_cores():
    target = resolve("native")
    assert target.kind.name == "llvm"
    assert target.attrs["mcpu"] == tvm.target.codegen.llvm_get_system_cpu()
    physical = psutil.cpu_count(logical=False)
    assert target.attrs["num-cores"] == cores() <= (physical or cores())
    assert runnable(target) is None


def test_cores_are_those_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    assert cores() == 3
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 2)
    assert cores() == 2
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: None)
    assert cores() >= 1


def test_a_containers_quota_counts(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 64)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr("tt_spec.container.cpu_quota", lambda root: 2.5)
    assert cores() == 2


def test_native_switches_off_what_a_virtual_machine_hides(monkeypatch):
    monkeypatch.setattr(tvm.target.codegen, "llvm_get_system_cpu", lambda: "skylake-avx512")
    monkeypatch.setattr("tt_core.compiler.target._cpu_flags", lambda: {"avx2", "fma"})
    has = set(map(str, tvm.target.codegen.llvm_get_cpu_features(resolve({"kind": "llvm", "mcpu": "skylake-avx512"}))))
    if "avx512f" not in has:
        pytest.skip("this LLVM does not build for x86-64")
    off = set(map(str, resolve("native").attrs["mattr"]))
    assert "-avx512f" in off and "-avx512vl" in off
    assert not {"-avx2", "-fma"} & off


@pytest.mark.parametrize(
    "form",
    [
        '{"kind": "llvm", "mcpu": "skylake", "num-cores": 3}',
        {"kind": "llvm", "mcpu": "skylake", "num-cores": 3},
        "llvm -mcpu=skylake -num-cores=3",
        tvm.target.Target({"kind": "llvm", "mcpu": "skylake", "num-cores": 3}),
    ],
)
def test_every_form_of_one_target_is_the_same_target(form):
    target = resolve(form)
    assert json.loads(str(target)) == json.loads(str(resolve({"kind": "llvm", "mcpu": "skylake", "num-cores": 3})))
    assert str(resolve(target)) == str(target)


def test_what_is_given_is_not_changed():
    given = {"kind": "llvm"}
    assert resolve(given).attrs["num-cores"] == cores()
    assert given == {"kind": "llvm"}
    assert resolve({"kind": "llvm", "num-cores": 7}).attrs["num-cores"] == 7


def test_cuda_has_the_limits_that_sketches_need():
    for form in ("cuda", "cuda -arch=sm_90"):
        target = resolve(form)
        assert target.attrs["max_threads_per_block"] == 1024
        assert target.attrs["max_shared_memory_per_block"] == 49152
    assert resolve("cuda -arch=sm_90").attrs["arch"] == "sm_90"
    assert resolve("nvidia/geforce-rtx-3090").attrs["arch"] == "sm_86"


@pytest.mark.parametrize("name", ["lvm", "no-such-target", "", {"kind": "lvm"}, '{"kind": "lvm"}'])
def test_an_unknown_target_lists_what_this_tvm_builds(name):
    text = refusal(name)
    assert "unknown target" in text
    assert "native" in text and "llvm" in text
    assert ("did you mean 'llvm'?" in text) == ("lvm" in str(name))


def test_bad_json_says_where():
    text = refusal('{"kind": "llvm", ')
    assert "not valid JSON" in text and "column" in text


@pytest.mark.parametrize(
    "bad", ['{"kind": "llvm", "bad": 1}', '{"num-cores": 3}', {"kind": "llvm", "num-cores": "many"}, "llvm -bad=1"]
)
def test_what_tvm_refuses_is_one_line_with_the_target(bad):
    assert "TVM refuses the target {" in refusal(bad)


@pytest.mark.parametrize("bad", ["llvm -mcpu", "llvm mcpu=skylake"])
def test_words_that_cannot_be_read_are_named(bad):
    text = refusal(bad)
    assert repr(bad.split()[1]) in text and "-name=value" in text


def test_another_machine_is_not_runnable():
    here = tvm.target.codegen.llvm_get_system_triple().split("-")[0]
    other = "aarch64" if here != "aarch64" else "x86_64"
    why = runnable(resolve({"kind": "llvm", "mtriple": f"{other}-linux-gnu"}))
    assert why is not None and other in why and here in why
    if not tvm.cuda(0).exist:
        assert "no cuda device" in str(runnable(resolve("cuda")))


def test_fingerprints_differ_by_cores_and_are_stable():
    two, three = (resolve({"kind": "llvm", "mcpu": "skylake", "num-cores": n}) for n in (2, 3))
    assert device_fingerprint(two) == device_fingerprint(two) != device_fingerprint(three)
    assert "2 cores" in device_fingerprint(two)


def test_the_compiler_has_a_version():
    assert {"tvm", "llvm"} == set(targets.compiler()) and all(targets.compiler().values())


def test_a_device_that_is_no_cpu_has_its_model_and_driver(monkeypatch, tmp_path):
    class Card:
        exist, device_name = True, "GPU of a kind"

    cuda = resolve("cuda")
    without = device_fingerprint(cuda)
    monkeypatch.setattr(tvm, "device", lambda kind, number: Card())
    monkeypatch.setattr(targets, "DRIVER", tmp_path / "version")
    assert "GPU of a kind/driver unknown/" in device_fingerprint(cuda) != without
    (tmp_path / "version").write_text("570.1\n")
    assert "GPU of a kind/driver 570.1/" in device_fingerprint(cuda)
    cpu = resolve({"kind": "llvm", "num-cores": 1})
    assert "GPU" not in device_fingerprint(cpu)


@pytest.mark.parametrize(("given", "level"), [({}, 2), ({"opt-level": 3}, 2), ({"opt-level": 1}, 1)])
def test_untuned_programs_are_optimised_less_unless_the_target_says_so_itself(given, level):
    config = {"kind": "llvm", "mcpu": "znver4", "num-cores": 2, **given}
    assert targets.unhurried(resolve(config)).attrs["opt-level"] == level


def test_a_target_without_llvm_has_no_level():
    assert str(targets.unhurried(resolve("c"))) == str(resolve("c"))
