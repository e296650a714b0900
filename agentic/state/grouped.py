"""Rows of windows that lie in memory in groups: what an event changes is found without a name for each row.

That a row has a name, with its window's bounds, concerns only those that live to see a checkpoint.
Most never do: they are given out and forgotten before it, and leave no trace.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from agentic.state.base import Store
from agentic.state.buffer import TableBuffer

E = TypeVar("E")

#: A window that comes out: the bytes of its key, its start, its end, its entry, its timestamp.
Due = tuple[bytes, int, int, Any, int]


class GroupedBuffer(TableBuffer[E], ABC):
    """A windowed table's rows in one task; see `TableBuffer`. A row that is in no group is kept as by that.

    Args:
        dump_value: makes a stored value of an entry in a group.

    Attributes:
        saved: the names of rows in no group that the store, or the changelog, has.
        held: how many rows the groups have.
        trimmed: are there rows that are not in memory?
    """

    def __init__(
        self,
        name: str,
        store: Store,
        *,
        load: Callable[[bytes], E],
        dump: Callable[[E], bytes],
        dump_value: Callable[[E], bytes],
    ) -> None:
        super().__init__(name, store, load=load, dump=dump)
        self._dump_value = dump_value
        self.saved: set[bytes] = set()
        self.held = 0
        self.trimmed = False

    @abstractmethod
    def ungroup(self) -> None:
        """Let go of all groups, with which nothing has been done: the rows are kept by their names."""
        self.held = 0
        self.trimmed = False

    def drop(self, names: Iterable[bytes], timestamp: int) -> None:
        """Delete rows that are in no group."""
        rows, aged, dirty, saved = self.rows, self._aged, self.dirty, self.saved
        gone = (None, timestamp)
        for name in names:
            rows.pop(name, None)
            aged.pop(name, None)
            if name in saved:
                dirty[name] = gone
            else:
                dirty.pop(name, None)

    @property
    def full(self) -> bool:
        """Are there more rows than the cache may hold?"""
        return self.held * self._size > self.cache_bytes

    def take(self) -> int:
        self.saved.update(name for name, row in self.dirty.items() if row[0] is not None)
        self.saved.difference_update(name for name, row in self.dirty.items() if row[0] is None)
        return super().take()
