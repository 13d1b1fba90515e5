"""Heavy operators: tt's templates beside oneDNN with prepacked weights, timed in turns in one process.

    hatch run python tools/bench/kernels.py [--models resnet18,mobilenet_v2,bert-tiny] [--ops OP ...]

For each operator tt measures `--trials` candidates from a cold start; its best and oneDNN (through torch, which must be
installed; blocked or channels-last input, whichever it is faster with) are then timed in turns, two threads each. Both
have their weights packed beforehand and their input in the layout they like; "edges" adds the change from and to NCHW
for both. The multiply-add peak is measured in the same run; "to 90%" is when the search's own measurements passed nine
tenths of it.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ROUNDS, BLOCK_S = 9, 0.03


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
    from tt_core.target import cores, prepare_threads

    prepare_threads()
    os.environ["OMP_NUM_THREADS"] = str(cores())
    import torch
    from tt_core.tuning import prepare

    torch.set_num_threads(cores())
    peak = _peak()
    print(f"multiply-add peak of {cores()} cores: {peak:.0f} GFLOP/s")
    columns = ("search", "to 90%", "tt", "% peak", "oneDNN", "ratio", "edges tt", "edges oneDNN")
    heading = f"{'operator':40}" + "".join(f"{c:>{max(8, len(c) + 1)}}" for c in columns)
    ratios = []
    torch.set_grad_enabled(False)
    for model in [*options.ops, *filter(None, options.models.split(","))]:
        ready = prepare(model, space=options.space)
        whole = sum(t.weight * t.flops for t in ready.tasks)
        print(f"\n{model}\n{heading}")
        for task in ready.tasks:
            peer = _onednn(task) if task.weight * task.flops >= options.share * whole else None
            if peer is None:
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
    mean = math.exp(np.mean(np.log(ratios)))
    print(f"\ngeometric mean of {len(ratios)} ratios: {mean:.3f}, least {min(ratios):.2f}")


def _search(task: Any, trials: int, space: str, goal: float) -> tuple[float, float, Any]:
    """Seconds of the search from a cold start and until `goal` FLOP/s, and the best candidate, built here."""
    from tt_core.backend import TvmBackend
    from tt_core.recipe import resolve
    from tt_core.setup import BACKEND
    from tt_core.target import cores
    from tt_measure.pool import WorkerPool
    from tt_spec import Bar, Pipeline

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


def _onednn(task: Any) -> tuple[Callable[[], object], Callable[[], object]] | None:
    """The operator in oneDNN, without and with edge layout changes; None where it has no such operator."""
    import torch

    shapes = [[int(d) for d in s.strip().split("x")] for s in task.shapes.split("->")[0].split(",")]
    out = [int(d) for d in task.shapes.split("->")[1].strip().split("x")]
    x, w = shapes[0], shapes[1] if len(shapes) > 1 else []
    relu = "relu" if "relu" in task.name or "maximum" in task.name else "none"
    if task.op in ("conv2d", "dwconv2d") and len(x) == 4:
        return _convolution(torch, task, x, w, out, relu)
    if task.op == "matmul" and len(w) == 3:
        rows, depth, width = math.prod(x[:-1]), x[-1], out[-1]
        layer = torch.nn.Linear(depth, width).eval()
        packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
        data = torch.randn(rows, depth)

        def linear() -> object:
            return torch.ops.mkldnn._linear_pointwise(data, packed, layer.bias, relu, [], "")

        return linear, linear
    if task.op in ("matmul", "batch_matmul") and len(x) == len(w):
        a, b = torch.randn(*x), torch.randn(*w)
        return (lambda: torch.matmul(a, b)), (lambda: torch.matmul(a, b))
    return None


def _convolution(torch: Any, task: Any, x: list[int], w: list[int], out: list[int], relu: str) -> Any:
    n, height, width, channels = x if x[3] == w[3] or w[0] * w[-1] == x[3] else (x[0], x[2], x[3], x[1])
    kernel = tuple(w[1:3])
    depthwise = task.op == "dwconv2d"
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

    return min((in_blocks, in_blocks_with_edges), (channels_last, channels_last_with_edges), key=lambda p: _best(p[0]))


def _best(call: Callable[[], object]) -> float:
    found = []
    for _ in range(30):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def _race(task: Any, program: Any, peer: Any) -> tuple[float, float, tuple[float, float]]:
    """Seconds of tt, of oneDNN, and of both with edge layout changes: medians over interleaved blocks."""
    import torch

    shapes = [[int(d) for d in s.strip().split("x")] for s in task.shapes.replace("->", ",").split(",")]
    images = [s for s in (shapes[0], shapes[-1]) if len(s) == 4 and task.op in ("conv2d", "dwconv2d")]
    edges = [(torch.randn(s[0], s[3], s[1], s[2]), torch.empty(*s)) for s in images]

    def ours_with_edges() -> None:
        for nchw, nhwc in edges:
            nhwc.copy_(nchw.permute(0, 2, 3, 1))
        program.run(1)

    runs = {"tt": lambda: program.run(1), "onednn": peer[0], "tt edges": ours_with_edges, "onednn edges": peer[1]}
    found: dict[str, list[float]] = {who: [] for who in runs}
    for _ in range(ROUNDS):
        for who, call in runs.items():
            for _ in range(3):
                call()
            start, n = time.perf_counter(), 0
            while time.perf_counter() - start < BLOCK_S:
                call()
                n += 1
            found[who].append((time.perf_counter() - start) / n)
    at = {who: float(np.median(times)) for who, times in found.items()}
    return at["tt"], at["onednn"], (at["tt edges"], at["onednn edges"])


def _peak() -> float:
    """GFLOP/s of independent multiply-adds on registers, all cores."""
    import tvm
    from tt_core.target import cores, resolve
    from tt_space.machine import vector_unit
    from tvm import te
    from tvm.s_tir import Schedule

    target = resolve("native")
    unit = vector_unit(target)
    lanes, chains, steps, tasks = unit.lanes("float32"), unit.registers * 3 // 4, 200_000, cores()
    x, y = (te.placeholder((steps // 1000, lanes), name=name) for name in "xy")
    k = te.reduce_axis((0, steps), "k")
    out = te.compute(
        (tasks, chains, lanes), lambda t, c, v: te.sum(x[k // 1000, v] * y[k // 1000, v], axis=k), name="peak"
    )
    s = Schedule(te.create_prim_func([x, y, out]).with_attr("tirx.noalias", True))
    block = s.get_sblock("peak")
    local = s.cache_write(block, 0, "local")
    t, c, v, r = s.get_loops(block)
    outer, inner = s.split(r, [None, 1000])
    s.reorder(t, outer, inner, c, v)
    s.parallel(t)
    s.unroll(c)
    s.vectorize(v)
    s.reverse_compute_at(local, t)
    *_, c2, v2 = s.get_loops(local)
    s.unroll(c2)
    s.vectorize(v2)
    s.decompose_reduction(block, outer)
    main = tvm.tirx.build(s.mod, target=target)["main"]
    args = [tvm.runtime.tensor(np.full([int(d) for d in p.shape], 1e-3, "float32")) for p in s.mod["main"].params]
    best = math.inf
    for _ in range(20):
        start = time.perf_counter()
        main(*args)
        best = min(best, time.perf_counter() - start)
    return 2.0 * tasks * chains * lanes * steps / best / 1e9


if __name__ == "__main__":
    main()
