"""Cost models of tt: pieces of the role "surrogate". Importing this loads no learning library."""

from __future__ import annotations

from tt_surrogate.forest import ForestEI
from tt_surrogate.gaussian import GaussianProcess
from tt_surrogate.xgb import XGB

__all__ = ["XGB", "ForestEI", "GaussianProcess"]
