"""The rows of one table in one task, as they are after each completed event, over a store.

Rows pass through three layers on their way to the store: *dirty* since the last checkpoint,
*flushing* while a checkpoint is under way, then stored. A bounded cache of what was read and
written lately lies over all of them; it changes speed and nothing else.

The rule that it keeps: the store gets a checkpoint's rows whole, and only when told that they
are committed. Until then a crash leaves the store as it was.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import gt, lt
from typing import Any, Final, Generic, TypeVar

from agentic.core.versioned import NOTHING_OBSERVED
from agentic.state.base import Store
from agentic.state.envelope import HEAD, PLAIN, unwrap

E = TypeVar("E")

#: A row in memory: its entry (what the table makes of a value; None where there is no row), its timestamp in ms.
Row = tuple[Any, int]
#: Rows as a checkpoint writes them, by key: key, value's bytes or None where the row is gone, timestamp in ms.
Encoded = list[tuple[bytes, bytes | None, int]]

ABSENT: Final[Row] = (None, 0)
#: Bytes that a row costs in memory beside its key and value: two dict places, a tuple, three objects' heads.
ROW_OVERHEAD = 250
#: Rows of a checkpoint, at most, that are measured.
MEASURED = 1_000


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
        order: the keys of `dirty` in their order; None while nobody has scanned the table.
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
        self.order: list[bytes] | None = None
        self._load = load
        self._dump = dump
        self.cache_bytes = 16 << 20
        self.observed = NOTHING_OBSERVED
        self._aged: dict[bytes, Row] = {}
        self._flushing: dict[bytes, Row] = {}
        self._flushing_order: list[bytes] = []
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
        if len(self.rows) * self._size > self.cache_bytes // 2:
            self._age()
        return row

    def peek(self, key: bytes) -> Row:
        """Return a row as `load` does, and keep it in no cache: it is looked at for the last time."""
        row = self.rows.get(key) or self._aged.get(key) or self._pending(key)
        if row is not None:
            return row
        blob = self.store.get(self.name, key)
        if blob is None:
            return ABSENT
        value, timestamp = unwrap(blob)
        return self._load(value), timestamp

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
        """Iterate over rows in the order of the keys: key, entry, timestamp. The entry is None for a deleted row.

        Args:
            over: rows that lie over ours, such as an event's own writes. What is written after
                the iteration has begun is not seen by it.
        """
        load = self._load
        for key, found in self._found(over, start, stop, reverse):
            if found.__class__ is tuple:
                yield key, *found
            else:
                value, timestamp = unwrap(found)
                yield key, load(value), timestamp

    def pairs(
        self, over: Mapping[bytes, Row], start: bytes = b"", stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Any]]:
        """Iterate over rows as `scan` does, keys and entries alone, without the deleted: a scan's usual purpose."""
        load, plain = self._load, PLAIN[1]
        for key, found in self._found(over, start, stop, reverse):
            if found.__class__ is not tuple:
                yield key, load(found[HEAD:] if found[1] == plain else unwrap(found)[0])
            elif found[0] is not None:
                yield key, found[0]

    def _found(
        self, over: Mapping[bytes, Row], start: bytes, stop: bytes | None, reverse: bool
    ) -> Iterator[tuple[bytes, Any]]:
        """Iterate over what there is of each key: a `Row`, or the store's blob where no row lies over it."""
        above = self._above(over, start, stop)
        stored = self.store.scan(self.name, start, stop, reverse=reverse)
        return self._merged(above, stored, reverse) if above else stored

    @staticmethod
    def _merged(
        above: Mapping[bytes, Row], stored: Iterator[tuple[bytes, bytes]], reverse: bool
    ) -> Iterator[tuple[bytes, Any]]:
        ours = iter(sorted(above, reverse=reverse))
        before = gt if reverse else lt
        mine = next(ours, None)
        for pair in stored:
            key = pair[0]
            while mine is not None and before(mine, key):
                yield mine, above[mine]
                mine = next(ours, None)
            if key == mine:
                yield key, above[key]
                mine = next(ours, None)
            else:
                yield pair
        while mine is not None:
            yield mine, above[mine]
            mine = next(ours, None)

    def _above(self, over: Mapping[bytes, Row], start: bytes, stop: bytes | None) -> dict[bytes, Row]:
        """Return the rows of a range that lie over the store's."""
        if self.order is None:
            # From the first scan on the order is kept: most tables are never scanned.
            self.order, self._flushing_order = sorted(self.dirty), sorted(self._flushing)
        above: dict[bytes, Row] = {}
        for order, layer in ((self._flushing_order, self._flushing), (self.order, self.dirty)):
            for key in order[bisect_left(order, start) : None if stop is None else bisect_left(order, stop)]:
                above[key] = layer[key]
        for key, row in over.items():
            if key >= start and (stop is None or key < stop):
                above[key] = row
        return above

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
        if self.order is not None:
            for key in rows:
                if key not in self.dirty:
                    insort(self.order, key)
        self.dirty.update(rows)

    @property
    def dirty_bytes(self) -> int:
        """About how much memory the rows take that no checkpoint has begun to write."""
        return int(len(self.dirty) * self._size)

    def forget(self, keys: Iterable[bytes]) -> None:
        """The store has other rows of these keys by now: read them anew."""
        for key in keys:
            self.rows.pop(key, None)
            self._aged.pop(key, None)

    # -- checkpoint ---------------------------------------------------------------------------

    def take(self) -> int:
        """A checkpoint begins: fix the rows that it is to write, and return how many they are.

        They stay readable meanwhile. If the one before was not finished, its rows come again.
        """
        self._flushing = {**self._flushing, **self.dirty} if self._flushing else self.dirty
        self.dirty = {}
        if self.order is not None:
            self.order, self._flushing_order = [], sorted(self._flushing)
        return len(self._flushing)

    def encode(self) -> Encoded:
        """Return the rows of the checkpoint that is under way."""
        dump = self._dump
        encoded = [
            (key, None if entry is None else dump(entry), timestamp)
            for key, (entry, timestamp) in sorted(self._flushing.items())
        ]
        self._measure(encoded)
        return encoded

    def stored(self) -> None:
        """The checkpoint's rows are in the store."""
        self._flushing = {}
        self._flushing_order = []
        if len(self.rows) * self._size > self.cache_bytes // 2:
            self._age()

    @property
    def _size(self) -> float:
        """About how many bytes of memory a row takes."""
        return self._mean + ROW_OVERHEAD

    def _measure(self, encoded: Encoded) -> None:
        """Learn from a checkpoint's rows how large they are; of many from some of them."""
        if encoded:
            some = encoded[:: 1 + len(encoded) // MEASURED]
            mean = sum(len(key) + len(value or b"") for key, value, _ in some) / len(some)
            self._mean += (mean - self._mean) / 4
