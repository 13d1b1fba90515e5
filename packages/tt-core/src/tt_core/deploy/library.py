"""Deployment: tuned functions back into the model, one file out."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tvm
from tt_spec import Plugins, Task, summary
from tt_spec.errors import FileError
from tt_spec.roles import Workload
from tt_spec.serial import JsonObject
from tvm import relax
from tvm.support import cc

from tt_core.compiler import series
from tt_core.compiler.lower import Lowered, unpack
from tt_core.compiler.quick import quick
from tt_core.compiler.runtime import digest, sidecar_path
from tt_core.compiler.target import options
from tt_core.deploy import kernels
from tt_core.deploy.constants import repack_constants
from tt_core.deploy.entrance import checker, with_entrance
from tt_core.errors import InstallationError, ModelError, one_line
from tt_core.interrupt import unheard

if TYPE_CHECKING:
    from tt_core.compiler.backend import Repacked

__all__ = ["check_writable", "compile_library", "write"]


def compile_library(
    lowered: Lowered, rows: Mapping[str, np.ndarray], plugins: Plugins | None = None
) -> relax.VMExecutable:
    """The model with the program of each task's row in place of the untuned one; tasks without a row stay untuned.

    Raises `ModelError` that names the operator which TVM cannot compile.
    """
    plugins = plugins or Plugins()
    mod = tvm.IRModule(dict(lowered.mod.functions_items()), attrs=lowered.mod.attrs)
    repacked: dict[str, tuple[tvm.tirx.PrimFunc, Repacked]] = {}
    for task in lowered.tasks:
        if task.key not in rows:
            single = unpack(task.payload)[0]
            if (plain := quick(single, lowered.target)) is not single:
                for name in lowered.functions[task.key]:
                    mod.update_func(mod.get_global_var(name), _scheduled(plain))
            continue
        programs, row = _programs(lowered, task, plugins), rows[task.key]
        schedule = programs.apply(row)
        how = programs.repack(row)
        tuned = _scheduled(schedule.mod)
        for name in lowered.functions[task.key]:
            var = mod.get_global_var(name)
            if how is None:
                mod.update_func(var, tuned)
            else:
                repacked[name] = tuned, how
    mod = repack_constants(series.joined(mod), repacked)  # loops first: a step that nothing calls would be left out
    untuned = {name for key, names in lowered.functions.items() if key not in rows for name in names}
    check = checker(lowered.target)
    mod = with_entrance(mod, lowered.target, check is not None)
    t = relax.transform
    passes = [
        t.ToNonDataflow(),
        t.RemovePurityChecking(),
        t.CallTIRRewrite(),
        *relax.pipeline.finalize_passes(lowered.target),
    ]
    with lowered.target, tvm.transform.PassContext(opt_level=3, config=options(lowered.target)):
        try:
            mine, parts = kernels.apart(tvm.transform.Sequential(passes)(mod), lowered.target, untuned)
            with kernels.compiling(parts) as others:
                built = relax.build(mine.mod, mine.target, relax_pipeline=None)
                for other in others:
                    built.mod.import_module(other.result())
        except Exception as e:  # TVM raises several types
            operator = re.search(r"R\.([\w.]+)\(", str(e))
            what = f"the operator {operator.group(1)}" if operator else "the model"
            raise ModelError(f"TVM cannot compile {what}: {str(e).splitlines()[0]}") from e
    if check is not None:
        built.mod.import_module(check)
    return built


def _scheduled(mod: tvm.IRModule) -> tvm.tirx.PrimFunc:
    """A module's program, apart from the module that it was scheduled in, for one that holds others, too."""
    func = tvm.ir.load_json(tvm.ir.save_json(mod["main"]))
    return func.without_attr("global_symbol").with_attr("tirx.is_scheduled", True)


def _programs(lowered: Lowered, task: Task, plugins: Plugins) -> Workload:
    """A task's space with its programs: as lowering opened it, or opened now."""
    if (known := lowered.opened.get(task.key)) is not None:
        return known
    single, target, space = unpack(task.payload)
    return plugins.build("space", space).open(single, target)


