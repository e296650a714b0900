"""Streams that go quiet: with idle_after their last windows come out, and what comes after that is late."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support import append, committed, read
from window_support import Scene, ms, scene, shown

from agentic import App, Stream
from agentic.testing import TestDriver

IDLE = ms(100)


def quiet(idle_after: timedelta | None = IDLE, grace: timedelta | None = None, **options: Any) -> Scene:
    return scene(lambda table: table.tumbling(ms(10), grace=grace, idle_after=idle_after).count(), **options)


def test_the_last_window_comes_out_when_the_wall_clock_is_idle_after_beyond_its_end() -> None:
    here = quiet(grace=ms(5))
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@5")
        driver.advance(ms(114))
        assert here.came(driver, here.finals) == []
        driver.advance(ms(1))
        assert here.came(driver, here.finals) == [["a", 0, 10, 1, 5]]


def test_each_record_begins_the_quiet_anew() -> None:
    here = quiet()
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@5")
        driver.advance(ms(90))
        here.send(driver, "a 1@6")
        driver.advance(ms(99))
        assert here.came(driver, here.finals) == []
        driver.advance(ms(1))
        assert here.came(driver, here.finals) == [["a", 0, 10, 2, 6]]


def test_a_null_key_is_a_record_too() -> None:
    here = quiet()
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@5")
        driver.advance(ms(109))
        driver.send(here.source, 1, key=None, timestamp=0)
        driver.advance(ms(99))
        assert here.came(driver, here.finals) == []


def test_what_comes_behind_the_moved_time_is_late_also_after_a_restart() -> None:
    here = quiet(delivery="exactly_once")
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@5", "a 1@14")
        driver.advance(ms(200))
        assert here.came(driver, here.finals) == [["a", 0, 10, 1, 5], ["a", 10, 20, 1, 14]]
        here.send(driver, "a 1@16")
        driver.crash()
        here.send(driver, "a 1@17")
        assert here.came(driver, here.finals) == []
        late = here.came(driver, here.late)
        assert [[value[2], value[3], value[4]] for value in late] == [[16, 10, 20], [17, 10, 20]]
        assert driver.dropped == {"late": 2}


def test_a_crash_before_the_move_is_committed_takes_both_it_and_its_windows_back() -> None:
    here = quiet(delivery="exactly_once")
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@5")
        driver.crash()  # the quiet begins anew with the worker
        driver.advance(ms(109))
        assert here.came(driver, here.finals) == []
        driver.advance(ms(1))
        driver.crash()
        assert here.came(driver, here.finals) == [["a", 0, 10, 1, 5]]


def test_time_that_is_ahead_of_the_wall_clock_is_not_moved() -> None:
    here = quiet()
    with TestDriver(here.app) as driver:
        here.send(driver, "a 1@100000")
        driver.advance(ms(5000))
        here.send(driver, "b 1@100005")
        assert here.came(driver, here.finals) == []
        assert driver.dropped == {}
        driver.advance(ms(95_010 + 100 - 2))
        assert here.came(driver, here.finals) == []
        driver.advance(ms(3))
        assert [each[0] for each in here.came(driver, here.finals)] == ["a", "b"]


def test_a_table_has_its_own_idle_after_and_the_app_one_for_the_others() -> None:
    app = App("several", topic_partitions=1, idle_after=ms(1000))
    source, out = app.topic("in", key=str), app.topic("out", key=str, value=list)
    quick = app.table("quick", key=str, value=int).tumbling(ms(10), idle_after=ms(100)).count()
    plain = app.table("plain", key=str, value=int).tumbling(ms(10)).count()

    @app.agent(source)
    async def add(stream: Stream[Any]) -> None:
        async for event in stream.events():
            quick.add(event.key, 1)
            plain.add(event.key, 1)

    @app.agent(quick.emit_final(), plain.emit_final(), to=out)
    async def closed(stream: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            yield [stream.event.topic, *shown(window)[:4]]

    with TestDriver(app) as driver:
        driver.send(source, 1, key="a", timestamp=5)
        driver.advance(ms(110))
        assert [o.value for o in driver.outputs(out)] == [["final windows of quick", "a", 0, 10, 1]]
        driver.advance(ms(898))
        assert driver.outputs(out) == []
        driver.advance(ms(3))
        assert [o.value for o in driver.outputs(out)] == [["final windows of plain", "a", 0, 10, 1]]


def test_each_task_is_quiet_by_itself() -> None:
    here = quiet(partitions=2)
    with TestDriver(here.app) as driver:
        driver.send(here.source, 1, key="a", timestamp=5, partition=0)
        driver.advance(ms(60))
        driver.send(here.source, 1, key="z", timestamp=5, partition=1)
        driver.advance(ms(50))
        assert [each[0] for each in here.came(driver, here.finals)] == ["a"]
        driver.advance(ms(60))
        assert [each[0] for each in here.came(driver, here.finals)] == ["z"]


@pytest.mark.parametrize("agent", [{}, {"concurrency": 4}], ids=["serial", "concurrent"])
def test_a_task_is_not_quiet_while_a_call_is_under_way(agent: dict[str, Any]) -> None:
    here = quiet(agent=agent, pause=lambda event: float(event.value))
    with TestDriver(here.app) as driver:
        here.send(driver, "a 0@5", "b 30@6")
        driver.advance(29)
        assert here.came(driver, here.finals) == []
        driver.advance(3)
        assert here.came(driver, here.finals) == [["a", 0, 10, 1, 5], ["b", 0, 10, 1, 6]]
        assert driver.dropped == {}


def test_a_task_is_not_quiet_while_an_event_is_put_off() -> None:
    app = App("put-off", topic_partitions=1)
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=list)
    views = app.table("views", key=str, value=int).tumbling(ms(10), idle_after=ms(100)).count()
    seen: list[str] = []

    @app.agent(source)
    async def add(stream: Stream[int]) -> None:
        async for event in stream.events():
            if event.value and event.key not in seen:
                seen.append(event.key)
                stream.defer(timedelta(minutes=5))
            else:
                views.add(event.key, event.value)

    @app.agent(views.emit_final(), to=out)
    async def closed(stream: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            yield shown(window)

    with TestDriver(app) as driver:
        driver.send(source, 0, key="a", timestamp=5)
        driver.send(source, 1, key="b", timestamp=6)
        driver.advance(timedelta(minutes=4))
        assert driver.outputs(out) == []
        driver.crash()
        driver.advance(timedelta(seconds=50))
        assert driver.outputs(out) == []
        driver.advance(timedelta(minutes=2))
        assert [o.value for o in driver.outputs(out)] == [["a", 0, 10, 1, 5], ["b", 0, 10, 1, 6]]
        assert driver.dropped == {}


def test_a_task_is_not_quiet_while_one_of_its_sources_is_behind_in_an_agent() -> None:
    app = App("slow-reader", topic_partitions=1)
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=list)
    views = app.table("views", key=str, value=int).tumbling(ms(10), idle_after=ms(100)).count()

    @app.agent(source)
    async def add(stream: Stream[int]) -> None:
        async for event in stream.events():
            views.add(event.key, event.value)

    @app.agent(source)
    async def beside(stream: Stream[int]) -> None:
        async for _ in stream:
            await asyncio.sleep(20)

    @app.agent(views.emit_final(), to=out)
    async def closed(stream: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            yield shown(window)

    with TestDriver(app) as driver:
        driver.send(source, 0, key="a", timestamp=5)
        driver.advance(19)
        assert driver.outputs(out) == []
        driver.advance(2)
        assert [o.value for o in driver.outputs(out)] == [["a", 0, 10, 1, 5]]


@pytest.mark.parametrize("now", [0, 1_700_000_000_000], ids=["present", "history"])
def test_what_moves_time_closes_windows_of_the_next_table_too(now: int) -> None:
    app = App("chain", topic_partitions=1, idle_after=ms(100))
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=list)
    small = app.table("small", key=str, value=int).tumbling(ms(10)).count()
    large = app.table("large", key=str, value=int).tumbling(ms(30)).sum()

    @app.agent(source)
    async def add(stream: Stream[int]) -> None:
        async for event in stream.events():
            small.add(event.key, event.value)
            large.add(event.key, 0)

    @app.agent(small.emit_final())
    async def further(stream: Stream[Any]) -> None:
        async for window in stream:
            large.add(window.key, window.value, timestamp=window.start)

    @app.agent(large.emit_final(), to=out)
    async def closed(stream: Stream[Any]) -> AsyncIterator[list[Any]]:
        async for window in stream:
            yield shown(window)

    with TestDriver(app, now=now) as driver:
        for timestamp in (5, 6, 14):
            driver.send(source, 1, key="a", timestamp=timestamp)
        driver.advance(1)
        assert [o.value for o in driver.outputs(out)] == [["a", 0, 30, 3, 14]]
        assert driver.dropped == {}


def test_without_idle_after_a_worker_says_once_that_windows_wait(caplog: pytest.LogCaptureFixture) -> None:
    here = quiet(idle_after=None)
    with caplog.at_level(logging.WARNING, "agentic"), TestDriver(here.app) as driver:
        here.send(driver, "a 1@5", "b 1@6")
        driver.advance(29.9)
        assert not caplog.records
        driver.advance(0.2)
        (said,) = [record.getMessage() for record in caplog.records]
        assert "2 windows of table 'views'" in said
        assert "idle_after=" in said
        assert "task in-0" in said
        here.send(driver, "c 1@7")
        driver.advance(3600)
        assert len(caplog.records) == 1
        assert here.came(driver, here.finals) == []


def test_nothing_is_said_of_windows_that_are_not_due(caplog: pytest.LogCaptureFixture) -> None:
    here = quiet(idle_after=None)
    with caplog.at_level(logging.WARNING, "agentic"), TestDriver(here.app) as driver:
        here.send(driver, "a 1@100000")
        driver.advance(60)
        assert not caplog.records
        driver.advance(100)
        assert len(caplog.records) == 1


@pytest.mark.parametrize("option", ["of-the-table", "of-the-app"])
def test_with_idle_after_nothing_is_said(caplog: pytest.LogCaptureFixture, option: str) -> None:
    of_app = scene(lambda table: table.tumbling(ms(10)).count(), idle_after=ms(100))
    here = quiet() if option == "of-the-table" else of_app
    with caplog.at_level(logging.WARNING, "agentic"), TestDriver(here.app) as driver:
        here.send(driver, "a 1@5")
        driver.advance(3600)
        assert not caplog.records


def test_run_closes_a_table_before_the_one_that_its_results_are_added_to(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(CHAINED)
    append(tmp_path, "words", [b"a", b"b", b"a"])
    assert run(tmp_path) == [b'["a",2]', b'["b",1]']


COUNTING = """
from datetime import timedelta
from agentic import App

