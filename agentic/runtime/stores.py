"""Where a worker's stores are: in its state directory, or in memory beside a log that is in memory too."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar, TypeVarTuple

from agentic.errors import StorageCorrupt
from agentic.settings import Settings
from agentic.state.base import Store
from agentic.state.memory import MemoryStore

log = logging.getLogger("agentic.worker")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Stores(Protocol):
    """Opens the store of a task, and runs what takes its time."""

    async def open(self, task: str, tables: Mapping[str, str]) -> Store:
        """Open a task's store; another process may not have it meanwhile.

        Args:
            task: the task's name.
            tables: what shape the rows of each table have; rows of another shape are refused.

        Raises:
            StateMismatch: the store belongs to something else.
            StorageCorrupt, StorageFull: the file is damaged; there is no space.
        """

    async def close(self, store: Store) -> None:
        """Let go of a store that `open` has returned."""

    async def set_aside(self, store: Store) -> bool:
        """Close a store and take it out of the way, if the settings allow it; it is not lost. Was it done?"""

    async def run(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run what may block, and return when it is done, even if the caller is cancelled meanwhile."""


class LocalStores:
    """Stores on this machine's disk."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def open(self, task: str, tables: Mapping[str, str]) -> Store:
        return await self.run(self._open, task, tables)

    def _open(self, task: str, tables: Mapping[str, str]) -> Store:
        # Not before it is needed: an app without tables has no use for it.
        from agentic.state import lmdb

        settings = self._settings
        try:
            return lmdb.claim(settings.state_dir, settings.name, task, tables)
        except StorageCorrupt as error:
            if not settings.repair:
                raise
            log.warning("%s", error)
            for copy in lmdb.copies(settings.state_dir, settings.name):
                if copy.task == task and not lmdb.in_use(copy):
                    log.warning("moved aside, to be restored from the changelog: %s", lmdb.move_aside(copy))
            return lmdb.claim(settings.state_dir, settings.name, task, tables)

    async def close(self, store: Store) -> None:
        await self.run(store.close)

    async def set_aside(self, store: Store) -> bool:
        return self._settings.repair and await self.run(self._set_aside, store)

    def _set_aside(self, store: Store) -> bool:
        from agentic.state import lmdb

        settings = self._settings
        store.close()
        for copy in lmdb.copies(settings.state_dir, settings.name):
            if isinstance(store, lmdb.LmdbStore) and copy.directory == store.directory:
                log.warning("moved aside, to be restored from the changelog: %s", lmdb.move_aside(copy, "former"))
        return True

    async def run(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        running = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # The thread can't be stopped, and must not work on a store that its owner takes for free.
            await asyncio.wait([running])
            # Who asked has gone; how it ended concerns nobody any more.
            running.exception()
            raise


class MemoryStores:
    """Stores that are gone with the worker."""

    async def open(self, task: str, tables: Mapping[str, str]) -> Store:
        return MemoryStore()

    async def close(self, store: Store) -> None:
        store.close()

    async def set_aside(self, store: Store) -> bool:
        return False

    async def run(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        return work(*arguments)


def stores_for(settings: Settings) -> Stores:
    """Return the stores that go with an app's log."""
    return MemoryStores() if settings.broker.startswith("memory://") else LocalStores(settings)
