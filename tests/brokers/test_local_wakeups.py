"""Hearing of what others write: no record may come between a look and the wait that follows it."""

from __future__ import annotations

import asyncio

import pytest
from broker_support import PATIENCE, Log

from agentic.brokers.base import Batch, TopicPartition
from agentic.brokers.embedded.feed import Feed


async def test_a_record_written_between_the_look_and_the_wait_is_heard_of(
    local_log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_log.open() as broker, local_log.open() as other:
        topic = await local_log.topic(broker)
        tp = TopicPartition(topic, 0)
        reader = broker.reader({tp: 0})
        assert [batch.position for batch in await reader.poll(1)] == [0]
        producer = other.producer()
        look = Feed.fetch
        looked = 0

        def look_and_write(feed: Feed) -> list[Batch]:
            nonlocal looked
            found = look(feed)
            looked += 1
            if looked == 1:
                producer.send(topic, None, b"v", 1)
                producer._write()  # type: ignore[attr-defined]
            return found

        monkeypatch.setattr(Feed, "fetch", look_and_write)
        batches = await asyncio.wait_for(reader.poll(3_600), PATIENCE)
        assert [batch.values for batch in batches] == [[b"v"]]
        await reader.close()
        await producer.close()


async def test_who_writes_is_woken_once_by_its_own_records_and_not_again_as_by_those_of_others(
    local_log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_log.open() as broker, local_log.open() as other:
        topic = await local_log.topic(broker)
        store = broker._store  # type: ignore[attr-defined]
        producers = {"us": broker.producer(), "others": other.producer()}
        # It looks round from the first wait on.
        await store.wait_records(0)
        store._tick()
        woken: list[str] = []
        for writer in ("us", "others", "us"):
            monkeypatch.setattr(store.records, "notify", lambda by=writer: woken.append(by))
            producers[writer].send(topic, None, b"v", 1)
            producers[writer]._write()  # type: ignore[attr-defined]
            store._tick()
            store._tick()
        assert woken == ["us", "others", "us"]
        for producer in producers.values():
            await producer.close()
