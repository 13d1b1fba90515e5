"""Random faults against a real `tt tune`, again and again, and a look at what is left after each.

    hatch run python tools/chaos.py 30 [--seed 0] [--rounds N] [--folder chaos]

A round is one `tt tune --out` on a history that all rounds share. Meanwhile the command and its workers are stopped,
killed and signalled, its disk fills or is read-only, its clock jumps, others write the same history, and a plug-in
(integration/chaotic) has candidates crash, hang, flood the memory and fork. Afterwards:

- the exit code is one that the faults explain (docs/exit-codes.md), and nobody sees a traceback;
- whatever the event log or the output reported is in the history, once; no row is measured twice;
- no process, lock or temporary file is left, and the history is sound;
- the file that was written loads and has its own sidecar;
- the run took up all that was in the history when it began.

The folder keeps the state, so that the same command goes on where it was ended; `findings/` has all about each failure.
Root has a disk of its own that really fills (tmpfs); others' files are limited in size. Exit code 1 if there are
findings. The timing lock is one of the folder: other work on the machine is not waited for.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
PLUGIN = ROOT / "integration" / "chaotic"
OPS = ("op:matmul:8,16,16", "op:matmul:12,16,8", "op:conv2d:1,4,8,4,3,1,1")
SIGNALS = {"term": signal.SIGTERM, "int": signal.SIGINT, "hup": signal.SIGHUP}
PHASES = ("reading", "untuned", "opening", "run_started", "batch_measured", "run_stopped", "re-timing", "compiling")
QUICK = {
    "batch": 4,
    "measurer.workers": 2,
    "measurer.threads": 1,
    "measurer.grace_s": 2,
    "measurer.build_timeout_s": 10,
    "measurer.run_timeout_s": 3,
    "measurer.check_timeout_s": 10,
    "measurer.memory_bytes": 2_000_000_000,
}
LIMIT_S = 240.0
"""A round that takes longer is a finding."""

LEAVE_S = 20.0
"""How long processes may take to go after the command has ended."""

WRITER = """
import random, sys, time
from tt_history import SqliteStore
from tt_spec import Measurement
rng, store = random.Random(sys.argv[2]), SqliteStore(sys.argv[1], wait_s=60)
run = store.begin_run({"model": "writer"})
for i in range(int(sys.argv[3])):
    about = {}, (1e-3,), 1, None, "", {}, "search", "d", {}, 0.0, run
    rows = [Measurement(f"other-{run}", "s", (i, j), *about) for j in range(5)]
    store.append(rows)
    print(len(rows), flush=True)
    time.sleep(rng.random() * 0.2)
