"""Deployment: tune an ONNX file on this machine, then serve the library with TVM alone.

    python deploy_a_model.py                    # a small matrix product, 8 trials: seconds
    python deploy_a_model.py model.onnx 10      # your model, 10 minutes

Serving needs `pip install apache-tvm` and nothing of tt.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def main(model: str, minutes: float | None) -> None:
    import tt_core

    trials = 8 if minutes is None else None
    # The history makes it safe to stop: the same call again goes on from there and measures nothing twice.
    result = tt_core.tune(model, minutes=minutes, trials=trials, out="model.so", history="tt.db", say=print)
    if result.before_s is None or result.after_s is None:
        sys.exit("no operator has a valid program yet: give it more minutes")
    print(
        f"{result.before_s * 1e3:.3f} ms untuned, {result.after_s * 1e3:.3f} ms tuned; agrees with:", *result.verified
    )
    subprocess.run([sys.executable, __file__, "--serve", "model.so"], check=True)


def serve(path: str) -> None:
    """Load the library and call it: what runs where the model is used."""
    about = json.loads(Path(f"{path}.json").read_text())
    os.environ["TVM_NUM_THREADS"] = str(about["threads"])  # TVM reads it once, when it is imported
    import numpy as np
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())
    inputs = [np.ones(i["shape"], i["dtype"]) for i in about["inputs"]]
    output = machine["main"](*map(tvm.runtime.tensor, inputs))
    print("served:", output.shape, "without tt:", not any(name.startswith("tt_") for name in sys.modules))


def small_model() -> str:
    """An ONNX file to try it with."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Relu", ["z"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in "xy")
    graph = helper.make_graph(nodes, "small", [x], [y], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "small.onnx")
    return "small.onnx"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    elif len(sys.argv) > 1:
        main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 5.0)
    else:
        main(small_model(), minutes=None)
