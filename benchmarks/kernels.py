"""Heavy operators: tt's templates beside oneDNN with prepacked weights, timed in turns.

    hatch run python benchmarks/kernels.py [--models resnet18,mobilenet_v2,bert-tiny] [--ops OP ...]

For each operator tt measures `--trials` candidates from a cold start; its best and oneDNN (through torch, which must be
installed; blocked or channels-last input, whichever it is faster with) are then timed in turns, two threads each, each
in its own process: with TVM's threads beside them, OpenMP's may end up on one core and be twenty times slower. Both
have their weights packed beforehand and their input in the layout they like; "edges" adds the change from and to NCHW
for both. The multiply-add peak is measured in the same run; "to 90%" is when the search's own measurements passed nine
tenths of it.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from tt_bench.stats import geometric_mean
from tt_bench.turns import block, in_turns

ROUNDS, BLOCK_S, WARM = 9, 0.03, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="resnet18,mobilenet_v2,bert-tiny")
    parser.add_argument("--ops", nargs="*", default=["op:conv2d:1,64,56,64,3,1,1"])
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument(
        "--share", type=float, default=0.01, help="smallest share of a model's work that counts as heavy"
    )
    parser.add_argument("--space", default="both")
    options = parser.parse_args()
    from tt_core.compiler.peak import peak_flops
    from tt_core.compiler.target import cores, resolve, use_all_cores

    use_all_cores()
    from tt_core.prepared import prepare

    peer = Peer(cores())
    peak = peak_flops(resolve("native")) / 1e9
    print(f"multiply-add peak of {cores()} cores: {peak:.0f} GFLOP/s")
    columns = ("search", "to 90%", "tt", "% peak", "oneDNN", "ratio", "edges tt", "edges oneDNN")
    heading = f"{'operator':40}" + "".join(f"{c:>{max(8, len(c) + 1)}}" for c in columns)
    ratios = []
    for model in [*options.ops, *filter(None, options.models.split(","))]:
        ready = prepare(model, space=options.space)
        whole = sum(t.weight * t.flops for t in ready.tasks)
        print(f"\n{model}\n{heading}")
        for task in ready.tasks:
            if task.weight * task.flops < options.share * whole or not peer.open(task.op, task.name, task.shapes):
                continue
            took, reached, program = _search(task, options.trials, options.space, 0.9e9 * peak)
            ours, theirs, with_edges = _race(task, program, peer)
            ratio = theirs / ours
            ratios.append(ratio)
            rate = task.flops / 1e9
            figures = (rate / ours, 100 * rate / ours / peak, rate / theirs, ratio, *(rate / t for t in with_edges))
            label = f"{task.name[:21]:21} {task.shapes.split(',')[0]:>14} x{task.weight:.0f}"
            shown = zip(figures, (8, 8, 8, 8, 9, 13), (0, 0, 0, 2, 0, 0), strict=True)
            cells = "".join(f"{x:{width}.{digits}f}" for x, width, digits in shown)
            print(f"{label:40}{took:6.0f} s{reached:6.0f} s{cells}", flush=True)
    peer.close()
    print(f"\ngeometric mean of {len(ratios)} ratios: {geometric_mean(ratios):.3f}, least {min(ratios):.2f}")


def _search(task: Any, trials: int, space: str, goal: float) -> tuple[float, float, Any]:
    """Seconds of the search from a cold start and until `goal` FLOP/s, and the best candidate, built here."""
    from tt_core.assembly import BACKEND
    from tt_core.compiler.backend import TvmBackend
    from tt_core.compiler.target import cores
    from tt_measure.pool import WorkerPool
    from tt_spec import Bar, Pipeline
    from tt_spec.recipe import resolve

    start = time.perf_counter()
    recipe = resolve("tt", [f"space={space}"])
    with WorkerPool(backend=BACKEND, threads=cores(), evaluator=recipe.build("evaluator")) as pool:
        roles = ("surrogate", "searcher", "sampler")
        pipeline = Pipeline(
            task, *map(recipe.build, roles), programs=pool, draft=recipe.build("draft"), verify=recipe.verify
        )
        reached, done = math.inf, 0
        while done < trials:
            batch = pipeline.ask(min(recipe.batch, trials - done))
            if not len(batch.codes):
                break
            results = list(pool.measure(task, batch.codes, Bar(incumbent_s=pipeline.best_s, flops=task.flops)))
            pipeline.tell(batch.id, results)
            done += len(results)
            if task.flops / pipeline.best_s >= goal and math.isinf(reached):
                reached = time.perf_counter() - start
    took = time.perf_counter() - start
    backend = TvmBackend()
    backend.open(task)
    return took, reached, backend.build(task, pipeline.top(1)[0][0])


class Peer:
    """oneDNN in a process of its own."""

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, threads), daemon=True)
        self.process.start()

    def open(self, op: str, name: str, shapes: str) -> bool:
        """Take up an operator; False where oneDNN has none such."""
        return self._ask((op, name, shapes))

    def seconds(self, edges: bool) -> float:
        """Mean seconds per call over one block, without or with edge layout changes."""
        return self._ask(edges)

    def close(self) -> None:
        self.pipe.send(None)
        self.process.join()

    def _ask(self, what: Any) -> Any:
        self.pipe.send(what)
        return self.pipe.recv()


def _serve(pipe: Connection, threads: int) -> None:
    os.environ |= {"OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    calls: Any = None
    while True:
        match pipe.recv():
            case None:
                return
            case bool(edges):
                pipe.send(_block(calls[edges]))
            case op, name, shapes:
                calls = _onednn(op, name, shapes)
                pipe.send(calls is not None)


def _block(call: Callable[[], object]) -> float:
    return block(call, BLOCK_S, warm=WARM)


def _onednn(op: str, name: str, shapes_text: str) -> tuple[Callable[[], object], Callable[[], object]] | None:
    """The operator in oneDNN, without and with edge layout changes; None where it has no such operator."""
    import torch

    shapes = [[int(d) for d in s.strip().split("x")] for s in shapes_text.split("->")[0].split(",")]
    out = [int(d) for d in shapes_text.split("->")[1].strip().split("x")]
    x, w = shapes[0], shapes[1] if len(shapes) > 1 else []
    relu = "relu" if "relu" in name or "maximum" in name else "none"
    if op in ("conv2d", "dwconv2d") and len(x) == 4:
        return _convolution(torch, op, x, w, out, relu)
    if op == "matmul" and len(w) == 3:
        rows, depth, width = math.prod(x[:-1]), x[-1], out[-1]
        layer = torch.nn.Linear(depth, width).eval()
        packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
        data = torch.randn(rows, depth)

        def linear() -> object:
            return torch.ops.mkldnn._linear_pointwise(data, packed, layer.bias, relu, [], "")

        return linear, linear
    if op in ("matmul", "batch_matmul") and len(x) == len(w):
        a, b = torch.randn(*x), torch.randn(*w)
        return (lambda: torch.matmul(a, b)), (lambda: torch.matmul(a, b))
    return None


def _convolution(torch: Any, op: str, x: list[int], w: list[int], out: list[int], relu: str) -> Any:
    n, height, width, channels = x if x[3] == w[3] or w[0] * w[-1] == x[3] else (x[0], x[2], x[3], x[1])
    kernel = tuple(w[1:3])
    depthwise = op == "dwconv2d"
    filters, groups = out[-1], channels if depthwise else 1
    stride = max(1, round(height / out[1]))
    pad = [
        max(0, -(-((o - 1) * stride + k - s) // 2)) for o, k, s in zip(out[1:3], kernel, (height, width), strict=True)
    ]
    weight = torch.randn(filters, channels // groups, *kernel)
    bias = torch.randn(filters)
    how = (pad, [stride, stride], [1, 1], groups)
    packed = torch.ops.mkldnn._reorder_convolution_weight(weight, *how, [n, channels, height, width])
    reordered = torch._C._nn.mkldnn_reorder_conv2d_weight(weight.to_mkldnn(), *how)
    plain = torch.randn(n, channels, height, width)
    blocked, last, bias_ = plain.to_mkldnn(), plain.to(memory_format=torch.channels_last), bias.to_mkldnn()

    def channels_last(data: Any = last) -> Any:
        return torch.ops.mkldnn._convolution_pointwise(data, packed, bias, *how, relu, [], "")

    def in_blocks(data: Any = blocked) -> Any:  # without the ReLU, which this way would be a pass of its own
        return torch.conv2d(data, reordered, bias_, (stride, stride), pad, (1, 1), groups)

    def in_blocks_with_edges() -> Any:
        return in_blocks(plain.to_mkldnn()).to_dense()

    def channels_last_with_edges() -> Any:
        return channels_last(plain.to(memory_format=torch.channels_last)).contiguous()

    ways = ((in_blocks, in_blocks_with_edges), (channels_last, channels_last_with_edges))
    return min(ways, key=lambda way: min(block(way[0]) for _ in range(30)))


def _transposed(shape: list[int], to_last: bool) -> Callable[[], object]:
    """From NCHW to the NHWC `shape`, or back, by TVM on all cores."""
    import tvm
    from tt_core.compiler.target import resolve
    from tvm import te
    from tvm.s_tir import Schedule

    n, h, w, c = shape
    if to_last:
        x = te.placeholder((n, c, h, w), name="x")
        out = te.compute((n, h, w, c), lambda b, i, j, k: x[b, k, i, j], name="out")
    else:
        x = te.placeholder((n, h, w, c), name="x")
        out = te.compute((n, c, h, w), lambda b, k, i, j: x[b, i, j, k], name="out")
    s = Schedule(te.create_prim_func([x, out]).with_attr("tirx.noalias", True))
    s.parallel(s.fuse(*s.get_loops(s.get_sblock("out"))[:2]))
    main = tvm.tirx.build(s.mod, target=resolve("native"))["main"]
    args = [tvm.runtime.tensor(np.ones([int(d) for d in t.shape], "float32")) for t in (x, out)]
    return lambda: main(*args)


def _race(task: Any, program: Any, peer: Peer) -> tuple[float, float, tuple[float, float]]:
    """Seconds of tt, of oneDNN, and of both with edge layout changes: medians over interleaved blocks."""
    shapes = [[int(d) for d in s.strip().split("x")] for s in task.shapes.replace("->", ",").split(",")]
    calls: list[Callable[[], object]] = [lambda: program.run(1)]
    if len(shapes[0]) == 4 and task.op in ("conv2d", "dwconv2d"):
        calls = [_transposed(shapes[0], to_last=True), *calls, _transposed(shapes[-1], to_last=False)]

    def ours_with_edges() -> None:
        for call in calls:
            call()

    timed = {
        "tt": lambda: _block(lambda: program.run(1)),
        "oneDNN": lambda: peer.seconds(edges=False),
        "tt edges": lambda: _block(ours_with_edges),
        "oneDNN edges": lambda: peer.seconds(edges=True),
    }
    at = {who: float(np.median(times)) for who, times in in_turns(timed, ROUNDS).items()}
    return at["tt"], at["oneDNN"], (at["tt edges"], at["oneDNN edges"])


if __name__ == "__main__":
    main()
