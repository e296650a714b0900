"""A group member in a process of its own, which a test can stop: reads five records, commits three, goes on polling.

    kafka_peer.py URL OPTIONS GROUP TOPIC

Says in a line each what it is told and has done; ends when its input does.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence

from agentic.brokers.base import Position, TopicPartition
from agentic.brokers.kafka import KafkaBroker


class Aloud:
    async def on_assigned(self, positions: Mapping[TopicPartition, Position | None]) -> None:
        print("assigned", flush=True)

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        print("revoked", flush=True)

    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        print("lost", flush=True)


async def main(url: str, options: str, group: str, topic: str) -> None:
    broker = KafkaBroker(url, json.loads(options))
    await broker.open(30)
    consumer = broker.consumer(group, [topic])
    await consumer.start(Aloud())
    count = 0
    while count < 5:
        count += sum(map(len, await consumer.poll(1.0)))
    await consumer.commit({TopicPartition(topic, 0): Position(3, "half way")})
    print("committed", flush=True)
    over = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    while not over.done():
        await consumer.poll(0.1)
    await consumer.close()
    await broker.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
