"""Models in: files, names of the zoo, single operators, objects of other libraries.

`load` reads anything that names a model; `sources/` holds one module per file format, `ops` the single operators,
`zoo/` the models with random weights, `model` what all of them become. Imports `tt_core.compiler` and
`tt_core.errors`; may be imported by `tt_core.prepared` and everything above it.
"""

from tt_core.models.load import load
from tt_core.models.model import Input, Model, Peer

__all__ = ["Input", "Model", "Peer", "load"]
