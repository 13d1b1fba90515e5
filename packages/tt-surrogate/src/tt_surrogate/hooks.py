"""tt-surrogate's pieces."""

from __future__ import annotations

from tt_spec.hooks import Entry, hookimpl

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
        ),
        Entry(
            "gp",
            "tt_surrogate.gaussian:GaussianProcess",
            "Gaussian process, scored by expected improvement",
            source="AdaTune, Li 2020, appendix B.1",
            requires="tt-surrogate[forest]",
        ),
        Entry(
            "rf-ei",
            "tt_surrogate.forest:ForestEI",
            "random forest with doubt, scored by expected improvement",
            source="AdaTune, Li 2020; SMAC 2011",
            requires="tt-surrogate[forest]",
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
        ),
    ]
