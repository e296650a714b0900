"""Agents that await between what they put into windows, or go on after a value was refused: no other is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from window_support import ms, scene, shown

from agentic import App, Stream
from agentic.core.bursts import BURST
from agentic.errors import CodecError
from agentic.stream import Event
from agentic.testing import TestDriver
from agentic.windows import WindowedTable

#: The value of an event that awaits with what it has added in hand, and then fails.
FAILS_LATER = 13


def test_whoever_looks_for_the_next_window_while_an_event_is_at_work_takes_nothing_away_if_it_fails() -> None:
    app = App("awaiting", topic_partitions=1, on_error="skip")
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=list)
    views = app.table("views", key=str, value=int).session(ms(10)).count()

    @app.agent(source)
    async def add(stream: Stream[int]) -> None:
        async for event in stream.events():
            views.add(event.key, event.value)
            if event.value == FAILS_LATER:
                await asyncio.sleep(1)
                raise ValueError("as asked")

    @app.agent(views.emit_final(), to=out)
    async def closed(stream: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            yield shown(window)

    with TestDriver(app) as driver:
        # A session that has grown, then one that is growing: its first state is to be the next to close.
        for key, value, timestamp in [("b", 1, 100), ("b", 1, 105), ("a", 1, 99), ("a", FAILS_LATER, 101)]:
            driver.send(source, value, key=key, timestamp=timestamp)
        assert app.metrics.total("windows_open") == 2
        driver.advance(2)
        assert app.metrics.total("windows_open") == 2
        driver.send(source, 1, key="z", timestamp=1000)
        assert [output.value for output in driver.outputs(out)] == [["a", 99, 99, 1, 99], ["b", 100, 105, 2, 105]]


def test_an_event_that_fails_after_a_burst_has_ended_beside_it_leaves_its_window_to_come_out_in_time() -> None:
    app = App("awaiting", topic_partitions=1, on_error="skip")
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=list)
    views = app.table("views", key=str, value=int).session(ms(10)).sum()
    came: list[str] = []
    at_work: list[int] = []

    @app.agent(source)
    async def add(stream: Stream[int]) -> None:
        async for event in stream.events():
            views.add(event.key, event.value)
            if event.key == "many":
                for n in range(BURST + 100):
                    views.add(f"{n:04}", 1)
            if event.value == FAILS_LATER:
                at_work.append(len(came))
                await asyncio.sleep(1)
                raise ValueError("as asked")

    @app.agent(views.emit_final(), to=out)
    async def closed(stream: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            # Slowly, so that the next event of the source begins meanwhile.
            await asyncio.sleep(0)
            came.append(window.key)
            yield shown(window)

    async def send() -> None:
        for key, value, timestamp in [("many", 1, 100), ("a", 1, 150), ("a", FAILS_LATER, 155)]:
            await source.send(value, key=key, timestamp=timestamp)

    with TestDriver(app) as driver:
        driver.run(send())
        assert at_work[0] < BURST < len(came)
        driver.advance(2)
        driver.outputs(out)
        driver.send(source, 1, key="z", timestamp=162)
        assert [output.value for output in driver.outputs(out)] == [["a", 150, 150, 1, 150]]


def test_a_session_is_not_gone_when_what_is_to_become_of_it_is_refused() -> None:
    def add(views: WindowedTable[Any, Any], event: Event) -> None:
        if event.value == FAILS_LATER:
            with pytest.raises(CodecError, match="views"):
                views.add(event.key, event.value)
        else:
            views.add(event.key, event.value)

    def windows(table: Any) -> Any:
        return table.session(ms(10)).reduce(lambda total, n: "thirteen" if n == FAILS_LATER else total + n)

    here = scene(windows, add, value=int)
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@1", f"a {FAILS_LATER}@5", "a 2@8", "z 1@100")
        assert here.came(driver, here.finals) == [["a", 1, 8, 3, 8]]


def partly_refusing(windows: Callable[[Any], Any], size: int, concurrency: int) -> Any:
    """Windows of which those with `size` values refuse one more that is to fail; the agent goes on all the same."""

    def combine(total: list[int], value: int) -> list[int]:
        if value == FAILS_LATER and len(total) == size:
            raise ValueError("as asked")
        return [*total, value]

    def add(views: WindowedTable[Any, Any], event: Event) -> None:
        try:
            views.add(event.key, event.value)
        except ValueError:
            assert event.value == FAILS_LATER

    return scene(
        lambda table: windows(table).aggregate(list, combine),
        add,
        value=list[int],
        agent={"concurrency": concurrency},
    )


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_value_that_one_of_its_sliding_windows_refuses_is_in_none_of_them(concurrency: int) -> None:
    here = partly_refusing(lambda table: table.sliding(ms(10), grace=ms(50)), 2, concurrency)
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@100", "a 2@103", "a 3@106", f"a {FAILS_LATER}@105", "z 1@1000")
        assert [row[3] for row in here.came(driver, here.finals)] == [[1], [1, 2], [1, 2, 3], [2, 3], [3]]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_value_that_one_of_its_hopping_windows_refuses_is_in_none_of_them(concurrency: int) -> None:
    here = partly_refusing(lambda table: table.hopping(ms(10), every=ms(5), grace=ms(50)), 1, concurrency)
    with TestDriver(here.app) as driver:
        # In [95, 105) there are two values by then, in [100, 110) one.
        here.send(driver, "a 1@96", "a 2@102", f"a {FAILS_LATER}@104", "a 3@106", "z 1@1000")
        assert [row[3] for row in here.came(driver, here.finals)] == [[1], [1, 2], [2, 3], [3]]


@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_there_are_as_many_windows_as_can_be_read(kind: str) -> None:
    def add(views: WindowedTable[Any, Any], event: Event) -> None:
        views.add(event.key, event.value)
        counted.append((len(views), len(views.all())))

    counted: list[tuple[int, int]] = []
    here = scene(lambda table: (table.tumbling(ms(10)) if kind == "tumbling" else table.session(ms(10))).count(), add)
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@1", "b 1@2")
        driver.crash()
        here.send(driver, "a 1@3", "c 1@50")
    assert [n for n, _ in counted] == [1, 2, 2, 3]
    assert all(n == read for n, read in counted)
