"""What the tests of rows in groups share: a buffer over a store in memory, its checkpoints, and what it should have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

from agentic.state.buffer import Row
from agentic.state.envelope import unwrap, wrap_all
from agentic.state.grouped import GroupedBuffer
from agentic.state.memory import MemoryStore

TABLE: Final = "windows"
#: Entries are integers.
CODECS: Final[dict[str, Any]] = {
    "load": int,
    "dump": lambda entry: b"%d" % entry,
    "dump_value": lambda entry: b"%d" % entry,
}


class Scene(ABC):
    """A buffer as an operator and a view use it, and what it should have.

    Attributes:
        rows: those of all completed events.
        clock: rises with each write, so that no two rows are alike.
    """

    buffer: GroupedBuffer[Any]

    def __init__(self, cache_bytes: int) -> None:
        self.store = MemoryStore()
        self.cache_bytes = cache_bytes
        self.rows: dict[bytes, Row] = {}
        #: What a checkpoint has taken; what the store has.
        self.taken: dict[bytes, Row] = {}
        self.stored: dict[bytes, Row] = {}
        self.clock = 0
        self.begin()

    @abstractmethod
    def make(self) -> None:
        """Make the buffer."""

    @abstractmethod
    def restore(self, name: bytes, row: Row) -> None:
        """Let the buffer take a row over that the store has."""

    def begin(self) -> None:
        """Begin with what the store has, as after a crash."""
        self.make()
        self.buffer.cache_bytes = self.cache_bytes
        self.rows, self.under_way = dict(self.stored), False
        for name, entry, timestamp in list(self.buffer.scan({})):
            self.restore(name, (entry, timestamp))

    def take(self) -> None:
        self.buffer.take()
        self.taken, self.under_way = dict(self.rows), True

    def store_them(self) -> None:
        """Write what was taken, as a checkpoint does once it is committed."""
        if self.under_way:
            self.store.write({TABLE: wrap_all(self.buffer.encode())}, {})
            self.buffer.stored()
            self.stored, self.under_way = self.taken, False
            found = {name: unwrap(blob) for name, blob in self.store.scan(TABLE)}
            assert {name: (int(value), time) for name, (value, time) in found.items()} == self.stored

    def look_through_scan(self) -> None:
        found = {name: (entry, time) for name, entry, time in self.buffer.scan({}) if entry is not None}
        assert found == self.rows
        assert all(self.buffer.peek(name) == row for name, row in self.rows.items())