app = App("counting")
words = app.topic("words", value=str, partitions=1)
out = app.topic("out", value=list, partitions=1)
views = app.table("views", key=str, value=int, check_keys=False).tumbling(timedelta(minutes=1), IDLE).count()

@app.agent(words)
async def count(stream):
    async for word in stream:
        views.add(word, 1)

@app.agent(views.emit_final(), to=out)
async def closed(windows):
    async for w in windows:
        yield [w.key, w.value]
"""


@pytest.mark.parametrize(
    ("idle", "came"),
    [("idle_after=timedelta(days=1)", [b'["a",2]', b'["b",1]']), ("grace=timedelta(0)", [])],
    ids=["with-idle-after", "without"],
)
def test_run_closes_what_idle_after_would(tmp_path: Path, idle: str, came: list[bytes]) -> None:
    (tmp_path / "module.py").write_text(COUNTING.replace("IDLE", idle))
    append(tmp_path, "words", [b"a", b"b", b"a"])
    for _ in range(2):
        assert run(tmp_path) == came
    assert committed(tmp_path, "counting", "words") == 3


CHAINED = """
from datetime import timedelta
from agentic import App

app = App("chained", idle_after=timedelta(days=1))
words = app.topic("words", value=str, partitions=1)
out = app.topic("out", value=list, partitions=1)
small = app.table("small", key=str, value=int, check_keys=False).tumbling(timedelta(minutes=1)).count()
large = app.table("large", key=str, value=int, check_keys=False).tumbling(timedelta(hours=1)).sum()

@app.agent(words)
async def count(stream):
    async for word in stream:
        small.add(word, 1)
        large.add(word, 0)

@app.agent(small.emit_final())
async def further(windows):
    async for w in windows:
        large.add(w.key, w.value, timestamp=w.start)

@app.agent(large.emit_final(), to=out)
async def closed(windows):
    async for w in windows:
        yield [w.key, w.value]
"""


def run(directory: Path) -> list[bytes | None]:
    """Let an app's input be used up; return what it has sent by then."""
    command = [sys.executable, "-m", "agentic", "-A", "module", "run", "--broker", f"local://{directory / 'log'}"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return read(directory, "out")
