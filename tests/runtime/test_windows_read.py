"""Reading windows inside of an event: by key, by time, over all keys; and what a windowed table is not."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from window_support import ms, scene

from agentic import App, Stream
from agentic.errors import TableUnavailable
from agentic.runtime.operators import SWEEP
from agentic.stream import Event
from agentic.testing import TestDriver
from agentic.windows import WindowedTable


def tumbling(**options: Any) -> Callable[[Any], WindowedTable[Any, Any]]:
    return lambda table: table.tumbling(ms(10), **options).count()


def test_an_event_sees_its_own_writes_over_those_before() -> None:
    seen: list[Any] = []

    def add(views: WindowedTable[Any, Any], event: Event) -> None:
        views.add("a", 1, timestamp=event.timestamp)
        views.add("b", 1, timestamp=event.timestamp + 10)
        seen.append(
            (
                [(w.start, w.value) for w in views.fetch("a", 10, 20)],
                [(w.start, w.value) for w in views["b"]],
                [(w.key, w.start, w.value) for w in views.all()],
                [(w.key, w.start) for w in views.all(20, 20)],
                [(w.key, w.end) for w in views.sessions(20, 30)],
                "c" in views,
                views.get("c", "none"),
            )
        )

    here = scene(tumbling(grace=ms(100)), add, check_keys=False)
    with TestDriver(here.app) as driver:
        here.send(driver, "x 1@15")
        driver.crash()
        here.send(driver, "x 1@5", "x 1@15")
    assert seen == [
        (
            [(10, 1)],
            [(20, 1)],
            [("a", 10, 1), ("b", 20, 1)],
            [("b", 20)],
            [("a", 20), ("b", 30)],
            False,
            "none",
        ),
        (
            [(10, 1)],
            [(20, 1), (10, 1)],
            [("a", 0, 1), ("a", 10, 1), ("b", 10, 1), ("b", 20, 1)],
            [("b", 20)],
            [("a", 20), ("b", 20), ("b", 30)],
            False,
            "none",
        ),
        (
            [(10, 2)],
            [(20, 2), (10, 1)],
            [("a", 0, 1), ("a", 10, 2), ("b", 10, 1), ("b", 20, 2)],
            [("b", 20)],
            [("a", 20), ("b", 20), ("b", 30)],
            False,
            "none",
        ),
    ]


def test_sessions_are_found_by_their_ends_over_all_keys() -> None:
    seen: list[Any] = []

    def add(views: WindowedTable[Any, Any], event: Event) -> None:
        views.add(event.key, event.value)
        seen[:] = [(w.end, w.start, w.key, w.value) for w in views.sessions(5, 30)]
        assert [w.start for w in views[event.key]] == sorted((w.start for w in views[event.key]), reverse=True)

    here = scene(lambda table: table.session(ms(10), grace=ms(1000)).count(), add)
    with TestDriver(here.app) as driver:
        here.send(driver, "c 1@20", "b 1@4", "a 1@12", "b 1@13", "a 1@20", "b 1@30", "z 1@4", "z 1@31")
    assert seen == [(13, 4, "b", 2), (20, 12, "a", 2), (20, 20, "c", 1), (30, 30, "b", 1)]


def test_reading_takes_timestamps_as_datetimes_and_no_others() -> None:
    def add(views: WindowedTable[Any, Any], event: Event) -> None:
        views.add(event.key, 1)
        epoch = datetime.fromtimestamp(0, UTC)
        found = views.fetch("a", epoch, datetime.now(UTC))
        assert [(w.start_time, w.end_time) for w in found] == [(epoch, epoch + ms(10))]
        assert views.fetch("a", 10, 5) == []
        with pytest.raises(ValueError, match="negative"):
            views.fetch("a", -5, 10)
        with pytest.raises(ValueError, match="negative"):
            views.add("a", 1, timestamp=-1)
        with pytest.raises(ValueError, match="time zone"):
            views.add("a", 1, timestamp=datetime(2020, 1, 1))

    here = scene(tumbling(), add)
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@5")


@pytest.mark.parametrize(
    "use",
    [
        lambda views: views.__setitem__("a", 1),
        lambda views: operator.setitem(views, "a", operator.iadd(views["a"], 1)),
        lambda views: views.__delitem__("a"),
        lambda views: views.pop("a"),
        lambda views: views.setdefault("a", 1),
        iter,
        reversed,
        lambda views: views.items(),
        lambda views: views.keys(),
        lambda views: views.values(),
        lambda views: views.range("a"),
        lambda views: views.prefix("a"),
    ],
)
def test_a_windowed_table_is_no_mapping_and_says_what_to_write(use: Callable[[Any], object]) -> None:
    def add(views: WindowedTable[Any, Any], event: Event) -> None:
        with pytest.raises(TypeError, match=r"table 'views' has windows, and is no plain mapping: .*(add|all)\("):
            use(views)

    here = scene(tumbling(), add)
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@5")


def test_outside_of_an_event_nothing_is_added_or_read() -> None:
    app = App("outside", topic_partitions=1)
    source = app.topic("in", key=str)
    views = app.table("views", key=str, value=int).tumbling(ms(10)).count()
    refused: list[Any] = []

    @app.agent(source)
    async def add(stream: Stream[Any]) -> None:
        for use in (
            lambda: views.add("a", 1, timestamp=5),
            lambda: views["a"],
            lambda: views.fetch("a", 0, 5),
            lambda: views.all(),
            lambda: views.sessions(0, 5),
        ):
            with pytest.raises(TableUnavailable, match="inside") as error:
                use()
            refused.append(error.value)
        async for _ in stream:
            pass

    with TestDriver(app):
        pass
    assert len(refused) == 5


def test_a_window_that_is_forgotten_is_in_no_answer_though_many_were_closed_with_it() -> None:
    keys = SWEEP + 500

    def add(views: WindowedTable[Any, Any], event: Event) -> None:
        for n in range(keys if event.value else 1):
            views.add(str(n), 1)
        read.append((len(views.all()), sorted({window.start for window in views["7"]})))

    read: list[tuple[int, list[int]]] = []
    here = scene(lambda table: table.tumbling(ms(10)).count(), add, updates=False)
    with TestDriver(here.app) as driver:
        # The third event closes them, and the fourth comes when they have been given out.
        here.send(driver, "a 1@1", "a 1@2", "a @25", "a @26")
        assert len(here.came(driver, here.finals)) == keys
    assert read == [(keys, [0]), (keys, [0]), (keys + 1, [0]), (1, [])]
