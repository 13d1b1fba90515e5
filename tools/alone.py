"""Every package alone: its wheel in a fresh environment with what it declares and nothing else, under its own tests.

    hatch run alone                    # all packages, the newest versions of what they need
    hatch run alone tt-spec tt-search  # some of them
    hatch run alone --oldest           # the oldest versions that they declare; tests marked `slow` too

The tests run on a copy outside the source tree, so that they find what the wheel holds and no more. Beside the package
they may use the group `test` of its `[dependency-groups]`. Our other packages come from wheels built in the same run,
all else from the package index through uv's cache, which the environments share, as they do bytecode.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from uv import find_uv_bin

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
WHOLE = "tt-core[all]"  # what most users install; a composed test tunes with it
STEPS = ("wheel", "install", "tests")
UV = find_uv_bin()


def main(arguments: Sequence[str] | None = None, packages: Path = ROOT / "packages") -> int:
    """0 if everything that was chosen passed, 1 if something failed."""
    projects = {p.parent.name: tomllib.loads(p.read_text()) for p in sorted(packages.glob("*/pyproject.toml"))}
    known = [*projects, *([WHOLE] if "tt-core" in projects else [])]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"default: all ({', '.join(known)})")
    parser.add_argument("--oldest", action="store_true", help="install the oldest versions that are declared")
    parser.add_argument("--python", default=sys.executable, help="interpreter or version (default: this one)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="packages tried at once (default: %(default)s)"
    )
    parser.add_argument("--keep", action="store_true", help="keep environments, copies and logs")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.packages) - set(known)):
        parser.error(f"no package {', '.join(unknown)} in {packages} (known: {', '.join(known)})")
    chosen = list(dict.fromkeys(options.packages or known))

    work = Path(tempfile.mkdtemp(prefix="tt-alone-"))
    groups = {name: about.get("dependency-groups", {}) for name, about in projects.items()}
    wants = {name: [name, *groups[Requirement(name).name].get("test", [])] for name in chosen}
    ours = sorted(set().union(*(needs(w, projects)[0] for w in wants.values())))
    runs = {name: Run(name, work) for name in dict.fromkeys([*ours, *chosen])}
    try:
        for name in ours:
            runs[name].build(packages / name)

        def attempt(name: str) -> None:
            reached, others = needs(wants[name], projects)
            lines, siblings = wants[name] + others * options.oldest, [runs[n] for n in sorted(reached)]
            if name == WHOLE:
                suite, choice = ROOT / "integration" / "test_command.py", ["-k", "tune_writes or python_interface"]
            else:
                suite, choice = packages / name / "tests", []
            runs[name].test(suite, choice, lines, siblings, options)

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(attempt, chosen))
        print(f"\n{'package':14} {'result':34}" + "".join(f"{s:>10}" for s in STEPS))
        for name in chosen:
            seconds = "".join(f"{runs[name].seconds.get(s, 0):8.1f} s" for s in STEPS)
            print(f"{name:14} {runs[name].result:34}{seconds}")
    finally:
        failed = [run for run in runs.values() if not run.passed]
        if options.keep or failed:
            print(f"kept: {work}")
        else:
            shutil.rmtree(work)
    return int(bool(failed))


def needs(wants: Sequence[str], projects: dict[str, dict]) -> tuple[set[str], list[str]]:
    """Our packages that the requirements `wants` lead to, and what these require of others."""
    ours, others, seen = set(), [], set()
    todo = [Requirement(w) for w in wants]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name not in projects:
            others.append(str(requirement))
            continue
        ours.add(name)
        about = projects[name]["project"]
        for extra in {"", *requirement.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            listed = about["optional-dependencies"][extra] if extra else about.get("dependencies", [])
            todo += [Requirement(r) for r in listed]
    return ours, others


class Run:
    """One package, tried in a folder of its own below `work`; `log` gets the output of every step."""

    def __init__(self, name: str, work: Path):
        self.name, self.at = name, work / name.replace("[", "-").replace("]", "")
        self.log = self.at / "log.txt"
        self.passed, self.result, self.wheel, self.seconds = True, "", None, {}
        self.at.mkdir()

    def build(self, source: Path) -> None:
        """The wheel by way of the source distribution, as it would go to an index."""
        self._step("wheel", [UV, "build", source, "--out-dir", self.at])
        if self.passed:
            (wheel,) = self.at.glob("*.whl")
            if absent := left_out(source / "src", wheel):
                self._fail("wheel", f"not in the wheel: {', '.join(absent)}")
            else:
                self.wheel = wheel

    def test(
        self, suite: Path, choice: list[str], wants: list[str], ours: list[Run], options: argparse.Namespace
    ) -> None:
        """Install `wants`, our own from the wheels of `ours`; run a copy of `suite` and of what lies beside it."""
        files = {run.name: run.wheel for run in ours if run.wheel is not None}
        if broken := [run.name for run in ours if run.name not in files]:
            self._fail("install", f"no wheel of {', '.join(broken)}")
            return
        environment, copy = self.at / "environment", self.at / "copy" / suite.parent.name
        wanted, wheels = self.at / "wanted.txt", self.at / "ours.txt"
        wanted.write_text("\n".join(wants))
        wheels.write_text("\n".join(f"{name} @ {wheel.absolute().as_uri()}" for name, wheel in files.items()))
        shutil.copytree(suite.parent, copy, ignore=shutil.ignore_patterns("src", "__pycache__", ".*"))

        folder = environment / "bin"
        resolution = ["--only-binary", ":all:", "--resolution", "lowest-direct" if options.oldest else "highest"]
        self._step(
            "install",
            [UV, "venv", "--python", options.python, environment],
            [UV, "pip", "install", "--python", folder / "python", *resolution, "-r", wanted, "-c", wheels],
            [UV, "pip", "list", "--python", folder / "python"],
        )
        settings = ["-c", ROOT / "pyproject.toml", "--rootdir", copy.parent, "-p", "no:cacheprovider"]
        if suite.parent.name != "integration" and not options.oldest:
            settings += ["-m", "not slow and not together"]  # tools/suite.py has them, with the same versions
        modules, shared = next(environment.glob("lib/python*/site-packages"), None), self.at.parent / "bytecode"
        if modules is not None:
            share_bytecode(shared, modules)
        self._step("tests", [folder / "pytest", *settings, *choice, copy / suite.name], cwd=copy)
        if modules is not None:
            share_bytecode(modules, shared, new=True)
        if self.passed:
            self.result = self.log.read_text().splitlines()[-1].split(" in ")[0]
        if not options.keep:
            shutil.rmtree(environment, ignore_errors=True)

    def _step(self, step: str, *commands: Sequence[str | Path], cwd: Path = ROOT) -> None:
        """Run `commands` one after the other, unless something went wrong before."""
        if not self.passed:
            return
        start = time.monotonic()
        # uv compiles nothing: what no environment has compiled yet, each of the processes that a test starts would
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
        variables = {k: v for k, v in os.environ.items() if k not in hidden}
        code = 0
        with self.log.open("a") as log:
            for command in commands:
                code = code or subprocess.run(command, cwd=cwd, env=variables, stdout=log, stderr=log).returncode
        self.seconds[step] = time.monotonic() - start
        print(f"{self.name:14} {step:8}{self.seconds[step]:7.1f} s", flush=True)
        if code:
            self._fail(step, "\n".join(self.log.read_text().splitlines()[-40:]))

    def _fail(self, step: str, message: str) -> None:
        if self.passed:
            self.passed, self.result = False, f"FAILED: {step}"
            print(f"{message}\n{self.name}: {step} failed, the whole log is {self.log}", flush=True)


def share_bytecode(here: Path, there: Path, new: bool = False) -> None:
    """Link the bytecode below `here` to below `there`, of the modules that are there or, if `new`, of all.

    TVM's, SciPy's and scikit-learn's takes 4 s of CPU to make. uv links modules to its cache, so that they have one
    time and size in all environments, by which Python recognises what belongs to them. It makes all else anew.
    """
    for made in here.rglob("*.pyc"):
        link = there / made.relative_to(here)
        if new or (link.parents[1] / f"{made.name.partition('.')[0]}.py").is_file():
            link.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                link.hardlink_to(made)


def left_out(source: Path, wheel: Path) -> list[str]:
    """Files below `source` that are not in `wheel`."""
    files = {p.relative_to(source).as_posix() for p in source.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    return sorted(files - set(zipfile.ZipFile(wheel).namelist()))


if __name__ == "__main__":
    sys.exit(main())
