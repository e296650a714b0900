"""A seek holds, whatever happens before its first record comes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka_support import Cluster, Recorder, read, until

from agentic.brokers.base import TopicPartition
from agentic.runtime.outbox import wall_ms


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_pause_right_after_a_seek_does_not_undo_it(cluster: Cluster, protocol: str) -> None:
    """Nothing is read between the two, so that the last record consumed is one from before the seek."""

    async def scenario() -> None:
        async with cluster.open({"group.protocol": protocol}, numbers=1) as broker:
            topic = f"{cluster.name}.numbers"
            tp = TopicPartition(topic, 0)
            producer = broker.producer()
            for n in range(100):
                producer.send(topic, None, b"%d" % n, wall_ms(), None, 0)
            await producer.flush()
            await producer.close()
            consumer = broker.consumer(cluster.name, [topic])
            listener = Recorder()
            await consumer.start(listener)
            await until(lambda: listener.owned, [])
            await read(consumer, 100)
            member: Any = consumer._member
            # In one go, as when the hand-over is full: no record can come in between.
            done = asyncio.gather(
                consumer.seek({tp: 40}), member.call(member.pause, [tp]), member.call(member.resume, [tp])
            )
            await done
            again = await read(consumer, 60)
            assert [offset for batch in again for offset in batch.offsets] == list(range(40, 100))
            await consumer.close()

    asyncio.run(scenario())
