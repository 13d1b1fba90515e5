"""The shared history, and beside it one for each user's private rows."""

from __future__ import annotations

import os

from tt_spec import Plugins
from tt_spec.roles import RanksRuns, Remembers, Store

from tt_service.database import told

__all__ = ["Histories"]

WAIT_S = 2.0
"""How long a write waits for another process's, before it warns."""


class Histories:
    """Opened on first use, each once.

    Not thread-safe while one is opened: whoever owns it has a lock.

    Args:
        path: Of the shared one; private ones are named after it.
        plugins: Build the stores.
    """

    def __init__(self, path: str, plugins: Plugins) -> None:
        self.path, self.plugins = path, plugins
        self._stores: dict[str, Store] = {}

    def path_of(self, owner: str | None) -> str:
        """The file of the shared rows, or of a user's private ones."""
        return self.path if owner is None else f"{self.path}.private-{owner.encode().hex()}"

    def has(self, owner: str) -> bool:
        """Whether a user has private rows."""
        return os.path.exists(self.path_of(owner))

    def of(self, owner: str | None) -> Store:
        """The shared history, or the one of a user's private rows. Raises `StoreError`."""
        path = self.path_of(owner)
        if path not in self._stores:
            if owner is not None and not os.path.exists(path):
                with told(path):
                    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._stores[path] = self.plugins.build("store", "sqlite", path=path, wait_s=WAIT_S)
            self.try_to_write(owner)
        return self._stores[path]

    def try_to_write(self, owner: str | None) -> None:
        """Raises `StoreError` where rows could not be kept."""
        store = self._stores[self.path_of(owner)]
        if isinstance(store, Remembers):
            store.remember([])

    def bests(self, owner: str | None) -> dict[tuple[str, str], float]:
        """Seconds of each run's best, by run and task, read over a connection of its own: rows may be kept meanwhile.
        Raises `StoreError`."""
        if not os.path.exists(self.path_of(owner)):  # opening would make it
            return {}
        store: Store = self.plugins.build("store", "sqlite", path=self.path_of(owner), wait_s=WAIT_S)
        try:
            return store.bests() if isinstance(store, RanksRuns) else {}
        finally:
            store.close()

    def close(self) -> None:
        """Close all of them."""
        for store in self._stores.values():
            store.close()
