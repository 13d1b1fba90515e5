"""tt-core's own pieces, registered like a third party's."""

from __future__ import annotations

import functools
from typing import Any

from tt_spec.hooks import Entry, hookimpl

_SOURCES = "tt_core.models.sources"
_FORMATS = [
    Entry(".onnx", f"{_SOURCES}.onnx_model:OnnxFormat", "ONNX file", requires="tt-core[onnx]"),
    Entry(
        ".pt2",
        f"{_SOURCES}.exported_program:ExportedProgramFormat",
        "PyTorch exported program",
        requires="tt-core[torch]",
    ),
    Entry(".py", f"{_SOURCES}.tvm_script:TvmScriptFormat", "TVMScript"),
]
_ZOO = {
    "resnet18": "ResNet-18, 1x3x224x224, deterministic random weights",
    "inception_v2": "Inception-V2 (batch normalisation), 1x3x224x224, deterministic random weights",
    "mobilenet_v2": "MobileNet-V2, 1x3x224x224, deterministic random weights",
    "squeezenet1_1": "SqueezeNet 1.1, 1x3x224x224, deterministic random weights",
    "resnet50": "ResNet-50, 1x3x224x224, deterministic random weights",
    "vgg16": "VGG-16, 1x3x224x224, deterministic random weights (550 MB)",
    "alexnet": "AlexNet, 1x3x224x224, deterministic random weights (240 MB)",
    "transformer-encoder": "BERT-base encoder of 12 layers, 128 tokens of 768 channels, deterministic random weights",
    "bert-tiny": "BERT of 2 layers and 128 channels, 128 tokens, deterministic random weights",
}

_REWRITES = {
    "recurrent": "LSTM, GRU, RNN",
    "integer": "ConvInteger, QLinearConv, QLinearMatMul, Q/DQ around products and convolutions, in int32",
    "quantized": "onnxruntime's QLinearAdd and kin, QGemm, DynamicQuantizeMatMul and LSTM, MatMulNBits",
    "fused": "onnxruntime's fused operators: FusedConv, FusedMatMul, QuickGelu, SkipLayerNormalization and kin",
    "attention": "onnxruntime's Attention, MultiHeadAttention, GroupQueryAttention, RotaryEmbedding",
    "signal": "DFT, STFT",
    "standard": "Compress, CumProd, Det, LpNormalization, Col2Im, ConvTranspose with output_shape",
    "resize": "Resize of some axes, with an aspect's policy; SpaceToDepth with a mode",
    "control": "If with a known condition, Loop and Scan with a known trip count, sequences of known length",
}


@hookimpl
def tt_rewrites() -> list[Entry]:
    return [
        Entry(name, f"tt_core.models.rewrites.{name}:operators", summary, requires="tt-core[onnx]")
        for name, summary in _REWRITES.items()
    ]


@hookimpl
def tt_models() -> list[Entry]:
    return [
        *_FORMATS,
        *(Entry(n, functools.partial(_zoo, n), summary, requires="tt-core[onnx]") for n, summary in _ZOO.items()),
    ]


@hookimpl
def tt_formats() -> list[Entry]:
    return [
        Entry(
            "metaschedule",
            "tt_core.exchange.metaschedule:MetaScheduleFormat",
            "folders of TVM's own tuner: traces and timings of sketches",
            "MetaSchedule 2022",
        )
    ]


def _zoo(name: str, batch: int = 1) -> Any:
    from tt_core.models import zoo

    return zoo.build(name, batch)
