"""Running a contract on any piece."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.plugins import nearest
from tt_spec.roles import Measurer, Store

__all__ = ["CONTRACTS", "check", "contract_for", "cases"]

CONTRACTS = (
    "evaluator",
    "measurer",
    "surrogate",
    "searcher",
    "sampler",
    "transfer",
    "scheduler",
    "stopper",
    "store",
    "format",
    "replay",
    "space",
)
"""Roles that have a contract."""


def contract_for(role: str) -> type:
    """The contract's class."""
    if role not in CONTRACTS:
        raise ValueError(f"there is no contract for role {role!r}{nearest(role, CONTRACTS)}")
    return getattr(importlib.import_module(f"tt_spec.testing.{role}"), f"{role.capitalize()}Contract")


def cases(contract: type) -> list[str]:
    """Names of the contract's tests, in the order of its text."""
    return [n for c in reversed(contract.__mro__) for n in vars(c) if n.startswith("test_")]


def check(
    role: str, factory: Callable[[], Any], only: str | None = None, contract: type | None = None, **fixtures: Any
) -> None:
    """Run a role's contract (or the one test `only`), each test on a fresh piece; AssertionError says what failed.

    Args:
        factory: Makes a fresh piece.
        contract: A subclass of the role's contract with other settings.
        fixtures: What tests ask for beside `piece`, e.g. the measurer's `task`.
    """
    contract = contract or contract_for(role)
    for name in [only] if only else cases(contract):
        test = getattr(contract(), name)
        piece = factory()
        given = {
            "task": synthetic_task(),
            "library": None,
            "operator": (None, None),
            "recordings": (),
            "host": None,
            **fixtures,
            "piece": piece,
        }
        try:
            test(**{p: given[p] for p in inspect.signature(test).parameters})
        finally:
            if isinstance(piece, Measurer | Store):
                piece.close()
