"""Rows that plug-ins want measured first."""

from __future__ import annotations

import warnings

import numpy as np

from tt_spec.plugins import Plugins
from tt_spec.types import Task

__all__ = ["warm_rows"]


def warm_rows(task: Task, plugins: Plugins) -> np.ndarray:
    """The rows that plug-ins' `tt_warm_start` give for the task, `(n, d)` int64; one that fails is warned of."""
    found = [np.empty((0, len(task.space.knobs)), dtype=np.int64)]
    for who, call in plugins.each("tt_warm_start"):
        try:
            for rows in map(np.asarray, call(task=task)):
                if not rows.size:
                    continue
                if rows.shape[1:] != found[0].shape[1:] or rows.ndim != 2 or not np.issubdtype(rows.dtype, np.integer):
                    raise ValueError(f"rows must be (n, {found[0].shape[1]}) integers, got {rows.shape} {rows.dtype}")
                found.append(rows.astype(np.int64))
        except Exception as e:  # a stranger's advice is welcome, not needed
            warnings.warn(f"{who}: tt_warm_start failed and is left out: {type(e).__name__}: {e}", stacklevel=2)
    return np.concatenate(found)
