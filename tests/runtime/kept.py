"""Stores for tests that start one worker after another."""

from __future__ import annotations

from typing import Any

from agentic.runtime.stores import MemoryStores
from agentic.state.base import Store


class Kept(MemoryStores):
    """Stores that outlive their worker, as those on disk do."""

    def __init__(self) -> None:
        self.stores: dict[str, Store] = {}

    async def open(self, task: str, tables: Any) -> Store:
        if task not in self.stores:
            self.stores[task] = await super().open(task, tables)
        return self.stores[task]
