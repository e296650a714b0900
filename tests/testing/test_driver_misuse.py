"""The TestDriver where it is used wrongly, or drives an app that does not come to rest: it says so, and soon."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from agentic import App, Stream
from agentic.brokers.embedded.consumer import EmbeddedConsumer
from agentic.errors import AgentFailed, BrokerError, TaskFailed
from agentic.testing import TestDriver

#: Real seconds that what is outside gets in these tests.
LITTLE = 0.1


async def nothing(value: int) -> None:
    pass


async def fail(value: int) -> None:
    raise ValueError(value)


def reading(work: Callable[[int], Awaitable[None]] = nothing) -> tuple[App, Any]:
    app = App("reading")
    source = app.topic("source", value=int)

    @app.agent(source)
    async def read(stream: Stream[int]) -> None:
        async for value in stream:
            await work(value)

    return app, source


@pytest.fixture
def server() -> Iterator[Any]:
    """The address of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()


async def silence(address: Any) -> None:
    """Wait for what a server says that says nothing."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        await reader.read()
    finally:
        writer.close()


# -- what does not come to rest -------------------------------------------------------------------


def test_an_agent_that_waits_for_a_socket_is_told_of_with_its_address(server: Any) -> None:
    async def ask(value: int) -> None:
        await silence(server)

    app, source = reading(ask)
    words = rf"for 0.1 real seconds it waited for a socket connected to .*{server[1]}"
    with TestDriver(app, patience=LITTLE) as driver, pytest.raises(RuntimeError, match=words):
        driver.send(source, 1)


def test_a_connection_that_only_stays_open_is_told_of_as_well(server: Any) -> None:
    app, _ = reading()

    @app.lifespan
    async def around() -> AsyncIterator[None]:
        _, writer = await asyncio.open_connection(*server)
        yield
        writer.close()

    with pytest.raises(RuntimeError, match="a socket connected to"), TestDriver(app, patience=LITTLE):
        pass


def test_a_start_that_fails_leaves_the_lifespan_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = reading()
    steps: list[str] = []

    @app.lifespan
    async def around() -> AsyncIterator[None]:
        steps.append("entered")
        yield
        steps.append("left")

    async def refuse(self: EmbeddedConsumer, listener: Any) -> None:
        raise BrokerError("no luck")

    monkeypatch.setattr(EmbeddedConsumer, "start", refuse)
    with pytest.raises(BrokerError, match="no luck"), TestDriver(app):
        pass
    assert steps == ["entered", "left"]


def test_a_thread_that_does_not_end_is_told_of_by_its_function() -> None:
    blocked = threading.Event()

    async def block(value: int) -> None:
        await asyncio.to_thread(blocked.wait)

    app, source = reading(block)
    try:
        words = r"it waited for a thread that runs Event\.wait; .*patience="
        with TestDriver(app, patience=LITTLE) as driver, pytest.raises(RuntimeError, match=words):
            driver.send(source, 1)
    finally:
        blocked.set()


def test_what_was_waited_for_in_vain_is_said_again_by_later_calls(server: Any) -> None:
    async def ask(value: int) -> None:
        await silence(server)

    app, source = reading(ask)
    with TestDriver(app, patience=LITTLE) as driver:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="a socket connected to"):
                driver.send(source, 1)


def test_a_thread_that_ends_is_waited_for() -> None:
    done: list[int] = []

    async def work(value: int) -> None:
        done.append(await asyncio.to_thread(lambda: value + 1))

    app, source = reading(work)
    with TestDriver(app) as driver:
        driver.send(source, 1)
        assert done == [2]


def test_an_app_that_goes_on_without_end_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentic.testing.loop.TURNS", 1_000)
    app, _ = reading()

    @app.task
    async def busy() -> None:
        while True:  # noqa: ASYNC110 - that is what is to be found
            await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match=r"does not come to rest: of .*task 'busy'.*goes on and on"), TestDriver(app):
        pass


def test_a_timer_that_fires_often_is_no_endless_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentic.testing.loop.TURNS", 1_000)
    app, _ = reading()
    ticks = []

    @app.task
    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(1)

    with TestDriver(app) as driver:
        driver.advance(5_000)
        assert len(ticks) == 5_000


def test_a_lifespan_that_never_ends_is_told_of() -> None:
    app, _ = reading()

    @app.lifespan
    async def around() -> AsyncIterator[None]:
        yield
        await asyncio.Event().wait()

    with pytest.raises(TaskFailed, match="the app's lifespan did not end within 30 s"), TestDriver(app):
        pass


# -- failures -------------------------------------------------------------------------------------


def test_a_lifespan_that_fails_on_exit_fails_the_test() -> None:
    app, source = reading()

    @app.lifespan
    async def around() -> AsyncIterator[None]:
        yield
        raise RuntimeError("no luck")

    driver = TestDriver(app)
    with pytest.raises(TaskFailed, match="the app's lifespan failed on exit: RuntimeError: no luck"), driver:
        driver.send(source, 1)


def test_what_the_test_raised_is_not_hidden_by_the_exit() -> None:
    app, _ = reading()

    @app.lifespan
    async def around() -> AsyncIterator[None]:
        yield
        raise RuntimeError("no luck")

    with pytest.raises(AssertionError, match="the test's own"), TestDriver(app):
        raise AssertionError("the test's own")


def test_after_a_failure_each_call_raises_it_again_and_a_crash_begins_anew() -> None:
    fails = [True]

    async def fail_once(value: int) -> None:
        if fails:
            raise ValueError(value)

    app, source = reading(fail_once)
    with TestDriver(app) as driver:
        with pytest.raises(AgentFailed, match="ValueError: 1") as first:
            driver.send(source, 1)
        calls: list[Callable[[], object]] = [
            lambda: driver.send(source, 2),
            lambda: driver.send_raw(source, b"2"),
            lambda: driver.advance(1),
            lambda: driver.run(source.send(2)),
            lambda: driver.stream_time(source),
        ]
        for call in calls:
            with pytest.raises(AgentFailed) as again:
                call()
            assert again.value is first.value
        assert [out.value for out in driver.outputs(source)] == [1], "none of these calls has sent anything"
        fails.clear()
        driver.crash()
        driver.send(source, 3)


def test_a_failure_that_the_test_has_met_is_not_raised_by_the_exit() -> None:
    app, source = reading(fail)
    with TestDriver(app) as driver, pytest.raises(AgentFailed):
        driver.send(source, 1)


# -- misuse ---------------------------------------------------------------------------------------


def calls_of(driver: TestDriver, topic: Any) -> list[Callable[[], object]]:
    return [
        lambda: driver.send(topic, 1),
        lambda: driver.send_raw(topic, b"1"),
        lambda: driver.advance(1),
        lambda: driver.run(topic.send(1)),
        lambda: driver.outputs(topic),
        lambda: driver.stream_time(topic),
        driver.crash,
    ]


def test_a_driver_that_has_not_begun_says_how_to_begin() -> None:
    app, source = reading()
    for call in calls_of(TestDriver(app), source):
        with pytest.raises(RuntimeError, match="has not begun; write: with TestDriver"):
            call()


def test_a_driver_that_has_ended_says_so() -> None:
    app, source = reading()
    with TestDriver(app) as driver:
        pass
    for call in calls_of(driver, source):
        with pytest.raises(RuntimeError, match="has ended"):
            call()


def test_a_driver_serves_once() -> None:
    app, _ = reading()
    with TestDriver(app) as driver, pytest.raises(RuntimeError, match="serves once"):
        driver.__enter__()
    with pytest.raises(RuntimeError, match="serves once; make another"), driver:
        pass


def test_a_driver_is_not_for_async_code() -> None:
    app, source = reading()
    driver = TestDriver(app)

    async def inside() -> None:
        with pytest.raises(RuntimeError, match="call it from a plain function"), driver:
            pass

    asyncio.run(inside())

    async def also_inside() -> None:
        for call in calls_of(driver, source):
            with pytest.raises(RuntimeError, match="call it from a plain function"):
                call()

    with driver:
        asyncio.run(also_inside())
        driver.send(source, 1)


@pytest.mark.parametrize("what", [5, nothing])
def test_what_is_no_coroutine_is_not_run(what: Any) -> None:
    app, _ = reading()
    with TestDriver(app) as driver, pytest.raises(TypeError, match="give a coroutine, such as"):
        driver.run(what)


def test_a_coroutine_that_waits_for_the_clock_is_named() -> None:
    app, _ = reading()
    with TestDriver(app) as driver, pytest.raises(RuntimeError, match=r"^sleep waits for something that does not come"):
        driver.run(asyncio.sleep(5))
