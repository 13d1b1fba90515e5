"""Reference networks as ONNX models with random weights: the published shapes, without a download.

A tuner cares for shapes, a comparison of outputs for values: weights are drawn so that activations neither
vanish, explode nor saturate, and outputs differ between classes and between inputs.

    model = build("resnet18")            # an onnx.ModelProto, 1x3x224x224 -> 1x1000

A further architecture is one function below and one line in `_ARCHITECTURES`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import onnx

__all__ = ["NAMES", "Graph", "Value", "build"]

OPSET = 17
IR_VERSION = 8  # the one of opset 17's release; every onnxruntime since 1.12 reads it
BEHIND_RELU = 2 / (1 - 1 / math.pi)  # relu of N(0, 1) has variance 1 / BEHIND_RELU


def build(name: str, batch: int = 1, seed: int = 0) -> onnx.ModelProto:
    """The model called `name`; the same arguments give the same bytes.

    Args:
        name: One of `NAMES`.
        batch: First dimension of every input and output; does not change the weights.
        seed: Of the generator that draws the weights.
    """
    import numpy as np

    if name not in _ARCHITECTURES:
        raise ValueError(f"model {name!r} is not in the zoo (known: {', '.join(NAMES)})")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    graph = Graph(np.random.default_rng(seed))
    _ARCHITECTURES[name](graph, batch)
    return graph.model(name)


class Value(NamedTuple):
    """A tensor of the graph: its name, and the size of the axis that the next layer contracts.

    `width` is the channels of an image, the features of a row.
    """

    name: str
    width: int


class Graph:
    """An ONNX graph that grows by one method call per layer.

    Parameters are named `<layer>.weight`, `.bias`, `.running_mean` and `.running_var`; everything else that
    is constant is named `constant_<n>`.

    Args:
        rng: Draws the weights, in the order of the calls.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def model(self, name: str) -> onnx.ModelProto:
        """The graph so far as a model."""
        from onnx import helper

        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.initializers)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, producer_name="tt", opset_imports=[opset], ir_version=IR_VERSION)

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> Value:
        """A graph input whose axis 1 is its width."""
        self.inputs.append(_tensor_type(name, shape, dtype))
        return Value(name, shape[1])

    def output(self, name: str, x: Value, shape: Sequence[int]) -> Value:
        """Make float32 `x` a graph output and return it: it is called `name` from here on."""
        for node in self.nodes:
            for names in (node.input, node.output):
                names[:] = [name if n == x.name else n for n in names]
        self.outputs.append(_tensor_type(name, shape, "float32"))
        return Value(name, x.width)

    def op(self, kind: str, *inputs: Value, width: int | None = None, **attributes: Any) -> Value:
        """Any one-output ONNX operator; the result is as wide as the first input unless `width` says so."""
        from onnx import helper

        name = f"{kind}_{len(self.nodes)}"
        names = [x.name for x in inputs]
        self.nodes.append(helper.make_node(kind, names, [name], name=name, **attributes))
        return Value(name, inputs[0].width if width is None else width)

    def constant(self, array: Any, dtype: str = "float32", name: str | None = None) -> Value:
        """An initializer holding `array`."""
        import numpy as np
        from onnx import numpy_helper

        array = np.asarray(array, dtype)
        name = name or f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return Value(name, array.shape[-1] if array.ndim else 1)

    def normal(self, name: str, shape: Sequence[int], std: float) -> Value:
        """A parameter drawn from N(0, std^2)."""
        return self.constant(self.rng.standard_normal(shape) * std, name=name)

    def weight(self, name: str, shape: Sequence[int], gain: float, center: bool = True) -> Value:
        """A parameter of variance gain / fan-in, `shape` (outputs, inputs, ...), each output's mean removed.

        With the mean gone, a layer passes on how its inputs vary and not their common positive part, which
        would otherwise grow with depth until all images look alike. Source: Brock et al. (2021),
        arXiv:2101.08692, scaled weight standardisation; the gain is `BEHIND_RELU` there.
        """
        axes = tuple(range(1, len(shape)))
        w = self.rng.standard_normal(shape) * math.sqrt(gain / math.prod(shape[1:]))
        return self.constant(w - w.mean(axes, keepdims=True) if center else w, name=name)

    def near_one(self, name: str, width: int) -> Value:
        """A parameter of shape (width,) drawn from U(0.8, 1.2)."""
        return self.constant(self.rng.uniform(0.8, 1.2, width), name=name)

    def conv(
        self,
        x: Value,
        width: int,
        kernel: int,
        stride: int = 1,
        pad: int = 0,
        groups: int = 1,
        bias: bool = False,
        gain: float = BEHIND_RELU,
    ) -> Value:
        """Square 2-D convolution.

        `gain` keeps the variance at its default behind a ReLU and at 1 behind a linear layer; less of it
        at the end of a residual branch makes up for the sum. A grouped convolution keeps its weights'
        mean: without it a depthwise filter would see edges only.
        """
        layer = f"conv_{len(self.nodes)}"
        shape = (width, x.width // groups, kernel, kernel)
        parameters = [self.weight(f"{layer}.weight", shape, gain, center=groups == 1)]
        if bias:
            parameters.append(self.normal(f"{layer}.bias", (width,), 0.1))
        return self.op(
            "Conv",
            x,
            *parameters,
            width=width,
            kernel_shape=[kernel] * 2,
            strides=[stride] * 2,
            pads=[pad] * 4,
            group=groups,
        )

    def bn(self, x: Value) -> Value:
        """Batch normalisation with running means near 0 and variances near 1."""
        layer = f"bn_{len(self.nodes)}"
        return self.op(
            "BatchNormalization",
            x,
            self.near_one(f"{layer}.weight", x.width),
            self.normal(f"{layer}.bias", (x.width,), 0.1),
            self.normal(f"{layer}.running_mean", (x.width,), 0.1),
            self.near_one(f"{layer}.running_var", x.width),
            epsilon=1e-5,
        )

    def relu(self, x: Value) -> Value:
        return self.op("Relu", x)

    def relu6(self, x: Value) -> Value:
        return self.op("Clip", x, self.constant(0.0), self.constant(6.0))

    def add(self, x: Value, y: Value) -> Value:
        return self.op("Add", x, y)

    def concat(self, *xs: Value) -> Value:
        """Concatenation of images along their channels."""
        return self.op("Concat", *xs, width=sum(x.width for x in xs), axis=1)

    def max_pool(self, x: Value, kernel: int, stride: int, pad: int = 0) -> Value:
        return self.op("MaxPool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4)

    def global_pool(self, x: Value) -> Value:
        """Mean over an image: (n, c, h, w) to (n, c)."""
        return self.op("Flatten", self.op("GlobalAveragePool", x), axis=1)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        return self.op("Reshape", x, self.constant(shape, "int64"), width=shape[-1])

    def linear(self, x: Value, width: int) -> Value:
        """Fully connected layer on rows (n, features), weights (width, features)."""
        layer = f"linear_{len(self.nodes)}"
        weight = self.weight(f"{layer}.weight", (width, x.width), gain=1.0)
        bias = self.normal(f"{layer}.bias", (width,), 0.1)
        return self.op("Gemm", x, weight, bias, width=width, transB=1)

    def dense(self, x: Value, width: int, gain: float = 1.0) -> Value:
        """Fully connected layer on sequences (n, length, features), weights (features, width)."""
        layer = f"dense_{len(self.nodes)}"
        weight = self.normal(f"{layer}.weight", (x.width, width), math.sqrt(gain / x.width))
        product = self.op("MatMul", x, weight, width=width)
        return self.add(product, self.normal(f"{layer}.bias", (width,), 0.1))

    def embedding(self, indices: Value, rows: int, width: int) -> Value:
        """Rows of a (rows, width) table; `indices` int64 of any shape."""
        table = self.normal(f"embedding_{len(self.nodes)}.weight", (rows, width), 1.0)
        return self.op("Gather", table, indices, width=width, axis=0)

    def layer_norm(self, x: Value, epsilon: float = 1e-12) -> Value:
        """Layer normalisation over the last axis (Ba et al., 2016, arXiv:1607.06450)."""
        layer = f"norm_{len(self.nodes)}"
        scale = self.near_one(f"{layer}.weight", x.width)
        bias = self.normal(f"{layer}.bias", (x.width,), 0.1)
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=epsilon)

    def gelu(self, x: Value) -> Value:
        """x Phi(x) = x (1 + erf(x / sqrt 2)) / 2 (Hendrycks and Gimpel, 2016, arXiv:1606.08415)."""
        erf = self.op("Erf", self.op("Div", x, self.constant(math.sqrt(2))))
        return self.op("Mul", self.op("Mul", x, self.add(erf, self.constant(1.0))), self.constant(0.5))

    def attention(self, x: Value, mask: Value, batch: int, length: int, heads: int) -> Value:
        """Multi-head self-attention (Vaswani et al., 2017, arXiv:1706.03762, section 3.2.2).

        Args:
            x: (batch, length, features) float32.
            mask: Added to the scores before the softmax; broadcasts to (batch, heads, length, length).
        """
        split = (batch, length, heads, x.width // heads)

        def project(perm: Sequence[int]) -> Value:
            return self.op("Transpose", self.reshape(self.dense(x, x.width), split), perm=perm)

        query, key, value = project([0, 2, 1, 3]), project([0, 2, 3, 1]), project([0, 2, 1, 3])
        scores = self.op("Div", self.op("MatMul", query, key), self.constant(math.sqrt(split[-1])))
        weights = self.op("Softmax", self.add(scores, mask), axis=-1)
        context = self.op("Transpose", self.op("MatMul", weights, value), perm=[0, 2, 1, 3])
        return self.dense(self.reshape(context, (batch, length, x.width)), x.width)


def _tensor_type(name: str, shape: Sequence[int], dtype: str) -> onnx.ValueInfoProto:
    import numpy as np
    from onnx import helper

    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape))


