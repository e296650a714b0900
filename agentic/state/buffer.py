"""The rows of one table in one task, as they are after each completed event, over a store.

Rows pass through three layers on their way to the store: *dirty* since the last checkpoint,
*flushing* while a checkpoint is under way, then stored. A bounded cache of what was read and
written lately lies over all of them; it changes speed and nothing else.

The rule that it keeps: the store gets a checkpoint's rows whole, and only when told that they
are committed. Until then a crash leaves the store as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import gt, lt
from typing import Any, Final, Generic, TypeVar

from agentic.core.versioned import NOTHING_OBSERVED
from agentic.state.base import Rows, Store
from agentic.state.envelope import unwrap, wrap

E = TypeVar("E")

#: A row in memory: its entry (what the table makes of a value; None where there is no row), its timestamp in ms.
Row = tuple[Any, int]

ABSENT: Final[Row] = (None, 0)
#: Bytes that a row costs in memory beside its key and value: two dict places, a tuple, three objects' heads.
ROW_OVERHEAD = 250


class TableBuffer(Generic[E]):
    """A table's rows in one task.

    Args:
        name: the table's name in the store.
        load: makes an entry of a stored value.
        dump: makes a stored value of an entry; bytes of the table's codec.

    Attributes:
        cache_bytes: about how much the cache may take.
        rows: the cache's younger half. Whoever reads looks here first, and calls `load` for
            what is not in it. The object stays the same, so that the hot path may hold on to it.
        dirty: rows written since the last checkpoint began, by key.
        observed: of a table with versions, the greatest timestamp that it has accepted, in ms.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        *,
        load: Callable[[bytes], E],
        dump: Callable[[E], bytes],
    ) -> None:
        self.name = name
        self.store = store
        self.rows: dict[bytes, Row] = {}
        self.dirty: dict[bytes, Row] = {}
        self._load = load
        self._dump = dump
        self.cache_bytes = 16 << 20
        self.observed = NOTHING_OBSERVED
        self._aged: dict[bytes, Row] = {}
        self._flushing: dict[bytes, Row] = {}
        #: Mean size of a row's key and value, from those that were read or written as bytes.
        self._mean = 64.0

    # -- reading ------------------------------------------------------------------------------

    def load(self, key: bytes) -> Row:
        """Return the row of a key that is not in `rows`; `ABSENT`, or one without an entry, where there is none."""
        row = self._aged.get(key)
        if row is None:
            row = self._pending(key)
        if row is None:
            blob = self.store.get(self.name, key)
            if blob is None:
                row = ABSENT
            else:
                value, timestamp = unwrap(blob)
                row = (self._load(value), timestamp)
                self._mean += (len(key) + len(value) - self._mean) / 1024
        self.rows[key] = row
        if len(self.rows) * (self._mean + ROW_OVERHEAD) > self.cache_bytes // 2:
            self._age()
        return row

    def _pending(self, key: bytes) -> Row | None:
        row = self.dirty.get(key)
        return self._flushing.get(key) if row is None else row

    def _age(self) -> None:
        """Let go of the older half of the cache; the younger becomes the older."""
        self._aged = dict(self.rows)
        self.rows.clear()

    def scan(
        self,
        over: Mapping[bytes, Row],
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, Any, int]]:
        """Iterate over rows in the order of the keys: key, entry, timestamp.

        Args:
            over: rows that lie over ours, such as an event's own writes. What is written after
                the iteration has begun is not seen by it.
        """
        above = {
            key: row
            for layer in (self._flushing, self.dirty, over)
            for key, row in layer.items()
            if key >= start and (stop is None or key < stop)
        }
        stored = self.store.scan(self.name, start, stop, reverse=reverse)
        load = self._load
        if not above:
            for key, blob in stored:
                value, timestamp = unwrap(blob)
                yield key, load(value), timestamp
            return
        ours = iter(sorted(above, reverse=reverse))
        before = gt if reverse else lt
        mine = next(ours, None)
        for key, blob in stored:
            while mine is not None and before(mine, key):
                entry, timestamp = above[mine]
                if entry is not None:
                    yield mine, entry, timestamp
                mine = next(ours, None)
            if key == mine:
                entry, timestamp = above[key]
                mine = next(ours, None)
                if entry is not None:
                    yield key, entry, timestamp
                continue
            value, timestamp = unwrap(blob)
            yield key, load(value), timestamp
        while mine is not None:
            entry, timestamp = above[mine]
            if entry is not None:
                yield mine, entry, timestamp
            mine = next(ours, None)

    def count(self, over: Mapping[bytes, Row]) -> int:
        """Return the number of rows, those of `over` counted in."""
        above = {**self._flushing, **self.dirty, **over}
        stored = self.store.count(self.name)
        for key, (entry, _) in above.items():
            stored += (entry is not None) - (self.store.get(self.name, key) is not None)
        return stored

    # -- writing ------------------------------------------------------------------------------

    def apply(self, rows: Mapping[bytes, Row]) -> None:
        """Take the writes of a completed event."""
        self.rows.update(rows)
        self.dirty.update(rows)

    @property
    def dirty_bytes(self) -> int:
        """About how much memory the rows take that no checkpoint has begun to write."""
        return int(len(self.dirty) * (self._mean + ROW_OVERHEAD))

    def forget(self, keys: Iterable[bytes]) -> None:
        """The store has other rows of these keys by now: read them anew."""
        for key in keys:
            self.rows.pop(key, None)
            self._aged.pop(key, None)

    # -- checkpoint ---------------------------------------------------------------------------

    def take(self) -> Mapping[bytes, Row]:
        """A checkpoint begins: return the rows that it is to write, which stay readable meanwhile.

        If the one before was not finished, its rows come again.
        """
        self._flushing = {**self._flushing, **self.dirty} if self._flushing else self.dirty
        self.dirty = {}
        return self._flushing

    def encode(self) -> list[tuple[bytes, bytes | None, int]]:
        """Return the rows of the checkpoint that is under way, by key: key, value's bytes, timestamp."""
        dump = self._dump
        encoded = [
            (key, None if entry is None else dump(entry), timestamp)
            for key, (entry, timestamp) in sorted(self._flushing.items())
        ]
        if encoded:
            mean = sum(len(key) + len(value or b"") for key, value, _ in encoded) / len(encoded)
            self._mean += (mean - self._mean) / 4
        return encoded

    def stored(self) -> None:
        """The checkpoint's rows are in the store."""
        self._flushing = {}
        if len(self.rows) * (self._mean + ROW_OVERHEAD) > self.cache_bytes // 2:
            self._age()


def store_rows(encoded: list[tuple[bytes, bytes | None, int]]) -> Rows:
    """Return encoded rows as a store takes them."""
    return [(key, None if value is None else wrap(value, timestamp)) for key, value, timestamp in encoded]
