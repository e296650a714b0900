"""Global tables: a whole copy in each worker, there before the first event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kept import Kept

from agentic import App, Stream
from agentic.brokers.base import TopicPartition, TopicSpec
from agentic.brokers.memory import MemoryBroker
from agentic.errors import AgentFailed, ConfigurationError, DecodeFailed, TableUnavailable
from agentic.runtime import topics
from agentic.runtime.globals import OF_TOPIC, Copy, Globals
from agentic.runtime.marks import WRITTEN, as_mark, number
from agentic.runtime.stores import MemoryStores
from agentic.runtime.worker import Worker
from agentic.state.base import Store
from agentic.table import GlobalTable
from agentic.testing import TestDriver
from agentic.topic import Topic


def pricing(
    **settings: Any,
) -> tuple[App, Topic[str, float], Topic[str, Any], Topic[str, float], GlobalTable[str, float]]:
    app = App("pricing", topic_partitions=3, **settings)
    rates = app.topic("rates", key=str, value=float)
    orders = app.topic("orders", key=str, value=dict)
    out = app.topic("out", key=str, value=float)
    table = app.global_table("rates", rates, default=lambda: 1.0)

    @app.agent(orders, to=out)
    async def price(stream: Stream[dict[str, Any]]) -> AsyncIterator[float]:
        async for order in stream:
            yield order["amount"] * table[order["currency"]]

    return app, rates, orders, out, table


def test_an_agent_looks_up_any_key_in_any_task() -> None:
    app, rates, orders, out, table = pricing()
    with TestDriver(app) as driver:
        for currency, rate in [("eur", 2.0), ("chf", 3.0), ("sek", 0.5)]:
            driver.send(rates, rate, key=currency)
        for partition, currency in enumerate(["eur", "chf", "sek"]):
            driver.send(orders, {"amount": 10, "currency": currency}, key="x", partition=partition)
        driver.send(orders, {"amount": 10, "currency": "usd"}, key="x")
        assert sorted(each.value for each in driver.outputs(out)) == [5.0, 10.0, 20.0, 30.0]
        assert driver.table(table) == {"chf": 3.0, "eur": 2.0, "sek": 0.5}


def test_it_follows_its_topic_and_survives_a_crash() -> None:
    app, rates, _, _, table = pricing()
    with TestDriver(app) as driver:
        driver.send(rates, 2.0, key="eur")
        driver.send(rates, 3.0, key="chf")
        driver.send(rates, 2.5, key="eur")
        driver.send(rates, None, key="chf")
        driver.crash()
        assert driver.table(table) == {"eur": 2.5}
        assert len(table) == 1


def test_the_first_event_finds_all_that_was_there() -> None:
    app, *_ = pricing()

    async def scenario() -> list[Any]:
        broker = MemoryBroker("memory://first-event", {})
        await broker.open(1)
        await topics.ensure(app, broker)
        producer = broker.producer()
        for n in range(500):
            producer.send("rates", f"c{n}".encode(), b"%d.0" % n, 0)
        producer.send("orders", b"x", b'{"amount":2,"currency":"c499"}', 0)
        await producer.flush()
        worker = Worker(app, broker=MemoryBroker("memory://first-event", {}), stores=MemoryStores())
        await worker.start()
        await worker.used_up()
        await worker.stop()
        assert worker.failure is None
        info = await broker.describe_topic("out")
        reader = broker.reader(dict.fromkeys(_partitions("out", info.partitions), 0))
        values = [value for batch in await reader.poll(1) for value in batch.values]
        await reader.close()
        await producer.close()
        await broker.close()
        return values

    assert asyncio.run(scenario()) == [b"998.0"]


def _partitions(topic: str, n: int) -> list[Any]:
    return [TopicPartition(topic, number) for number in range(n)]


def test_nobody_writes_it_and_nobody_watches_it() -> None:
    app = App("readonly", topic_partitions=1)
    rates = app.topic("rates", key=str, value=float)
    table = app.global_table("rates", rates)

    @app.agent(rates)
    async def write(stream: Stream[float]) -> None:
        async for rate in stream:
            table["eur"] = rate

    with TestDriver(app) as driver, pytest.raises(AgentFailed, match="'rates' is filled by topic 'rates'"):
        driver.send(rates, 2.0, key="eur")
    with pytest.raises(ConfigurationError, match="each worker has all of a global table"):
        table.changes()
    with pytest.raises(ConfigurationError, match="a global table is not aggregated"):
        table.group_by(lambda key, row: key, key=str)
    with pytest.raises(TableUnavailable, match="no worker of its app runs here"):
        table["eur"]


def test_it_brings_no_topics_together() -> None:
    app = App("apart")
    rates = app.topic("rates", key=str, value=float, partitions=1)
    few, many = app.topic("few", key=str, partitions=2), app.topic("many", key=str, partitions=3)
    table = app.global_table("rates", rates)
    seen = []

    async def look(stream: Stream[Any]) -> None:
        async for _ in stream:
            seen.append(table.get("eur"))

    app.agent(few, name="one")(look)
    app.agent(many, name="two")(look)
    with TestDriver(app) as driver:
        driver.send(rates, 2.0, key="eur")
        driver.send(few, 1, key="a")
        driver.send(many, 1, key="b")
    assert seen == [2.0, 2.0]


def test_a_record_that_cannot_be_decoded_meets_the_policy() -> None:
    app, rates, _, _, table = pricing(on_decode_error="skip")
    with TestDriver(app) as driver:
        driver.send_raw(rates, b"two", key=b"eur")
        driver.send(rates, 3.0, key="chf")
        assert driver.table(table) == {"chf": 3.0}
        assert driver.dropped == {"undecodable": 1}
    app, rates, *_ = pricing()
    with (
        pytest.raises(DecodeFailed, match=r"rates-\d offset 0 \(key b'eur'\), global table 'rates': value: not float"),
        TestDriver(app) as driver,
    ):
        driver.send_raw(rates, b"two", key=b"eur")


class Shops:
    """Starts of one app, whose copy of the rates stays between them."""

    def __init__(self) -> None:
        self.app, self.rates, _, _, self.table = pricing()
        self.kept = Kept()

    async def seen(self, url: str) -> dict[str, float]:
        """Return what the copy of a worker has once it is loaded."""
        worker = Worker(self.app, broker=MemoryBroker(url, {}), stores=self.kept)
        await worker.start()
        await worker.used_up()
        rows = dict(self.table.items())
        await worker.stop()
        assert worker.failure is None
        return rows

    async def send(self, broker: MemoryBroker, **rates: float) -> None:
        producer = broker.producer()
        for currency, rate in rates.items():
            producer.send(self.rates.name, currency.encode(), str(rate).encode(), 0, None, 0)
        await producer.flush()
        await producer.close()


async def opened(url: str, partitions: int = 3) -> MemoryBroker:
    broker = MemoryBroker(url, {})
    await broker.open(1)
    await broker.create_topics([TopicSpec("rates", partitions)])
    return broker


def test_a_copy_of_a_topic_that_was_deleted_is_not_taken_for_one_of_the_next(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> tuple[dict[str, float], dict[str, float]]:
        shops, url = Shops(), "memory://another-topic"
        broker = await opened(url)
        await shops.send(broker, eur=2.0, chf=3.0)
        before = await shops.seen(url)
        assert await shops.seen(url) == before
        assert "loaded whole" not in caplog.text
        # The new one is as long as the old one was: only its id tells.
        await broker.delete_topics(["rates"])
        await broker.create_topics([TopicSpec("rates", 3)])
        await shops.send(broker, eur=20.0, sek=30.0)
        after = await shops.seen(url)
        await broker.close()
        return before, after

    assert asyncio.run(scenario()) == ({"eur": 2.0, "chf": 3.0}, {"eur": 20.0, "sek": 30.0})
    assert (
        "table rates is loaded whole: topic 'rates' was deleted and made again, or is another broker's" in caplog.text
    )


def test_a_copy_of_another_brokers_topic_is_not_taken_for_one_of_this() -> None:
    async def scenario() -> dict[str, float]:
        shops, urls = Shops(), ("memory://one-broker", "memory://another-broker")
        one, other = [await opened(url) for url in urls]
        await shops.send(one, eur=2.0)
        await shops.send(other, chf=3.0)
        assert await shops.seen(urls[0]) == {"eur": 2.0}
        rows = await shops.seen(urls[1])
        await one.close()
        await other.close()
        return rows

    assert asyncio.run(scenario()) == {"chf": 3.0}


def test_a_copy_of_a_topic_with_fewer_partitions_by_now_is_loaded_whole(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> dict[str, float]:
        shops, url = Shops(), "memory://fewer-partitions"
        broker = await opened(url)
        await shops.send(broker, eur=2.0)
        await shops.seen(url)
        # A copy that was made when nothing was noted of its topic.
        for store in shops.kept.stores.values():
            store.write({}, {OF_TOPIC: None})
        await broker.delete_topics(["rates"])
        await broker.create_topics([TopicSpec("rates", 1)])
        await shops.send(broker, chf=3.0)
        rows = await shops.seen(url)
        await broker.close()
        return rows

    assert asyncio.run(scenario()) == {"chf": 3.0}
    assert "topic 'rates' has no partition 1 by now" in caplog.text


def test_a_copy_without_a_note_of_its_topic_is_gone_on_with_and_gets_one(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> Store:
        shops, url = Shops(), "memory://not-noted"
        broker = await opened(url)
        await shops.send(broker, eur=2.0)
        await shops.seen(url)
        store = shops.kept.stores["global rates"]
        store.write({}, {OF_TOPIC: None})
        assert await shops.seen(url) == {"eur": 2.0}
        await broker.close()
        return store

    assert asyncio.run(scenario()).mark(OF_TOPIC) is not None
    assert "loaded whole" not in caplog.text


def test_a_copy_whose_clearing_was_cut_short_is_cleared_again() -> None:
    class Killed(Exception):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    async def scenario() -> dict[str, float]:
        shops, url = Shops(), "memory://cut-short"
        broker = await opened(url)
        await shops.send(broker, eur=2.0)
        await shops.seen(url)
        await broker.delete_topics(["rates"])
        await broker.create_topics([TopicSpec("rates", 3)])
        await shops.send(broker, chf=3.0)
        store = shops.kept.stores["global rates"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(store), "clear", killed)
            copies = Globals([shops.table], broker, shops.kept, shops.app.settings, shops.app.metrics)
            with pytest.raises(Killed):
                await copies.open()
        assert store.count("rates") == 1
        rows = await shops.seen(url)
        await broker.close()
        return rows

    assert asyncio.run(scenario()) == {"chf": 3.0}


@pytest.mark.parametrize("hours, deleted_is_gone", [(23, False), (25, True)])
def test_an_old_copy_that_lacks_something_is_loaded_whole(
    hours: int, deleted_is_gone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> dict[str, float]:
        shops, url = Shops(), f"memory://old-copy-{hours}"
        broker = await opened(url)
        await shops.send(broker, eur=2.0)
        await shops.seen(url)
        store = shops.kept.stores["global rates"]
        # As if chf had come too, and its deletion had been compacted away since.
        store.write({"rates": [(b"chf", store.get("rates", b"eur"))]}, {})
        store.write({}, {WRITTEN: as_mark(time.time_ns() // 1_000_000 - hours * 3_600_000)})
        assert "chf" in await shops.seen(url)
        await shops.send(broker, eur=2.5)
        rows = await shops.seen(url)
        await broker.close()
        return rows

    rows = asyncio.run(scenario())
    assert rows["eur"] == 2.5
    assert ("chf" not in rows) is deleted_is_gone is ("deletions may be missing from topic 'rates'" in caplog.text)


def test_a_copy_that_is_behind_keeps_its_age_until_it_has_caught_up() -> None:
    async def scenario() -> tuple[int | None, int | None]:
        shops = Shops()
        copy = Copy(shops.table, await shops.kept.open("global rates", {"rates": shops.table.shape}), 1 << 20)
        copy.write(complete=True)
        copy.store.write({}, {WRITTEN: as_mark(1)})
        copy.write(complete=False)
        behind = number(copy.store.mark(WRITTEN))
        copy.write(complete=True)
        return behind, number(copy.store.mark(WRITTEN))

    behind, caught_up = asyncio.run(scenario())
    assert behind == 1
    assert caught_up is not None and caught_up > 1
