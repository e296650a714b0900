"""What comes after its window was closed: refused, counted and given out as such, or taken as a correction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from window_support import Scene, ms, scene, shown

from agentic import App, Stream
from agentic.core.bursts import BURST
from agentic.testing import TestDriver


def test_a_late_value_comes_out_with_its_window_and_by_how_much() -> None:
    here = scene(lambda table: table.tumbling(ms(10), grace=ms(3)).sum())
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@1", "a 2@12", "a 3@9", "b 4@13", "a 5@9", "b 6@2", "a 7@33", "a 8@19")
        assert here.came(driver, here.late) == [
            # key, value, timestamp, start, end, by
            ["a", 5, 9, 0, 10, 0],
            ["b", 6, 2, 0, 10, 0],
            ["a", 8, 19, 10, 20, 10],
        ]
        assert here.came(driver, here.finals) == [
            ["a", 0, 10, 4, 9],
            ["a", 10, 20, 2, 12],
            ["b", 10, 20, 4, 13],
        ]
        assert driver.dropped == {"late": 3}


def test_a_late_value_has_its_own_key_and_timestamp_where_it_goes() -> None:
    here = scene(lambda table: table.tumbling(ms(10)).count(), key=int)
    with TestDriver(here.app) as driver:
        driver.send(here.source, 1, key=7, timestamp=50)
        driver.send(here.source, 1, key=7, timestamp=3)
        assert [(o.key, o.timestamp) for o in driver.outputs(here.late)] == [(7, 3)]


def test_late_is_counted_for_each_window_that_refuses() -> None:
    here = scene(lambda table: table.hopping(ms(10), every=ms(5)).count())
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@20", "a 1@12", "a 1@17")
        # [5, 15) and [10, 20) are closed; the last is in [15, 25), too.
        assert here.came(driver, here.late) == [
            ["a", 1, 12, 5, 15, 5],
            ["a", 1, 12, 10, 20, 0],
            ["a", 1, 17, 10, 20, 0],
        ]
        assert driver.dropped == {"late": 3}
        here.send(driver, "a 1@50")
        assert here.came(driver, here.finals) == [["a", 15, 25, 2, 20], ["a", 20, 30, 1, 20]]


@pytest.mark.parametrize(
    ("windows", "wanted"),
    [
        (lambda table: table.sliding(ms(10)), ["a", 1, 3, 0, 10, 90]),
        (lambda table: table.session(ms(10)), ["a", 1, 3, 3, 3, 87]),
        (lambda table: table.session(ms(10), grace=ms(5)), ["a", 1, 3, 3, 3, 82]),
    ],
    ids=["sliding", "session", "session-with-grace"],
)
def test_sliding_and_session_windows_count_a_late_value_once(windows: Any, wanted: list[Any]) -> None:
    here = scene(lambda table: windows(table).count())
    with TestDriver(here.app) as driver:
        here.send(driver, "b 1@100", "a 1@3")
        assert here.came(driver, here.late) == [wanted]
        assert driver.dropped == {"late": 1}


def test_lateness_is_judged_by_the_table_and_not_by_the_key() -> None:
    here = scene(lambda table: table.tumbling(ms(10)).count())
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@50", "b 1@3")
        assert driver.dropped == {"late": 1}


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_what_was_late_before_a_restart_is_late_after_it(delivery: str) -> None:
    here = scene(lambda table: table.session(ms(10)).count(), delivery=delivery)
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@0", "a 1@100")
        driver.crash()
        here.send(driver, "a 1@5")
        assert here.came(driver, here.late) == [["a", 1, 5, 5, 5, 85]]
        assert here.came(driver, here.finals) == [["a", 0, 0, 1, 0]]


def test_whoever_reads_late_values_alone_gets_them() -> None:
    app = App("late", topic_partitions=1)
    source = app.topic("in", key=str, value=int)
    views = app.table("views", key=str, value=int).tumbling(ms(10)).count()
    late: list[int] = []

    @app.agent(source)
    async def add(stream: Stream[int]) -> None:
        async for event in stream.events():
            views.add(event.key, event.value)

    @app.agent(views.late)
    async def tell(stream: Stream[Any]) -> None:
        async for each in stream:
            late.append(each.value)

    with TestDriver(app) as driver:
        for value, timestamp in [(1, 5), (2, 50), (3, 5)]:
            driver.send(source, value, key="a", timestamp=timestamp)
    assert late == [3]


# -- late="reopen" --------------------------------------------------------------------------------


def test_a_window_that_is_reopened_and_found_complete_comes_as_a_correction_alone() -> None:
    app = App("late", topic_partitions=1)
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=list)
    views = app.table("views", key=str, value=int).tumbling(ms(10), retention=ms(100), late="reopen").sum()

    @app.agent(source)
    async def add(stream: Stream[int]) -> None:
        async for event in stream.events():
            views.add(event.key, event.value)

    @app.agent(views.emit_final(on_close=lambda window: window.value > 1), to=out)
    async def closed(stream: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            yield shown(window)

    with TestDriver(app) as driver:
        for key, value, timestamp in [("a", 1, 1), ("b", 0, 20), ("a", 1, 2), ("a", 1, 3)]:
            driver.send(source, value, key=key, timestamp=timestamp)
        came = [output.value for output in driver.outputs(out)]
        assert came == [["a", 0, 10, 1, 1], ["a", 0, 10, 2, 2, "correction"]]
        assert driver.dropped == {"late": 1}


def test_a_window_that_is_reopened_before_a_burst_comes_to_it_comes_once_as_it_is_then() -> None:
    app = App("late", topic_partitions=1)
    source, out = app.topic("in", key=str, value=list), app.topic("out", key=str, value=list)
    views = app.table("views", key=str, value=int).tumbling(ms(10), retention=ms(100), late="reopen").sum()
    came: list[str] = []
    begun: list[int] = []

    @app.agent(source)
    async def add(stream: Stream[list[Any]]) -> None:
        async for steps in stream:
            begun.append(len(came))
            for key, value, timestamp in steps:
                views.add(key, value, timestamp)

    @app.agent(views.emit_final(), to=out)
    async def closed(stream: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            # Slowly, so that the next event of the source begins meanwhile.
            await asyncio.sleep(0)
            came.append(window.key)
            yield shown(window)

    async def send() -> None:
        many = [[f"{n:04}", 1, start] for n in range(BURST + 100) for start in (0, 10)]
        again = [[key, 2, start] for key in ("0000", "0550", "none") for start in (0, 10)]
        for steps in [many, [["z", 1, 20]], again]:
            await source.send(steps, key="s", timestamp=0)

    with TestDriver(app) as driver:
        driver.run(send())
        assert 0 < begun[-1] < BURST
        found = [output.value for output in driver.outputs(out)]
        # Of the first windows a burst is under way; the second ones have their turn after it.
        assert [[row for row in found if row[0] == key] for key in ("0000", "0550", "none")] == [
            [["0000", 0, 10, 1, 0], ["0000", 0, 10, 3, 0, "correction"], ["0000", 10, 20, 3, 10]],
            [["0550", 0, 10, 3, 0], ["0550", 10, 20, 3, 10]],
            [["none", 0, 10, 2, 0, "correction"], ["none", 10, 20, 2, 10]],
        ]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_window_that_is_still_kept_is_reopened_and_comes_again_as_a_correction(delivery: str) -> None:
    here = scene(lambda table: table.tumbling(ms(10), retention=ms(30), late="reopen").sum(), delivery=delivery)
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@5", "b 0@15")
        driver.crash()
        here.send(driver, "a 2@6")
        driver.crash()
        here.send(driver, "a 4@4")
        assert here.came(driver, here.finals) == [
            ["a", 0, 10, 1, 5],
            ["a", 0, 10, 3, 6, "correction"],
            ["a", 0, 10, 7, 6, "correction"],
        ]
        assert driver.dropped == {}
        # Kept for 30 from its start: at 29 it is reopened still, from 30 on no more.
        here.send(driver, "b 0@29", "a 8@5", "b 0@30", "a 16@5")
        assert here.came(driver, here.finals) == [
            ["b", 10, 20, 0, 15],
            ["a", 0, 10, 15, 6, "correction"],
            ["b", 20, 30, 0, 29],
        ]
        assert here.came(driver, here.late) == [["a", 16, 5, 0, 10, 20]]
        assert driver.dropped == {"late": 1}


@pytest.mark.parametrize("kind", ["tumbling", "sliding"])
def test_windows_that_were_forgotten_before_they_could_be_reopened_stay_closed(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def declared(**options: Any) -> Scene:
        return scene(lambda table: getattr(table, kind)(ms(10), **options).sum(), delivery="exactly_once")

    before, after = declared(), declared(retention=ms(1000), late="reopen")
    with TestDriver(before.app) as driver:
        before.send(driver, "a 1@105", "b 0@205")
        driver.app = after.app
        driver.crash()
        assert "keeps windows for longer than before" in caplog.text
        after.came(driver, after.finals)
        after.send(driver, "a 2@106")
        assert after.came(driver, after.finals) == []
        assert driver.dropped["late"] > 0
        after.send(driver, "c 1@305", "b 0@405")
        driver.crash()
        after.came(driver, after.finals)
        after.send(driver, "c 2@305")
        assert "correction" in after.came(driver, after.finals)[0]


def test_without_more_retention_than_needed_nothing_is_reopened() -> None:
    here = scene(lambda table: table.tumbling(ms(10), grace=ms(5), late="reopen").sum())
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@5", "b 0@14", "a 2@5", "b 0@15", "a 4@5")
        assert here.came(driver, here.finals) == [["a", 0, 10, 3, 5]]
        assert here.came(driver, here.late) == [["a", 4, 5, 0, 10, 0]]


def test_a_window_is_kept_as_long_as_its_retention_says_and_no_longer() -> None:
    seen: list[list[int]] = []

    def add(views: Any, event: Any) -> None:
        views.add(event.key, 1)
        seen.append([window.start for window in views["a"]])

    here = scene(lambda table: table.tumbling(ms(10), retention=ms(40)).count(), add)
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@5", "a 1@39", "a 1@40", "a 1@41", "a 1@500", "a 1@501")
    # A row is removed with the event that makes it unneeded, so the next one sees that.
    assert seen == [[0], [30, 0], [40, 30, 0], [40, 30], [500, 40, 30], [500]]
