"""What the tests of the Kafka driver share: a listener that takes notes, and waits that end."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agentic.brokers.base import Batch, Position, TopicPartition, TopicSpec
from agentic.brokers.kafka import KafkaBroker

#: Seconds after which a wait has failed. No test takes so long when all is well.
PATIENCE = 60.0


class Cluster:
    """A broker's address, and a name that no other test uses."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.name = f"kafka-test-{uuid.uuid4().hex[:12]}"

    @asynccontextmanager
    async def open(self, options: Mapping[str, object] | None = None, **topics: int) -> AsyncIterator[KafkaBroker]:
        """An open broker. Topics, given by suffix and number of partitions, are made and at the end deleted."""
        names = {f"{self.name}.{suffix}": partitions for suffix, partitions in topics.items()}
        broker = KafkaBroker(f"kafka://{self.bootstrap}", options or {})
        await broker.open(PATIENCE)
        try:
            await broker.create_topics([TopicSpec(name, partitions) for name, partitions in names.items()])
            yield broker
            await broker.delete_topics(names)
        finally:
            await broker.close()


class Recorder:
    """A listener that notes what it is told, and does in each call what the test wants done."""

    def __init__(self) -> None:
        self.owned: set[TopicPartition] = set()
        self.positions: dict[TopicPartition, Position | None] = {}
        self.calls: list[str] = []
        self.busy = False
        self.overlapped = False
        self.assigned: Callable[[Mapping[TopicPartition, Position | None]], Awaitable[object]] | None = None
        self.revoked: Callable[[Sequence[TopicPartition]], Awaitable[object]] | None = None

    async def on_assigned(self, positions: Mapping[TopicPartition, Position | None]) -> None:
        async with self._alone("assigned"):
            if self.assigned is not None:
                await self.assigned(positions)
            self.owned.update(positions)
            self.positions.update(positions)

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        async with self._alone("revoked"):
            if self.revoked is not None:
                await self.revoked(partitions)
            self.owned.difference_update(partitions)

    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        async with self._alone("lost"):
            self.owned.difference_update(partitions)

    @asynccontextmanager
    async def _alone(self, call: str) -> AsyncIterator[None]:
        self.overlapped |= self.busy
        self.busy = True
        try:
            yield
        finally:
            self.busy = False
            self.calls.append(call)


async def until(done: Callable[[], object], consumers: Sequence[Any] = ()) -> list[Batch]:
    """Poll the consumers until something is so; return what they handed over."""
    batches: list[Batch] = []
    async with asyncio.timeout(PATIENCE):
        while not done():
            for consumer in consumers:
                batches += await consumer.poll(0.02)
            if not consumers:
                await asyncio.sleep(0.01)
    return batches


async def read(source: Any, count: int) -> list[Batch]:
    """Poll until `count` records have come; return their batches."""
    batches: list[Batch] = []
    async with asyncio.timeout(PATIENCE):
        while sum(map(len, batches)) < count:
            batches += await source.poll(1.0)
    return batches
