"""A share of the input can't be worked on: it goes to the dead letter topic, and intake goes on to the end."""

from __future__ import annotations

import asyncio
import logging
import pathlib
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from agentic import App, Breaker, Poison, Retry, Retryable, Stream
from agentic.brokers.base import Broker, TopicPartition, TopicSpec
from agentic.runtime.worker import Worker

PARTITIONS = 4
#: Seconds after which a run has failed. Many times what it takes when all is well.
PATIENCE = 30.0
#: Many times what a worker takes ahead, and what it may have unfinished.
COUNT = 3_000
KEYS = 64
RETRY = Retry(attempts=2, first=0.001, max=0.002)
WAYS: dict[str, dict[str, Any]] = {
    "one-at-a-time": {},
    "one-at-a-time-with-retry": {"retry": RETRY},
    "many": {"concurrency": 64, "retry": RETRY},
    "many-in-order": {"concurrency": 64, "retry": RETRY, "emit": "offset"},
    "many-in-any-order": {"concurrency": 64, "retry": RETRY, "order": "none"},
    "as-many-as-it-takes": {"concurrency": "auto", "retry": RETRY},
    "with-a-breaker": {
        "concurrency": 64,
        "retry": RETRY,
        "breaker": Breaker(share=0.3, least=20, window=1.0, pause=0.005),
    },
}


def bad(n: int, share: int) -> bool:
    """Is a number one of those that can't be worked on, by a share in per cent, and evenly spread over the keys?"""
    return n * 37 % 100 < share


def failing(url: str, share: int, delivery: Any, options: dict[str, Any]) -> App:
    """An app that passes numbers on but for the bad ones: of these every second one may be tried again in vain."""
    app = App(
        "failing", broker=url, delivery=delivery, commit_interval=timedelta(milliseconds=20), max_buffered=COUNT // 10
    )
    source, sink, letters = (app.topic(name, value=int) for name in ("in", "out", "letters"))

    @app.agent(source, to=sink, dead_letter=letters, **options)
    async def through(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            await asyncio.sleep(0)
            if bad(n, share):
                raise (Poison if n % 2 else Retryable)(str(n))
            yield n

    return app


async def found(broker: Broker, topic: str) -> Counter[int]:
    """Return how often each number stands in a topic."""
    tps = [TopicPartition(topic, n) for n in range(PARTITIONS)]
    ends = await broker.end_offsets(tps)
    reached = dict.fromkeys(tps, 0)
    reader = broker.reader(reached)
    seen: Counter[int] = Counter()
    while any(reached[tp] < end for tp, end in ends.items()):
        for batch in await reader.poll(1):
            reached[batch.tp] = batch.position
            seen.update(int(value or b"") for value in batch.values)
    await reader.close()
    return seen


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("share", [1, 10, 50])
@pytest.mark.parametrize("way", WAYS)
def test_intake_goes_on_whatever_share_is_poison(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, way: str, share: int, delivery: str
) -> None:
    caplog.set_level(logging.CRITICAL, "agentic.worker")

    async def scenario() -> None:
        worker = Worker(failing(f"local://{tmp_path}", share, delivery, WAYS[way]), transactional_id="only")
        broker = worker.broker
        await broker.open(10)
        await broker.create_topics([TopicSpec(name, PARTITIONS) for name in ("in", "out", "letters")])
        producer = broker.producer()
        for n in range(COUNT):
            producer.send("in", b"%d" % (n % KEYS), b"%d" % n, n, None, n % KEYS % PARTITIONS)
        await producer.flush()
        await producer.close()
        await worker.start()
        ends_or_fails = [asyncio.create_task(each) for each in (worker.used_up(), worker.stopping.wait())]
        _, waits = await asyncio.wait(ends_or_fails, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        assert worker.failure is None
        assert waits == {ends_or_fails[1]}, f"not worked off after {PATIENCE:g} s"
        waits.pop().cancel()
        positions = (await broker.describe_group("failing")).positions
        ends = await broker.end_offsets([TopicPartition("in", n) for n in range(PARTITIONS)])
        assert {tp: at.offset for tp, at in positions.items()} == ends
        numbers = range(COUNT)
        assert await found(broker, "out") == Counter(n for n in numbers if not bad(n, share))
        assert await found(broker, "letters") == Counter(n for n in numbers if bad(n, share))
        await worker.stop()

    asyncio.run(scenario())