def resnet18(g: Graph, batch: int) -> None:
    """ResNet-18: He et al. (2015), arXiv:1512.03385, table 1, as torchvision builds it.

    input (batch, 3, 224, 224), logits (batch, 1000).
    """
    x = g.input("input", (batch, 3, 224, 224))
    x = g.relu(g.bn(g.conv(x, 64, 7, stride=2, pad=3, gain=1)))
    x = g.max_pool(x, 3, stride=2, pad=1)
    for width, stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
        x = _basic_block(g, x, width, stride)
        x = _basic_block(g, x, width, 1)
    g.output("logits", g.linear(g.global_pool(x), 1000), (batch, 1000))


def _basic_block(g: Graph, x: Value, width: int, stride: int) -> Value:
    y = g.relu(g.bn(g.conv(x, width, 3, stride, pad=1)))
    y = g.bn(g.conv(y, width, 3, pad=1, gain=1))
    if stride != 1 or x.width != width:
        x = g.bn(g.conv(x, width, 1, stride))
    return g.relu(g.add(y, x))


def mobilenet_v2(g: Graph, batch: int) -> None:
    """MobileNetV2, width 1.0: Sandler et al. (2018), arXiv:1801.04381, table 2, as torchvision builds it.

    input (batch, 3, 224, 224), logits (batch, 1000).
    """
    x = g.input("input", (batch, 3, 224, 224))
    x = g.relu6(g.bn(g.conv(x, 32, 3, stride=2, pad=1, gain=1)))
    for expansion, width, repeats, stride in [  # t, c, n, s of the table
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]:
        for i in range(repeats):
            x = _inverted_residual(g, x, width, stride if i == 0 else 1, expansion)
    x = g.relu6(g.bn(g.conv(x, 1280, 1, gain=1)))
    g.output("logits", g.linear(g.global_pool(x), 1000), (batch, 1000))


