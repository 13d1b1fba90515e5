"""Mistakes of every kind thrown at the command: one of the documented exit codes, one line, no traceback, no hang."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import io
import random
import signal
import string
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
import typer.main
from tt_core.cli import app as cli
from tt_core.doctor import checks as doctor
from tt_core.errors import EXIT_CODES
from tt_measure import WorkerError
from tt_spec import Trial
from tt_spec.pieces.synthetic import SyntheticMeasurer

OP = "op:matmul:16,16,16"
HANG_S = 60
LINES, DAMAGED = 500, 100
METADATA: Any = importlib.metadata.Distribution.metadata


class Hang(BaseException):
    """Not an `Exception`, so that nothing in between takes it for an error of its own."""


class QuickPool(SyntheticMeasurer):
    """In place of the worker processes: takes a pool's options and times by a formula."""

    def __init__(self, backend="", workers=None, threads=None, evaluator=None, chunk: int = 8, lock=True) -> None:
        super().__init__()
        if (workers is not None and workers < 1) or chunk < 1:
            raise ValueError(f"workers and chunk must be at least 1, got {workers}, {chunk}")

    def prestart(self) -> None:
        pass

    def measure(self, task: Any, codes: Any, bar: Any) -> Iterator[Trial]:
        for m in super().measure(task, codes, bar):
            yield dataclasses.replace(m, cost={"apply": 0.0, "build": 0.0, "run": sum(m.seconds)})

    def race(self, *args: Any, **options: Any) -> Any:
        raise WorkerError("the worker is a formula")

    check = race_models = run_model = race


class Here(Executor):
    """In place of a comparison's processes: works at once, in this one."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **options))
        except Exception as e:
            future.set_exception(e)
        return future


@pytest.fixture
def quick(tmp_path, monkeypatch) -> Iterator[Callable[[list[str]], tuple[int, str, str]]]:
    """`tt` in this process and in `tmp_path`, its workers and the doctor's probe replaced; fails on what no command
    may do."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tt_measure.pool.WorkerPool", QuickPool)
    monkeypatch.setattr("tt_bench.compare._pool", lambda workers: Here())
    monkeypatch.setattr(doctor, "_probe", dict)
    # what every process reads and makes once, thousands of commands in this one need not
    monkeypatch.setattr(importlib.metadata, "entry_points", functools.cache(importlib.metadata.entry_points))
    parsed = functools.cache(lambda distribution: METADATA.__get__(distribution))
    monkeypatch.setattr(importlib.metadata.Distribution, "metadata", property(parsed))
    monkeypatch.setattr("typer.main.get_command", functools.cache(typer.main.get_command))

    def on_alarm(number: int, frame: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, on_alarm)

    def run(arguments: list[str]) -> tuple[int, str, str]:
        out, err, thrown = io.StringIO(), io.StringIO(), ""
        signal.alarm(HANG_S)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = cli.run(arguments)
        except (Hang, Exception, SystemExit) as e:
            code, thrown = -1, f"an exception, {type(e).__name__}: {e}"
        finally:
            signal.alarm(0)
        said = err.getvalue()
        lines = [line for line in said.splitlines() if line.startswith("tt: ")]
        good = code in EXIT_CODES and code != 70 and "Traceback" not in out.getvalue() + said
        if not good or len(lines) != (code not in (0, 130, 141)):
            problems.append(f"{[a[:80] for a in arguments]} ends with {thrown or code}: {said[-1000:]}")
        return code, out.getvalue(), said

    problems: list[str] = []
    yield run
    signal.signal(signal.SIGALRM, before)
    assert not problems, f"{len(problems)} commands went wrong, among them\n" + "\n".join(problems[:15])


# -- random command lines ---------------------------------------------------------------------------------------------

