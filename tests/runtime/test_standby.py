"""Standbys: which worker keeps which, what is in them, and that they do the worker's own tasks no harm."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar, TypeVarTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic import App, Stream
from agentic.brokers.base import Consumer, GroupInfo, Position, TopicPartition, TopicSpec
from agentic.brokers.memory import MemoryBroker
from agentic.errors import BrokerUnavailable, StorageCorrupt, StorageFull
from agentic.runtime import standby as module
from agentic.runtime.standby import Standbys
from agentic.runtime.stores import MemoryStores
from agentic.runtime.worker import Worker
from agentic.state.base import Rows, Store
from agentic.state.envelope import unwrap
from agentic.state.memory import MemoryStore

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

PATIENCE = 30.0
PARTITIONS = 4
CHANGELOG = TopicPartition("app-rows-changelog", 0)
OTHER = TopicPartition("app-more-changelog", 0)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait for intervals that are made for a cluster."""
    monkeypatch.setattr(module, "LOOK", 0.01)
    monkeypatch.setattr(module, "COLLECT", 0.01)
    monkeypatch.setattr(module, "AGAIN", 0.01)


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not done():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.001)


# -- whole workers --------------------------------------------------------------------------------


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


def counting(**options: Any) -> App:
    """An app that counts by key and tells each count."""
    app = App("app", topic_partitions=PARTITIONS, commit_interval=timedelta(milliseconds=20), **options)
    events, counts = app.topic("events", key=str, value=int), app.topic("counts", key=str, value=int)
    rows = app.table("rows", key=str, value=int, default=int)

    @app.agent(events, to=counts)
    async def count(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            rows[stream.event.key] += n
            yield rows[stream.event.key]

    return app


async def start(broker: MemoryBroker, name: str, **options: Any) -> Worker:
    worker = Worker(counting(**options), broker=broker, transactional_id=name, stores=SharedStores())
    await worker.start()
    return worker


async def all_at_work(workers: Sequence[Worker]) -> None:
    await until(lambda: all(map(owned, workers)))


async def send(broker: MemoryBroker, keys: Iterable[str]) -> None:
    producer = broker.producer()
    for key in keys:
        producer.send("events", key.encode(), b"1", 1)
    await producer.flush()
    await producer.close()


def owned(worker: Worker) -> set[int]:
    """The tasks that a worker has and that have begun."""
    assert worker.assignment is not None
    return {task.partition for task in worker.assignment.tasks.values() if task.started}


def kept(worker: Worker) -> set[int]:
    """The tasks of which a worker has a standby that follows their changelog."""
    standbys = worker.standbys.standbys.values() if worker.standbys is not None else ()
    return {standby.task.partition for standby in standbys if standby.followed}


async def up_to_date(worker: Worker, broker: MemoryBroker) -> None:
    """Return when a worker's standbys have all that is committed now."""
    assert worker.standbys is not None
    ends = await broker.end_offsets([TopicPartition(CHANGELOG.topic, n) for n in range(PARTITIONS)])
    following = [each for standby in worker.standbys.standbys.values() for each in standby.followed.values()]
    await until(lambda: all(each.written >= ends[each.tp] for each in following))


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


KEYS = [f"key-{n}" for n in range(200)]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("standbys", [0, 1])
def test_who_takes_over_reads_only_what_its_standby_lacks(delivery: str, standbys: int) -> None:
    async def scenario() -> float:
        broker = MemoryBroker()
        first, second = [await start(broker, name, delivery=delivery, standbys=standbys) for name in "ab"]
        await until(lambda: len(owned(first)) == len(owned(second)) == 2)
        await send(broker, KEYS)
        await until(lambda: sum(w.app.metrics.total("events_done") for w in (first, second)) == len(KEYS))
        await first.checkpoint()
        if standbys:
            await until(lambda: kept(second) == owned(first))
            await up_to_date(second, broker)
        before = second.app.metrics.total("restored")
        await first.stop()
        await until(lambda: len(owned(second)) == PARTITIONS)
        assert not kept(second)
        await send(broker, KEYS)
        await second.used_up()
        assert set((await fold(broker, "counts")).values()) == {b"2"}
        restored = second.app.metrics.total("restored") - before
        await second.stop()
        return restored

    restored = asyncio.run(scenario())
    if standbys:
        # A marker of the last transaction may be missing in each.
        assert restored <= PARTITIONS
    else:
        assert restored >= len(KEYS) / PARTITIONS


def test_a_task_that_goes_away_is_kept_as_a_standby_and_comes_back_with_what_it_had() -> None:
    async def scenario() -> None:
        broker = MemoryBroker()
        first = await start(broker, "a", standbys=1)
        await until(lambda: len(owned(first)) == PARTITIONS)
        await send(broker, KEYS)
        await first.used_up()
        second = await start(broker, "b", standbys=1)
        await until(lambda: len(owned(first)) == len(owned(second)) == 2)
        await until(lambda: kept(first) == owned(second))
        await up_to_date(first, broker)
        before = first.app.metrics.total("restored")
        await second.stop()
        await until(lambda: len(owned(first)) == PARTITIONS)
        assert first.app.metrics.total("restored") == before
        await first.stop()

    asyncio.run(scenario())


def test_each_task_has_as_many_standbys_as_wanted_and_never_one_where_it_is() -> None:
    async def scenario() -> None:
        broker = MemoryBroker()
        workers = [await start(broker, name, standbys=2) for name in "abcde"]
        await until(lambda: set().union(*map(owned, workers)) == set(range(PARTITIONS)))
        await until(lambda: Counter(n for w in workers for n in kept(w)) == dict.fromkeys(range(PARTITIONS), 2))
        assert all(not owned(worker) & kept(worker) for worker in workers)
        # Who owns nothing is as good a place as any.
        assert any(kept(worker) for worker in workers if not owned(worker))
        for worker in workers:
            await worker.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_counts_are_right_while_workers_come_and_go_all_the_time(delivery: str) -> None:
    async def scenario() -> None:
        broker = MemoryBroker()
        steady = await start(broker, "steady", delivery=delivery, standbys=1)
        rounds = 8
        for n in range(rounds):
            guests = [await start(broker, f"{n}-{i}", delivery=delivery, standbys=n % 2) for i in range(2)]
            await send(broker, KEYS)
            await all_at_work(guests)
            for guest in guests:
                await guest.stop()
                assert guest.failure is None
        await until(lambda: len(owned(steady)) == PARTITIONS)
        await steady.used_up()
        # The partitions have moved in order each time: nothing was done twice.
        assert set((await fold(broker)).values()) == {b"%d" % rounds}
        assert steady.failure is None
        await steady.stop()

    asyncio.run(scenario())


def test_without_the_setting_no_group_is_looked_at() -> None:
    async def scenario() -> None:
        broker = MemoryBroker()
        worker = await start(broker, "a")
        await until(lambda: len(owned(worker)) == PARTITIONS)
        assert not any("standbys" in task.get_name() for task in asyncio.all_tasks())
        await worker.stop()

    asyncio.run(scenario())


# -- one standby ----------------------------------------------------------------------------------


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

    def reader(self, offsets: Mapping[TopicPartition, int]) -> Any:
        self.read_from.append(offsets.get(CHANGELOG))
        return super().reader(offsets)


class Nobody:
    """A listener without interest."""

    async def on_assigned(self, positions: Mapping[TopicPartition, Position | None]) -> None: ...
    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None: ...
    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None: ...


def one_task(source: bool = False) -> App:
    app = App("app", standbys=1, topic_partitions=1)
    events = app.topic("events", key=str, value=int)
    rows = app.table("rows", key=str, value=int, source=events if source else None)
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
        counts = {topic.name: 1 for topic in app.sources()}
        self.standbys = Standbys(
            app.processors(), broker, stores, self.consumer, app.metrics, app.settings, partitions=counts
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


def values(store: Store, table: str = "rows") -> dict[bytes, bytes]:
    return {key: unwrap(blob)[0] for key, blob in store.scan(table)}


TRANSACTIONS = st.lists(
    st.tuples(
        st.lists(
            st.tuples(st.sampled_from([CHANGELOG, OTHER]), st.sampled_from("abcd"), st.none() | st.integers(0, 99)),
            max_size=5,
        ),
        st.sampled_from(["commit", "commit", "abort", "look", "stop"]),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=40)
@given(TRANSACTIONS)
def test_a_standby_is_what_the_committed_changelog_comes_to(transactions: list[tuple[list[Any], str]]) -> None:
    async def scenario() -> None:
        broker, stores = MemoryBroker(), SharedStores()
        async with keeping(broker, one_task(), stores) as keeper:
            producer = broker.producer(transactional_id="owner")
            for records, then in transactions:
                for tp, key, value in records:
                    wire = None if value is None else b"%d" % value
                    producer.send(tp.topic, key.encode(), wire, 1, partition=tp.partition)
                if then == "abort":
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction({}, keeper.owner)
                if then == "look":
                    await keeper.up_to_date()
                if then == "stop":
                    # What it has is found again, and read on from there.
                    await keeper.standbys.stop()
                    keeper.standbys.start(lambda: False)
            await keeper.up_to_date()
            assert values(stores.stores["events-0"]) == await fold(broker)
            assert values(stores.stores["events-0"], "more") == await fold(broker, OTHER.topic)
            await producer.close()

    asyncio.run(scenario())


def test_a_table_that_a_topic_fills_is_kept_up_to_what_is_committed_and_no_further() -> None:
    async def scenario() -> None:
        broker, stores = MemoryBroker(), SharedStores()
        async with keeping(broker, one_task(source=True), stores) as keeper:
            producer = broker.producer()
            for n in range(3000):
                producer.send("events", b"%d" % n, b"%d" % n, 1, partition=0)
            await producer.flush()
            tp = TopicPartition("events", 0)
            await until(lambda: keeper.standbys.standbys)
            for committed in (1, 7, 1500, 3000):
                await keeper.owner.commit({tp: Position(committed)})
                await keeper.has(committed, tp)
                assert values(stores.stores["events-0"]) == {b"%d" % n: b"%d" % n for n in range(committed)}
            await producer.close()

    asyncio.run(scenario())


def test_a_task_that_comes_finds_its_standby_in_the_midst_of_reading() -> None:
    """The standby's store is taken over as it is: what it says of itself is true at each moment."""

    async def scenario() -> None:
        broker, stores = MemoryBroker(), SharedStores()
        async with keeping(broker, one_task(), stores) as keeper:
            producer = broker.producer()
            for n in range(20_000):
                producer.send(CHANGELOG.topic, b"%d" % n, b"%d" % n, 1, partition=0)
            await producer.flush()
            await until(lambda: keeper.lag is not None and keeper.lag < 20_000)
            store = await keeper.standbys.open("events-0", {})
            assert store is stores.stores["events-0"]
            assert stores.opened == 1
            upto = int.from_bytes(store.mark("upto/rows") or b"", "big")
            assert values(store) == {b"%d" % n: b"%d" % n for n in range(upto)}
            # As long as the task is ours no other copy is begun.
            await asyncio.sleep(0.05)
            assert not keeper.standbys.standbys
            assert stores.opened == 1
            await keeper.standbys.close(store)
            await until(lambda: keeper.lag is not None)
            await producer.close()

    asyncio.run(scenario())


def test_a_standby_is_kept_until_the_task_that_has_come_is_opened() -> None:
    async def scenario() -> None:
        broker, stores = LookedAtBroker(), SharedStores()
        async with keeping(broker, one_task(), stores) as keeper:
            await until(lambda: keeper.lag is not None)
            await keeper.owner.close()
            me = await keeper.consumer.member_id()
            async with asyncio.timeout(PATIENCE):
                while not (await broker.describe_group("app")).members.get(str(me)):  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0)
            await broker.looked_at()
            assert keeper.standbys.standbys
            await keeper.standbys.close(await keeper.standbys.open("events-0", {}))
            assert stores.opened == 1

    asyncio.run(scenario())


def test_a_standby_begins_where_its_store_stands() -> None:
    async def scenario() -> None:
        broker = LookedAtBroker()
        async with keeping(broker, one_task()) as keeper:
            producer = broker.producer()
            for n in range(100):
                producer.send(CHANGELOG.topic, b"%d" % n, b"1", 1, partition=0)
            await producer.flush()
            await keeper.has(100)
            await keeper.standbys.stop()
            assert 0 in broker.read_from
            broker.read_from.clear()
            keeper.standbys.start(lambda: False)
            await until(lambda: any(broker.read_from))
            assert set(broker.read_from) <= {None, 100}
            await producer.close()

    asyncio.run(scenario())


def test_a_table_may_begin_to_be_followed_while_another_one_is_written(caplog: pytest.LogCaptureFixture) -> None:
    class SlowStores(SharedStores):
        async def run(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
            await asyncio.sleep(0.01)
            return work(*arguments)

    async def scenario() -> None:
        broker = MemoryBroker()
        async with keeping(broker, one_task(), SlowStores(), busy=lambda: not ready) as keeper:
            producer = broker.producer()
            for tp in (CHANGELOG, OTHER):
                producer.send(tp.topic, b"a", b"1", 1, partition=tp.partition)
            await producer.flush()
            ready.append(True)
            await keeper.up_to_date()
            await producer.close()

    ready: list[bool] = []
    asyncio.run(scenario())
    assert not caplog.messages


def test_while_tables_of_the_worker_are_restored_a_standby_waits() -> None:
    async def scenario() -> None:
        broker = MemoryBroker()
        busy = True
        asked = 0

        def is_busy() -> bool:
            nonlocal asked
            asked += 1
            return busy

        async with keeping(broker, one_task(), busy=is_busy) as keeper:
            producer = broker.producer()
            producer.send(CHANGELOG.topic, b"a", b"1", 1, partition=0)
            await producer.flush()
            await until(lambda: asked > 3)
            assert keeper.lag == 1
            busy = False
            await until(lambda: keeper.lag == 0)
            await producer.close()

    asyncio.run(scenario())


# -- what goes wrong ------------------------------------------------------------------------------


class FullStore(MemoryStore):
    def write(self, rows: Mapping[str, Rows], marks: Mapping[str, bytes | None]) -> None:
        if rows:
            raise StorageFull("the disk is full")
        super().write(rows, marks)


class FullStores(MemoryStores):
    async def open(self, task: str, tables: Mapping[str, str]) -> Store:
        return FullStore()


class DamagedStores(MemoryStores):
    async def open(self, task: str, tables: Mapping[str, str]) -> Store:
        raise StorageCorrupt("the file is damaged")


@pytest.mark.parametrize(("stores", "why"), [(FullStores(), "is full"), (DamagedStores(), "is damaged")])
def test_a_standby_that_fails_is_given_up_with_a_warning(
    stores: MemoryStores, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        broker = LookedAtBroker()
        async with keeping(broker, one_task(), stores) as keeper:
            producer = broker.producer()
            producer.send(CHANGELOG.topic, b"a", b"1", 1, partition=0)
            await producer.flush()
            await until(lambda: why in caplog.text)
            await until(lambda: not keeper.standbys.standbys)
            await broker.looked_at()
            await producer.close()

    caplog.set_level(logging.INFO)
    asyncio.run(scenario())
    assert sum(why in record.message for record in caplog.records) == 1
    assert "events-0" in next(record.message for record in caplog.records if why in record.message)


def test_a_broker_that_is_away_is_told_once_and_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        broker = LookedAtBroker()
        async with keeping(broker, one_task()) as keeper:
            await until(lambda: keeper.lag == 0)
            broker.away = True
            await broker.looked_at()
            broker.away = False
            await until(lambda: "up to date again" in caplog.text)

    caplog.set_level(logging.INFO)
    asyncio.run(scenario())
    assert sum("no answer" in record.message for record in caplog.records) == 1
