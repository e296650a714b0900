"""Reading changelogs to where tables are complete: the same in a worker and in a process beside it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from agentic.brokers.base import Batch, Broker, TopicPartition
from agentic.runtime import tails
from agentic.runtime.replay import Replay, Replayed

#: Bytes of rows that a table's restoration collects before it writes them: the larger, the fewer pages
#: of the tree are written twice.
BATCH_BYTES = 24 << 20
BATCH_ROWS = 200_000
#: Bytes of rows that all restorations together collect at most: with many partitions each writes less at once.
ALL_BYTES = 4 * BATCH_BYTES
#: Seconds that a reader waits at most before it looks round.
LOOK_ROUND = 1.0


class Sink(Protocol):
    """Takes the rows of one table of one task."""

    @property
    def closed(self) -> bool:
        """Is the store gone, or lent away? Then nothing more is to be brought."""

    async def write(self, rows: Replayed, position: int, observed: int) -> None:
        """Write rows that go up to `position` of the changelog; `observed` is their greatest timestamp."""


@dataclass(eq=False)
class Restoration:
    """One table of one task on its way up.

    Attributes:
        table: its name.
        position: the changelog offset up to which its rows have been read.
        target: the offset at which it is complete.
        begun: the offset at which it began.
        replay: those that were read, to be written together.
        restored: how many records were read.
    """

    table: str
    tp: TopicPartition
    begun: int
    target: int
    position: int
    replay: Replay
    sink: Sink
    restored: int = 0
    started: float = field(default_factory=time.monotonic)
    writing: asyncio.Future[None] | None = None

    @property
    def done(self) -> bool:
        return self.position >= self.target

    @property
    def over(self) -> bool:
        """Is there nothing more to do?"""
        return self.done or self.sink.closed

    def take(self, batch: Batch) -> int:
        """Take the records that are still missing; return how many they are."""
        columns = tails.part(batch, self.position, self.target)
        count = len(columns[0])
        self.position = max(self.position, min(batch.position, self.target))
        self.restored += count
        self.replay.add(*columns)
        return count

    async def bring(self) -> None:
        """Write what was taken when it is much, or the last; what is done is written then."""
        if self.done or self.replay.size >= BATCH_BYTES or len(self.replay) >= BATCH_ROWS:
            await self.write()
        if self.done and self.writing is not None:
            await self.writing

    async def write(self) -> None:
        """Write what was collected, beside the next reading; one write of a table at a time."""
        if self.writing is not None:
            await self.writing
        replay = self.replay
        self.writing = asyncio.ensure_future(self.sink.write(replay.take(), self.position, replay.observed))
        if not replay.overlaps:
            await self.writing


async def restore(
    broker: Broker,
    todo: Iterable[Restoration],
    took: Callable[[Restoration, int], None],
    done: Callable[[Restoration], None],
) -> None:
    """Restore tables, all together, so that each gets its part of the machine.

    Args:
        took: called with each restoration that has taken records, and how many.
        done: called with each that is done, all its rows written.
    """
    # One topic may fill several tables of a task.
    by_tp: dict[TopicPartition, list[Restoration]] = {}
    for each in todo:
        by_tp.setdefault(each.tp, []).append(each)
    if not by_tp:
        return
    reader = broker.reader({tp: min(each.position for each in those) for tp, those in by_tp.items()}, bulk=True)
    try:
        while by_tp:
            for batch in await reader.poll(LOOK_ROUND):
                for each in by_tp.get(batch.tp, ()):
                    if each.over:
                        continue
                    took(each, each.take(batch))
                    await each.bring()
                    if each.done and not each.sink.closed:
                        done(each)
                running = [each for those in by_tp.values() for each in those]
                if sum(each.replay.size for each in running) > ALL_BYTES:
                    await max(running, key=lambda each: each.replay.size).write()
            by_tp = {tp: left for tp, every in by_tp.items() if (left := [each for each in every if not each.over])}
    finally:
        await reader.close()
