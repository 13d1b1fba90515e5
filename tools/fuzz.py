"""Damaged and hostile inputs for all that `tt` reads: exit codes as documented, one line, no traceback, bounded.

    hatch run python tools/fuzz.py 10000 [--seed 0] [--folder fuzz] [--resume] [--only models,histories]

Models (ONNX, TVMScript), histories, recordings and other T4, recipes, event logs, sidecars and libraries, weights, data
sets, shapes, targets, names and options are damaged byte by byte, value by value, or are hostile from the start, and
given to the command that reads them. Most run in one process through the command's own `main`; one in `--real-share` in
a process of its own. Each must end within 10 s of its CPU with a code of docs/exit-codes.md that is no defect (70), say
its complaint in one line, and use no more than 1 GB beyond what an idle process needs. An input is number N of the
seed and of the folder's sound files, whatever ran before: `--first N` begins there. Logs and histories among these come
from a run that measures, so another folder damages other places. The folder keeps what failed (`found/N/`), the state
and the sound files. Exit code 1 if something failed.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gzip
import io
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIMIT_S, LIMIT_BYTES, LINES = 10.0, 1e9, 6
OP = "op:matmul:8,16,16"
HOSTILE = [
    None, True, -1, 0, 2**63, 1e300, -1e300, float("nan"), float("inf"), 10**400, "", " ", "[/grid]", "[bold red",
    "a\\", "\x1b]0;owned\x07\x1b[2J", "nul\0nul", "\ud800", "$\\frac{", "../../etc/passwd", "/dev/zero", "%s%n",
    "x" * 5000, [], {}, [[[[]]]], {"a": {"b": None}}, "NaN", "1" * 400, "é" * 300, "\u202egnp",
    -(2**31), 1e-320, "float33",
]  # fmt: skip
BYTES = [
    b"",
    b"\0",
    b"\xff" * 8,
    b"\x1b[2J",
    b"[" * 5000,
    b"{" * 100,
    b"\n",
    b"9" * 400,
    b"NaN",
    b"-1",
    b"\\ud800",
    b'"',
]
WORDS = [
    "", " ", "-1", "0", "1e400", "nan", "inf", "native", "llvm", "cuda", "llvm -mcpu=nonsense", '{"kind":"llvm"}', "{",
    "=", "a=b", "a=1,2", "x" * 3000, "\x1b[2J", "..", "/", "/dev/null", "op:", "op:conv2d:", "op:matmul:1,1,1",
    "op:matmul:-1,2,3", "op:matmul:99999999999,99999999999,9", "op:conv2d:1,1,1,1,1,1,0", "op:C2D:99", "resnet18@-1",
    "resnet18@x", "nothing", "é", "$(id)", "%n", "surrogate=none", "searcher.population=-1", "batch=0", "batch=1e9",
    "evaluator=nonsense", "measurer.workers=0", "data=0,0", "data=-1,3", "data=99999999999,99999999999", "*", "[", "!",
]  # fmt: skip

Made = tuple[list[str], Callable[[], None]]


def cut_up(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one to four places damaged."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, end = sorted(rng.randrange(len(made) + 1) for _ in range(2))
        end = min(end, at + rng.choice((1, 2, 8, 64, 1 << 20)))
        how = rng.randrange(6)
        if how == 0:
            del made[at:end]
        elif how == 1:
            made[at:at] = rng.choice(BYTES)
        elif how == 2:
            made[at:at] = made[at:end]
        elif how == 3:
            made = made[:at]
        elif how == 4:
            made[at:end] = rng.choice(BYTES)
        elif at < len(made):
            made[at] ^= 1 << rng.randrange(8)
    return bytes(made)


def spots(node: Any, at: tuple = ()) -> list[tuple]:
    """Every place in a JSON document."""
    below = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [at, *(s for k, v in below for s in spots(v, (*at, k)))]


def changed(document: Any, rng: random.Random) -> Any:
    """A copy with one to three places replaced or taken out."""
    made = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 3))):
        way = rng.choice(spots(made))
        if not way:
            continue
        node = made
        for k in way[:-1]:
            node = node[k]
        if rng.random() < 0.2:
            del node[way[-1]]
        else:
            node[way[-1]] = copy.deepcopy(rng.choice(HOSTILE))
    return made


class Inputs:
    """Makes inputs: each kind a method that writes a file and returns the command line that reads it."""

    def __init__(self, sound: Path, work: Path) -> None:
        self.sound, self.work = sound, work

    def file(self, name: str, rng: random.Random, document: bool = False) -> Path:
        """A damaged copy of a sound file."""
        data = (self.sound / name).read_bytes()
        document = document and rng.random() < 0.6
        packed = name.endswith(".gz") and (document or rng.random() < 0.8)
        data = gzip.decompress(data) if packed else data
        if document:
            lines = [json.loads(line) for line in data.splitlines()] if name.endswith(".jsonl") else [json.loads(data)]
            i = rng.randrange(len(lines))
            lines[i] = changed(lines[i], rng)
            data = "\n".join(json.dumps(line) for line in lines).encode()
        else:
            data = cut_up(data, rng)
        path = self.work / name
        path.write_bytes(gzip.compress(data, 1) if packed else data)
        return path

    def models(self, rng: random.Random) -> list[str]:
        return ["tasks", str(self.file(rng.choice(("a.onnx", "a.onnx", "b.onnx")), rng))]

    def scripts(self, rng: random.Random) -> list[str]:
        """Of TVMScript only the text around is damaged: what stands in such a file runs, as in any Python file."""
        name = rng.choice(("m.onnx", "m.pt2", "m.xyz", "m.txt", "m.json"))
        (self.work / name).write_bytes(cut_up(rng.choice(BYTES) + b"def main(x): pass", rng))
        return ["tasks", str(self.work / name)]

    def histories(self, rng: random.Random) -> list[str]:
        for old in self.work.glob("h.db*"):
            old.unlink()
        path = self.work / "h.db"
        if rng.random() < 0.4:
            path.write_bytes(cut_up((self.sound / "tt.db").read_bytes(), rng))
        else:
            shutil.copyfile(self.sound / "tt.db", path)
            with contextlib.closing(sqlite3.connect(path)) as db, contextlib.suppress(sqlite3.Error, OverflowError):
                db.execute("PRAGMA ignore_check_constraints = on")
                names = [r[0] for r in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
                table = rng.choice([n for n in names if not n.startswith("sqlite")])
                column = rng.choice([r[1] for r in db.execute(f"PRAGMA table_info({table})")])
                value = rng.choice([*HOSTILE, *BYTES])
                value = json.dumps(value) if isinstance(value, list | dict) else value
                if isinstance(value, str) and not value.isascii():
                    value = value.encode("utf-8", "surrogatepass")
                db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid % ? = 0", (value, rng.choice((1, 2))))
                db.commit()
        words = rng.choice(("show", "show --json", "stats", "tasks", "tasks --json", "vacuum", "prune --failed --yes"))
        command = ["history", *words.split()]
        return [*command, *(["--history"] if "prune" in words else []), str(path)]

    def logs(self, rng: random.Random) -> list[str]:
        path = self.file("log.jsonl", rng, document=True)
        if rng.random() < 0.3:
            return ["report", str(path), "--out", str(self.work / "report.html")]
        return ["history", "retell", str(path)]

    def recordings(self, rng: random.Random) -> list[str]:
        path = self.file("r.json.gz", rng, document=True)
        return [
            "bench",
            "--recordings",
            str(path),
            "--out",
            str(self.work / "bench"),
            "--recipes",
            "random",
            "--seeds",
            "1",
        ]

    def recipes(self, rng: random.Random) -> list[str]:
        return (
            ["tasks", OP, "--space", "none"]
            if rng.random() < 0.01
            else self._plan("--recipe", str(self.file("recipe.toml", rng)))
        )

    def _plan(self, *more: str) -> list[str]:
        return ["tune", OP, "--dry-run", "--trials", "1", "--history", str(self.work / "none.db"), *more]

    def sidecars(self, rng: random.Random) -> list[str]:
        (self.work / "m.so").unlink(missing_ok=True)  # this process may have the last one loaded
        shutil.copyfile(self.sound / "m.so", self.work / "m.so")
        if rng.random() < 0.3:
            (self.work / "m.so").unlink()
            (self.work / "m.so").write_bytes(cut_up((self.sound / "m.so").read_bytes(), rng))
            shutil.copyfile(self.sound / "m.so.json", self.work / "m.so.json")
        else:
            self.file("m.so.json", rng, document=True)
        return ["run", str(self.work / "m.so"), "--seconds", "0"]

    def weights(self, rng: random.Random) -> list[str]:
        path = self.file("w.safetensors", rng)
        return ["tune", OP, "--trials", "1", "--recipe", "tt", "--set", f"draft.weights={path}", "--history",
                "/nowhere/tt.db"]  # fmt: skip

    def datasets(self, rng: random.Random) -> list[str]:
        return ["dataset", "show", str(self.file("d.dataset.json.gz", rng, document=True))]

    def options(self, rng: random.Random) -> list[str]:
        """Words at random for the options of commands that change nothing."""
        words = [rng.choice(WORDS).replace("\0", "") for _ in range(4)]
        flags = rng.sample(
            ["--target", "--shape", "--tasks", "--skip", "--space", "--fix", "--precision"], rng.choice((1, 2))
        )
        model = rng.choice((OP, OP, str(self.sound / "a.onnx"), words[0]))
        if rng.random() < 0.5:
            return ["tasks", model, *(w for f, v in zip(flags, words, strict=False) for w in (f, v))]
        more = rng.sample(["--set", "--recipe", "--trials", "--minutes", "--seed", "--target", "--out", "--history"], 2)
        return ["tune", model, "--dry-run", *(w for f, v in zip(more, words, strict=False) for w in (f, v))]

    def commands(self, rng: random.Random) -> list[str]:
        """Words at random for commands at random."""
        groups = (["history", "show"], ["history", "stats"], ["history", "nearest"], ["history", "merge"], ["report"])
        more = (
            ["history", "prune"],
            ["dataset", "show"],
            ["run"],
            ["split"],
            ["history", "compact"],
            ["history", "retell"],
        )
        options = ["--json", "--history", "--older-than", "--device", "--by", "--dry-run", "--into", "--out", "--most"]
        words = [rng.choice(rng.choice((WORDS, options))).replace("\0", "") for _ in range(rng.choice((0, 1, 2, 4)))]
        return [*rng.choice((*groups, *more)), *words]


KINDS = ("models", "scripts", "histories", "logs", "recordings", "recipes", "sidecars", "weights", "datasets",
         "options", "commands")  # fmt: skip
SHARES = (8, 2, 14, 14, 3, 3, 12, 6, 6, 6, 26)


# -- the process that tries them ---------------------------------------------------------------------------------------


class Late(BaseException):
    pass


def attempt(words: list[str], folder: Path) -> tuple[int | str, str, str]:
    """The code, output and complaint of a command in this process."""
    from tt_core.cli.app import run

    def late(*_: object) -> None:
        raise Late

    out, err = io.StringIO(), io.StringIO()
    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    code: int | str
    try:
        os.chdir(folder)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(words)
    except Late:
        code = f"more than {LIMIT_S:g} s"
    except BaseException as e:
        code = f"{type(e).__name__}: {e}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return code, out.getvalue(), err.getvalue()


def attempt_in_process(words: list[str], folder: Path) -> tuple[int | str, str, str]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "tt_core", *words]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=12 * LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"more than {12 * LIMIT_S:g} s of wall clock", "", ""
    except ValueError as e:  # no process can have such an argument
        return 2, "", f"tt: {e}"
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def wrong(code: int | str, out: str, err: str, grown: float) -> str | None:
    """What an attempt did that it must not."""
    from tt_core.errors import EXIT_CODES

    if code not in EXIT_CODES or code == 70:
        return f"exit {code}: {err.strip()[-300:]}"
    if "Traceback" in err:
        return f"a traceback: {err.strip()[-300:]}"
    if {"\x1b", "\0", "\x07"} & set(out + err):
        return "what the input brought acts in the terminal"
    complaint = [line for line in err.strip().splitlines() if "warning" not in line]
    if code and len(complaint) > LINES:
        return f"{len(complaint)} lines of complaint: {err.strip()[:300]}"
    if code and not complaint:
        return f"exit {code} without a word"
    return f"{grown / 1e9:.1f} GB" if grown > LIMIT_BYTES else None


def serve(options: argparse.Namespace) -> None:
    """Try inputs one after the other; the last line of standard output says which one is being tried."""
    from tt_core.compiler.lean import tvm_without_torch

    tvm_without_torch()
    sound, work = options.folder / "sound", options.folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    inputs = Inputs(sound, work)
    kinds = options.only.split(",") if options.only else KINDS
    weights = [SHARES[KINDS.index(k)] for k in kinds]
    peak = base = 0.0
    for number in range(options.first, options.first + options.inputs):
        rng = random.Random(f"{options.seed}-{number}")
        (kind,) = rng.choices(kinds, weights)
        words = getattr(inputs, kind)(rng)
        real = rng.random() < options.real_share
        print(json.dumps({"try": number, "kind": kind, "words": words}), flush=True)
        began, before = time.process_time(), peak
        result = (attempt_in_process if real else attempt)(words, work)
        peak = 1024.0 * resource.getrusage(resource.RUSAGE_CHILDREN if real else resource.RUSAGE_SELF).ru_maxrss
        base = base or peak
        said = wrong(*result, grown=peak - max(before, base) if not real else 0.0)
        if said is not None:  # before the next input takes its place
            shutil.copytree(work, options.folder / "found" / str(number), dirs_exist_ok=True)
        took = time.process_time() - began
        print(json.dumps({"done": number, "code": result[0], "wrong": said, "s": round(took, 2)}), flush=True)


# -- the process that watches ------------------------------------------------------------------------------------------


def prepare(sound: Path) -> None:
    """Sound files of every kind."""
    if (sound / "m.so").exists():
        return
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    sound.mkdir(parents=True, exist_ok=True)
    w = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    conv = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    relu = helper.make_node("Relu", ["y"], ["z"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 4, 8, 8])
    graph = helper.make_graph([conv, relu], "g", [x], [z], [w])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), sound / "a.onnx")
    shape = numpy_helper.from_array(np.array([1, -1], np.int64), "s")
    nodes = [helper.make_node("Reshape", ["x", "s"], ["f"]), helper.make_node("Softmax", ["f"], ["z"], axis=1)]
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 192])
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [z], [shape])), sound / "b.onnx")
    for more in ([], ["--out", "m.so"]):
        words = ["tune", OP, "--trials", "4", "--recipe", "random", "--set", "measurer.lock=false", *more]
        subprocess.run([sys.executable, "-m", "tt_core", *words], cwd=sound, check=True, capture_output=True)
    shutil.copyfile(min((sound / "tt.runs").iterdir()), sound / "log.jsonl")
    smallest = min((ROOT / "recordings").rglob("*.json.gz"), key=lambda p: p.stat().st_size)
    shutil.copyfile(smallest, sound / "r.json.gz")
    shutil.copyfile(next((ROOT / "datasets").rglob("*.dataset.json.gz")), sound / "d.dataset.json.gz")
    shutil.copyfile(next((ROOT / "packages").rglob("src/**/shipped/knobs.safetensors")), sound / "w.safetensors")
    shutil.copyfile(next((ROOT / "packages").rglob("src/**/recipes/tt.toml")), sound / "recipe.toml")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("fuzz"))
    parser.add_argument("--only", default="", help="kinds: " + ",".join(KINDS))
    parser.add_argument("--real-share", type=float, default=0.005)
    parser.add_argument("--resume", action="store_true", help="go on where the folder's state ends")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    if options.serve:
        serve(options)
        return 0
    prepare(options.folder / "sound")
    state = options.folder / "state.json"
    done: dict[str, Any] = {"next": options.first, "codes": {}, "kinds": {}, "found": []}
    if options.resume and state.exists():
        done = json.loads(state.read_text())
    end = options.first + options.inputs
    while done["next"] < end:
        _batch(options, done, min(end - done["next"], 500))
        state.write_text(json.dumps(done, indent=1))
    codes = ", ".join(f"{n} with {c}" for c, n in Counter(done["codes"]).most_common())
    print(f"{sum(done['codes'].values())} inputs ended {codes}; {len(done['found'])} failed")
    print(", ".join(f"{n} {k}" for k, n in Counter(done["kinds"]).most_common()))
    return bool(done["found"])


def _batch(options: argparse.Namespace, done: dict[str, Any], inputs: int) -> None:
    """So many inputs in one process, fewer if one ends it."""
    command = [
        sys.executable,
        __file__,
        str(inputs),
        "--serve",
        "--first",
        str(done["next"]),
        "--seed",
        str(options.seed),
    ]
    command += ["--folder", str(options.folder), "--only", options.only, "--real-share", str(options.real_share)]
    tried: dict[str, Any] = {}
    codes, kinds = Counter(done["codes"]), Counter(done["kinds"])

    def failed(why: str) -> None:
        done["found"].append({"number": tried["try"], "words": tried["words"], "why": why})
        print(f"FOUND {tried['try']} ({tried['kind']}): {' '.join(tried['words'])[:200]!r}: {why}", flush=True)
        place = options.folder / "found" / str(tried["try"])
        if not place.exists():
            shutil.copytree(options.folder / "work", place)

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        signal.signal(signal.SIGALRM, lambda *_: process.kill())
        for line in process.stdout:
            signal.alarm(300)  # native code that hangs takes no signal
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if "try" in event:
                    tried = event
                if event.get("done") == tried.get("try"):
                    codes[str(event["code"])] += 1
                    kinds[tried["kind"]] += 1
                    done["next"] = tried["try"] + 1
                    if event["wrong"] is not None:
                        failed(event["wrong"])
        signal.alarm(0)
    if process.returncode and "try" not in tried:
        raise RuntimeError(f"no input {done['next']} could be made; see --serve --first {done['next']}")
    if process.returncode and tried["try"] >= done["next"]:
        failed(f"it ended the process: {process.returncode}")
        codes["lost"] += 1
        done["next"] = tried["try"] + 1
    done["codes"], done["kinds"] = codes, kinds


if __name__ == "__main__":
    sys.exit(main())
