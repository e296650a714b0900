"""What the broker tests share: a log to test, members that note what they are told, and waiting for a condition."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentic.brokers import connect
from agentic.brokers.base import Batch, Broker, Consumer, Position, TopicPartition, TopicSpec

#: Seconds until a condition that does not come true fails the test.
PATIENCE = 30.0
#: Bytes that a record may have in all these tests: Kafka's default.
RECORD_LIMIT = 1 << 20


@dataclass
class Log:
    """One log under test, and the names that a test uses on it."""

    kind: str
    url: str
    options: Mapping[str, object] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)

    @staticmethod
    def name(about: str = "t") -> str:
        return f"{about}-{uuid.uuid4().hex[:12]}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Broker]:
        broker = connect(self.url, self.options)
        await broker.open(10)
        try:
            yield broker
        finally:
            made, self.made = self.made, []
            if made and self.kind == "kafka":
                await broker.delete_topics(made)
            await broker.close()

    async def topic(self, broker: Broker, partitions: int = 1, **spec: Any) -> str:
        name = self.name()
        if self.kind == "kafka" and "retention_ms" not in spec:
            # Kafka's default would sooner or later remove what these tests write with old timestamps.
            spec["config"] = {"retention.ms": "-1", **spec.get("config", {})}
        await broker.create_topics([TopicSpec(name, partitions, **spec)])
        self.made.append(name)
        return name

    async def expel(self, broker: Any, group: str, member: str) -> None:
        """Have a member taken for dead, as after a session timeout."""
        if self.kind == "kafka":
            pytest.skip("members of a Kafka group die only with their process")
        with broker._store.change() as change:
            membership = change.membership(group)
            membership.expel(member)
            change.save(group, membership)


class Member:
    """A consumer with a listener that notes everything, in order."""

    def __init__(self, broker: Broker, group: str, topics: Sequence[str], **options: Any) -> None:
        self.consumer: Consumer = broker.consumer(group, topics, **options)
        #: ("assigned" | "revoked" | "lost", partitions), in order.
        self.told: list[tuple[str, set[TopicPartition]]] = []
        self.owned: set[TopicPartition] = set()
        self.positions: dict[TopicPartition, Position | None] = {}
        self.batches: list[Batch] = []
        self.values: dict[TopicPartition, list[bytes | None]] = defaultdict(list)
        self.when_assigned: Callable[[Mapping[TopicPartition, Position | None]], Awaitable[None]] | None = None
        self.when_revoked: Callable[[Sequence[TopicPartition]], Awaitable[None]] | None = None
        self._busy = False

    async def start(self) -> Member:
        await self.consumer.start(self)
        return self

    async def on_assigned(self, positions: Mapping[TopicPartition, Position | None]) -> None:
        self._enter()
        if positions:
            self.told.append(("assigned", set(positions)))
        self.positions.update(positions)
        if self.when_assigned is not None:
            await self.when_assigned(positions)
        self.owned.update(positions)
        self._busy = False

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._enter()
        self.told.append(("revoked", set(partitions)))
        if self.when_revoked is not None:
            await self.when_revoked(partitions)
        self.owned.difference_update(partitions)
        self._busy = False

    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._enter()
        self.told.append(("lost", set(partitions)))
        self.owned.difference_update(partitions)
        self._busy = False

    def _enter(self) -> None:
        assert not self._busy, "two calls of the listener at once"
        self._busy = True

    async def poll(self, timeout: float = 0.05) -> list[Batch]:
        batches = await self.consumer.poll(timeout)
        for batch in batches:
            assert batch.tp in self.owned, f"a batch of {batch.tp}, which is not ours"
            n = len(batch.offsets)
            columns = (batch.timestamps, batch.keys, batch.values, batch.headers)
            assert all(len(column) == n for column in columns)
            assert batch.offsets == sorted(set(batch.offsets))
            assert not batch.offsets or batch.position > batch.offsets[-1]
            self.batches.append(batch)
            self.values[batch.tp].extend(batch.values)
        return batches

    @property
    def count(self) -> int:
        return sum(map(len, self.values.values()))

    @property
    def ended(self) -> dict[TopicPartition, int]:
        """partition -> the end that was last reported as reached."""
        return {batch.tp: batch.position for batch in self.batches if batch.position == batch.end}


async def until(condition: Callable[[], object], *members: Member) -> None:
    """Let the members poll until the condition holds; fail after `PATIENCE` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while not condition():
        assert loop.time() < deadline, f"not within {PATIENCE} s; told: {[member.told for member in members]}"
        await asyncio.gather(*(member.poll() for member in members))
        if not members:
            await asyncio.sleep(0.01)


async def read_all(
    broker: Broker, topic: str, partitions: int = 1, *, least: int = 0
) -> dict[int, list[tuple[Any, ...]]]:
    """All committed records of a topic: partition -> (offset, timestamp, key, value, headers).

    Waits until there are `least` of them.
    """
    tps = [TopicPartition(topic, n) for n in range(partitions)]
    ends = await broker.end_offsets(tps)
    reader = broker.reader(dict.fromkeys(tps, 0))
    found: dict[int, list[tuple[Any, ...]]] = {tp.partition: [] for tp in tps}
    at = dict.fromkeys(tps, 0)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    try:
        while any(at[tp] < ends[tp] for tp in tps) or sum(map(len, found.values())) < least:
            assert loop.time() < deadline, f"{topic}: read to {at} of {ends}"
            for batch in await reader.poll(0.2):
                at[batch.tp] = batch.position
                headers = map(plain_headers, batch.headers)
                rows = zip(batch.offsets, batch.timestamps, batch.keys, batch.values, headers, strict=True)
                found[batch.tp.partition].extend(rows)
    finally:
        await reader.close()
    return found


def plain_headers(headers: Any) -> tuple[tuple[str, bytes], ...]:
    if headers is None:
        return ()
    return tuple(headers if isinstance(headers, tuple) else headers.headers() or ())
