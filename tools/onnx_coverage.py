"""Count the ONNX node tests that pass through tt's import, lowering and untuned compile.

    python tools/onnx_coverage.py                        # the table that docs/models.md shows
    python tools/onnx_coverage.py --only 'lstm|gru' -v   # one line per test
    python tools/onnx_coverage.py --save now.json --compare before.json   # stopped: the same command goes on
    python tools/onnx_coverage.py --failed before.json   # only what failed there

Source: the node tests of the package `onnx` (`onnx.backend.test.case.node`), opset 13 and newer. A test passes if the
compiled program gives the test's outputs within the test's tolerances. Where a test feeds shapes, axes or conditions as
inputs, it is tried a second time with those inputs fixed (`--fix NAME=VALUE`) and then counts as "fixed".
"""

from __future__ import annotations

import argparse
import json
import queue
import re
import subprocess
import sys
import threading
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

SECONDS = 120.0
"""Longest time for one test."""
SAVE_S = 20.0
"""How often `--save` is written."""
LEAST_OPSET = 13
CPU = "native"
MOST_FIXED = 64
"""Elements of integers or truth values that count as a shape, an axis or a condition; scalars do too."""


def cases(only: str) -> list[Any]:
    """The node tests of opset 13 and newer whose name has the pattern, in the package's order."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.random.seed(0)
        found = collect_testcases(None)
    return [c for c in found if (opset(c.model) or 0) >= LEAST_OPSET and re.search(only, c.name)]


def opset(model: Any) -> int | None:
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), None)


def outside(case: Any) -> str | None:
    """Why a test asks for what no compiler of numbers does, else None."""
    from onnx import TensorProto

    nodes = list(case.model.graph.node)
    values = [*case.model.graph.input, *case.model.graph.output]
    kinds = {v.type.WhichOneof("value") for v in values}
    types = {v.type.tensor_type.elem_type for v in values}
    domains = {n.domain for n in nodes}
    if "ai.onnx.preview.training" in domains:
        return "training"
    if "ai.onnx.ml" in domains:
        return "classical machine learning (ai.onnx.ml)"
    if TensorProto.STRING in types or any(n.op_type in ("StringNormalizer", "LabelEncoder") for n in nodes):
        return "strings"
    if any(n.op_type == "ImageDecoder" for n in nodes):
        return "image files"
    if any(n.op_type.startswith(("Random", "Bernoulli", "Multinomial")) for n in nodes):
        return "random outputs"
    if kinds - {"tensor_type"}:
        return "sequences or optionals as inputs or outputs of the model"
    small = {"FLOAT8", "FLOAT4", "UINT4", "INT4", "UINT2", "INT2", "COMPLEX"}
    inner = {a.i for n in nodes for a in n.attribute if a.name in ("to", "output_dtype", "dtype")}
    if any(TensorProto.DataType.Name(t).startswith(tuple(small)) for t in types | inner if t):
        return "numbers of 2, 4 or 8 bits that TVM has no arithmetic for, or complex ones"
    return None


def attempt(case: Any) -> tuple[str, str]:
    """`("passes", "")`, `("fixed", names)` or `("fails", reason)`."""
    graph = case.model.graph
    arrays = dict(zip((i.name for i in graph.input), map(_array, case.data_sets[0][0]), strict=False))
    outcome = once(case, arrays, {})
    if outcome is None:
        return "passes", ""
    if "fix" not in __import__("inspect").signature(_load()).parameters:
        return "fails", outcome
    scales = {i for n in graph.node if n.op_type == "Resize" for i in n.input[1:]}
    fix = {n: a for n, a in arrays.items() if _structural(a, "iubf" if n in scales else "iub")}
    if fix and len(fix) < len(arrays) + 1:
        again = once(case, arrays, fix)
        if again is None:
            return "fixed", ", ".join(fix)
        outcome = again if len(fix) < len(arrays) else outcome
    return "fails", outcome


def once(case: Any, arrays: dict[str, Any], fix: dict[str, Any]) -> str | None:
    """None if the outputs agree, else why not."""
    import tvm
    from tt_core.compiler.lower import lower
    from tt_core.compiler.quiet import quiet
    from tt_core.compiler.target import resolve
    from tt_core.deploy.library import compile_library
    from tt_core.errors import UserError
    from tvm import relax

    shapes = {n: a.shape for n, a in arrays.items() if isinstance(a, np.ndarray) and n not in fix}
    shapes = {n: s for n, s in shapes.items() if s}
    try:
        with quiet():
            model = _load()(case.model, shapes, **({"fix": fix} if fix else {}))
            library = compile_library(lower(model.mod, resolve(CPU), _plugins(), "unsearched"), {})
        vm = relax.VirtualMachine(library, tvm.cpu())
        got = _flat(vm["main"](*(tvm.runtime.tensor(np.array(arrays[i.name], order="C")) for i in model.inputs)))
    except UserError as e:
        return str(e)
    except Exception as e:  # what the tool counts
        return f"{type(e).__name__}: {e}"
    for name, want, have in zip(model.outputs, map(_array, case.data_sets[0][1]), got, strict=False):
        if want.shape != have.shape:
            return f"output {name!r} has the shape {have.shape}, not {want.shape}"
        if want.dtype != have.dtype:
            return f"output {name!r} has the type {have.dtype}, not {want.dtype}"
        wide = want.astype(np.float64) if want.dtype.kind not in "iub" else want
        if not np.allclose(have.astype(wide.dtype), wide, rtol=case.rtol, atol=max(case.atol, 1e-6), equal_nan=True):
            return f"output {name!r} differs"
    return None


def _load() -> Any:
    from tt_core.models.load import load

    return load


def _array(value: Any) -> Any:
    """Numbers of the test as an array; sequences and optionals as they are."""
    from onnx import TensorProto, numpy_helper

    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic | np.ndarray) else value


class Unsearched:
    """The default space's ways to write operators, without its search."""

    space = None

    def __init__(self) -> None:
        from tt_spec import Plugins

        self.legalizers = Plugins().build("space", "both").legalizers

    def open(self, mod: Any, target: Any) -> Any:
        return self


