"""An ONNX graph that grows by one method call per layer, its weights drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import onnx

__all__ = ["BEHIND_RELU", "Graph", "Value"]

OPSET = 17
IR_VERSION = 8  # the one of opset 17's release; every onnxruntime since 1.12 reads it
BEHIND_RELU = 2 / (1 - 1 / math.pi)  # relu of N(0, 1) has variance 1 / BEHIND_RELU


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
        """An ONNX operator of one output; the result is as wide as the first input unless `width` says so."""
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
        return self.constant(self._drawn(shape, std), name=name)

    def weight(self, name: str, shape: Sequence[int], gain: float, center: bool = True) -> Value:
        """A parameter of variance gain / fan-in, `shape` (outputs, inputs, ...), each output's mean removed.

        With the mean gone, a layer passes on how its inputs vary and not their common positive part, which
        would otherwise grow with depth until all images look alike. Source: Brock et al. (2021),
        arXiv:2101.08692, scaled weight standardisation; the gain is `BEHIND_RELU` there.
        """
        axes = tuple(range(1, len(shape)))
        w = self._drawn(shape, math.sqrt(gain / math.prod(shape[1:])))
        if center:
            w -= w.mean(axes, keepdims=True)
        return self.constant(w, name=name)

    def _drawn(self, shape: Sequence[int], std: float) -> np.ndarray:
        w = self.rng.standard_normal(shape, dtype="float32")
        w *= std
        return w

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
        *,
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

    def average_pool(self, x: Value, kernel: int, stride: int, pad: int = 0) -> Value:
        """Mean over windows, in which padding counts as 0."""
        return self.op(
            "AveragePool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, count_include_pad=1
        )

    def global_pool(self, x: Value) -> Value:
        """Mean over an image: (n, c, h, w) to (n, c)."""
        return self.flatten(self.op("GlobalAveragePool", x), x.width)

    def flatten(self, x: Value, width: int) -> Value:
        """(n, ...) to rows (n, width)."""
        return self.op("Flatten", x, width=width, axis=1)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        return self.op("Reshape", x, self.constant(shape, "int64"), width=shape[-1])

    def linear(self, x: Value, width: int, gain: float = 1.0) -> Value:
        """Fully connected layer on rows (n, features), weights (width, features)."""
        layer = f"linear_{len(self.nodes)}"
        weight = self.weight(f"{layer}.weight", (width, x.width), gain)
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

    def attention(self, x: Value, mask: Value | None, batch: int, length: int, heads: int) -> Value:
        """Multi-head self-attention (Vaswani et al., 2017, arXiv:1706.03762, section 3.2.2).

        Args:
            x: (batch, length, features) float32.
            mask: Added to the scores before the softmax, if any; broadcasts to (batch, heads, length, length).
        """
        split = (batch, length, heads, x.width // heads)

        def project(perm: Sequence[int]) -> Value:
            return self.op("Transpose", self.reshape(self.dense(x, x.width), split), perm=perm)

        query, key, value = project([0, 2, 1, 3]), project([0, 2, 3, 1]), project([0, 2, 1, 3])
        scores = self.op("Div", self.op("MatMul", query, key), self.constant(math.sqrt(split[-1])))
        weights = self.op("Softmax", scores if mask is None else self.add(scores, mask), axis=-1)
        context = self.op("Transpose", self.op("MatMul", weights, value), perm=[0, 2, 1, 3])
        return self.dense(self.reshape(context, (batch, length, x.width)), x.width)


def _tensor_type(name: str, shape: Sequence[int], dtype: str) -> onnx.ValueInfoProto:
    import numpy as np
    from onnx import helper

    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape))
