"""What other members of the group have still to work off: `run` ends when nothing is left to anybody.

A member that died keeps its partitions until its session ends, and looks until then like one that works.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from agentic.brokers.base import Broker, Consumer, TopicPartition
from agentic.errors import named

log = logging.getLogger("agentic.worker")

#: Seconds that a look into partitions may wait for their records.
LOOK = 1.0


class Others:
    """Watches partitions that other members have, as far as they went when they were first looked at.

    What comes later is not waited for: others may be there to work on a stream that does not end.
    """

    def __init__(self, broker: Broker, consumer: Consumer) -> None:
        self._broker = broker
        self._consumer = consumer
        self._ends: dict[TopicPartition, int] = {}
        #: The committed offsets beyond which records were found: they need not be looked for again.
        self._known: dict[TopicPartition, int] = {}
        self._told = False

    async def left(self, theirs: Iterable[TopicPartition]) -> bool:
        """Return whether these partitions have records that nobody has finished and committed.

        They are looked into: beyond a committed offset there may be a transaction's marker and nothing else.

        Raises:
            BrokerUnavailable: try again.
        """
        partitions = list(theirs)
        if new := [tp for tp in partitions if tp not in self._ends]:
            self._ends |= await self._broker.end_offsets(new)
        committed = await self._consumer.committed(partitions)
        at = {tp: await self._start(tp) if position is None else position.offset for tp, position in committed.items()}
        behind = {tp: offset for tp, offset in at.items() if offset < self._ends[tp]}
        found = await self._with_records({tp: offset for tp, offset in behind.items() if self._known.get(tp) != offset})
        self._known |= {tp: behind[tp] for tp in found}
        left = sorted(tp for tp, offset in behind.items() if self._known.get(tp) == offset)
        if left and not self._told:
            self._told = True
            log.info("waits for records of %s, which another member has", named("partition", map(str, left)))
        return bool(left)

    async def _start(self, tp: TopicPartition) -> int:
        return (await self._broker.describe_topic(tp.topic)).offsets[tp.partition][0]

    async def _with_records(self, unread: dict[TopicPartition, int]) -> set[TopicPartition]:
        left: set[TopicPartition] = set()
        if not unread:
            return left
        reader = self._broker.reader(unread)
        try:
            while unread:
                for batch in await reader.poll(LOOK):
                    if any(offset < self._ends[batch.tp] for offset in batch.offsets[:1]):
                        left.add(batch.tp)
                    if len(batch) or batch.position >= self._ends[batch.tp]:
                        unread.pop(batch.tp, None)
        finally:
            await reader.close()
        return left
