"""Asking agents: what the asker is told, whatever becomes of the request, and that it is one of the event's effects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic import AgenticError, App, AskFailed, AskTimeout, BlockingStream, NoAnswer, Reply, Retry, Stream
from agentic.asking import Answer, Request, answer_headers, read_answer, request_headers
from agentic.brokers.embedded.broker import RECORD_LIMIT
from agentic.core.retry import Retryable
from agentic.errors import CodecError, ConfigurationError
from agentic.testing import TestDriver

DELIVERIES = ["at_least_once", "exactly_once"]
#: The headers of a request to `work`, as an asker sends it.
REQUEST = request_headers("work", Request(b"me", b"1"), None)
#: Ways in which an agent may work.
WAYS: list[dict[str, Any]] = [{}, {"concurrency": 4}, {"concurrency": 4, "emit": "offset"}, {"deferral": True}]


def answering(way: dict[str, Any] | None = None, **options: Any) -> tuple[App, Any, Any]:
    """An app whose agent `work` does what it is told by the value, and answers."""
    app = App("shop", **options)
    jobs = app.topic("jobs", key=str, value=list)
    put_off: set[int] = set()

    @app.agent(jobs, replies=True, **(way or {}))
    async def work(stream: Stream[list[Any]]) -> AsyncIterator[Any]:
        async for what, *rest in stream:
            match what:
                case "yield":
                    for each in rest:
                        yield each
                case "raise":
                    raise ValueError(*rest)
                case "reject":
                    stream.reject(*rest)
                case "sleep":
                    await asyncio.sleep(rest[0])
                    yield "awake"
                case "defer" if stream.event.offset not in put_off:
                    put_off.add(stream.event.offset)
                    stream.defer(timedelta(seconds=5))
                case "defer":
                    yield "done"

    return app, jobs, work


def answers(driver: TestDriver, app: App) -> list[Answer]:
    """What was answered since the last look."""
    return [read_answer(out.headers, out.value) for out in driver.outputs(app.topics["shop-replies"])]


# -- what the asker is told -------------------------------------------------------------------


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_asker_gets_what_the_agent_yields_first(delivery: str, way: dict[str, Any]) -> None:
    app, _, work = answering(way, delivery=delivery)
    with TestDriver(app) as driver:
        assert driver.run(work.ask(["yield", {"n": 1}, 2], key="a")) == {"n": 1}
        assert driver.run(work.ask(["yield", None])) is None


@given(st.lists(st.one_of(st.lists(st.integers(0, 9), max_size=3), st.sampled_from(["raise", "reject"])), max_size=8))
@settings(max_examples=15, deadline=None)
@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_each_of_many_askers_is_told_what_became_of_its_own_request(
    delivery: str, way: dict[str, Any], requests: list[Any]
) -> None:
    app, _, work = answering(way, delivery=delivery, on_error="skip", dead_letter="dead")

    async def ask(n: int, wanted: Any) -> Any:
        value = [wanted, f"no. {n}"] if isinstance(wanted, str) else ["yield", *wanted]
        return await work.ask_all(value, key=f"k{n % 3}")

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*(ask(n, wanted) for n, wanted in enumerate(requests)), return_exceptions=True)

    with TestDriver(app) as driver:
        found = driver.run(ask_all())
    for n, (wanted, got) in enumerate(zip(requests, found, strict=True)):
        if isinstance(wanted, str):
            assert isinstance(got, AskFailed)
            assert str(got).endswith(f"no. {n}")
        else:
            assert got == wanted


def test_an_agent_that_yields_nothing_for_a_request_has_no_answer() -> None:
    app, _, work = answering()
    with TestDriver(app) as driver:
        with pytest.raises(NoAnswer, match="agent 'work' was done with the request and yielded nothing"):
            driver.run(work.ask(["yield"]))
        assert driver.run(work.ask_all(["yield"])) == []


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_request_that_a_filter_refuses_has_no_answer(delivery: str, way: dict[str, Any]) -> None:
    app = App("shop", delivery=delivery)
    numbers = app.topic("numbers", value=int)

    @app.agent(numbers.filter(lambda n: n > 0), replies=True, **way)
    async def same(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            yield n

    with TestDriver(app) as driver:
        assert driver.run(same.ask(1)) == 1
        with pytest.raises(NoAnswer):
            driver.run(same.ask(0))
        assert driver.run(same.ask(2)) == 2
        assert driver.dropped == {"filtered": 1}


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
def test_an_asker_is_told_why_a_request_was_given_up(way: dict[str, Any], on_error: str) -> None:
    app, _, work = answering(way, on_error=on_error, dead_letter="dead")
    with TestDriver(app) as driver:
        with pytest.raises(AskFailed, match="agent 'work' has given the request up: ValueError: thirteen"):
            driver.run(work.ask(["raise", "thirteen"]))
        with pytest.raises(AskFailed, match="rejected: not mine"):
            driver.run(work.ask(["reject", "not mine"]))
        assert driver.run(work.ask(["yield", 1])) == 1


@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_an_asker_is_told_that_a_request_can_not_be_decoded(policy: str) -> None:
    """As when the worker runs another version of the app than the asker."""
    app, _, work = answering(on_decode_error=policy, dead_letter="dead")
    elsewhere = App("shop").topic("jobs", value=int)
    with TestDriver(app) as driver:
        driver.send(elsewhere, 5, headers=REQUEST)
        (answer,) = answers(driver, app)
        assert answer.kind == "failed"
        assert answer.value is not None
        assert answer.value.startswith(b"value: not list")
        assert driver.run(work.ask(["yield", 2])) == 2


def test_a_request_that_is_tried_again_is_answered_once() -> None:
    app = App("shop")
    numbers = app.topic("numbers", value=int)

    @app.agent(numbers, replies=True, retry=Retry(attempts=3, first=1, max=1))
    async def third_time(stream: Stream[int]) -> AsyncIterator[int]:
        async for _ in stream:
            yield stream.attempt
            if stream.attempt < 3:
                raise Retryable("again")

    with TestDriver(app) as driver:
        driver.send(numbers, 1, headers=request_headers("third_time", Request(b"me", b"1"), None))
        assert answers(driver, app) == []
        driver.advance(10)
        assert answers(driver, app) == [Answer(b"1", "value", b"3", 0, 1)]


def test_a_request_that_is_put_off_is_answered_when_it_is_done() -> None:
    app, _, work = answering({"deferral": True})
    told: list[Any] = []

    @app.task
    async def asker() -> None:
        told.append(await work.ask(["defer"], key="a"))

    with TestDriver(app) as driver:
        driver.advance(4)
        assert told == []
        driver.advance(1)
        assert told == ["done"]


# -- time -------------------------------------------------------------------------------------


def test_an_asker_waits_as_long_as_it_says_and_no_longer() -> None:
    app, _, work = answering()
    told: list[Any] = []

    @app.task
    async def asker() -> None:
        for timeout in (timedelta(seconds=3), 1.0):
            try:
                told.append(await work.ask(["sleep", 2], key="a", timeout=timeout))
            except TimeoutError as error:
                told.append(error)

    with TestDriver(app) as driver:
        driver.advance(2)
        assert told == ["awake"]
        driver.advance(1)
        error = told[1]
        assert isinstance(error, AskTimeout)
        assert isinstance(error, AgenticError)
        assert str(error).startswith("agent 'work' has not answered within 1 s; see that a worker of app 'shop' runs")
        # An answer that comes too late is nobody's.
        driver.advance(1)
        assert driver.run(work.ask(["yield", 7], key="a")) == 7


# -- the answer is an effect ------------------------------------------------------------------


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_request_is_answered_after_a_crash(delivery: str, way: dict[str, Any]) -> None:
    app, jobs, _ = answering(way, delivery=delivery)
    with TestDriver(app) as driver:
        driver.send(jobs, ["sleep", 1], key="a", headers=REQUEST)
        driver.crash()
        assert answers(driver, app) == []
        driver.advance(1)
        assert answers(driver, app) == [Answer(b"1", "value", b'"awake"', 0, 1)]
        driver.crash()
        driver.advance(10)
        assert answers(driver, app) == []


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_of_an_event_that_stops_the_worker_nobody_hears(way: dict[str, Any]) -> None:
    """It will be done again, and answered then."""
    app, jobs, _ = answering(way)
    with TestDriver(app) as driver:
        with pytest.raises(AgenticError, match="thirteen"):
            driver.send(jobs, ["raise", "thirteen"], headers=REQUEST)
        assert answers(driver, app) == []


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_is_yielded_goes_to_the_agents_topic_and_to_who_asks(way: dict[str, Any]) -> None:
    app = App("shop")
    numbers, doubles = app.topic("numbers", key=str, value=int), app.topic("doubles", key=str, value=int)

    @app.agent(numbers, to=doubles, replies=True, **way)
    async def double(stream: Stream[int]) -> AsyncIterator[Any]:
        async for n in stream:
            yield Reply(2 * n, key="b")

    with TestDriver(app) as driver:
        assert driver.run(double.ask(4, key="a", headers={"from": "me"})) == 8
        driver.send(numbers, 5, key="a")
        assert [(out.key, out.value, out.headers) for out in driver.outputs(doubles)] == [("b", 8, ()), ("b", 10, ())]
        assert len(answers(driver, app)) == 1


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_an_agent_in_threads_answers(delivery: str) -> None:
    app = App("shop", delivery=delivery, on_error="skip")
    numbers = app.topic("numbers", key=str, value=int)

    @app.agent(numbers, replies=True, threads=True, concurrency=2)
    def divide(stream: BlockingStream[int]) -> Iterator[float]:
        for n in stream:
            if n < 7:
                yield 12 / n

    with TestDriver(app) as driver:
        assert driver.run(divide.ask(4, key="a")) == 3
        with pytest.raises(AskFailed, match="ZeroDivisionError"):
            driver.run(divide.ask(0, key="a"))
        with pytest.raises(NoAnswer):
            driver.run(divide.ask(7, key="a"))


def test_all_who_asked_for_events_that_are_taken_together_get_the_answer_to_the_list() -> None:
    app = App("shop")
    numbers = app.topic("numbers", value=int, partitions=1)

    @app.agent(numbers, replies=True)
    async def add(stream: Stream[int]) -> AsyncIterator[int]:
        async for some in stream.take(3, within=10):
            yield sum(some)

    async def ask() -> Any:
        return await asyncio.gather(*(add.ask(n) for n in (1, 2, 3)))

    with TestDriver(app) as driver:
        assert driver.run(ask()) == [6, 6, 6]


def test_a_list_that_nobody_waited_for_is_answered_once() -> None:
    app = App("shop")
    numbers = app.topic("numbers", value=int, partitions=1)

    @app.agent(numbers, replies=True)
    async def count(stream: Stream[int]) -> AsyncIterator[int]:
        lists = stream.take(2, within=60)
        while True:
            try:
                async with asyncio.timeout(1):
                    some = await anext(lists)
            except TimeoutError:
                continue
            except StopAsyncIteration:
                return
            yield len(some)

    with TestDriver(app) as driver:
        for n in (1, 2):
            driver.send(numbers, n, headers=request_headers("count", Request(b"me", b"%d" % n), None))
            driver.advance(3)
        assert answers(driver, app) == [Answer(b"%d" % n, "value", b"2", 0, 1) for n in (1, 2)]


# -- who is asked, and by whom ----------------------------------------------------------------


def test_of_the_agents_that_read_a_topic_only_the_one_that_is_asked_answers() -> None:
    app = App("shop")
    numbers = app.topic("numbers", value=int)
    seen: list[int] = []

    @app.agent(numbers, replies=True)
    async def one(stream: Stream[int]) -> AsyncIterator[str]:
        async for _ in stream:
            yield "one"

    @app.agent(numbers, replies=True)
    async def other(stream: Stream[int]) -> AsyncIterator[str]:
        async for n in stream:
            seen.append(n)
            yield "other"

    with TestDriver(app) as driver:
        assert driver.run(one.ask_all(1)) == ["one"]
        assert driver.run(other.ask_all(2)) == ["other"]
        assert seen == [1, 2]


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_an_agent_asks_another_and_tells_a_third(delivery: str) -> None:
    app = App("shop", delivery=delivery)
    orders, prices, notes = (app.topic(name, key=str, value=Any) for name in ("orders", "prices", "notes"))
    bills = app.topic("bills", key=str, value=Any)
    times: list[tuple[int, dict[str, bytes]]] = []

    @app.agent(prices, replies=True)
    async def price(stream: Stream[Any]) -> AsyncIterator[Any]:
        async for item in stream:
            times.append((stream.event.timestamp, dict(stream.event.headers)))
            yield {"pear": 3}[item]

    @app.agent(notes)
    async def note(stream: Stream[Any]) -> None:
        async for text in stream:
            noted.append((text, stream.event.key))

    @app.agent(orders, to=bills, on_exhausted="skip")
    async def bill(stream: Stream[Any]) -> AsyncIterator[Any]:
        async for item, count in stream:
            await note.cast(f"{count} of {item}", key="k")
            yield count * await price.ask(item, key=item, headers=stream.event.headers, timeout=5)

    noted: list[Any] = []
    with TestDriver(app, now=1_000_000) as driver:
        driver.send(orders, ["pear", 4], key="a", timestamp=5_000, headers={"trace": "t1"})
        assert [out.value for out in driver.outputs(bills)] == [12]
        assert noted == [("4 of pear", "k")]
        ((timestamp, headers),) = times
        # The time that the request has is its event's, so that nobody's stream time runs ahead of the input.
        assert timestamp == 5_000
        assert headers["trace"] == b"t1"


def test_an_agent_may_ask_before_its_first_event() -> None:
    app = App("shop")
    numbers, factors = app.topic("numbers", value=int), app.topic("factors", value=str)
    products = app.topic("products", value=int)

    @app.agent(factors, replies=True)
    async def factor(stream: Stream[str]) -> AsyncIterator[int]:
        async for _ in stream:
            yield 7

    @app.agent(numbers, to=products)
    async def multiply(stream: Stream[int]) -> AsyncIterator[int]:
        by = await factor.ask("seven")
        async for n in stream:
            yield n * by

    with TestDriver(app) as driver:
        driver.send(numbers, 6)
        assert [out.value for out in driver.outputs(products)] == [42]


def test_telling_is_an_effect_of_the_event() -> None:
    app = App("shop", on_error="skip")
    numbers, notes = app.topic("numbers", value=int), app.topic("notes", value=int)

    @app.agent(notes)
    async def note(stream: Stream[int]) -> None:
        async for _ in stream:
            pass

    @app.agent(numbers)
    async def tell(stream: Stream[int]) -> None:
        async for n in stream:
            await note.cast(n)
            if n == 13:
                raise ValueError("thirteen")

    with TestDriver(app) as driver:
        driver.send(numbers, 13)
        driver.send(numbers, 14)
        driver.run(note.cast(15))
        assert [out.value for out in driver.outputs(notes)] == [14, 15]


@pytest.mark.parametrize("way", [{}, {"concurrency": 4, "order": "partition"}], ids=str)
def test_an_agent_that_would_wait_for_itself_is_told_so(way: dict[str, Any]) -> None:
    app = App("shop")
    numbers = app.topic("numbers", value=int)

    @app.agent(numbers, replies=True, **way)
    async def factorial(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            yield 1 if n < 2 else n * await factorial.ask(n - 1)

    with TestDriver(app) as driver:
        assert driver.run(factorial.ask(1)) == 1
        with pytest.raises(AgenticError, match="agent 'factorial' asks itself, and works on one event after the other"):
            driver.send(numbers, 2)


def test_an_agent_that_works_on_several_events_may_ask_itself() -> None:
    app = App("shop")
    numbers = app.topic("numbers", key=str, value=int)

    @app.agent(numbers, replies=True, concurrency=8)
    async def factorial(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            yield 1 if n < 2 else n * await factorial.ask(n - 1, key=str(n - 1))

    with TestDriver(app) as driver:
        assert driver.run(factorial.ask(6, key="6")) == 720


# -- bad input --------------------------------------------------------------------------------


def test_what_can_not_be_asked_is_refused_with_the_way_out() -> None:
    app, _, work = answering()
    numbers = app.topic("numbers", value=int)

    @app.agent(numbers)
    async def silent(stream: Stream[int]) -> None:
        async for _ in stream:
            pass

    totals = app.table("totals", key=str, value=int)

    @app.agent(totals.changes(), replies=True)
    async def watch(stream: Stream[Any]) -> AsyncIterator[Any]:
        async for change in stream:
            yield change

    @app.agent(numbers, name="count")
    async def count(stream: Stream[int]) -> None:
        async for n in stream:
            totals["n"] += n

    with pytest.raises(RuntimeError, match="agent 'work': ask\\(\\) needs a running worker of app 'shop', or a client"):
        asyncio.run(work.ask([]))
    with TestDriver(app) as driver:
        with pytest.raises(ConfigurationError, match=r"agent 'silent' answers nobody; declare it by .*replies=True"):
            driver.run(silent.ask(1))
        with pytest.raises(ConfigurationError, match="agent 'watch' reads changes of tables, and no topic"):
            driver.run(watch.ask(1))
        with pytest.raises(CodecError, match="value of topic 'jobs'"):
            driver.run(work.ask(1))
        with pytest.raises(TypeError, match="header 'n'"):
            driver.run(work.ask([], headers={"n": 1}))
        for bad in (0, -1, float("nan")):
            with pytest.raises(ValueError, match=r"timeout|duration"):
                driver.run(work.ask([], timeout=bad))


def test_an_agent_that_answers_has_to_yield() -> None:
    app = App("shop")

    @app.agent(app.topic("numbers"), replies=True)
    async def mute(stream: Stream[Any]) -> None:
        async for _ in stream:
            pass

    with pytest.raises(ConfigurationError, match=r"agent 'mute': replies=True .* never yields"):
        app.check()


def test_the_topic_of_the_answers_has_a_name_that_no_other_may_have() -> None:
    app = App("shop")
    app.topic("replies", internal=True)
    with pytest.raises(ConfigurationError, match="topic 'shop-replies' is declared, and is where answers"):

        @app.agent(app.topic("numbers"), replies=True)
        async def work(stream: Stream[Any]) -> AsyncIterator[Any]:
            async for each in stream:
                yield each


@pytest.mark.parametrize(
    "headers",
    [
        {"agentic-ask": "work"},
        {"agentic-ask": "work", "agentic-reply-to": "me"},
        {"agentic-ask": "work", "agentic-reply-to": "me", "agentic-correlation": "1" * 65},
        {"agentic-ask": "another", "agentic-reply-to": "me", "agentic-correlation": "1"},
        {"agentic-ask": b"\xff", "agentic-reply-to": "me", "agentic-correlation": "1"},
        {"agentic-reply-to": "me", "agentic-correlation": "1"},
    ],
    ids=str,
)
def test_a_record_that_is_no_request_is_an_event_like_any_other(headers: dict[str, Any]) -> None:
    app, jobs, _ = answering()
    with TestDriver(app) as driver:
        driver.send(jobs, ["yield", 1], headers=headers)
        assert answers(driver, app) == []


def test_an_answer_goes_to_the_topic_for_answers_and_to_no_other() -> None:
    app, jobs, _ = answering()
    other = app.topic("other", key=bytes, value=bytes)
    with TestDriver(app) as driver:
        driver.send(jobs, ["yield", 1], headers=request_headers("work", Request(b"other", b"1"), None))
        assert driver.outputs(other) == []
        assert [out.key for out in driver.outputs(app.topics["shop-replies"])] == [b"other"]


def test_a_value_that_can_not_be_an_answer_is_the_agents_failure() -> None:
    app = App("shop", on_error="skip")

    @app.agent(app.topic("numbers", value=int), replies=True)
    async def odd(stream: Stream[int]) -> AsyncIterator[Any]:
        async for _ in stream:
            yield object()

    cannot = "CodecError: agent 'odd' yielded what can't be an answer"
    with TestDriver(app) as driver, pytest.raises(AskFailed, match=cannot):
        driver.run(odd.ask(1))


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_answer_that_the_broker_refuses_leaves_nothing_of_its_event(delivery: str, way: dict[str, Any]) -> None:
    app = App("shop", delivery=delivery, on_error="skip")
    sizes, sink = app.topic("sizes", value=int), app.topic("sink", value=str)
    small = app.topic("small", value=int)

    @app.agent(sizes, to=sink, replies=True, **way)
    async def grow(stream: Stream[int]) -> AsyncIterator[str]:
        async for n in stream:
            await small.send(n)
            yield "x" * n

    with TestDriver(app) as driver:
        with pytest.raises(AskFailed, match="RecordTooLarge"):
            driver.run(grow.ask(RECORD_LIMIT))
        assert driver.run(grow.ask(3)) == "xxx"
        assert [out.value for out in driver.outputs(small)] == [3]


@given(
    st.sampled_from(["value", "none", "failed"]),
    st.binary(min_size=1, max_size=64),
    st.none() | st.binary(max_size=9),
    st.integers(0, 1 << 40),
    st.none() | st.integers(1, 1 << 40),
)
def test_an_answer_is_read_as_it_was_written(
    kind: Any, correlation: bytes, value: bytes | None, index: int, count: int | None
) -> None:
    if kind != "value":
        index, count = 0, None
    answer = Answer(correlation, kind, value, index, count)
    assert read_answer(answer_headers(answer), value) == answer


def test_what_is_no_answer_is_told_and_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    app, _, work = answering()

    async def disturbed() -> Any:
        asking = asyncio.create_task(work.ask(["sleep", 0], key="a"))
        replies = app.topics["shop-replies"]
        asker: Any = app.home.asker
        for headers in ({}, {"agentic-correlation": "0", "agentic-answer": "value", "agentic-index": "x"}):
            await replies.send(b"1", key=asker._address, headers=headers)
        return await asking

    with TestDriver(app) as driver:
        driver.run(work.ask(["yield", 1]))
        assert driver.run(disturbed()) == "awake"
    assert caplog.text.count("is no answer") == 2
