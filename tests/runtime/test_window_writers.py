"""Who adds to a windowed table: several agents, concurrent ones, threads, those that read another table's results.

Whatever the order in which events are done, none is lost: it is in its window's final result, or counted as late.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from window_support import ms, scene, shown

from agentic import App, Stream, Topic
from agentic.errors import AgentFailed, TableUnavailable
from agentic.stream import Event
from agentic.testing import TestDriver
from agentic.windows import WindowedTable

Windows = Callable[[Any], WindowedTable[Any, Any]]


def tumbling(table: Any) -> WindowedTable[Any, Any]:
    counted: WindowedTable[Any, Any] = table.tumbling(ms(10)).count()
    return counted


def two_agents(windows: Windows) -> tuple[App, Topic[Any, Any], Topic[Any, Any], Topic[Any, Any]]:
    """An app with two agents that add to one table; the first one takes five seconds for each event."""
    app = App("two", topic_partitions=1)
    slow, fast, out = app.topic("slow", key=str), app.topic("fast", key=str), app.topic("out", key=str, value=list)
    views = windows(app.table("views", key=str, value=int))

    @app.agent(slow)
    async def slowly(stream: Stream[Any]) -> None:
        async for event in stream.events():
            views.add(event.key, 1)
            await asyncio.sleep(5)

    @app.agent(fast)
    async def at_once(stream: Stream[Any]) -> None:
        async for event in stream.events():
            views.add(event.key, 1)

    @app.agent(views.emit_final(), to=out)
    async def closed(stream: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            yield shown(window)[:4]

    return app, slow, fast, out


@pytest.mark.parametrize("other", ["k", "j"], ids=["of-one-key", "of-two-keys"])
def test_an_event_under_way_while_another_agent_moves_the_time_is_in_its_window(other: str) -> None:
    app, slow, fast, out = two_agents(tumbling)
    with TestDriver(app) as driver:
        driver.send(slow, 1, key="k", timestamp=5)
        driver.send(fast, 1, key=other, timestamp=6)
        driver.send(fast, 1, key=other, timestamp=100)
        driver.advance(10)
        driver.send(fast, 1, key=other, timestamp=200)
        found = {(o.value[0], o.value[1]): o.value[3] for o in driver.outputs(out)}
        assert driver.dropped == {}
    wanted = {("k", 0): 2, ("k", 100): 1} if other == "k" else {("j", 0): 1, ("k", 0): 1, ("j", 100): 1}
    assert found == wanted


@pytest.mark.parametrize(
    ("windows", "wanted"),
    [
        (lambda table: table.session(ms(10)).count(), [["k", 0, 5, 2]]),
        (lambda table: table.sliding(ms(10)).count(), [["k", 10, 20, 1], ["k", 15, 25, 2], ["k", 21, 31, 1]]),
    ],
    ids=["session", "sliding"],
)
def test_windows_that_two_agents_make_side_by_side_know_of_each_other(windows: Windows, wanted: list[Any]) -> None:
    app, slow, fast, out = two_agents(windows)
    first = wanted[0][2]
    with TestDriver(app) as driver:
        driver.send(slow, 1, key="k", timestamp=first if first > 5 else 0)
        driver.send(fast, 1, key="k", timestamp=first + 5 if first > 5 else 5)
        driver.advance(10)
        driver.send(fast, 1, key="z", timestamp=200)
        assert [o.value for o in driver.outputs(out)] == wanted
        assert driver.dropped == {}


@pytest.mark.parametrize(
    ("base", "offset"), [(0, 0), (0, 10**6), (10**9, -(10**6))], ids=["the-events-own", "later", "earlier"]
)
def test_a_concurrent_agent_may_add_by_another_time_than_its_events(base: int, offset: int) -> None:
    here = scene(
        tumbling,
        lambda views, event: views.add(event.key, 1, timestamp=event.timestamp + offset),
        agent={"concurrency": 8},
        pause=lambda event: event.value / 10,
    )
    at = base + offset
    with TestDriver(here.app) as driver:
        for key, value, timestamp in [("a", 90, 5), ("b", 10, 6), ("c", 10, 100)]:
            driver.send(here.source, value, key=key, timestamp=base + timestamp)
        driver.advance(5)
        assert here.came(driver, here.finals) == []
        driver.advance(10)
        driver.send(here.source, 0, key="d", timestamp=base + 200)
        driver.advance(10)
        assert [each[:2] for each in here.came(driver, here.finals)] == [["a", at], ["b", at], ["c", at + 100]]
        assert driver.dropped == {}


@pytest.mark.parametrize("emit", ["completion", "offset"])
def test_it_is_the_same_whether_effects_leave_at_completion_or_in_order(emit: str) -> None:
    here = scene(tumbling, agent={"concurrency": 8, "emit": emit}, pause=lambda event: event.value / 10)
    with TestDriver(here.app) as driver:
        here.send(driver, "a 90@5", "b 10@6", "c 10@100")
        driver.advance(15)
        here.send(driver, "d 0@3")
        driver.send(here.source, 0, key=None, timestamp=500)
        here.send(driver, "d 0@200")
        driver.advance(15)
        assert [each[:4] for each in here.came(driver, here.finals)] == [
            ["a", 0, 10, 1],
            ["b", 0, 10, 1],
            ["c", 100, 110, 1],
        ]
        assert here.came(driver, here.late) == [["d", 0, 3, 0, 10, 90]]
        assert sorted(each[0] for each in here.came(driver, here.updates)) == ["a", "b", "c", "d"]
        assert driver.dropped == {"late": 1, "null_key": 1}


def test_a_crash_makes_no_event_late_that_was_under_way_when_a_later_one_was_done() -> None:
    here = scene(tumbling, agent={"concurrency": 8}, pause=lambda event: float(event.value), delivery="exactly_once")
    with TestDriver(here.app) as driver:
        here.send(driver, "a 9@5", "b 0@6", "c 0@100")
        driver.crash()
        driver.advance(10)
        here.send(driver, "c 0@200")
        assert [each[:2] for each in here.came(driver, here.finals)] == [["a", 0], ["b", 0], ["c", 100]]
        assert driver.dropped == {}


def test_a_thread_adds_and_reads() -> None:
    app = App("threads", topic_partitions=1)
    source, out = app.topic("in", key=str), app.topic("out", key=str, value=list)
    views = app.table("views", key=str, value=int).tumbling(ms(10)).count()
    seen: list[Any] = []

    @app.agent(source, threads=True)
    def add(stream: Any) -> None:
        for event in stream.events():
            views.add(event.key, 1)
            views.add_many([event])
            found = (views["a"], views.fetch("a", 0, 100), views.all(), views.sessions(0, 100))
            seen.append([[shown(window)[:4] for window in windows] for windows in found])

    @app.agent(views.emit_final(), to=out)
    async def closed(stream: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            yield shown(window)

    with TestDriver(app) as driver:
        driver.send(source, 1, key="a", timestamp=5)
        driver.send(source, 1, key="a", timestamp=50)
        assert [o.value for o in driver.outputs(out)] == [["a", 0, 10, 2, 5]]
    assert seen[0] == [[["a", 0, 10, 2]]] * 4


@pytest.mark.parametrize("concurrency", [1, 8])
def test_results_of_a_table_are_added_to_another_that_nothing_else_fills(concurrency: int) -> None:
    app = App("chain", topic_partitions=1)
    source, out = app.topic("in", key=str), app.topic("out", key=str, value=list)
    small = app.table("small", key=str, value=int).tumbling(ms(10)).count()
    large = app.table("large", key=str, value=int).tumbling(ms(10)).sum()

    @app.agent(source)
    async def add(stream: Stream[Any]) -> None:
        async for event in stream.events():
            small.add(event.key, 1)

    @app.agent(small.emit_final(), concurrency=concurrency)
    async def further(stream: Stream[Any]) -> None:
        async for window in stream:
            await asyncio.sleep(9 if window.key == "a" else 1)
            large.add(window.key, window.value, timestamp=window.start)

    @app.agent(large.emit_final(), to=out)
    async def closed(stream: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            yield shown(window)[:4]

    with TestDriver(app) as driver:
        # All come out at once: what is made of a's result is done after that of the later ones.
        driver.run(_send_all(source, [("a", 5), ("b", 16), ("c", 26), ("c", 126)]))
        driver.advance(60)
        driver.send(source, 0, key="d", timestamp=226)
        driver.advance(60)
        driver.send(source, 0, key="d", timestamp=326)
        driver.advance(60)
        assert [o.value for o in driver.outputs(out)][:4] == [
            ["a", 0, 10, 1],
            ["b", 10, 20, 1],
            ["c", 20, 30, 1],
            ["c", 120, 130, 1],
        ]
        assert driver.dropped == {}


async def _send_all(topic: Topic[Any, Any], records: list[tuple[str, int]]) -> None:
    for key, timestamp in records:
        await topic.send(1, key=key, timestamp=timestamp)


def test_a_batch_is_taken_inside_of_an_event_only() -> None:
    app = App("outside", topic_partitions=1)
    source = app.topic("in", key=str)
    views = app.table("views", key=str, value=int).tumbling(ms(10)).count()

    @app.agent(source)
    async def add(stream: Stream[Any]) -> None:
        last: list[Event] = []
        async for event in stream.events():
            last.append(event)
            break
        await asyncio.sleep(0)
        async for _ in stream:
            pass
        views.add_many(last)

    with TestDriver(app) as driver:
        driver.send(source, 1, key="a", timestamp=5)

    async def before(stream: Stream[Any]) -> None:
        views.add_many([])
        async for _ in stream:
            pass

    other = App("before", topic_partitions=1)
    source = other.topic("in", key=str)
    views = other.table("views", key=str, value=int).tumbling(ms(10)).count()
    other.agent(source, tables=[views])(before)
    with pytest.raises(AgentFailed) as failure, TestDriver(other):
        pass
    assert isinstance(failure.value.__cause__, TableUnavailable)


def test_a_rejected_event_has_added_nothing() -> None:
    app = App("rejecting", topic_partitions=1, dead_letter="letters")
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=list)
    app.topic("letters")
    views = app.table("views", key=str, value=int).tumbling(ms(10)).count()

    @app.agent(source)
    async def add(stream: Stream[int]) -> None:
        async for event in stream.events():
            views.add(event.key, event.value)
            if event.value < 0:
                stream.reject("negative")

    @app.agent(views.emit_final(), to=out)
    async def closed(stream: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            yield shown(window)

    with TestDriver(app) as driver:
        for value, timestamp in [(1, 5), (-1, 500), (2, 6), (3, 20)]:
            driver.send(source, value, key="a", timestamp=timestamp)
        assert [o.value for o in driver.outputs(out)] == [["a", 0, 10, 2, 6]]
        assert driver.dropped == {"rejected": 1}


def test_events_that_are_tried_again_add_once() -> None:
    from agentic import Retry

    tried: list[int] = []

    def add(views: WindowedTable[Any, Any], event: Event) -> None:
        views.add(event.key, 1)
        tried.append(event.value)
        if tried.count(event.value) < 3:
            raise ValueError("not yet")

    here = scene(tumbling, add, agent={"retry": Retry(attempts=5, first=1.0)})
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@5", "b 2@50")
        assert here.came(driver, here.finals) == []
        driver.advance(60)
        assert here.came(driver, here.finals) == [["a", 0, 10, 1, 5]]
        assert driver.dropped == {}
