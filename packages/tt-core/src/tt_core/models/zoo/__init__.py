"""Reference networks as ONNX models with random weights: the published shapes, without a download.

A tuner cares for shapes, a comparison of outputs for values: weights are drawn so that activations neither
vanish, explode nor saturate, and outputs differ between classes and between inputs.

    model = build("resnet18")            # an onnx.ModelProto, 1x3x224x224 -> 1x1000

A further architecture is one function that grows a `Graph`, in the module of its family, and one line in
`ARCHITECTURES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tt_core.models.zoo.bert import bert_tiny, transformer_encoder
from tt_core.models.zoo.graph import Graph, Value
from tt_core.models.zoo.inception import inception_v2
from tt_core.models.zoo.mobilenet import mobilenet_v2
from tt_core.models.zoo.plain import alexnet, vgg16
from tt_core.models.zoo.resnet import resnet18, resnet50
from tt_core.models.zoo.squeezenet import squeezenet1_1

if TYPE_CHECKING:
    import onnx

__all__ = ["ARCHITECTURES", "NAMES", "Graph", "Value", "build"]

ARCHITECTURES = {
    "alexnet": alexnet,
    "bert-tiny": bert_tiny,
    "inception_v2": inception_v2,
    "mobilenet_v2": mobilenet_v2,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "squeezenet1_1": squeezenet1_1,
    "transformer-encoder": transformer_encoder,
    "vgg16": vgg16,
}
NAMES: tuple[str, ...] = tuple(ARCHITECTURES)


def build(name: str, batch: int = 1, seed: int = 0) -> onnx.ModelProto:
    """The model called `name`; the same arguments give the same bytes.

    Args:
        name: One of `NAMES`.
        batch: First dimension of every input and output; does not change the weights.
        seed: Of the generator that draws the weights.
    """
    import numpy as np

    if name not in ARCHITECTURES:
        raise ValueError(f"model {name!r} is not in the zoo (known: {', '.join(NAMES)})")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    graph = Graph(np.random.default_rng(seed))
    ARCHITECTURES[name](graph, batch)
    return graph.model(name)
