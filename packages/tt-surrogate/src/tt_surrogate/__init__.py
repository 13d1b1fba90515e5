"""Cost models of tt: pieces of the role "surrogate". Importing this loads no learning library."""

from __future__ import annotations

from tt_surrogate.atformer import ATFormer
from tt_surrogate.forest import ForestEI
from tt_surrogate.gaussian import GaussianProcess
from tt_surrogate.light import LightGBM
from tt_surrogate.mha import MultiHeadAttention
from tt_surrogate.mlp import MLP
from tt_surrogate.recurrent import LSTM
from tt_surrogate.tabnet import TabNet
from tt_surrogate.xgb import XGB

__all__ = ["LSTM", "MLP", "XGB", "ATFormer", "ForestEI", "GaussianProcess", "LightGBM", "MultiHeadAttention", "TabNet"]
