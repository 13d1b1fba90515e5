"""The operator's ten features: by name, kind and shapes."""

import pytest
from tt_spec import OPERATOR_FEATURES, Knob, Space, Task, operator_features


def features(name: str, op: str, shapes: str = "", space: str = "sketch") -> set[str]:
    task = Task("key", name, op, "llvm", (Space((Knob("k", "choice", (0,)),), name=space),), 1.0, shapes=shapes)
    return {f for f, on in zip(OPERATOR_FEATURES, operator_features(task), strict=True) if on}


@pytest.mark.parametrize(
    "name, op, shapes, space, want",
    [
        ("conv2d_add_relu", "conv2d", "", "template", {"conv2d", "add", "max"}),
        ("conv2d_clip", "conv2d", "", "template+winograd", {"conv2d", "conv2d_winograd", "max", "min"}),
        ("conv2d_padded", "conv2d", "", "sketch", {"conv2d"}),
        ("conv2d", "dwconv2d", "", "sketch", {"depthwise_conv2d"}),
        ("depthwise_conv2d_add", "dwconv2d", "", "template", {"depthwise_conv2d", "add"}),
        ("matmul", "matmul", "128x768, 48x768x16 -> 128x768", "template", {"dense"}),
        ("matmul", "matmul", "12x128x64, 12x64x128 -> 12x128x128", "sketch", {"batch_matmul"}),
        ("batch_matmul", "matmul", "12x128x64, 12x64x128 -> 12x128x128", "template", {"batch_matmul"}),
        ("softmax_2", "softmax", "", "sketch", {"softmax"}),
        ("max_pool2d", "max_pool2d", "", "sketch", {"max"}),
        ("layer_norm", "layer_norm", "", "sketch", {"other"}),
        ("", "", "", "space", {"other"}),
    ],
)
def test_what_an_operator_does(name, op, shapes, space, want):
    assert features(name, op, shapes, space) == want
