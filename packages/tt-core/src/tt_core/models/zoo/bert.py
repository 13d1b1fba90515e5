"""Transformer encoders."""

from __future__ import annotations

from tt_core.models.zoo.graph import Graph, Value

__all__ = ["bert_tiny", "transformer_encoder"]


def bert_tiny(g: Graph, batch: int) -> None:
    """BERT-Tiny, 128 tokens: Turc et al. (2019), arXiv:1908.08962; layers as Devlin et al., arXiv:1810.04805.

    input_ids and attention_mask (1: token, 0: padding) (batch, 128) int64;
    last_hidden_state (batch, 128, 128), pooler_output (batch, 128).
    """
    vocabulary, positions, length, hidden, heads = 30522, 512, 128, 128, 2
    ids = g.input("input_ids", (batch, length), "int64")
    mask = g.op("Cast", g.input("attention_mask", (batch, length), "int64"), to=1)  # 1 is float32
    mask = g.reshape(g.op("Sub", g.constant(1.0), mask), (batch, 1, 1, length))
    mask = g.op("Mul", mask, g.constant(-10000.0))  # BERT's own; a lower one makes NaN of a fully masked row

    x = g.embedding(ids, vocabulary, hidden)
    x = g.add(x, g.embedding(g.constant([[0] * length], "int64"), 2, hidden))  # token type: first sentence
    x = g.layer_norm(g.add(x, g.embedding(g.constant([range(length)], "int64"), positions, hidden)))
    for _ in range(2):
        x = _layer(g, x, mask, batch, length, heads)
    x = g.output("last_hidden_state", x, (batch, length, hidden))
    first = g.op("Gather", x, g.constant(0, "int64"), width=hidden, axis=1)
    g.output("pooler_output", g.op("Tanh", g.linear(first, hidden)), (batch, hidden))


def transformer_encoder(g: Graph, batch: int) -> None:
    """The encoder of BERT-base: Devlin et al. (2018), arXiv:1810.04805; 12 layers, 12 heads, 128 tokens, no padding.

    hidden_states and last_hidden_state (batch, 128, 768).
    """
    length, hidden, heads = 128, 768, 12
    x = Value(g.input("hidden_states", (batch, length, hidden)).name, hidden)
    for _ in range(12):
        x = _layer(g, x, None, batch, length, heads)
    g.output("last_hidden_state", x, (batch, length, hidden))


def _layer(g: Graph, x: Value, mask: Value | None, batch: int, length: int, heads: int) -> Value:
    """Attention and a hidden layer four times as wide, each added to its input and normalised."""
    x = g.layer_norm(g.add(x, g.attention(x, mask, batch, length, heads)))
    y = g.dense(g.gelu(g.dense(x, 4 * x.width)), x.width, gain=2)
    return g.layer_norm(g.add(x, y))
