"""A model's outputs, untuned."""

from __future__ import annotations

import numpy as np
import tvm
from tt_core import target
from tt_core.compiler.lower import lower
from tt_core.deploy.library import compile_library
from tt_core.models.model import Model
from tt_spec import Plugins
from tvm import relax

__all__ = ["outputs"]


def outputs(model: Model, inputs: dict[str, np.ndarray], plugins: Plugins) -> list[np.ndarray]:
    library = compile_library(lower(model.mod, target.resolve("native"), plugins, "fake"), {}, plugins)
    out = relax.VirtualMachine(library, tvm.cpu())["main"](*(tvm.runtime.tensor(inputs[i.name]) for i in model.inputs))
    return [out.numpy()] if hasattr(out, "numpy") else [o.numpy() for o in out]