def _plugins() -> Any:
    """Every installed plug-in, and the space "unsearched"."""
    import types

    from tt_spec import Entry, Plugins, hookimpl

    entries = hookimpl(lambda: [Entry("unsearched", Unsearched)])
    return Plugins(extra=[("onnx-coverage", types.SimpleNamespace(tt_spaces=entries))])


def _structural(value: Any, kinds: str) -> bool:
    kinds = "iubf" if isinstance(value, np.ndarray) and not value.shape else kinds
    return isinstance(value, np.ndarray) and value.dtype.kind in kinds and value.size <= MOST_FIXED


def _flat(out: Any) -> list[np.ndarray]:
    return [out.numpy()] if hasattr(out, "numpy") else [a for part in out for a in _flat(part)]


def work(options: Any, start: int, step: int) -> None:
    """Tests `start`, `start + step`, ... that `--save` does not hold yet: a line of JSON each, announced before."""
    out = sys.stdout
    sys.stdout = sys.stderr
    before = kept(options.failed)
    failed = options.failed
    chosen = [c for c in cases(options.only) if not failed or before.get(c.name, {}).get("state") == "fails"]
    known = kept(options.save)
    for i, case in enumerate(chosen):
        if i < start or (i - start) % step or case.name in known:
            continue
        print(json.dumps({"at": i, "name": case.name}), file=out, flush=True)
        kind = outside(case)
        state, why = ("outside", kind) if kind else attempt(case)
        operators = sorted({n.op_type for n in case.model.graph.node})
        line = {"at": i, "name": case.name, "state": state, "why": one_line(why or ""), "operators": operators}
        print(json.dumps(line), file=out, flush=True)


def kept(path: Path | None) -> dict[str, Any]:
    """What an earlier run saved; with nothing saved, nothing."""
    return json.loads(path.read_text()) if path is not None and path.exists() else {}


def save(path: Path | None, found: dict[str, Any]) -> None:
    """Whole or not at all, since a run may be stopped while it writes."""
    if path is not None:
        fresh = path.with_suffix(".part")
        fresh.write_text(json.dumps(dict(found), indent=1, sort_keys=True) + "\n")
        fresh.replace(path)


