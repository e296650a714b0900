"""Stores for tests that start one worker after another."""

from __future__ import annotations

from typing import Any

from agentic.runtime.stores import MemoryStores
from agentic.state.base import Store


class Kept(MemoryStores):
    """Stores that outlive their worker, as those on disk do.

    Attributes:
        agreed: may a store be taken out of the way? `aside` has those that were.
    """

    def __init__(self, *, agreed: bool = False) -> None:
        self.stores: dict[str, Store] = {}
        self.agreed = agreed
        self.aside: list[Store] = []

    async def set_aside(self, store: Store) -> bool:
        if self.agreed:
            self.aside.append(store)
            self.stores = {task: kept for task, kept in self.stores.items() if kept is not store}
        return self.agreed

    async def open(self, task: str, tables: Any) -> Store:
        if task not in self.stores:
            self.stores[task] = await super().open(task, tables)
        return self.stores[task]
