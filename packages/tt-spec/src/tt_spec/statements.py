"""Statements of programs, made once and kept within bounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from tt_spec.faults import checked_features
from tt_spec.types import Statements, concat_statements

__all__ = ["KeptStatements"]


class KeptStatements:
    """Statements by row, the latest ones made.

    Args:
        most: Rows that are kept, at 10 to 20 kB each; None bounds nothing.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._kept: OrderedDict[Hashable, Statements | None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Forget all of them: they are made again if need be."""
        self._kept.clear()

    def of(
        self,
        names: Sequence[Hashable],
        rows: np.ndarray,
        make: Callable[[np.ndarray], tuple[Statements, np.ndarray]],
    ) -> tuple[Statements, np.ndarray]:
        """The statements of the rows `(n, d)` that have a program, and which those are, `(n,)`.

        Args:
            names: What each row is kept by.
            make: From the rows that are not known to the same pair, as `ProgramSource.features`.
        """
        missing = [i for i, name in enumerate(names) if name not in self._kept]
        if missing:
            found, ok = checked_features(*make(rows[missing]), len(missing))
            where = np.cumsum(ok) - 1
            for j, i in enumerate(missing):
                self._kept[names[i]] = found[where[j] : where[j] + 1] if ok[j] else None
        out = [self._kept[name] for name in names]
        while self.most is not None and len(self._kept) > self.most:
            self._kept.popitem(last=False)
        return concat_statements([s for s in out if s is not None]), np.array([s is not None for s in out], dtype=bool)
