"""The protocol that every store meets: the durable rows of one task.

A store keeps, for each table, rows of bytes under keys of bytes, in the order of the keys, and
beside them *marks*: small named values, such as the changelog offsets that the rows belong to.
One `write` changes rows and marks together or not at all, so what a store says of itself is
always true of its rows.

A store is used by one loop, except for `write`, which may run in another thread while the loop
reads: a read sees the rows as they were before that write or after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

#: Rows to write: key and value, None to delete; in the order of the keys, each key once.
Rows = Iterable[tuple[bytes, bytes | None]]


class Store(Protocol):
    """Rows by table, and marks.

    Keys are 1 byte to 64 KiB long, values up to what a broker takes for a record and somewhat more.
    """

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return a row's value, None where there is no row."""

    def get_many(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of many rows, in the order of the keys: faster than one by one, most of all in order."""

    def scan(
        self, table: str, start: bytes = b"", stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the rows with ``start <= key < stop``, in the order of the keys, or against it.

        What is written after the iteration has begun is not seen by it. An iterator that is
        given up is to be closed, as a generator is.
        """

    def count(self, table: str) -> int:
        """Return how many rows a table has."""

    def mark(self, name: str) -> bytes | None:
        """Return a mark, None where it was never set."""

    def marks(self) -> dict[str, bytes]:
        """Return all marks."""

    def write(self, rows: Mapping[str, Rows], marks: Mapping[str, bytes | None]) -> None:
        """Change rows and marks together; a mark of None is removed.

        Raises:
            StorageFull: no space; nothing of it was written.
            StorageCorrupt: the file is damaged; names it.
        """

    def clear(self, table: str) -> None:
        """Remove all rows of a table; an unknown table has none."""

    def close(self) -> None:
        """Let go of the store; what was written stays. A second call does nothing."""
