"""What the tests of standbys share: a worker that keeps one, and what it looks at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar, TypeVarTuple

import pytest

from agentic import App, Stream
from agentic.brokers.base import Consumer, GroupInfo, Position, TopicPartition, TopicSpec
from agentic.brokers.memory import MemoryBroker
from agentic.errors import BrokerUnavailable
from agentic.runtime import standby
from agentic.runtime.standby import Standbys
from agentic.runtime.stores import MemoryStores
from agentic.state.base import Store
from agentic.state.envelope import unwrap
from agentic.state.memory import MemoryStore

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

PATIENCE = 30.0
CHANGELOG = TopicPartition("app-rows-changelog", 0)
OTHER = TopicPartition("app-more-changelog", 0)


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait for intervals that are made for a cluster."""
    for interval in ("LOOK", "COLLECT", "AGAIN"):
        monkeypatch.setattr(standby, interval, 0.01)


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not done():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.001)


class SharedStores(MemoryStores):
    """Stores of one worker that outlive their closing, as files do."""

    def __init__(self) -> None:
        self.stores: dict[str, MemoryStore] = {}
        self.opened = 0
        self.closed = 0

    async def open(self, task: str, tables: Mapping[str, str]) -> Store:
        self.opened += 1
        return self.stores.setdefault(task, MemoryStore())

    async def close(self, store: Store) -> None:
        self.closed += 1
        await super().close(store)

    async def run(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        # As a thread does, it lets others go on meanwhile.
        await asyncio.sleep(0)
        return work(*arguments)


class LookedAtBroker(MemoryBroker):
    """A broker that counts the looks at its groups, answers none while `away` is set, and notes what is read from."""

    away = False
    looks = 0

    def __init__(self) -> None:
        super().__init__()
        self.read_from: list[int | None] = []

    async def describe_group(self, name: str) -> GroupInfo:
        self.looks += 1
        if self.away:
            raise BrokerUnavailable("no answer")
        return await super().describe_group(name)

    async def looked_at(self) -> None:
        """Return when several more looks have been taken."""
        seen = self.looks
        await until(lambda: self.looks > seen + 3)

    def reader(self, offsets: Mapping[TopicPartition, int], *, bulk: bool = False) -> Any:
        self.read_from.append(offsets.get(CHANGELOG))
        return super().reader(offsets, bulk=bulk)


class Nobody:
    """A listener without interest."""

    async def on_assigned(self, positions: Mapping[TopicPartition, Position | None]) -> None: ...
    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None: ...
    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None: ...


def one_task(source: bool = False, versioned: timedelta | None = None) -> App:
    app = App("app", standbys=1, topic_partitions=1)
    events = app.topic("events", key=str, value=int)
    rows = app.table("rows", key=str, value=int, source=events if source else None, versioned=versioned)
    more = app.table("more", key=str, value=int)
    others = app.topic("others", key=str) if source else events

    @app.agent(others)
    async def look(stream: Stream[Any]) -> None:
        async for event in stream.events():
            rows.get(event.key), more.get(event.key)

    return app


class Keeper:
    """A worker that owns nothing, and keeps a standby of the one task of the member that came before it."""

    def __init__(self, broker: MemoryBroker, app: App, stores: MemoryStores, owner: Consumer) -> None:
        self.app = app
        self.broker = broker
        self.owner = owner
        self.stores = stores
        self.consumer = broker.consumer("app", [topic.name for topic in app.sources()])
        self.standbys = self.standbys_of(stores)

    def standbys_of(self, stores: MemoryStores) -> Standbys:
        """Return what keeps standbys in these stores."""
        app = self.app
        counts = {topic.name: 1 for topic in app.sources()}
        return Standbys(
            app.processors(), self.broker, stores, self.consumer, app.metrics, app.settings, partitions=counts
        )

    @property
    def lag(self) -> int | None:
        """How far the standby is behind; None while there is none that follows anything."""
        (standby,) = self.standbys.standbys.values() or [None]
        return standby.lag if standby is not None and standby.followed else None

    def written(self, tp: TopicPartition) -> int:
        """Up to which offset of a changelog the standby has its rows; -1 while it follows none."""
        followed = [each for standby in self.standbys.standbys.values() for each in standby.followed.values()]
        return next((each.written for each in followed if each.tp == tp), -1)

    async def has(self, end: int, tp: TopicPartition = CHANGELOG) -> None:
        """Return when the standby has what lies before an offset of a changelog."""
        await until(lambda: self.written(tp) >= end)

    async def up_to_date(self) -> None:
        """Return when the standby has all that is committed now."""
        for tp, end in (await self.broker.end_offsets([CHANGELOG, OTHER])).items():
            await self.has(end, tp)


@asynccontextmanager
async def keeping(
    broker: MemoryBroker, app: App, stores: MemoryStores | None = None, busy: Callable[[], bool] = lambda: False
) -> AsyncIterator[Keeper]:
    specs = [TopicSpec(topic.name, 1) for topic in app.sources()]
    await broker.create_topics([*specs, *(TopicSpec(tp.topic, 1, compacted=True) for tp in (CHANGELOG, OTHER))])
    owner = broker.consumer("app", [topic.name for topic in app.sources()])
    await owner.start(Nobody())
    keeper = Keeper(broker, app, stores or SharedStores(), owner)
    async with asyncio.timeout(PATIENCE):
        while not any((await broker.describe_group("app")).members.values()):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
    await keeper.consumer.start(Nobody())
    keeper.standbys.start(busy)
    try:
        yield keeper
    finally:
        await keeper.standbys.stop()
        await keeper.consumer.close()
        await owner.close()
    if isinstance(keeper.stores, SharedStores):
        assert keeper.stores.opened == keeper.stores.closed


async def fold(broker: MemoryBroker, topic: str = CHANGELOG.topic) -> dict[bytes | None, bytes]:
    """What the committed records of a topic come to."""
    return {key: value for key, value in (await last(broker, topic)).items() if value is not None}


async def last(broker: MemoryBroker, topic: str) -> dict[bytes | None, bytes | None]:
    """The last committed value of each key of a topic."""
    info = await broker.describe_topic(topic)
    position = {TopicPartition(topic, n): start for n, (start, _) in info.offsets.items()}
    ends = await broker.end_offsets(position)
    reader = broker.reader(position)
    seen: dict[bytes | None, bytes | None] = {}
    while any(position[tp] < end for tp, end in ends.items()):
        for batch in await reader.poll(1):
            seen.update(zip(batch.keys, batch.values))
            position[batch.tp] = batch.position
    await reader.close()
    return seen


def values(store: Store, table: str = "rows") -> dict[bytes, bytes]:
    return {key: unwrap(blob)[0] for key, blob in store.scan(table)}
