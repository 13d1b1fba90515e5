"""Attention of onnxruntime's domain, and rotary embeddings, as products and a softmax.

Source: onnxruntime's ContribOperators.md (1.17 to 1.24): Attention, MultiHeadAttention, GroupQueryAttention,
RotaryEmbedding. B batch, S new positions, P past ones, T = P + S, N heads, H channels of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tt_core.models.rewrites.graph import Graph
from tt_core.models.rewrites.node import Node, Rewrite, RewriteError

__all__ = ["operators"]


def operators() -> dict[tuple[str, str], Rewrite]:
    """The rewritings of this family."""
    return {
        ("com.microsoft", "Attention"): _attention,
        ("com.microsoft", "MultiHeadAttention"): _multi_head,
        ("com.microsoft", "GroupQueryAttention"): _group_query,
        ("com.microsoft", "RotaryEmbedding"): _rotary,
    }


def _attention(n: Node, g: Graph) -> Sequence[str]:
    """Inputs (B, S, I) are projected by one matrix to queries, keys and values."""
    x, heads = n.input(0), int(n.get("num_heads"))
    if n.get("do_rotary", 0) or n.get("past_present_share_buffer", 0):
        raise RewriteError("it has do_rotary or past_present_share_buffer, which is not rewritten: export it unfused")
    width = g.shape(n.input(1))[1]
    sizes = [int(s) for s in n.get("qkv_hidden_sizes", ())] or [width // 3] * 3
    flat = g.op("MatMul", x, n.input(1))
    flat = g.op("Add", flat, n.input(2)) if n.input(2) else flat
    q, k, v = (_heads(p, heads, g) for p in g.split(flat, sizes, 2))
    past = 0
    if n.input(4):
        old = [g.squeeze(g.slice(n.input(4), 0, i, i + 1), 0) for i in range(2)]
        past = g.shape(old[0])[2]
        k, v = g.concat([old[0], k], 2), g.concat([old[1], v], 2)
    biases = [n.input(5)] if n.input(5) else []
    if n.input(3):
        biases.append(_masked(n.input(3), g.shape(q), g.shape(k)[2], float(n.get("mask_filter_value", -10000.0)), g))
    if n.get("unidirectional", 0):
        biases.append(_causal(g.shape(q)[2], past, g))
    y = _attended(q, k, v, biases, float(n.get("scale", 0.0)), g)
    both = g.concat([g.unsqueeze(k, 0), g.unsqueeze(v, 0)], 0) if n.wants(1) else ""
    return [y, both][: len(n.outputs)]


def _multi_head(n: Node, g: Graph) -> Sequence[str]:
    """Queries (B, S, N * H), keys and values (B, L, N * H) or (B, N, L, H)."""
    heads = int(n.get("num_heads"))
    if len(g.shape(n.input(0))) != 3 or not n.input(1):
        raise RewriteError("its queries, keys and values are packed, which is not rewritten: export the model unfused")
    parts = [n.input(0), n.input(1), n.input(2)]
    if not parts[2]:
        raise RewriteError("its keys and values are packed, which is not rewritten: export the model unfused")
    if n.input(3):
        sizes = [g.shape(parts[0])[-1], g.shape(parts[0])[-1]]
        sizes.append(g.shape(n.input(3))[0] - sum(sizes))
        biases = g.split(n.input(3), sizes, 0)
        parts = [g.op("Add", p, b) if len(g.shape(p)) == 3 else p for p, b in zip(parts, biases, strict=True)]
    q, k, v = (_heads(p, heads, g) if len(g.shape(p)) == 3 else p for p in parts)
    past = 0
    if n.input(6):
        past = g.shape(n.input(6))[2]
        k, v = g.concat([n.input(6), k], 2), g.concat([n.input(7), v], 2)
    extra = [n.input(5)] if n.input(5) else []
    if n.input(4):
        extra.append(_masked(n.input(4), g.shape(q), g.shape(k)[2], float(n.get("mask_filter_value", -10000.0)), g))
    if n.get("unidirectional", 0):
        extra.append(_causal(g.shape(q)[2], past, g))
    return [_attended(q, k, v, extra, float(n.get("scale", 0.0)), g), k, v][: len(n.outputs)]


def _group_query(n: Node, g: Graph) -> Sequence[str]:
    """Fewer heads of keys and values than of queries; causal; the past stands before the new positions."""
    heads, groups = int(n.get("num_heads")), int(n.get("kv_num_heads"))
    x = n.input(0)
    if n.input(1):
        parts = [x, n.input(1), n.input(2)]
    else:
        each = g.shape(x)[2] // (heads + 2 * groups)
        parts = g.split(x, [heads * each, groups * each, groups * each], 2)
    q, k, v = (_heads(p, c, g) for p, c in zip(parts, (heads, groups, groups), strict=True))
    steps = g.shape(q)[2]
    past = g.shape(n.input(3))[2] if n.input(3) else 0
    counts = g.known(n.input(5), "seqlens_k").reshape(-1).astype(np.int64) + 1 - steps
    if past and (counts != past).any():
        raise RewriteError(
            f"its past has {past} positions of which {counts.tolist()} are used; only a past without a rest is"
            f" rewritten: give seqlens_k the value {past + steps - 1} with --fix, or another --shape for the past"
        )
    if n.get("do_rotary", 0):
        where = g.const(np.arange(past, past + steps, dtype=np.int64)[None].repeat(g.shape(q)[0], 0))
        where = n.input(9) or where
        q, k = (
            _rotated(
                p,
                g.op("Gather", n.input(7), where),
                g.op("Gather", n.input(8), where),
                0,
                bool(n.get("rotary_interleaved", 0)),
                g,
            )
            for p in (q, k)
        )
    if past:
        k, v = g.concat([n.input(3), k], 2), g.concat([n.input(4), v], 2)
    biases = [_causal(steps, past, g, int(n.get("local_window_size", -1)))]
    if n.input(10):
        biases.append(n.input(10))
    if n.input(11) or n.get("smooth_softmax", 0) > 0:
        raise RewriteError("it has a smooth softmax or head sink, which is not rewritten: export the model unfused")
    times = heads // groups
    y = _attended(
        q,
        _repeated(k, times, g),
        _repeated(v, times, g),
        biases,
        float(n.get("scale", 0.0)),
        g,
        float(n.get("softcap", 0.0)),
    )
    return [y, k, v][: len(n.outputs)]


def _rotary(n: Node, g: Graph) -> Sequence[str]:
    """Input (B, S, N * H) or (B, N, S, H); caches (positions, rotated channels / 2)."""
    x, where = n.input(0), n.input(1)
    flat = len(g.shape(x)) == 3
    part = int(n.get("rotary_embedding_dim", 0))
    heads = int(n.get("num_heads", 0))
    if flat and not heads:
        heads = g.shape(x)[2] // (part or 2 * g.shape(n.input(2))[1])
    split = _heads(x, heads, g) if flat else x
    batch, steps = g.shape(split)[0], g.shape(split)[2]
    if int(np.prod(g.shape(where), dtype=np.int64)) == 1:  # where the first position stands
        where = g.op("Add", g.reshape(where, (1, 1)), np.arange(steps, dtype=np.int64)[None])
        where = g.op("Expand", where, np.array([batch, steps], np.int64))
    cos, sin = (g.op("Gather", n.input(i), where) for i in (2, 3))
    y = _rotated(split, cos, sin, part, bool(n.get("interleaved", 0)), g)
    return [_joined(y, g) if flat else y]


def _rotated(x: str, cos: str, sin: str, part: int, interleaved: bool, g: Graph) -> str:
    """x (B, N, S, H) turned by angles whose cosines and sines are (B, S, part / 2)."""
    shape = g.shape(x)
    part = part or 2 * g.shape(cos)[-1]
    rest = g.slice(x, 3, part, shape[3]) if part < shape[3] else ""
    x = g.slice(x, 3, 0, part) if rest else x
    cos, sin = g.unsqueeze(cos, 1), g.unsqueeze(sin, 1)
    if interleaved:
        pairs = g.reshape(x, (*shape[:3], part // 2, 2))
        a, b = (g.squeeze(g.slice(pairs, 4, i, i + 1), 4) for i in range(2))
    else:
        a, b = g.slice(x, 3, 0, part // 2), g.slice(x, 3, part // 2, part)
    real = g.op("Sub", g.op("Mul", a, cos), g.op("Mul", b, sin))
    other = g.op("Add", g.op("Mul", a, sin), g.op("Mul", b, cos))
    if interleaved:
        y = g.reshape(g.concat([g.unsqueeze(real, 4), g.unsqueeze(other, 4)], 4), (*shape[:3], part))
    else:
        y = g.concat([real, other], 3)
    return g.concat([y, rest], 3) if rest else y


def _heads(x: str, heads: int, g: Graph) -> str:
    """(B, S, N * H) to (B, N, S, H)."""
    batch, steps, width = g.shape(x)
    return g.transpose(g.reshape(x, (batch, steps, heads, width // heads)), (0, 2, 1, 3))


def _joined(x: str, g: Graph) -> str:
    batch, heads, steps, width = g.shape(x)
    return g.reshape(g.transpose(x, (0, 2, 1, 3)), (batch, steps, heads * width))


def _repeated(x: str, times: int, g: Graph) -> str:
    """Each head `times` in a row."""
    batch, heads, steps, width = g.shape(x)
    if times == 1:
        return x
    wide = g.op("Expand", g.unsqueeze(x, 2), np.array([batch, heads, times, steps, width], np.int64))
    return g.reshape(wide, (batch, heads * times, steps, width))


def _attended(q: str, k: str, v: str, biases: Sequence[str], scale: float, g: Graph, cap: float = 0.0) -> str:
    """softmax(q k' * scale + biases) v, heads joined: (B, S, N * H)."""
    scale = scale or 1.0 / math.sqrt(g.shape(q)[3])
    scores = g.op("Mul", g.op("MatMul", q, g.transpose(k, (0, 1, 3, 2))), np.array(scale, g.dtype(q)))
    if cap:
        limit = np.array(cap, g.dtype(q))
        scores = g.op("Mul", g.op("Tanh", g.op("Div", scores, limit)), limit)
    for bias in biases:
        scores = g.op("Add", scores, g.cast(bias, g.dtype(q)))
    return _joined(g.op("MatMul", g.op("Softmax", scores, axis=3), v), g)


def _causal(steps: int, past: int, g: Graph, window: int = -1) -> str:
    """(1, 1, S, T): what lies ahead, or further back than the window, is closed."""
    at, other = past + np.arange(steps)[:, None], np.arange(past + steps)[None]
    shut = other > at
    if window > 0:
        shut |= other <= at - window
    return g.const(np.where(shut, np.float32(-3e38), np.float32(0))[None, None])


def _masked(mask: str, q: tuple[int, ...], total: int, closed: float, g: Graph) -> str:
    """A mask as a bias: 1 open and 0 closed, (B, T), (B, S, T) or (B, 1, S, T); or lengths (B,)."""
    shape = g.shape(mask)
    if len(shape) == 1 and shape[0] == q[0]:
        lengths = g.unsqueeze(g.cast(mask, np.int64), 1)
        mask, shape = g.op("Less", np.arange(total, dtype=np.int64)[None], lengths), (q[0], total)
    elif len(shape) == 1:
        raise RewriteError(f"its mask has the shape {shape}, which is not rewritten: give one of (batch, positions)")
    wide = {2: (1, 2), 3: (1,), 4: ()}[len(shape)]
    mask = g.unsqueeze(mask, *wide) if wide else mask
    return g.op("Mul", g.op("Sub", np.float32(1), g.cast(mask, np.float32)), np.float32(closed))
