"""Which offsets of a partition are unfinished, and so what may be committed.

The rule that it keeps: **a committed position never passes an unfinished offset**, and what
is finished beyond it is written down beside it, so that a restart neither loses nor repeats.

* Only offsets that were delivered are tracked: one that never comes (compacted, aborted) is
  the same as a finished one.
* The base is the lowest unfinished offset, else the position after the last delivered batch.
* Base, span and unfinished set are taken in one step and committed as one value.
* What a former commit said of offsets beyond its base holds until they are delivered again:
  the finished ones are skipped, the unfinished ones are issued.

Source: spec, rules 1 to 8 and "The ledger". One ledger serves one reader of one partition for
one assignment; it is owned by one loop and needs no lock. Several readers of a partition have
their ledgers side by side: see `agentic.core.readers`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from agentic.core.metadata import Progress, decode, encode

#: So many unfinished offsets always fit a commit's metadata, wherever they lie in `MAX_SPAN`.
MAX_UNFINISHED = 500
#: Runs within this span take at most three varint bytes each.
MAX_SPAN = (1 << 21) - 1


class Snapshot(NamedTuple):
    """What a ledger wants committed: the base, and the metadata that belongs to that very base."""

    offset: int
    metadata: str


class Committed:
    """What the broker has of a ledger."""

    __slots__ = ("_acknowledged",)

    def __init__(self, committed: int | None, metadata: str) -> None:
        self._acknowledged: Snapshot | None = None if committed is None else Snapshot(committed, metadata)

    def acknowledged(self, snapshot: Snapshot) -> None:
        """The broker has acknowledged this very snapshot."""
        self._acknowledged = snapshot

    @property
    def committed(self) -> Snapshot | None:
        """What the broker is known to have."""
        return self._acknowledged

    def is_clean(self, snapshot: Snapshot | None) -> bool:
        """Is this snapshot what the broker has already?"""
        return snapshot is None or snapshot == self._acknowledged


class OffsetLedger(Committed):
    """The unfinished offsets of one partition, for one reader.

    Args:
        committed: the offset committed before, None without any.
        metadata: the metadata of that commit; unknown bytes say nothing.
        reader: whose progress to take from the metadata, where it has that of several.
    """

    __slots__ = (
        "_base",
        "_known_to",
        "_position",
        "_started",
        "_time",
        "_times",
        "_todo",
        "_unfinished",
        "high_done",
        "skipped",
    )

    def __init__(self, committed: int | None = None, metadata: str = "", *, reader: str = "") -> None:
        super().__init__(committed, metadata)
        progress = Progress(None, (), 0) if committed is None else decode(committed, metadata, reader)
        #: offset -> parties that have not finished it, in the order of delivery, so by offset.
        self._unfinished: dict[int, int] = {}
        #: offsets that an earlier owner left unfinished beyond the base, not delivered again yet; rising.
        self._todo: list[int] = list(progress.unfinished) if committed is not None else []
        self._known_to = progress.known_to if committed is not None else 0
        self._started = False
        self._base = committed
        self._position = committed
        self._time = progress.stream_time
        self._times: list[tuple[Sequence[int], Sequence[int]]] = []
        #: The highest finished offset, -1 without any.
        self.high_done = self._known_to - 1 if self._known_to > (committed or 0) else -1
        #: How many delivered offsets were skipped since an earlier owner had finished them.
        self.skipped = 0

    def deliver(self, offsets: Sequence[int], position: int) -> Sequence[int]:
        """Register a batch before anyone sees it; return the offsets that are to be processed, in order.

        Args:
            offsets: rising, above all delivered before; may be empty.
            position: where the reader goes on, above the last offset.

        Returns:
            `offsets` itself where all are to be processed.

        Raises:
            ValueError: the offsets don't rise, or the position does not lie beyond them.
        """
        first = offsets[0] if offsets else position
        if not self._started:
            self._start(first)
        if first < (self._position or 0) or (offsets and offsets[-1] >= position):
            raise ValueError(f"offsets from {first} to position {position} delivered after position {self._position}")
        wanted: Sequence[int] = offsets
        if self._known_to and offsets and offsets[0] < self._known_to:
            todo = set(self._todo)
            known_to = self._known_to
            wanted = [offset for offset in offsets if offset >= known_to or offset in todo]
            self.skipped += len(offsets) - len(wanted)
        if self._todo:
            # Delivered again, or passed over and so never to come: either way no longer awaited.
            del self._todo[: bisect_left(self._todo, position)]
        self._position = position
        self._unfinished.update(dict.fromkeys(wanted, 1))
        return wanted

    def time(self, offsets: Sequence[int], timestamps: Sequence[int]) -> None:
        """Say the timestamps, in ms, of delivered offsets; they make up the partition's time as they finish."""
        if offsets:
            self._times.append((offsets, timestamps))

    def _start(self, first: int) -> None:
        """The first delivery shows whether the log still is what the commit was about (rule 6)."""
        self._started = True
        if self._position is not None and first < self._position:
            # Someone moved the position back: what was known beyond the old base is of no use.
            self._todo = []
            self._known_to = 0
            self._base = self._position = first
            self.high_done = -1

    def retire(self, offset: int) -> bool:
        """One party has finished an offset; return whether that was the last.

        Raises:
            LookupError: the offset is not unfinished: it was never delivered, or is done.
        """
        left = self._unfinished[offset] - 1
        if left:
            self._unfinished[offset] = left
            return False
        del self._unfinished[offset]
        if offset > self.high_done:
            self.high_done = offset
        return True

    def adopt(self, offset: int, children: int) -> None:
        """So many parties more must finish an offset that is unfinished: children of its event.

        Raises:
            LookupError: as for `retire`.
        """
        self._unfinished[offset] += children

    def finish(self, offset: int) -> None:
        """An offset is done with for all parties: it was given up by rule. `LookupError` as for `retire`."""
        del self._unfinished[offset]
        self.high_done = max(self.high_done, offset)

    def awaits(self, offset: int) -> bool:
        """Is an offset delivered and not finished?"""
        return offset in self._unfinished

    def snapshot(self) -> Snapshot | None:
        """Return what may be committed now; None while nothing is known of the partition.

        Raises:
            ValueError: more is unfinished than a commit can carry; see `MAX_UNFINISHED`.
        """
        base, progress = self.base, self.progress()
        return None if base is None or progress is None else Snapshot(base, encode(base, progress))

    def progress(self) -> Progress | None:
        """Return what is finished, all below the base and some beyond; None while nothing is known."""
        base = self.base
        if base is None:
            return None
        if self._base is not None and base < self._base:
            raise AssertionError(f"the commit position would fall from {self._base} to {base}")
        self._base = base
        known_to = self.high_done + 1
        unfinished: list[int] = []
        if known_to > base:
            for offset in self._unfinished:
                if offset >= known_to:
                    break
                unfinished.append(offset)
            # Not delivered again yet, so beyond all that was.
            unfinished += self._todo[: bisect_left(self._todo, known_to)]
        else:
            known_to = base
        return Progress(self._stream_time(base), tuple(unfinished), known_to)

    def _next_unfinished(self) -> int | None:
        first = next(iter(self._unfinished), None)
        if self._todo and (first is None or self._todo[0] < first):
            return self._todo[0]
        return first

    def _stream_time(self, base: int) -> int | None:
        """The greatest timestamp below the base; forgets what it need not look at again."""
        time = self._time
        while self._times:
            offsets, timestamps = self._times[0]
            done = len(offsets) if offsets[-1] < base else bisect_left(offsets, base)
            if done:
                greatest = max(timestamps[:done]) if done < len(offsets) else max(timestamps)
                time = greatest if time is None else max(time, greatest)
            if done < len(offsets):
                break
            self._times.pop(0)
            self._time = time
        return time

    @property
    def unfinished(self) -> int:
        """How many offsets are delivered and not finished."""
        return len(self._unfinished)

    @property
    def begun(self) -> bool:
        """Has anything been delivered?"""
        return self._started

    @property
    def position(self) -> int | None:
        """Where the reader goes on; None before the first delivery without a commit."""
        return self._position

    @property
    def base(self) -> int | None:
        """The lowest unfinished offset, else the end of what is finished: what `snapshot` would commit."""
        first = self._next_unfinished()
        if first is not None or self._position is None:
            return first
        return max(self._position, self._known_to)

    @property
    def stream_time(self) -> int | None:
        """The greatest timestamp below the base, in ms; None while there is none."""
        base = self.base
        return self._time if base is None else self._stream_time(base)
