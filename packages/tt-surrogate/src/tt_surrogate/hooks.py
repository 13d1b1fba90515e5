"""tt-surrogate's pieces."""

from __future__ import annotations

from tt_spec.hooks import Entry, hookimpl
from tt_spec.ranges import Float, Integer

__all__ = ["tt_surrogates"]


@hookimpl
def tt_surrogates() -> list[Entry]:
    return [
        Entry(
            "xgb",
            "tt_surrogate.xgb:XGB",
            "gradient-boosted trees over knobs or statements, ranking or regression",
            source="Chen and Guestrin 2016; AutoTVM 2018; Ansor 2020",
            requires="tt-surrogate[xgboost]",
            ranges={
                "rounds": Integer(20, 200, log=True),
                "max_depth": Integer(2, 10),
                "eta": Float(0.03, 0.5, log=True),
                "gamma": Float(1e-5, 1e-1, log=True),
                "min_child_weight": Float(0.0, 5.0),
                "reg_lambda": Float(0.1, 10.0, log=True),
            },
        ),
        Entry(
            "gp",
            "tt_surrogate.gaussian:GaussianProcess",
            "Gaussian process, scored by expected improvement",
            source="AdaTune, Li 2020, appendix B.1",
            requires="tt-surrogate[forest]",
            ranges={"rows": Integer(50, 800, log=True), "steps": Integer(5, 50, log=True)},
        ),
        Entry(
            "rf-ei",
            "tt_surrogate.forest:ForestEI",
            "random forest with doubt, scored by expected improvement",
            source="AdaTune, Li 2020; SMAC 2011",
            requires="tt-surrogate[forest]",
            ranges={"trees": Integer(5, 100, log=True), "max_features": Integer(2, 40, log=True)},
        ),
        Entry(
            "atformer",
            "tt_surrogate.atformer:ATFormer",
            "self-attention between a program's statements, pre-trained",
            source="ATFormer, Bai 2023",
            requires="tt-surrogate[torch,pretrained]",
        ),
        Entry(
            "mha",
            "tt_surrogate.mha:MultiHeadAttention",
            "multi-head attention alone over a program's statements, pre-trained",
            source="ATFormer, Bai 2023, Table 16",
            requires="tt-surrogate[torch,pretrained]",
        ),
        Entry(
            "lstm",
            "tt_surrogate.recurrent:LSTM",
            "long short-term memory over a program's statements, pre-trained",
            source="ATFormer, Bai 2023, Table 15",
            requires="tt-surrogate[torch,pretrained]",
        ),
        Entry(
            "mlp",
            "tt_surrogate.mlp:MLP",
            "perceptron on each statement, summed over the program, pre-trained",
            source="TenSet, Zheng 2021",
            requires="tt-surrogate[torch,pretrained]",
        ),
        Entry(
            "tabnet",
            "tt_surrogate.tabnet:TabNet",
            "attention over each statement's features, summed over the program, pre-trained",
            source="Arik and Pfister 2021; ATFormer, Bai 2023, Table 14",
            requires="tt-surrogate[tabnet]",
        ),
        Entry(
            "lightgbm",
            "tt_surrogate.light:LightGBM",
            "gradient-boosted trees over statements, grown leaf by leaf, pre-trained",
            source="Ke et al. 2017; ATFormer, Bai 2023, Table 13",
            requires="tt-surrogate[lightgbm,pretrained]",
            ranges={
                "fit_rounds": Integer(20, 200, log=True),
                "leaves": Integer(8, 128, log=True),
                "rate": Float(0.03, 0.5, log=True),
                "min_sum_leaf": Float(0.5, 16.0, log=True),
            },
        ),
    ]
