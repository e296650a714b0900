"""Repartition topics keep what is still to be read, and no more.

They have no retention: an event waits in them however long a worker is away. What is committed
nobody reads again, so its records are removed, as Kafka Streams does it (KIP-811).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping

from agentic.app import App
from agentic.brokers.base import Broker, Position, TopicPartition
from agentic.errors import BrokerError

log = logging.getLogger("agentic.worker")

#: Seconds between two removals: Kafka Streams' default ``repartition.purge.interval.ms``.
EVERY = 30.0
#: Seconds that the last one has when the worker stops, which is not to wait for it long.
LAST = 5.0


def purgeable(app: App) -> set[str]:
    """Return the names of the app's repartition topics, but for those that tables are restored from."""
    home = app.home
    made = {each.topic.name for each in [*home.regroupings, *home.aggregations]}
    filling = {table.source.name for table in app.tables.values() if table.source is not None}
    return made - filling - {table.source_topic.name for table in app.global_tables}


class Purge:
    """Removes from topics what one worker has committed of them.

    Args:
        topics: their names; others are left alone.
    """

    def __init__(self, broker: Broker, topics: Collection[str]) -> None:
        self._broker = broker
        self._topics = topics
        #: What is committed and was not removed yet.
        self._upto: dict[TopicPartition, int] = {}
        self._failing = False

    def committed(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Note that these are committed: what lies below them is of no use any more."""
        self._upto.update((tp, at.offset) for tp, at in positions.items() if tp.topic in self._topics and at.offset)

    async def run(self) -> None:
        """Remove what is committed, now and then, for ever."""
        while True:
            await asyncio.sleep(EVERY)
            await self._remove()

    async def last(self) -> None:
        """Remove what is committed, if that takes no longer than `LAST` seconds."""
        try:
            async with asyncio.timeout(LAST):
                await self._remove()
        except TimeoutError:
            log.info("not purged: no answer within %g s; the next worker does it", LAST)

    async def _remove(self) -> None:
        """A failure is told once an incident; the next call tries again."""
        offsets = dict(self._upto)
        if not offsets:
            return
        try:
            await self._broker.delete_records(offsets)
        except BrokerError as error:
            if not self._failing:
                self._failing = True
                log.warning("repartition topics are not purged and grow, tried again every %g s: %s", EVERY, error)
            return
        self._upto = {tp: upto for tp, upto in self._upto.items() if offsets.get(tp) != upto}
        if self._failing:
            self._failing = False
            log.info("repartition topics are purged again")