WEIRD = [
    "",
    " ",
    "-",
    "--",
    "\0",
    "\n",
    "ä\u2028\x1b[31m",
    "\udcff",
    "a" * 5000,
    "..",
    "/",
    "/dev/null",
    "/dev/zero",
    "~",
]
WEIRD += [
    "/proc/self/mem",
    "-1",
    "0",
    "1e999",
    "nan",
    "inf",
    "9" * 400,
    "½",
    "²",
    "0x10",
    "%s%n",
    "{}",
    "[]",
    "null",
    "=",
]
MODELS = [OP, OP, OP, "op:", "op", "op:matmul", "op:matmul:", "op:matmul:1,2", "op:matmul:0,1,1", "op:matmul:1,1,1,1"]
MODELS += [
    "op:conv2d:1,4,8,4,3,1,1",
    "op:conv2d:1,4,2,4,9,1,0",
    "op:matmul:99999999,99999999,9",
    "op:convd:1",
    "resnet81",
    "resnet18@x",
    "op:C2D:99",
    "op:GMM:x",
]
MODELS += ["op:batch_matmul:1,4,4,4", "missing.onnx", "notes.txt", "empty.onnx", ".", "tt.db", "op:matmul:1e3,1,1"]
RECORDINGS = ["rec.json.gz", "rec.json.gz", "rec.db", "rec*", "cut.json.gz", "tt.db", "notes.txt", "none.db", ","]
PAGES = ["compared", "tt.db", "rec.db", "a", "notes.txt", "none", ".", ""]
NUMBERS = ["1", "2", "3", "0", "-1", "one", "1.5", "nan"]
POOL = {
    "--trials": NUMBERS,
    "--minutes": ["0.001", "1", "0", "-1", "nan", "inf", "1e300", "x"],
    "--seed": ["0", "7", "-1", "x", "1.5", "99999999999999999999999"],
    "--target": ["native", "llvm", "llvm -mcpu=skylake", "llvm -mcpu=no", "cuda", "llvn", "c", "{", "[]"],
    "--recipe": ["random", "tt", "autotvm", "autotvn", "notes.txt", "mine.toml", ".", "tt.db"],
    "--tasks": ["*", "matmul", "conv*", "[", "!", "matmul,*", ",", "NT_matmul"],
    "--skip": ["conv*", "matmul", "*", "", ","],
    "--space": ["sketch", "template", "both", "nope"],
    "--only-heavy": [],
    "--dry-run": [],
    "--history": ["tt.db", "new.db", "notes.txt", ".", "none/tt.db", "/dev/null", ":memory:", "file:x?mode=ro"],
    "--out": ["m.so", "m.txt", ".", "none/m.so", "notes.txt", "tt.db", "/dev/full", "/proc/m.so", "x" * 300 + ".so"],
    "--shape": ["x=1,3", "x", "=1", "x=", "x=1,a", "y=1", "x=-1,3", "x=" + "9" * 30],
    "--set": [
        "searcher=random", "searcher=anneal", "searcher=nope", "searcher", "searcher.x=1", "sercher=random", "batch=1",
        "batch=0", "batch=x", "searcher.population=4", "searcher.population=abc", "searcher.population=0",
        "searcher.chains=-1", "scheduler.trials=0", "scheduler=round-robin", "evaluator.repeat=nan", "store=memory",
        "store=nope", "measurer=synthetic", "measurer.workers=0", "measurer.workers=x", "measurer.chunk=0",
        "draft=none", "draft=null", "surrogate=null", "surrogate.inputs=x", "draft.inputs=statements", "verify=1",
        "stopper=none", "sampler.x=[", "a=b=c", "stopper.patience=true", "space=nope",
    ],
    "--models": RECORDINGS,
    "--spaces": ["template", "sketch", ",", "nope"],
    "--recipes": ["random", "oracle", "random,oracle", "nope", ",", "mine.toml"],
    "--seeds": NUMBERS,
    "--unrecorded": ["nearest", "refuse", "nope"],
    "--jobs": NUMBERS,
    "--whole": [],
    "--live": [],
    "--candidates": ["2", "all", "0", "-1", "x", "1.5", "²"],
    "--most": NUMBERS,
    "--runs": NUMBERS,
    "--long-rows": NUMBERS,
    "--long-runs": NUMBERS,
    "--seconds": ["0", "0.001", "-1", "nan", "inf", "x", "1e300"],
    "--json": [],
    "--debugg": [],
    "--help": [],
    "--no-such": ["1"],
}  # fmt: skip
COMMANDS = [
    "tune",
    "tune",
    "tune",
    "tune",
    "tasks",
    "tasks",
    "run",
    "plugins",
    "recipes",
    "history",
    "doctor",
    "record",
    "bench",
    "report",
    "tun",
    "",
]


