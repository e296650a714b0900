"""The topics of an app at the start of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from agentic import App, Stream
from agentic.brokers.base import TopicInfo, TopicSpec
from agentic.brokers.memory import MemoryBroker
from agentic.errors import BrokerUnavailable, CoPartitionError, StateMismatch, TopicExists, UnknownTopic
from agentic.runtime import changelogs, topics, worker
from agentic.runtime.stores import MemoryStores
from agentic.runtime.worker import Worker


def app_with_topics(**settings: Any) -> App:
    app = App("shop", topic_partitions=3, **settings)
    app.topic("orders")
    app.topic("alerts", partitions=2)
    app.topic("by-user", internal=True)
    return app


def test_missing_topics_are_made_with_their_partitions() -> None:
    made = asyncio.run(topics.ensure(app_with_topics(), MemoryBroker()))
    assert made == {"orders": 3, "alerts": 2, "shop-by-user": 3}


def test_missing_topics_are_named_with_the_command_that_makes_them() -> None:
    message = r"has no topics 'orders' and 'alerts'; make them with 'agentic topics create', or set create_topics=True"
    with pytest.raises(UnknownTopic, match=message):
        asyncio.run(topics.ensure(app_with_topics(create_topics=False), MemoryBroker()))


def test_one_missing_topic_is_spoken_of_as_one() -> None:
    app = App("shop", create_topics=False)
    app.topic("orders")
    with pytest.raises(UnknownTopic, match=r"has no topic 'orders'; make it with"):
        asyncio.run(topics.ensure(app, MemoryBroker()))


def test_internal_topics_are_made_even_so() -> None:
    app = App("shop", create_topics=False)
    app.topic("by-user", internal=True)
    assert asyncio.run(topics.ensure(app, MemoryBroker())) == {"shop-by-user": 4}


def regrouped_app(**settings: Any) -> App:
    """An app that brings its orders to another key."""
    app = App("shop", topic_partitions=4, **settings)
    orders = app.topic("orders", key=str, value=str)
    counts = app.table("counts", key=str, value=int, default=int)

    def by_text(order: str) -> str:
        return order

    @app.agent(orders.group_by(by_text, key=str))
    async def count(stream: Stream[str]) -> None:
        async for order in stream:
            counts[order] += 1

    return app


REGROUPED = "shop-orders-by-by_text-repartition"


@pytest.mark.parametrize("at_start", [True, False])
def test_a_topic_for_another_key_is_not_made_before_the_one_that_says_its_partitions(at_start: bool) -> None:
    app, broker = regrouped_app(create_topics=False), MemoryBroker()

    async def scenario() -> dict[str, int]:
        if at_start:
            with pytest.raises(UnknownTopic, match="has no topic 'orders'"):
                await topics.ensure(app, broker)
        else:
            await topics.make(app, broker)
        assert await broker.topics() == {}
        await broker.create_topics([TopicSpec("orders", 7)])
        return await topics.ensure(app, broker)

    assert asyncio.run(scenario()) == {"orders": 7, REGROUPED: 7}


def test_a_topic_for_another_key_that_has_other_partitions_by_now_is_named_with_the_way_out() -> None:
    app = regrouped_app()

    @app.agent(app.topic("users", key=str, value=str), tables=[app.tables["counts"]])
    async def look(stream: Stream[str]) -> None:
        async for _ in stream:
            pass

    counts = {"orders": 7, "users": 7, REGROUPED: 4}
    message = rf"'{REGROUPED}' \(4 partitions\) and 'users' \(7\) meet in table 'counts'.* 'agentic reset' deletes it"
    with pytest.raises(CoPartitionError, match=message):
        changelogs.partitions_of(app.processors(), counts)


def test_a_dead_letter_topic_that_is_only_named_is_made_too() -> None:
    app = App("shop", dead_letter="failed")
    assert asyncio.run(topics.ensure(app, MemoryBroker())) == {"failed": 4}


def test_another_worker_that_makes_them_at_the_same_moment_is_no_error() -> None:
    class Raced(MemoryBroker):
        async def create_topics(self, specs: Iterable[TopicSpec]) -> None:
            await super().create_topics(specs)
            raise TopicExists("by another worker")

    assert asyncio.run(topics.ensure(app_with_topics(), Raced())) == {"orders": 3, "alerts": 2, "shop-by-user": 3}


def test_other_partitions_than_declared_are_taken_and_said(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> dict[str, int]:
        broker = MemoryBroker()
        await broker.create_topics([TopicSpec("alerts", 7)])
        return await topics.ensure(app_with_topics(), broker)

    assert asyncio.run(scenario())["alerts"] == 7
    assert "alerts has 7 partitions, not 2 as declared" in caplog.text


class NewlyUp(MemoryBroker):
    """A broker whose partitions have no leaders yet."""

    refusals = 2

    async def describe_topic(self, name: str) -> TopicInfo:
        self.refusals -= 1
        if self.refusals >= 0:
            raise BrokerUnavailable("not leader")
        return await super().describe_topic(name)


def started_on(broker: NewlyUp, **settings: Any) -> BaseException | None:
    """Start a worker whose changelog is there; return why it failed, None if it did not."""

    async def scenario() -> BaseException | None:
        app = app_with_topics(**settings)
        rows = app.table("rows", key=str, value=int)

        @app.agent(app.topics["orders"])
        async def look(stream: Stream[Any]) -> None:
            async for event in stream.events():
                rows.get(event.key)

        await broker.create_topics([TopicSpec("shop-rows-changelog", 3, compacted=True)])
        started = Worker(app, broker=broker, stores=MemoryStores())
        try:
            await started.start()
        except BrokerUnavailable as error:
            return error
        finally:
            await started.stop()
        return None

    return asyncio.run(scenario())


@pytest.mark.parametrize("compacted", [False, True])
def test_a_changelog_that_may_lose_rows_is_refused(compacted: bool) -> None:
    async def scenario() -> None:
        app = app_with_topics()
        rows = app.table("rows", key=str, value=int)

        @app.agent(app.topics["orders"])
        async def look(stream: Stream[Any]) -> None:
            async for event in stream.events():
                rows.get(event.key)

        broker = MemoryBroker()
        retention = 1000 if compacted else None
        log = TopicSpec("shop-rows-changelog", 3, compacted=compacted, retention_ms=retention)
        await broker.create_topics([log])
        with pytest.raises(
            StateMismatch, match=r"would lose rows of table 'rows' to retention; set its cleanup.policy"
        ):
            await Worker(app, broker=broker, stores=MemoryStores()).start()

    asyncio.run(scenario())


@pytest.mark.parametrize("retention", [None, 1000])
def test_a_topic_that_fills_tables_and_may_lose_rows_is_warned_of(
    retention: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        app = App("shop", topic_partitions=1, broker="memory://")
        moves = app.topic("moves", key=str, value=int)
        app.global_table("everywhere", moves)
        rows = app.table("rows", source=moves)

        @app.agent(moves, tables=[rows])
        async def look(stream: Stream[Any]) -> None:
            async for event in stream.events():
                rows.get(event.key)

        assert topics.needed(app, {})["moves"].config["retention.ms"] == "-1", "what the app makes itself loses nothing"
        broker = MemoryBroker()
        await broker.create_topics([TopicSpec("moves", 1, retention_ms=retention)])
        worker = Worker(app, broker=broker, stores=MemoryStores())
        await worker.start()
        await worker.stop()

    asyncio.run(scenario())
    warned = [record.getMessage() for record in caplog.records if "has a retention" in record.getMessage()]
    found = sorted(message.split(":")[0] for message in warned)
    expected = [f"topic moves fills table {name} and has a retention" for name in ("everywhere", "rows")]
    assert found == (expected if retention else [])


def test_a_broker_that_has_only_just_come_up_is_asked_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "AGAIN", 0.01)
    broker = NewlyUp()
    assert started_on(broker) is None
    assert broker.refusals < 0


def test_a_broker_that_does_not_answer_ends_the_start_in_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "AGAIN", 0.01)
    broker = NewlyUp()
    broker.refusals = 1_000_000
    assert "not leader" in str(started_on(broker, start_timeout=timedelta(milliseconds=100)))
