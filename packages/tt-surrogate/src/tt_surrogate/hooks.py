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
    ]