def _inverted_residual(g: Graph, x: Value, width: int, stride: int, expansion: int) -> Value:
    residual = stride == 1 and x.width == width
    y = x
    if expansion != 1:
        y = g.relu6(g.bn(g.conv(y, x.width * expansion, 1, gain=1)))
    y = g.relu6(g.bn(g.conv(y, y.width, 3, stride, pad=1, groups=y.width, gain=2)))
    y = g.bn(g.conv(y, width, 1, gain=1 if residual else BEHIND_RELU))
    return g.add(x, y) if residual else y


def squeezenet1_1(g: Graph, batch: int) -> None:
    """SqueezeNet 1.1: Iandola et al. (2016), arXiv:1602.07360, in the revision that torchvision builds.

    input (batch, 3, 224, 224), logits (batch, 1000), not negative: the last layer is a ReLU.
    """
    x = g.input("input", (batch, 3, 224, 224))
    x = g.relu(g.conv(x, 64, 3, stride=2, bias=True, gain=1))
    for stage in [[(16, 64)] * 2, [(32, 128)] * 2, [(48, 192)] * 2 + [(64, 256)] * 2]:
        x = g.max_pool(x, 3, stride=2)  # torchvision's ceil_mode changes nothing at 111, 55 and 27
        for squeeze, expand in stage:
            x = _fire(g, x, squeeze, expand)
    x = g.relu(g.conv(x, 1000, 1, bias=True))
    g.output("logits", g.global_pool(x), (batch, 1000))


def _fire(g: Graph, x: Value, squeeze: int, expand: int) -> Value:
    x = g.relu(g.conv(x, squeeze, 1, bias=True))
    small = g.relu(g.conv(x, expand, 1, bias=True))
    large = g.relu(g.conv(x, expand, 3, pad=1, bias=True))
    return g.concat(small, large)


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
        x = g.layer_norm(g.add(x, g.attention(x, mask, batch, length, heads)))
        y = g.dense(g.gelu(g.dense(x, 4 * hidden)), hidden, gain=2)
        x = g.layer_norm(g.add(x, y))
    x = g.output("last_hidden_state", x, (batch, length, hidden))
    first = g.op("Gather", x, g.constant(0, "int64"), width=hidden, axis=1)
    g.output("pooler_output", g.op("Tanh", g.linear(first, hidden)), (batch, hidden))


_ARCHITECTURES = {
    "bert-tiny": bert_tiny,
    "mobilenet_v2": mobilenet_v2,
    "resnet18": resnet18,
    "squeezenet1_1": squeezenet1_1,
}
NAMES: tuple[str, ...] = tuple(_ARCHITECTURES)