store.end_run(run, "done")
"""


@dataclass
class Lab:
    """A disk, what lies on it, and what was found.

    Args:
        folder: Of the tool.
        own_disk: Whether `disk` is a file system of its own.
    """

    folder: Path
    own_disk: bool = False
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    @property
    def history(self) -> Path:
        return self.disk / "tt.db"

    def rows(self) -> list[tuple[Any, ...]]:
        """`(task, space, config, origin, error, run)` of every row, in order of arrival."""
        if not self.history.exists():
            return []
        with contextlib.closing(sqlite3.connect(self.history, timeout=60)) as db:
            return db.execute(
                "SELECT task_key, space_key, config, origin, error, run_id FROM measurements ORDER BY id"
            ).fetchall()


@contextlib.contextmanager
def laboratory(folder: Path) -> Iterator[Lab]:
    """The folder with its disk; what lay on it is kept over the end of this process."""
    lab, kept = Lab(folder), folder / "kept"
    lab.disk.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=96m", "chaos", str(lab.disk)]
    lab.own_disk = os.getuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        if kept.exists():
            shutil.copytree(kept, lab.disk, dirs_exist_ok=True)
        (lab.disk / "tmp").mkdir(exist_ok=True)
        yield lab
    finally:
        if lab.own_disk:
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(lab.disk, kept)
            subprocess.run(["umount", "-l", str(lab.disk)], check=False)


# -- a round ---------------------------------------------------------------------------------------------------------


@dataclass
class Round:
    """One `tt tune` and what happens to it.

    Attributes:
        did: Faults that took place.
        excused: Whether they explain that the run did not end with 0.
    """

    lab: Lab
    number: int
    rng: random.Random
    mark: str = ""
    did: list[str] = field(default_factory=list)
    undo: list[Callable[[], Any]] = field(default_factory=list)
    writers: list[tuple[subprocess.Popen[str], bool]] = field(default_factory=list)
    killed: bool = False
    excused: bool = False
    sent: set[int] = field(default_factory=set)

    def run(self, faults: list[str] | None = None) -> list[str]:
        """Do it; returns what is wrong afterwards.

        Args:
            faults: Instead of random ones.
        """
        rng, lab = self.rng, self.lab
        self.mark = f"{os.getpid()}-{self.number}"
        self.output, self.errors = lab.folder / "stdout", lab.folder / "stderr"
        self.op, self.trials = rng.choice(OPS), rng.choice((4, 8, 12, 20))
        self.before = lab.rows()
        self.recipe = rng.choice(("random", "random", "tt"))
        self.share = rng.choice((0.1, 0.3, 0.6))
        names = rng.sample(sorted(FAULTS), rng.choice((1, 1, 2, 3))) if faults is None else faults
        self.wild = "damaged candidates" in names
        if self.wild:
            self.did.append("damaged candidates")
        plan = sorted(((self._when(), name) for name in names if name in ACTS), key=lambda p: str(p[0]))
        if "read-only disk" in names:
            self._read_only()
        with open(self.output, "w") as out, open(self.errors, "w") as err:
            self.process = psutil.Popen(self._command(), cwd=lab.disk, env=self._environment(), stdout=out, stderr=err)
            self._act(plan)
        for undo in self.undo:
            undo()
        return [*self._wrong()]

    def _when(self) -> tuple[str, float]:
        """A moment: so long after the beginning of a phase, or of the process."""
        if self.rng.random() < 0.35:
            return "", self.rng.uniform(0.0, 9.0)
        return self.rng.choice(PHASES), self.rng.choice((0.0, self.rng.uniform(0.0, 1.5)))

    def _command(self) -> list[str]:
        sets = {**QUICK, "measurer.lock": self.lab.folder / "lock"}
        if self.wild:
            sets |= {"evaluator": "chaotic", "evaluator.share": self.share}
        command = [sys.executable, "-m", "tt_core", "tune", self.op, "--trials", str(self.trials), "--json"]
        command += ["--recipe", self.recipe, "--out", "m.so", "--minutes", "3"]
        command += ["--seed", str(self.number)]
        return [*command, *(word for k, v in sets.items() for word in ("--set", f"{k}={v}"))]

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join(p for p in (str(PLUGIN), os.environ.get("PYTHONPATH", "")) if p)
        clock = str(self.lab.folder / f"clock-{self.number}")
        more = {
            "PYTHONPATH": path,
            "TMPDIR": str(self.lab.disk / "tmp"),
            "TT_CHAOS": self.mark,
            "TT_CHAOS_CLOCK": clock,
        }
        return {**os.environ, **more}

    def _act(self, plan: list[tuple[tuple[str, float], str]]) -> None:
        """Let the faults happen when their moment has come, until the process has ended."""
        began, seen = time.monotonic(), {"": time.monotonic()}
        while self.process.poll() is None and time.monotonic() - began < LIMIT_S:
            text = self._reported()
            for phase in PHASES:
                if phase not in seen and (f'"{phase}"' in text or TELLS.get(phase, "\0") in text):
                    seen[phase] = time.monotonic()
            for moment in list(plan):
                (phase, after), name = moment
                if phase in seen and time.monotonic() - seen[phase] >= after:
                    plan.remove(moment)
                    if ACTS[name](self) is not False:
                        self.did.append(f"{name} at {phase or 'start'}+{after:.1f}")
            time.sleep(0.02)

    def _reported(self) -> str:
        return self.output.read_text(errors="replace") + self.errors.read_text(errors="replace")

    # -- faults -----------------------------------------------------------------------------------------------------

    def _workers(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            return [p for p in self.process.children() if "tt_measure.worker" in " ".join(p.cmdline())]
        return []

    def signal_parent(self) -> None:
        name = self.rng.choice(sorted(SIGNALS))
        for _ in range(self.rng.choice((1, 1, 2))):
            self.sent.add(SIGNALS[name])
            with contextlib.suppress(psutil.Error):
                self.process.send_signal(SIGNALS[name])
            time.sleep(0.05)
        self.excused = True

    def kill_parent(self) -> None:
        self.killed = self.excused = True
        self.process.kill()

    def stop_parent(self) -> None:
        with contextlib.suppress(psutil.Error):
            self.process.suspend()
            time.sleep(self.rng.uniform(0.1, 3.0))
            self.process.resume()

    def hurt_worker(self) -> bool:
        found = self._workers()
        if not found:
            return False
        chosen = found if self.rng.random() < 0.3 else [self.rng.choice(found)]
        number = self.rng.choice((signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        self.did.append(f"{number.name} to {len(chosen)} workers")
        for p in chosen:
            with contextlib.suppress(psutil.Error):
                p.send_signal(number)
        self.wild = True  # a row may fail for it
        return True

    def fill_disk(self) -> None:
        self.excused = True
        ballast = self.lab.disk / "ballast"
        if self.lab.own_disk:
            with contextlib.suppress(OSError), open(ballast, "wb") as f:
                while True:
                    f.write(b"\0" * (1 << 16))
                    f.flush()
            self.undo.append(lambda: ballast.unlink(missing_ok=True))
        else:  # the process may write no longer file than its history
            size = self.lab.history.stat().st_size if self.lab.history.exists() else 4096
            with contextlib.suppress(psutil.Error):
                self.process.rlimit(resource.RLIMIT_FSIZE, (size, size))

    def free_disk(self) -> None:
        with contextlib.suppress(OSError):  # read-only by now: in the end
            (self.lab.disk / "ballast").unlink(missing_ok=True)

    def _read_only(self) -> None:
        self.excused = True
        self.did.append("read-only disk")
        remount = ["mount", "-o", "remount,{}", str(self.lab.disk)]
        if self.lab.own_disk:
            subprocess.run([w.format("ro") for w in remount], check=True)
            self.undo.insert(0, lambda: subprocess.run([w.format("rw") for w in remount], check=True))
        else:
            self.lab.disk.chmod(0o555)
            self.undo.insert(0, lambda: self.lab.disk.chmod(0o755))

    def jump(self) -> None:
        seconds = self.rng.choice((-86400.0, -5.0, 5.0, 3600.0, 10 * 365 * 86400.0))
        Path(self._environment()["TT_CHAOS_CLOCK"]).write_text(str(seconds))

    def write_beside(self) -> None:
        for _ in range(2):
            words = [sys.executable, "-c", WRITER, str(self.lab.history), str(self.number), "30"]
            with contextlib.suppress(OSError):
                writer = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                self.writers.append((writer, self.rng.random() < 0.5))

    # -- what is left -----------------------------------------------------------------------------------------------

    def _wrong(self) -> Iterator[str]:
        if self.process.poll() is None:
            with contextlib.suppress(psutil.Error):
                self.process.send_signal(signal.SIGUSR1)  # it says where it is, on stderr
                time.sleep(1.0)
            yield f"it did not end within {LIMIT_S:g} s"
            self.killed = True
            self.process.kill()
        code = self.process.wait()
        self.lab.ends[str(code)] += 1
        yield from self._written_beside()
        yield from self._code(code)
        yield from self._left_behind()
        yield from self._history()
        yield from self._file(code)

    def _code(self, code: int) -> Iterator[str]:
        said = self.errors.read_text(errors="replace")
        if "Traceback" in said:
            yield "a traceback"
        signals = {130, *(-s for s in self.sent)} if self.sent else set()
        allowed = {
            0,
            *signals,
            *({-signal.SIGKILL} if self.killed else set()),
            *({3, 6, 7, 8} if self.excused else set()),
        }
        if code not in allowed | ({7} if self.wild else set()):
            yield f"exit code {code}: {said.strip().splitlines()[-1:]}"
        if code and code > 0 and code != 130 and len(said.strip().splitlines()) > 12:
            yield f"{len(said.splitlines())} lines of complaint"

    def _written_beside(self) -> Iterator[str]:
        self.told = 0
        for writer, kill in self.writers:
            if kill:
                time.sleep(self.rng.random())
                writer.kill()
            text, _ = writer.communicate(timeout=120)
            told = sum(int(word) for word in text.split())
            if not kill and writer.returncode and not self.excused:
                yield f"another writer failed with {writer.returncode}"
            self.told += told

    def _left_behind(self) -> Iterator[str]:
        until = time.monotonic() + LEAVE_S
        while (left := self._processes()) and time.monotonic() < until:
            time.sleep(0.2)
        for p in left:
            with contextlib.suppress(psutil.Error):
                orphan = self.killed and "tt_measure.worker" in " ".join(p.cmdline()) and os.getsid(p.pid) != p.pid
                if not (self.killed and (self.wild or orphan)):  # docs/faults.md: a candidate's children then live on
                    yield f"process {p.pid} is left: {' '.join(p.cmdline())[:200]}, {p.status()}"
                p.kill()
        with open(self.lab.folder / "lock", "w") as f:
            for last in (*[False] * 20, True):  # a process that is killed lets go a moment after it is gone
                try:
                    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    time.sleep(0.1)
                    if last:
                        yield "the timing lock is held"
        tmp = self.lab.disk / "tmp"
        files = [p.name for p in [*tmp.iterdir(), *self.lab.disk.glob(".tt-*")]]
        ended = self.killed or self.sent & {-(self.process.returncode or 0)}
        if files and not ended:
            yield f"left in the folders: {files[:5]}"
        for p in [*tmp.iterdir(), *self.lab.disk.glob(".tt-*")]:
            shutil.rmtree(p) if p.is_dir() else p.unlink()

    def _processes(self) -> list[psutil.Process]:
        found = []
        for p in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if p.environ().get("TT_CHAOS") == self.mark and p.status() != psutil.STATUS_ZOMBIE:
                    found.append(p)
        return found

    def _history(self) -> Iterator[str]:
        after = self.lab.rows()
        if not after:
            return
        with contextlib.closing(sqlite3.connect(self.lab.history)) as db:
            if (found := db.execute("PRAGMA integrity_check").fetchone()) != ("ok",):
                yield f"integrity: {found}"
        if after[: len(self.before)] != self.before:
            yield "rows of earlier rounds changed"
        news = [r for r in after[len(self.before) :] if not r[0].startswith("other-")]
        fresh = [r for r in news if r[3] not in ("again", "finalist")]
        known = {r[:3] for r in self.before}
        keys = [r[:3] for r in fresh]
        if twice := [k for k, n in Counter(keys).items() if n > 1 or k in known]:
            yield f"{len(twice)} rows were measured twice, e.g. {twice[0]}"
        others = sum(r[0].startswith("other-") for r in after) - sum(r[0].startswith("other-") for r in self.before)
        if others < self.told:
            yield f"other writers reported {self.told} rows, {others} are there"
        yield from self._reports({r[2] for r in fresh}, {r[5] for r in news})

    def _reports(self, configs: set[str], runs: set[str]) -> Iterator[str]:
        """What the output and the event logs reported is there; what was there when it began was taken up."""
        sources = {"output": self.output.read_text(errors="replace")}
        sources |= {
            f"log of {r}": p.read_text() for r in runs if (p := self.lab.disk / "tt.runs" / f"{r}.jsonl").exists()
        }
        have = {tuple(json.loads(c)) for c in configs}
        for name, text in sources.items():
            for line in text.splitlines():
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if event["event"] == "batch_measured":
                        lost = [r["config"] for r in event["results"] if tuple(r["config"]) not in have]
                        if lost:
                            yield f"{name}: {len(lost)} reported rows are not in the history"
                    if event["event"] == "run_started":
                        task = event["tasks"][0]
                        known = {r[2] for r in self.before if r[0] == task["key"] and r[4] != "invalid"}
                        if task["restored"] != len(known):
                            yield f"{name}: {task['restored']} rows taken up of {len(known)}"

    def _file(self, code: int) -> Iterator[str]:
        file = self.lab.disk / "m.so"
        if not file.exists():
            if code == 0:
                yield "no file was written"
            return
        check = [sys.executable, "-m", "tt_core", "run", str(file), "--seconds", "0", "--json"]
        done = subprocess.run(check, capture_output=True, text=True, timeout=120)
        if done.returncode:
            yield f"the file does not load: {done.stderr.strip()[-300:]}"
        if code == 0 and not json.loads((self.lab.disk / "m.so.json").read_text()).get("verified", True):
            yield "the file was not verified"
        file.unlink(missing_ok=True)


TELLS = {
    "reading": "reading op:",
    "untuned": "compiling it untuned",
    "re-timing": "re-timing",
    "compiling": "compiling the",
}
"""What is said, where no event is emitted, as a phase begins."""

ACTS: dict[str, Callable[[Round], Any]] = {
    "a signal": Round.signal_parent,
    "the command is killed": Round.kill_parent,
    "the command is stopped": Round.stop_parent,
    "workers are hurt": Round.hurt_worker,
    "workers are hurt again": Round.hurt_worker,
    "the disk is full": Round.fill_disk,
    "the disk has room again": Round.free_disk,
    "the clock jumps": Round.jump,
    "two more writers": Round.write_beside,
}
FAULTS = (*ACTS, "damaged candidates", "read-only disk")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1 << 30, help="at most so many")
    parser.add_argument("--folder", type=Path, default=Path("chaos"))
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / "state.json"
    done = json.loads(state.read_text()) if state.exists() else {"rounds": 0, "minutes": 0.0, "faults": {}, "ends": {}}
    found: list[str] = done.setdefault("findings", [])
    began, first = time.monotonic(), done["rounds"]
    with laboratory(folder) as lab:
        lab.faults, lab.ends = Counter(done["faults"]), Counter(done["ends"])
        while time.monotonic() - began < 60 * options.minutes and done["rounds"] - first < options.rounds:
            number = done["rounds"]
            turn = Round(lab, number, random.Random(f"{options.seed}-{number}"))
            wrong = turn.run()
            for did in turn.did:
                lab.faults[did.split(" at ")[0]] += 1
            print(
                f"{number}: {turn.op}, {'; '.join(turn.did) or 'no fault'}: exit {turn.process.returncode}", flush=True
            )
            if wrong:
                print("\n".join(f"    FOUND {w}" for w in wrong), flush=True)
                found += [f"round {number} ({'; '.join(turn.did)}): {w}" for w in wrong]
                _keep(lab, number, turn, wrong)
            done |= {"rounds": number + 1, "faults": lab.faults, "ends": lab.ends}
            state.write_text(json.dumps(done, indent=1))
    done["minutes"] += (time.monotonic() - began) / 60
    state.write_text(json.dumps(done, indent=1))
    ends = ", ".join(f"{n} with {code}" for code, n in Counter(done["ends"]).most_common())
    print(f"{done['rounds']} rounds in {done['minutes']:.0f} minutes ended {ends}; {len(found)} findings")
    print("faults: " + ", ".join(f"{n} {name}" for name, n in Counter(done["faults"]).most_common()))
    print("\n".join(found))
    return bool(found)


def _keep(lab: Lab, number: int, turn: Round, wrong: list[str]) -> None:
    """All about a finding."""
    place = lab.folder / "findings" / str(number)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(lab.disk, place, ignore=shutil.ignore_patterns("ballast"))
    for file in (turn.output, turn.errors):
        shutil.copy(file, place)
    about = {"did": turn.did, "wrong": wrong, "command": turn._command()}
    (place / "about.json").write_text(json.dumps(about, indent=1, default=str))


if __name__ == "__main__":
    sys.exit(main())
