"""The parts that the composed tests share: the command in a real process, or in this one with workers that are kept."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tt_measure.pool import WorkerPool

collect_ignore = ["third_party"]  # a distribution of its own: test_third_party installs it and runs its tests

Done = subprocess.CompletedProcess[str]


def tool(name: str) -> ModuleType:
    """A program of `tools/` as a module."""
    spec = importlib.util.spec_from_file_location(f"tt_{name}", Path(__file__).parents[1] / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def tt(tmp_path: Path) -> Callable[..., Done]:
    """Run `tt` in `tmp_path`; fails with its output unless it exits with `code`.

    For what only a process of its own can show, and for the journeys of a user; `here` is several times cheaper.
    """

    def run(*args: str, code: int = 0, timeout: float = 300, traceback: bool = False) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "tt_core", *args], cwd=tmp_path, capture_output=True, text=True, timeout=timeout
        )
        return _checked(done, code, traceback)

    return run


def _checked(done: Done, code: int, traceback: bool) -> Done:
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert ("Traceback" in done.stderr) == traceback
    return done


@pytest.fixture
def here(tmp_path: Path, tt_in: Callable[..., Done]) -> Callable[..., Done]:
    """`tt_in` the folder `tmp_path`."""
    return functools.partial(tt_in, tmp_path)


@pytest.fixture(scope="session")
def tt_in(_pools: _Pools) -> Callable[..., Done]:
    """Run `tt` in a folder, in this process and with workers that are kept; otherwise like `tt`.

    For what is written and printed. Not for `--minutes`, which begin with the process, nor for figures.
    """
    from tt_core.cli.app import run as command

    def run(folder: Path, *args: str, code: int = 0, traceback: bool = False) -> Done:
        assert "--minutes" not in args or "--dry-run" in args
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            patch.chdir(folder)
            _pools.replace(patch)
            ended = command(args)
        return _checked(subprocess.CompletedProcess(args, ended, out.getvalue(), err.getvalue()), code, traceback)

    return run


@pytest.fixture
def kept(_pools: _Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this process have workers that are kept, as with `tt_in`."""
    _pools.replace(monkeypatch)


@pytest.fixture(scope="session")
def _pools() -> Iterator[_Pools]:
    pools = _Pools()
    yield pools
    pools.close()


class KeptPool(WorkerPool):
    """A pool that ends with the tests and not with the run that asked for it."""

    def close(self) -> None:
        pass


class _Pools:
    """A pool for each evaluator: starting the workers of one takes five times as long as what a short run has them do.

    Each has one worker of one thread, bound to no processor, which waits for no other process: several such runs at
    once leave each other in peace, but their figures mean nothing. A run that sets an option of its pool has its own.
    """

    def __init__(self) -> None:
        self.pools: dict[bytes, KeptPool] = {}

    def replace(self, patch: pytest.MonkeyPatch) -> None:
        """Let `measurer=local` be one of these."""
        made = functools.wraps(WorkerPool.__init__)(lambda **options: self._made(**options))
        patch.setenv("TVM_BIND_THREADS", "0")
        patch.setattr("tt_measure.pool.WorkerPool", made)

    def _made(self, backend: str, threads: int, evaluator: Any, **options: Any) -> WorkerPool:
        if options:
            return WorkerPool(backend, threads=threads, evaluator=evaluator, **options)
        alike = pickle.dumps((backend, evaluator))
        if alike not in self.pools:
            self.pools[alike] = KeptPool(backend, workers=1, threads=1, evaluator=evaluator, lock=False)
        return self.pools[alike]

    def close(self) -> None:
        for pool in self.pools.values():
            WorkerPool.close(pool)


def events(text: str) -> list[dict[str, Any]]:
    """The JSON lines of `tt tune --json`."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