def check_writable(path: Path, apart: Sequence[str | Path] = ()) -> None:
    """Raise before hours of work if the file and its sidecar cannot be linked and written, or would replace one of
    the files `apart`."""
    if os.path.isdir(path):
        raise FileError(f"--out {path} is a folder: give a file name, e.g. {path / 'model.so'}")
    if path.suffix != ".so":
        raise FileError(f"--out {path} must end with .so, TVM loads a library by that: e.g. {path.stem or 'model'}.so")
    for goal in (path, sidecar_path(path)):
        if os.path.exists(goal) and not os.path.isfile(goal):
            raise FileError(f"--out {path}: {goal} is not a regular file, choose another name")
        for other in apart:
            if os.path.exists(goal) and os.path.exists(other) and goal.samefile(other):
                raise FileError(f"--out {path} would replace {other}: choose another name")
    try:
        with _beside(path) as part:
            for trial in (part, sidecar_path(part)):  # their names may be too long
                trial.touch()
    except (OSError, ValueError) as e:
        raise FileError(f"--out {path} cannot be written: {getattr(e, 'strerror', None) or e}") from e
    if (why := link_problem()) is not None:
        raise InstallationError(f"--out needs a C++ compiler to link with: {why}; install g++, or omit --out")


def link_problem() -> str | None:
    """None if the compiler that TVM links with makes a library, else why not."""
    compiler = cc.get_cc()
    if compiler is None:
        return "none of g++, clang++, c++ is on PATH"
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        source = Path(folder, "empty.c")
        source.write_text("int tt_empty;\n")
        try:
            with unheard():
                cc.create_shared(str(source.with_suffix(".so")), [str(source)], cc=compiler)
        except (OSError, RuntimeError) as e:
            return f"{compiler} fails: {one_line(str(e))[:300]}"
    return None


def write(library: relax.VMExecutable | Path, path: Path, sidecar: JsonObject) -> None:
    """Export a library, or copy the file of one, beside the goal and rename, so that a crash or a full disk leaves no
    half-written file. The sidecar comes first: a new library never stands there without its own, and an old one whose
    sidecar is newer is not loaded."""
    try:
        with _beside(path) as part:
            if isinstance(library, Path):
                shutil.copyfile(library, part)
                shutil.copymode(library, part)
            else:
                _export(library, part)
            text = json.dumps({**sidecar, "sha256": digest(part)}, indent=2) + "\n"
            sidecar_path(part).write_text(text, encoding="utf-8")
            for made in (part, sidecar_path(part)):
                _keep(made)
            os.replace(sidecar_path(part), sidecar_path(path))
            os.replace(part, path)
    except (OSError, RuntimeError) as e:
        raise FileError(f"cannot write {path}: {summary(e)}") from e


def _export(library: relax.VMExecutable, part: Path) -> None:
    """Link a library. LLVM ends the whole process, without a word, where it cannot write an object file: it writes to
    memory, and this to the disk."""
    if not hasattr(os, "memfd_create"):
        library.export_library(str(part))
        return
    modules = kernels.compiled(library.mod)
    names = ["devc.o", *(f"lib{i}.o" for i in range(len(modules)))]
    with ExitStack() as stack:
        memory = [_in_memory(name, stack) for name in names]
        kernels.write([kernels.packed(library.mod, modules[0]), *modules], memory)
        files = [part.with_name(name) for name in names]
        for path, file in zip(memory, files, strict=True):
            file.write_bytes(Path(path).read_bytes())
    with unheard():  # else Ctrl-C ends the linker, and the model seems to be at fault
        cc.create_shared(str(part), list(map(str, files)))


def _in_memory(name: str, stack: ExitStack) -> str:
    """The path of a file that is not on the disk, for as long as the stack lasts."""
    fd = os.memfd_create(name)
    stack.callback(os.close, fd)
    return f"/proc/self/fd/{fd}"


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A file of that name in a fresh folder beside it that is only this user's: no other run writes there, and no link
    can have been planted. Folders that killed writers left are removed."""
    for left in path.parent.glob(".tt-*.part"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left)
    folder, lock = _fresh(path.parent)
    with lock:
        try:
            yield folder / path.name
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _fresh(parent: Path) -> tuple[Path, ExitStack]:
    """A new folder, and its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=".tt-", suffix=".part", dir=parent))
        with ExitStack() as stack, contextlib.suppress(BlockingIOError, FileNotFoundError):
            stack.enter_context(_locked(folder, needed=False))
            folder.stat()  # or another run took it for one that was left
            return folder, stack.pop_all()


@contextmanager
def _locked(folder: Path, needed: bool = True) -> Iterator[None]:
    """Hold the folder's lock, which is free again when this process dies.

    Raises `BlockingIOError` if another process has it, `OSError` for what is no folder or, where the lock is needed, if
    the file system has none.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            if needed:
                raise
        yield
    finally:
        os.close(fd)


def _keep(path: Path) -> None:
    """Have the disk keep a file before its name counts."""
    with path.open("rb") as f:
        os.fsync(f.fileno())
