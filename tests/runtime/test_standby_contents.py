"""One standby: what is in it at each moment, and that what goes wrong with it is its own end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standby_support import (
    CHANGELOG,
    OTHER,
    PATIENCE,
    LookedAtBroker,
    SharedStores,
    T,
    Ts,
    fold,
    hurry,
    keeping,
    one_task,
    until,
    values,
)

from agentic.brokers.base import Position, TopicPartition
from agentic.brokers.memory import MemoryBroker
from agentic.errors import StorageCorrupt, StorageFull
from agentic.runtime.stores import MemoryStores
from agentic.state.base import Rows, Store
from agentic.state.memory import MemoryStore


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


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


def test_a_table_with_versions_is_the_same_whether_it_is_followed_or_read_at_once() -> None:
    async def scenario() -> None:
        broker, followed, at_once = MemoryBroker(), SharedStores(), SharedStores()
        app = one_task(source=True, versioned=timedelta(milliseconds=10))
        tp = TopicPartition("events", 0)
        async with keeping(broker, app, followed) as keeper:
            producer = broker.producer()
            for n in range(60):
                value = None if n % 7 == 0 else b"%d" % n
                # Out of order within the history, and now and then out of it.
                producer.send("events", b"%d" % (n % 4), value, 1_000 + n - (n % 5) * 4, partition=0)
            await producer.flush()
            await producer.close()
            for committed in (1, 20, 21, 45, 60):
                await keeper.owner.commit({tp: Position(committed)})
                await keeper.has(committed, tp)
            await keeper.standbys.stop()
            keeper.standbys = keeper.standbys_of(at_once)
            keeper.standbys.start(lambda: False)
            await keeper.has(60, tp)
        whole = dict(at_once.stores["events-0"].scan("rows"))
        assert len(whole) == 4
        assert dict(followed.stores["events-0"].scan("rows")) == whole

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
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


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


def test_how_far_a_standby_is_behind_is_told_as_long_as_it_is_kept() -> None:
    async def scenario() -> None:
        broker = MemoryBroker()
        busy = True
        async with keeping(broker, one_task(), busy=lambda: busy) as keeper:
            producer = broker.producer()
            for n in range(5):
                producer.send(CHANGELOG.topic, b"%d" % n, b"1", 1, partition=0)
            await producer.flush()
            lag = keeper.app.metrics.gauge("standby_lag", topic=CHANGELOG.topic, partition=CHANGELOG.partition)
            await until(lambda: lag.value == 5)
            busy = False
            await until(lambda: lag.value == 0)
            await keeper.standbys.stop()
            assert not [metric for metric in keeper.app.metrics if metric.name == "standby_lag"]
            await producer.close()

    asyncio.run(scenario())


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
