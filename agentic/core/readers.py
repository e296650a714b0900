"""Several readers of one partition: each has its own progress, and they share one committed position.

The rule that it keeps: **what a reader has finished stays finished, however far the others
are**. The committed position is the lowest of the readers' bases, and the metadata says of
each what it has finished beyond it. So a commit may carry the effects of one reader while
another has not come so far.

A reader that was not there at the commit begins at the committed position, one that is gone
is forgotten with the next commit, and one with a new name is both. Source: DESIGN, 6.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentic.core.ledger import MAX_UNFINISHED, Committed, OffsetLedger, Snapshot
from agentic.core.metadata import READER_COST, ROOM, encode, shared

#: So many readers' progress fits a commit's metadata, however far they are apart.
MAX_READERS = 64
#: Bytes that an unfinished offset takes at most, with the run of finished ones that follows it.
OFFSET_COST = 6


def most_in_flight(readers: int, concurrent: int) -> int:
    """Return how many events each concurrent reader of a partition may have unfinished beyond what it has finished.

    With so many at most, a commit's metadata has room for all readers. 0: they are too many for one partition.

    Args:
        readers: of the partition, in all.
        concurrent: of these, the ones that work on several events at once.
    """
    if readers == 1:
        return MAX_UNFINISHED
    # What all have finished is written beside what each has, and is in as many pieces as they are together.
    room = ROOM - (readers + 1) * READER_COST
    return max(0, min(MAX_UNFINISHED, room // (2 * OFFSET_COST * max(1, concurrent))))


class SharedLedger(Committed):
    """The unfinished offsets of one partition, for several readers.

    Args:
        committed: the offset committed before, None without any.
        metadata: the metadata of that commit. One of a single reader holds for all.
        readers: their names, at least two.

    Attributes:
        skipped: how many delivered offsets were skipped since all readers had finished them before.
    """

    __slots__ = ("_left", "_readers", "skipped")

    def __init__(self, committed: int | None = None, metadata: str = "", *, readers: Sequence[str]) -> None:
        super().__init__(committed, metadata)
        if not 2 <= len(readers) <= MAX_READERS or len(set(readers)) < len(readers):
            raise ValueError(f"from 2 to {MAX_READERS} readers with different names, not {list(readers)}")
        self._readers = {name: OffsetLedger(committed, metadata, reader=name) for name in readers}
        #: offset -> readers that have not finished it
        self._left: dict[int, int] = {}
        self.skipped = 0

    def of(self, reader: str) -> OffsetLedger:
        """Return one reader's ledger; what it has finished is told by `retiring`."""
        return self._readers[reader]

    def deliver(self, offsets: Sequence[int], position: int) -> Sequence[int]:
        """Register a batch before anyone sees it; return the offsets that some reader is to process, in order.

        Arguments and errors as for `OffsetLedger.deliver`.

        Returns:
            `offsets` itself where all are to be processed.
        """
        wanted = [ledger.deliver(offsets, position) for ledger in self._readers.values()]
        left = self._left
        if all(each is offsets for each in wanted):
            left.update(dict.fromkeys(offsets, len(wanted)))
            return offsets
        for each in wanted:
            for offset in each:
                left[offset] = left.get(offset, 0) + 1
        some = [offset for offset in offsets if offset in left]
        self.skipped += len(offsets) - len(some)
        return offsets if len(some) == len(offsets) else some

    def time(self, offsets: Sequence[int], timestamps: Sequence[int]) -> None:
        """Say the timestamps, in ms, of delivered offsets, whoever is to process them."""
        for ledger in self._readers.values():
            ledger.time(offsets, timestamps)

    def retiring(self, reader: str) -> Callable[[int], bool]:
        """Return a function like `OffsetLedger.retire`, for one reader; it returns whether that was the last of all."""
        retire, left = self._readers[reader].retire, self._left

        def retire_one(offset: int) -> bool:
            if not retire(offset):
                return False
            others = left[offset] - 1
            if others:
                left[offset] = others
                return False
            del left[offset]
            return True

        return retire_one

    def finish(self, offset: int) -> None:
        """An offset is done with for all readers: it was given up by rule. `LookupError` as for `retire`."""
        del self._left[offset]
        for ledger in self._readers.values():
            if ledger.awaits(offset):
                ledger.finish(offset)

    def snapshot(self) -> Snapshot | None:
        """Return what may be committed now; None while nothing is known of the partition.

        Raises:
            ValueError: more is unfinished than a commit can carry; see `most_in_flight`.
        """
        base = self.base
        readers = {name: each for name, ledger in self._readers.items() if (each := ledger.progress()) is not None}
        if base is None:
            return None
        return Snapshot(base, encode(base, shared(readers.values()), readers))

    def _last(self) -> OffsetLedger:
        """The ledger of the reader that is least far."""
        return min(self._readers.values(), key=lambda ledger: -1 if ledger.base is None else ledger.base)

    @property
    def unfinished(self) -> int:
        """How many offsets are delivered and not finished by all readers."""
        return len(self._left)

    @property
    def begun(self) -> bool:
        """Has anything been delivered?"""
        return self._last().begun

    @property
    def position(self) -> int | None:
        """Where the reading goes on; None before the first delivery without a commit."""
        return self._last().position

    @property
    def base(self) -> int | None:
        """The lowest offset that a reader has not finished, else the position: what `snapshot` would commit."""
        return self._last().base

    @property
    def stream_time(self) -> int | None:
        """The greatest timestamp below the base, in ms; None while there is none."""
        return self._last().stream_time
