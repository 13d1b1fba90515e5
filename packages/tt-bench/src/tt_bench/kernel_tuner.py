"""Cache files of Kernel Tuner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tt_spec import Measurement
from tt_spec.errors import FormatError
from tt_spec.exchange import Item, LeftOut, check

from tt_bench.foreign import Kernel, Parameters, date, seconds_of
from tt_bench.streamed import Member, fault, members

__all__ = ["KernelTunerFormat"]

_ERRORS = {
    "InvalidConfig": "invalid",
    "CompilationFailedConfig": "build",
    "RuntimeFailedConfig": "run",
    "ErrorConfig": "run",
}
"""What stands in `__error__`, in older files in the place of the time."""

_MISTAKES = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError)

_MS = 1e-3

_COSTS = {"build": "compile_time", "run": "benchmark_time"}

_HEAD = ("device_name", "kernel_name", "tune_params_keys", "tune_params")


class KernelTunerFormat:
    """What `tune_kernel(…, cache=FILE)` of Kernel Tuner wrote, finished or not; it is only read.

    A kernel is a task whose knobs are the tunable parameters; what its observers saw besides times is left aside.

    Source: van Werkhoven (2019), Kernel Tuner; the cache file as version 1.3 of github.com/KernelTuner writes it.
    """

    def read(self, path: Path) -> Iterator[tuple[str, Item]]:
        kernel = _kernel(path)
        yield "line 1", kernel.task
        for entry in members(path, frozenset({"cache"}), unclosed=True):
            if entry.element:
                where = f"line {entry.line}"
                try:
                    yield where, _item(kernel, entry.value)
                except _MISTAKES as e:
                    raise FormatError(f"{path}, {where}: {fault(e)}") from e


def _kernel(path: Path) -> Kernel:
    """The kernel with all values of its parameters: a file that was gone on with may have more than its head lists."""
    head: dict[str, Any] = {}
    parameters: Parameters | None = None
    for member in members(path, frozenset({"cache"}), unclosed=True):
        if not member.element:
            head[member.name] = member.value
            continue
        try:
            if parameters is None:
                parameters = _parameters(head)
            parameters.see(_configuration(head, member))
        except _MISTAKES as e:
            raise FormatError(f"{path}, line {member.line}: {fault(e)}") from e
    try:
        values = (parameters or _parameters(head)).values()
        found = Kernel("kernel-tuner", head["kernel_name"], head.get("problem_size"), head["device_name"], values)
        check(found.task)
    except _MISTAKES as e:
        raise FormatError(f"{path}: {fault(e)}") from e
    return found


def _parameters(head: Mapping[str, Any]) -> Parameters:
    lacking = [n for n in _HEAD if n not in head]
    if lacking:
        raise ValueError(f"no cache of Kernel Tuner: {', '.join(lacking)} must come before the results")
    keys, listed = head["tune_params_keys"], head["tune_params"]
    named = isinstance(head["device_name"], str) and isinstance(head["kernel_name"], str)
    if not named or not isinstance(keys, list) or not keys or not isinstance(listed, dict):
        raise ValueError("no cache of Kernel Tuner: names are texts, tune_params_keys a list, tune_params an object")
    if set(map(str, keys)) != set(listed) or not all(isinstance(v, list) for v in listed.values()):
        raise ValueError("tune_params must have a list of values for each of tune_params_keys")
    return Parameters({k: listed[k] for k in keys})


def _configuration(head: Mapping[str, Any], member: Member) -> dict[str, Any]:
    if not isinstance(member.value, dict):
        raise ValueError(f"a result is an object, got {str(member.value)[:40]}")
    return {k: member.value[k] for k in head["tune_params_keys"] if k in member.value}


def _item(kernel: Kernel, entry: Mapping[str, Any]) -> Measurement | LeftOut:
    error = next((_ERRORS[v] for v in entry.values() if isinstance(v, str) and v in _ERRORS), None)
    times = entry.get("times") or ([entry["time"]] if "time" in entry else [])
    if error is None and not times:
        return LeftOut("no time was measured, only what other observers saw")
    seconds = () if error is not None else seconds_of(times, _MS)
    cost = {k: entry[v] * _MS for k, v in _COSTS.items() if isinstance(entry.get(v), int | float)}
    at = date(entry.get("timestamp"))
    return kernel.measured(entry, seconds=seconds, runs=len(seconds), error=error, cost=cost, at=at)