def one_line(text: str) -> str:
    return " ".join(text.split())[:400]


def follow(options: Any, first: int, found: dict[str, Any], broken: list[str]) -> None:
    """Run a share of the tests in processes that are replaced when they crash or hang; one that does so between two
    tests, or before the first, ends the share."""
    start, step, verbose = first, options.processes, options.verbose
    while True:
        command = [sys.executable, __file__, "--only", options.only, "--worker", str(start), str(step)]
        command += ["--failed", str(options.failed)] if options.failed else []
        command += ["--save", str(options.save)] if options.save else []
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True).start()
        current: dict[str, Any] | None = None
        while True:
            try:
                line = lines.get(timeout=SECONDS)
            except queue.Empty:
                process.kill()
                line = None
            if line is None:
                break
            told = json.loads(line)
            current = None if "state" in told else told
            if "state" in told:
                found[told["name"]] = told
                if verbose:
                    print(f"{told['state']:<8}{told['name']}  {told['why']}", flush=True)
        process.wait()
        if current is None:
            if process.returncode:
                broken.append(f"share {first} ended without a word, code {process.returncode}: run it again")
            return
        found[current["name"]] = {**current, "state": "fails", "why": "the process died or hung", "operators": ["?"]}
        if verbose:
            print(f"fails   {current['name']}  the process died or hung", flush=True)
        start = current["at"] + step


def _pump(stream: Any, lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def report(found: dict[str, Any]) -> str:
    """The table in Markdown."""
    states = Counter(t["state"] for t in found.values())
    within = sum(states.values()) - states["outside"]
    passed = states["passes"] + states["fixed"]
    text = [
        "| node tests, opset 13 and newer | number |",
        "|---|---|",
        f"| all | {sum(states.values())} |",
        f"| outside: {', '.join(_outside(found))} | {states['outside']} |",
        f"| could be done | {within} |",
        f"| pass as they are | {states['passes']} |",
        f"| pass with `--fix` | {states['fixed']} |",
        f"| fail | {states['fails']} |",
        f"| share that passes | {passed / max(1, within):.1%} |",
        "",
        "| operators that fail | tests | reason of the first |",
        "|---|---|---|",
    ]
    kinds: dict[str, list[Any]] = defaultdict(list)
    for t in found.values():
        if t["state"] == "fails":
            kinds[_subject(t)].append(t)
    for name, tests in sorted(kinds.items(), key=lambda k: -len(k[1])):
        text.append(f"| {name} | {len(tests)} | {tests[0]['why'].replace('|', '/')[:160]} |")
    return "\n".join(text)


def _outside(found: dict[str, Any]) -> list[str]:
    reasons = Counter(t["why"] for t in found.values() if t["state"] == "outside")
    return [f"{n} {why}" for why, n in reasons.most_common()]


def _subject(test: dict[str, Any]) -> str:
    return test["operators"][0] if len(test["operators"]) == 1 else test["name"].removeprefix("test_").split("_")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression on the test's name")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--save", type=Path, help="every test's outcome as JSON; tests that it holds are not run again")
    parser.add_argument("--compare", type=Path, help="a file that --save wrote: what passed there and does not now")
    parser.add_argument("--failed", type=Path, help="a file that --save wrote: only the tests that failed there")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("--worker", type=int, nargs=2, metavar=("START", "STEP"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options, *options.worker)
        return
    found, broken = kept(options.save), []
    shares = [threading.Thread(target=follow, args=(options, i, found, broken)) for i in range(options.processes)]
    for share in shares:
        share.start()
    for share in shares:
        while share.is_alive():
            share.join(SAVE_S)
            save(options.save, found)
    save(options.save, found)
    print(report(found))
    if options.compare:
        before = json.loads(options.compare.read_text())
        lost = [n for n, t in before.items() if t["state"] in ("passes", "fixed") and n in found]
        lost = [n for n in lost if found[n]["state"] == "fails"]
        print(f"\npassed before and fail now: {', '.join(lost) or 'none'}")
    if broken:
        raise SystemExit("\n".join(broken))


if __name__ == "__main__":
    main()