OWN = {
    "record": ["--candidates", "--most", "--runs", "--long-rows", "--long-runs", "--out", "--space", "--tasks",
               "--seed"],
    "bench": ["--models", "--spaces", "--recipes", "--seeds", "--unrecorded", "--jobs", "--whole", "--live", "--trials",
              "--out", "--set", "--tasks"],
    "report": ["--history", "--out"],
}  # fmt: skip
"""Options that get these commands beyond their command line."""


def command_line(rng: random.Random) -> list[str]:
    """A command with some options, each right, wrong or absurd."""
    command = rng.choice(COMMANDS)
    words = [command]
    if command == "history":
        words.append(rng.choice(["show", "show", "replay", "shwo", ""]))
    if command == "tune":  # cheap unless a later option says otherwise; then that is the mistake under test
        words += ["--trials", "1", "--recipe", "random"]
    if command == "record":
        words += ["--out", "new", "--most", "4", "--candidates", "2"]
    if command == "bench":
        words += ["--out", "compared", "--models", "rec.db", "--recipes", "random", "--seeds", "1", "--trials", "2"]
    if rng.random() < 0.9 and command not in ("plugins", "recipes", "doctor", "bench"):
        words.append(value(rng, PAGES if command == "report" else MODELS))
    known = OWN.get(command, []) if rng.random() < 0.8 else []
    for name in rng.sample(known or sorted(POOL), rng.choice([0, 1, 1, 2, 2])):
        words.append(name)
        if POOL[name] and rng.random() < 0.95:
            words.append(value(rng, POOL[name]))
    if rng.random() < 0.1:
        words.insert(rng.randrange(len(words) + 1), value(rng, WEIRD))
    if command == "tasks":
        words = ["native" if w == "cuda" else w for w in words]  # importing its intrinsics takes 10 s
    return words


def value(rng: random.Random, likely: list[str]) -> str:
    kind = rng.random()
    if kind < 0.75:
        return rng.choice(likely)
    if kind < 0.9:
        return rng.choice(WEIRD)
    return "".join(rng.choice(string.printable) for _ in range(rng.randrange(1, 12)))


@pytest.mark.slow
def test_random_command_lines(quick, tmp_path):
    (tmp_path / "notes.txt").write_text("somebody's notes")
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "mine.toml").write_text('[searcher]\npiece = "random"\n')
    for made in (["record", OP, "--most", "8", "--runs", "2", "--long-runs", "3", "--out", "rec"],
                 ["tune", OP, "--trials", "2", "--recipe", "random"]):  # fmt: skip
        assert quick(made)[0] == 0
    (tmp_path / "cut.json.gz").write_bytes((tmp_path / "rec.json.gz").read_bytes()[:200])
    rng = random.Random(20260729)
    codes = [quick(command_line(rng))[0] for _ in range(LINES)]
    assert (tmp_path / "notes.txt").read_text() == "somebody's notes"
    assert (tmp_path / "tt.db").read_bytes().startswith(b"SQLite format 3")
    assert {0, 2, 3, 4, 6} <= set(codes), "the lines are too much alike to show anything"
    assert codes.count(0) > LINES // 20


# -- damaged files: one entry per kind of file that a command reads ---------------------------------------------------


