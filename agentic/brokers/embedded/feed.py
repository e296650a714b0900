"""Reading on: where each partition stands, whose turn it is, and what its reader was told of the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from agentic.brokers.base import Batch, TopicPartition
from agentic.brokers.embedded.store import Store, View

logger = logging.getLogger(__name__)

#: Records that one poll hands over: some milliseconds of an agent's work.
BUDGET = 1_000
#: Fewest records taken from a partition that has its turn, so that many partitions do not make crumbs.
LEAST = 100


class Feed:
    """The partitions that a consumer or reader reads, in turns."""

    def __init__(self, store: Store, latest: bool = False) -> None:
        self._store = store
        self._latest = latest
        #: partition -> next offset; the order is whose turn comes next.
        self._next: dict[TopicPartition, int] = {}
        #: partition -> the end that its reader was last told to have reached.
        self._told: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        #: Partitions on their way in or out: placed, not handed over.
        self._held: set[TopicPartition] = set()
        self.failure: BaseException | None = None

    @property
    def partitions(self) -> list[TopicPartition]:
        return list(self._next)

    def place(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Read these partitions from here on; None is where a reader without a position begins.

        Raises:
            UnknownTopic: and nothing was changed.
        """
        with self._store.view() as view:
            placed = {tp: self._within(view, tp, offset) for tp, offset in offsets.items()}
        for tp, offset in placed.items():
            self._next[tp] = offset
            self._told.pop(tp, None)

    def _within(self, view: View, tp: TopicPartition, offset: int | None) -> int:
        start, end = view.bounds(tp)
        if offset is not None and start <= offset <= end:
            return offset
        where = end if self._latest else start
        if offset is not None:
            where = start if offset < start else where
            # Zero is how "from the beginning" is said; what a retention took before that is no loss.
            level = logging.WARNING if offset else logging.DEBUG
            logger.log(
                level,
                "%s: there is no offset %d any more, the log has %d to %d; reading on at %d",
                tp,
                offset,
                start,
                end,
                where,
            )
        return where

    def drop(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self._next.pop(tp, None)
            self._told.pop(tp, None)
            self._paused.discard(tp)
            self._held.discard(tp)

    def hold(self, tps: Iterable[TopicPartition]) -> None:
        self._held.update(tps)

    def release(self, tps: Iterable[TopicPartition]) -> None:
        self._held.difference_update(tps)

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        self._paused.update(tp for tp in tps if tp in self._next)

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        self._paused.difference_update(tps)

    def fetch(self) -> list[Batch]:
        """Return what there is now, about `BUDGET` records, and reports of ends newly reached."""
        wanted = [tp for tp in self._next if tp not in self._paused and tp not in self._held]
        if not wanted:
            return []
        share = max(LEAST, BUDGET // len(wanted))
        left = BUDGET
        batches = []
        with self._store.view() as view:
            for tp in wanted:
                at = self._next[tp]
                start, end = view.bounds(tp)
                if at == end and self._told.get(tp) == end:
                    continue
                if not start <= at <= end:
                    at = self._within(view, tp, at)
                batch = view.read(tp, at, min(share, left))
                # The turn passes only from who had something to say.
                del self._next[tp]
                self._next[tp] = batch.position
                if batch.position >= end:
                    self._told[tp] = end
                elif not batch.offsets and batch.position == at:
                    continue
                batches.append(batch)
                left -= len(batch)
                if left <= 0:
                    break
        return batches

    async def poll(self, timeout: float) -> list[Batch]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        # A reader that always finds something must leave the loop its turn: leases are renewed there.
        await asyncio.sleep(0)
        while True:
            if self.failure is not None:
                raise self.failure
            if batches := self.fetch():
                return batches
            left = deadline - loop.time()
            if left <= 0:
                return []
            await self._store.wait_records(left)


class EmbeddedReader:
    """See `agentic.brokers.base.Reader`."""

    def __init__(self, store: Store, offsets: Mapping[TopicPartition, int]) -> None:
        self._store = store
        self._feed = Feed(store)
        self._offsets: Mapping[TopicPartition, int] | None = dict(offsets)

    async def poll(self, timeout: float) -> list[Batch]:
        if self._offsets is not None:
            self._feed.place(self._offsets)
            self._offsets = None
        return await self._feed.poll(timeout)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._feed.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._feed.resume(partitions)
        self._store.records.notify()

    async def close(self) -> None:
        self._feed.drop(self._feed.partitions)
