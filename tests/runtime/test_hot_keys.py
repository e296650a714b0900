"""One key with very many events: what it keeps waiting, and what not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentic import App, Stream
from agentic.testing import TestDriver

#: Events of the hot key: far more than there are stations, and some of another key behind each hundred.
HOT = 2_500


def app_of(hot_key: Any, done: list[tuple[str, int]]) -> App:
    app = App("hot", topic_partitions=1)
    src, out = app.topic("src", key=str, value=int), app.topic("out", key=str, value=int)

    @app.agent(src, to=out, concurrency=8, hot_key=hot_key)
    async def call(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            await asyncio.sleep(1)
            done.append((stream.event.key, n))
            yield n

    return app


@pytest.mark.parametrize("hot_key", ["park", "wait"])
def test_a_key_with_thousands_of_events_keeps_others_waiting_unless_it_is_parked(hot_key: Any) -> None:
    done: list[tuple[str, int]] = []
    app = app_of(hot_key, done)
    others = 0
    with TestDriver(app) as driver:
        for n in range(HOT):
            driver.send(app.topics["src"], n, key="hot")
            if n % 100 == 99:
                driver.send(app.topics["src"], n, key=f"other-{n}")
                others += 1
        driver.advance(30)
        done_of_others = [n for key, n in done if key != "hot"]
        if hot_key == "park":
            assert len(done_of_others) == others
        else:
            # There is room for 256 events that wait.
            assert done_of_others == [99, 199]


def test_all_events_of_a_parked_key_are_done_once_and_in_order_over_a_crash() -> None:
    app = app_of("park", [])
    with TestDriver(app) as driver:
        for n in range(200):
            driver.send(app.topics["src"], n, key="hot")
        driver.advance(100)
        driver.crash()
        driver.advance(120)
        values = [output.value for output in driver.outputs(app.topics["out"])]
        # What was under way in the crash had not been done.
        assert values == list(range(200))