def onnx_file(path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    w = numpy_helper.from_array(__import__("numpy").ones((4, 3, 3, 3), "float32"), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def exported_program(path: Path) -> None:
    import torch

    program = torch.export.export(torch.nn.Linear(4, 4), (torch.zeros(2, 4),))
    torch.export.save(program, str(path))


def tvm_script(path: Path) -> None:
    from tvm import te

    a, b = te.placeholder((4, 4), name="a"), te.placeholder((4, 4), name="b")
    func = te.create_prim_func([a, b, te.compute((4, 4), lambda i, j: a[i, j] + b[j, i], name="c")])
    path.write_text(func.script(show_meta=True))


def history_file(path: Path) -> None:
    import tt_core

    tt_core.tune(OP, trials=8, recipe="random", history=path)
    import sqlite3

    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=DELETE")  # all in one file


def event_log(path: Path) -> None:
    import tt_core

    result = tt_core.tune(OP, trials=8, recipe="random", history=path.parent / "h.db")
    (path.parent / "h.runs" / f"{result.run_id}.jsonl").rename(path)


def recipe_file(path: Path) -> None:
    import tt_spec

    path.write_text((Path(tt_spec.__file__).parent / "recipes" / "random.toml").read_text())


def target_file(path: Path) -> None:
    path.write_text('{"kind": "llvm", "mcpu": "x86-64", "num-cores": 2, "mattr": ["+sse2"], "keys": ["cpu"]}')


def library(path: Path) -> None:
    from tt_core.compiler.target import resolve
    from tt_core.deploy import library as deploy
    from tt_core.models.load import load
    from tt_core.prepared import prepare

    target = resolve("native")
    ready = prepare(OP, target=target)
    sidecar = {
        "inputs": [{"name": i.name, "shape": list(i.shape), "dtype": i.dtype} for i in load(OP).inputs],
        "outputs": ["output"],
        "target": str(target),
        "threads": 2,
    }
    deploy.write(deploy.compile_library(ready.lowered, {}), path, sidecar)


KINDS: dict[str, tuple[str, str, Callable[[Path], None], Callable[[Path], list[list[str]]]]] = {
    # kind: name of the file, which file is damaged, how a good one is made, the commands that read it
    "onnx": ("m.onnx", "m.onnx", onnx_file, lambda p: [["tasks", str(p)]]),
    "exported program": ("m.pt2", "m.pt2", exported_program, lambda p: [["tasks", str(p)]]),
    "script": ("m.py", "m.py", tvm_script, lambda p: [["tasks", str(p)]]),
    "history": ("h.db", "h.db", history_file, lambda p: [
        ["history", "show", str(p)], ["tune", OP, "--trials", "1", "--recipe", "random", "--history", str(p)]]),
    "event log": ("e.jsonl", "e.jsonl", event_log, lambda p: [["history", "replay", str(p)]]),
    "recipe": ("r.toml", "r.toml", recipe_file, lambda p: [["tune", OP, "--trials", "1", "--recipe", str(p)]]),
    "target": ("t.json", "t.json", target_file, lambda p: [
        ["tasks", OP, "--target", p.read_bytes().decode(errors="surrogateescape")]]),
    "sidecar": ("m.so", "m.so.json", library, lambda p: [["run", str(p), "--seconds", "0"]]),
    "library": ("m.so", "m.so", library, lambda p: [["run", str(p), "--seconds", "0"]]),
}  # fmt: skip


def damage(data: bytes, rng: random.Random) -> bytes:
    """The file cut, with bits flipped, bytes replaced, a piece lost, doubled, zeroed or moved."""
    raw, at = bytearray(data), rng.randrange(len(data))
    length = rng.choice([1, 2, 8, 64, 4096])
    kind = rng.randrange(8)
    if kind == 0:
        return data[:at]
    if kind == 1:
        for _ in range(rng.choice([1, 4, 32])):
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        for _ in range(rng.choice([1, 4, 32])):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    elif kind == 3:
        del raw[at : at + length]
    elif kind == 4:
        raw[at:at] = raw[at : at + length]
    elif kind == 5:
        raw[at : at + length] = bytes(len(raw[at : at + length]))
    elif kind == 6:
        raw[at:at] = rng.randbytes(length)
    else:  # what a person or an editor does: another number, letter or bracket
        for _ in range(rng.choice([1, 3])):
            raw[rng.randrange(len(raw))] = ord(rng.choice("0123456789-.,:\"'{}[]=\n axZ"))
    return bytes(raw)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files(quick, tmp_path, kind):
    name, victim, make, commands = KINDS[kind]
    make(tmp_path / name)
    good = (tmp_path / victim).read_bytes()
    for command in commands(tmp_path / name):
        assert quick(command)[0] == 0, "the file is good before it is damaged"
    rng = random.Random(20260730)
    codes = []
    for _ in range(DAMAGED):
        (tmp_path / victim).unlink(missing_ok=True)  # never in place: the library may be mapped into this process
        (tmp_path / victim).write_bytes(damage(good, rng))
        codes.append(quick(rng.choice(commands(tmp_path / name)))[0])
    assert sum(code != 0 for code in codes) > DAMAGED // 10, "the damage is too small to show anything"


# -- one mistake of each kind, in a process of its own ----------------------------------------------------------------


def test_no_valid_program_names_the_causes_and_writes_no_file(tt, tmp_path):
    options = ["--trials", "3", "--recipe", "random", "--set", "measurer.build_timeout_s=0.001", "--out", "m.so"]
    options += ["--set", "measurer.workers=1"]
    said = tt("tune", OP, *options, code=7).stderr.splitlines()
    assert "3 candidates failed: 3 build-timeout" in said[0]
    assert said[1].strip().startswith("3 x build-timeout: ")
    assert not (tmp_path / "m.so").exists()


def test_debug_shows_the_traceback_wherever_it_stands(tt):
    for arguments in (["--debug", "tasks", "op:matmul:1"], ["tasks", "op:matmul:1", "--debug"]):
        done = tt(*arguments, code=3, traceback=True)
        assert "Traceback" in done.stderr and done.stderr.splitlines()[-1].startswith("tt: ")
    assert "Traceback" not in tt("tasks", "op:matmul:1", code=3).stderr


def test_a_defect_is_one_line_with_a_code_of_its_own(monkeypatch, capsys):
    def broken(self: object, role: str) -> None:
        raise ZeroDivisionError("first line\nsecond line")

    monkeypatch.setattr("tt_spec.Plugins.names", broken)
    assert cli.run(["recipes"]) == 70
    (line,) = capsys.readouterr().err.splitlines()
    assert "ZeroDivisionError: first line" in line and "--debug" in line


def test_an_output_is_refused_before_anything_is_measured(quick, tmp_path, monkeypatch):
    monkeypatch.setattr(QuickPool, "measure", lambda *_: pytest.fail("it was measured"))
    onnx_file(tmp_path / "model.so")
    (tmp_path / "d.so.json").mkdir()
    for out in ("model.so", "d.so", "none/m.so", "m.onnx", "/proc/m.so"):
        code, _, said = quick(["tune", "model.so", "--trials", "1", "--out", out])
        assert code == 6 and out in said
    monkeypatch.setenv("CXX", "/bin/false")
    code, _, said = quick(["tune", OP, "--trials", "1", "--out", "x.so"])
    assert code == 8 and "/bin/false" in said


def test_a_target_that_this_machine_cannot_run(quick):
    for target, word in (
        ('{"kind": "llvm", "num-cores": 100000}', "100000 cores"),
        ('{"kind": "llvm", "mtriple": "riscv64-linux-gnu"}', "riscv64"),
        ('{"kind": "llvm", "mtriple": "foo-bar"}', "foo-bar"),
        ("llvm -mcpu=skylak", "'skylake'"),
    ):
        code, _, said = quick(["tune", OP, "--trials", "1", "--target", target])
        assert code == 4 and word in said


def test_exit_codes_are_documented(quick):
    page = (Path(__file__).parents[1] / "docs" / "exit-codes.md").read_text()
    assert all(f"| {code} | {what} |" in page for code, what in EXIT_CODES.items())
    shown = " ".join(quick(["--help"])[1].split())
    assert all(f"{code} {what}" in shown for code, what in EXIT_CODES.items())
