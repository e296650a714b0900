"""The TestDriver, and through it the tasks and agents of a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from agentic import App, Event, Reply, Stream
from agentic.errors import AgentFailed, CodecError, ConfigurationError, DecodeFailed
from agentic.testing import TestDriver


def doubling(**settings: Any) -> tuple[App, Any, Any]:
    app = App("doubling", **settings)
    numbers = app.topic("numbers", key=str, value=int)
    doubles = app.topic("doubles", key=str, value=int)

    @app.agent(numbers, to=doubles)
    async def double(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            if n == 13:
                raise ValueError("thirteen")
            yield 2 * n

    return app, numbers, doubles


def test_a_yield_carries_the_key_and_timestamp_of_its_event() -> None:
    app, numbers, doubles = doubling()
    with TestDriver(app, now=5) as driver:
        driver.send(numbers, 21, key="a", timestamp=1_000)
        (out,) = driver.outputs(doubles)
        assert (out.key, out.value, out.timestamp, out.headers) == ("a", 42, 1_000, ())
        assert driver.outputs(doubles) == []


def test_a_record_without_a_timestamp_gets_the_wall_clocks() -> None:
    app, numbers, doubles = doubling()
    with TestDriver(app, now=1_000) as driver:
        driver.advance(timedelta(seconds=2))
        driver.send(numbers, 1, key="a")
        assert driver.outputs(doubles)[0].timestamp == 3_000


def test_an_agent_that_raises_stops_the_worker_and_names_the_event() -> None:
    app, numbers, doubles = doubling()
    with TestDriver(app) as driver:
        driver.send(numbers, 1, key="a")
        with pytest.raises(
            AgentFailed, match=r"agent 'double' failed on numbers-\d offset \d key 'a': ValueError: thirteen"
        ):
            driver.send(numbers, 13, key="a")
        assert [out.value for out in driver.outputs(doubles)] == [2]


def test_what_stopped_the_worker_is_met_again_after_a_restart() -> None:
    app, numbers, _ = doubling()
    with TestDriver(app) as driver:
        with pytest.raises(AgentFailed):
            driver.send(numbers, 13, key="a")
        with pytest.raises(AgentFailed):
            driver.crash()


def test_a_skipped_event_leaves_no_trace_and_is_counted() -> None:
    app, numbers, doubles = doubling(on_error="skip")
    with TestDriver(app) as driver:
        for n in (1, 13, 2):
            driver.send(numbers, n, key="a")
        assert [out.value for out in driver.outputs(doubles)] == [2, 4]
        assert driver.dropped == {"agent_error": 1}


def test_sends_before_the_exception_are_undone() -> None:
    app = App("undone", on_error="skip")
    source, audit = app.topic("source", value=int), app.topic("audit", value=int)

    @app.agent(source)
    async def careless(stream: Stream[int]) -> None:
        async for n in stream:
            await audit.send(n)
            if n == 1:
                raise RuntimeError("after the send")

    with TestDriver(app) as driver:
        for n in (0, 1, 2):
            driver.send(source, n, partition=0)
        assert [out.value for out in driver.outputs(audit)] == [0, 2]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_effects_of_an_event_go_out_in_program_order(delivery: Any) -> None:
    app = App("order", delivery=delivery)
    source = app.topic("source", value=int)
    sink = app.topic("sink", value=str, partitions=1)

    @app.agent(source, to=sink)
    async def chatter(stream: Stream[int]) -> AsyncIterator[str]:
        async for n in stream:
            yield f"{n} first"
            await sink.send(f"{n} second")
            await asyncio.sleep(0)
            yield f"{n} third"

    with TestDriver(app) as driver:
        driver.send(source, 1)
        assert [out.value for out in driver.outputs(sink)] == ["1 first", "1 second", "1 third"]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_one_send_runs_a_whole_chain_of_agents_and_commits_it(delivery: Any) -> None:
    app = App("chain", delivery=delivery)
    first, second, third = (app.topic(name, value=int, partitions=1) for name in ("first", "second", "third"))

    @app.agent(first, to=second)
    async def add(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            yield n + 1

    @app.agent(second, to=third)
    async def double(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            yield n * 2

    with TestDriver(app) as driver:
        driver.send(first, 1)
        driver.crash()
        assert [out.value for out in driver.outputs(third)] == [4]


def test_a_reply_says_otherwise() -> None:
    app = App("reply")
    source = app.topic("source", key=str, value=int)
    sink = app.topic("sink", key=str, value=int)

    @app.agent(source, to=sink)
    async def reply(stream: Stream[int]) -> AsyncIterator[Reply]:
        async for n in stream:
            yield Reply(n, key="other", headers={"why": "said"}, timestamp=9)
            yield Reply(None)
            yield Reply(n, key=None)

    with TestDriver(app) as driver:
        driver.send(source, 5, key="k", timestamp=1)
        found = {(out.key, out.value, out.timestamp, out.headers) for out in driver.outputs(sink)}
        assert found == {("other", 5, 9, (("why", b"said"),)), ("k", None, 1, ()), (None, 5, 1, ())}


def test_a_yield_of_another_type_names_agent_topic_and_types() -> None:
    app = App("types")
    source, sink = app.topic("source", value=int), app.topic("sink", value=int)

    @app.agent(source, to=sink)
    async def wrong(stream: Stream[int]) -> AsyncIterator[str]:
        async for n in stream:
            yield str(n)

    with TestDriver(app) as driver, pytest.raises(AgentFailed, match=r"agent 'wrong'.*<Topic sink>.*str.*int"):
        driver.send(source, 1)


def test_an_agent_that_yields_without_a_sink_is_refused_at_start() -> None:
    app = App("nowhere")

    @app.agent(app.topic("source"))
    async def lost(stream: Stream[Any]) -> AsyncIterator[Any]:
        async for value in stream:
            yield value

    with pytest.raises(ConfigurationError, match="agent 'lost' yields, and has no topic"), TestDriver(app):
        pass


def test_an_agent_that_leaves_its_loop_stops_the_worker() -> None:
    app = App("leaver")
    source = app.topic("source", value=int)

    @app.agent(source)
    async def once(stream: Stream[int]) -> None:
        async for _ in stream:
            return

    with TestDriver(app) as driver, pytest.raises(AgentFailed, match="agent 'once' ended before its stream did"):
        driver.send(source, 1)


def test_the_event_is_at_hand() -> None:
    app = App("event")
    source = app.topic("source", key=str, value=int)
    seen: list[tuple[Any, ...]] = []

    @app.agent(source)
    async def look(stream: Stream[int]) -> None:
        async for value in stream:
            event = stream.event
            seen.append((value, event.key, event.timestamp, event.topic, event.partition, event.offset, event.headers))

    with TestDriver(app) as driver:
        driver.send(source, 1, key="k", timestamp=7, headers=[("h", b"1"), ("h", "2")], partition=2)
        assert seen == [(1, "k", 7, "source", 2, 0, (("h", b"1"), ("h", b"2")))]


def test_events_come_whole_on_request() -> None:
    app = App("events")
    source = app.topic("source", key=str, value=int)
    seen: list[Event] = []

    @app.agent(source)
    async def look(stream: Stream[int]) -> None:
        async for event in stream.events():
            assert event is stream.event
            seen.append(event)

    with TestDriver(app) as driver:
        driver.send(source, 1, key="k")
        assert [(event.key, event.value) for event in seen] == [("k", 1)]


def test_two_agents_read_one_topic() -> None:
    app = App("two")
    source = app.topic("source", value=int)
    seen: list[str] = []

    for name in ("left", "right"):

        @app.agent(source, name=name)
        async def look(stream: Stream[int], name: str = name) -> None:
            async for value in stream:
                seen.append(f"{name} {value}")

    with TestDriver(app) as driver:
        driver.send(source, 1)
        driver.send(source, 2)
        assert sorted(seen) == ["left 1", "left 2", "right 1", "right 2"]


def test_filtered_events_are_complete_and_counted() -> None:
    app = App("filter")
    source = app.topic("source", value=int)
    seen: list[int] = []

    @app.agent(source.filter(lambda n: n % 2).filter(lambda n: n > 2))
    async def odd(stream: Stream[int]) -> None:
        async for n in stream:
            seen.append(n)

    with TestDriver(app) as driver:
        for n in range(6):
            driver.send(source, n, partition=0)
        assert seen == [3, 5]
        assert driver.dropped == {"filtered": 4}
        driver.crash()
        assert seen == [3, 5]


def test_a_predicate_that_raises_is_the_agents_failure() -> None:
    app = App("predicate", on_error="skip")
    source = app.topic("source", value=int)
    seen: list[int] = []

    @app.agent(source.filter(lambda n: 1 // n))
    async def inverse(stream: Stream[int]) -> None:
        async for n in stream:
            seen.append(n)

    with TestDriver(app) as driver:
        for n in (1, 0, 1):
            driver.send(source, n, partition=0)
        assert seen == [1, 1]
        assert driver.dropped == {"agent_error": 1}


def taking(**settings: Any) -> tuple[App, Any, Any]:
    app = App("taking", **settings)
    source = app.topic("source", value=int, partitions=1)
    sink = app.topic("sink", value=list, partitions=1)

    @app.agent(source, to=sink)
    async def lists(stream: Stream[int]) -> AsyncIterator[list[int]]:
        async for values in stream.take(3, within=timedelta(seconds=10)):
            yield values

    return app, source, sink


def test_take_gives_full_lists_at_once_and_short_ones_after_their_time() -> None:
    app, source, sink = taking()
    with TestDriver(app) as driver:
        for n in range(4):
            driver.send(source, n)
        assert [out.value for out in driver.outputs(sink)] == [[0, 1, 2]]
        driver.advance(9.9)
        assert driver.outputs(sink) == []
        driver.advance(0.1)
        assert [out.value for out in driver.outputs(sink)] == [[3]]


def test_a_list_that_was_not_given_yet_is_taken_again_after_a_crash() -> None:
    app, source, sink = taking()
    with TestDriver(app) as driver:
        driver.send(source, 0)
        driver.send(source, 1)
        driver.crash()
        driver.send(source, 2)
        assert [out.value for out in driver.outputs(sink)] == [[0, 1, 2]]


def test_an_agent_that_sleeps_goes_on_when_the_clock_does() -> None:
    app = App("sleeper")
    source, sink = app.topic("source", value=int), app.topic("sink", value=int)

    @app.agent(source, to=sink)
    async def slow(stream: Stream[int]) -> AsyncIterator[int]:
        async for n in stream:
            await asyncio.sleep(60)
            yield n

    with TestDriver(app) as driver:
        driver.send(source, 1)
        driver.advance(timedelta(seconds=59))
        assert driver.outputs(sink) == []
        driver.crash()
        driver.advance(timedelta(seconds=59))
        assert driver.outputs(sink) == []
        driver.advance(timedelta(seconds=1))
        assert [out.value for out in driver.outputs(sink)] == [1]


def test_events_of_several_topics_come_by_their_timestamps() -> None:
    app = App("merge", max_idle=timedelta(seconds=5))
    left, right = app.topic("left", value=str, partitions=1), app.topic("right", value=str, partitions=1)
    seen: list[str] = []

    @app.agent(left, right)
    async def look(stream: Stream[str]) -> None:
        async for value in stream:
            seen.append(value)

    with TestDriver(app) as driver:
        driver.send(left, "l1", timestamp=1)
        driver.send(left, "l5", timestamp=5)
        assert seen == []  # right is at its end, and may still send something older
        driver.send(right, "r3", timestamp=3)
        assert seen == ["l1", "r3"]
        driver.advance(5)
        assert seen == ["l1", "r3", "l5"]


def test_an_undecodable_record_stops_the_worker_after_all_before_it() -> None:
    app, numbers, doubles = doubling()
    with TestDriver(app) as driver:
        driver.send(numbers, 1, partition=0)
        with pytest.raises(DecodeFailed, match=r"numbers-0 offset 1 \(key None\): value: not int.*skip"):
            driver.send_raw(numbers, b'"x"', partition=0)
        assert [out.value for out in driver.outputs(doubles)] == [2]


def test_an_undecodable_record_is_skipped_and_counted_where_that_is_said() -> None:
    app, numbers, doubles = doubling(on_decode_error="skip")
    with TestDriver(app) as driver:
        driver.send_raw(numbers, b"{", partition=0)
        driver.send(numbers, 1, partition=0)
        assert [out.value for out in driver.outputs(doubles)] == [2]
        assert driver.dropped == {"undecodable": 1}


def test_a_dead_letter_has_the_bytes_and_the_story() -> None:
    app = App("dead", on_decode_error="dead_letter", dead_letter="failed")
    numbers = app.topic("numbers", key=str, value=int)
    failed = app.topic("failed", value=bytes)

    @app.agent(numbers)
    async def nothing(stream: Stream[int]) -> None:
        async for _ in stream:
            pass

    with TestDriver(app) as driver:
        driver.send_raw(numbers, b"{", key=b"k", timestamp=4, partition=3)
        (letter,) = driver.outputs(failed)
        headers = dict(letter.headers)
        assert (letter.key, letter.value, letter.timestamp) == (b"k", b"{", 4)
        assert headers["agentic-topic"] == b"numbers"
        assert headers["agentic-partition"] == b"3"
        assert headers["agentic-offset"] == b"0"
        assert b"not int" in headers["agentic-error"]


def test_a_dead_letter_topic_that_the_app_reads_is_refused() -> None:
    app = App("loop", on_decode_error="dead_letter", dead_letter="numbers")

    @app.agent(app.topic("numbers", value=int))
    async def nothing(stream: Stream[int]) -> None:
        async for _ in stream:
            pass

    with pytest.raises(ConfigurationError, match=r"dead_letter='numbers' is read by agent 'nothing'"), TestDriver(app):
        pass


def test_a_tombstone_is_none() -> None:
    app = App("tombstone")
    source = app.topic("source", key=str, value=int)
    sink = app.topic("sink", key=str, value=int)

    @app.agent(source, to=sink)
    async def through(stream: Stream[int | None]) -> AsyncIterator[int | None]:
        async for value in stream:
            yield value

    with TestDriver(app) as driver:
        driver.send(source, None, key="a")
        assert [(out.key, out.value) for out in driver.outputs(sink)] == [("a", None)]


def test_an_events_time_may_come_from_its_value() -> None:
    app = App("event-time")
    source = app.topic("source", value=dict, timestamp=lambda value: value["at"])
    sink = app.topic("sink", value=dict)

    @app.agent(source, to=sink)
    async def through(stream: Stream[dict[str, int]]) -> AsyncIterator[dict[str, int]]:
        async for value in stream:
            yield value

    with TestDriver(app) as driver:
        driver.send(source, {"at": 77}, timestamp=1, partition=0)
        assert driver.outputs(sink)[0].timestamp == 77
        assert driver.stream_time(source) == 77


def test_committed_work_is_not_done_again_after_a_crash() -> None:
    app, numbers, doubles = doubling()
    with TestDriver(app) as driver:
        driver.send(numbers, 1, key="a")
        driver.crash()
        driver.send(numbers, 2, key="a")
        assert [out.value for out in driver.outputs(doubles)] == [2, 4]


def test_stream_time_is_the_greatest_timestamp_and_survives_a_crash() -> None:
    app, numbers, _ = doubling()
    with TestDriver(app) as driver:
        assert driver.stream_time(numbers) is None
        driver.send(numbers, 1, timestamp=50, partition=0)
        driver.send(numbers, 2, timestamp=30, partition=0)
        driver.crash()
        assert driver.stream_time(numbers) == 50


def test_tasks_and_lifespans_surround_the_work_and_may_send() -> None:
    app = App("around")
    source, sink = app.topic("source", value=int), app.topic("sink", value=str, partitions=1)
    story: list[str] = []

    @app.lifespan
    async def around() -> AsyncIterator[None]:
        story.append("enter")
        await sink.send("hello")
        yield
        story.append("leave")

    @app.task
    async def beside() -> None:
        story.append("task")
        await asyncio.sleep(10)
        await source.send(1)

    @app.agent(source)
    async def work(stream: Stream[int]) -> None:
        async for n in stream:
            story.append(f"event {n}")

    with TestDriver(app) as driver:
        assert [out.value for out in driver.outputs(sink)] == ["hello"]
        assert story == ["enter", "task"]
        driver.advance(10)
        assert story == ["enter", "task", "event 1"]
    assert story == ["enter", "task", "event 1", "leave"]


def test_sending_outside_of_agents_works_beside_a_running_app() -> None:
    app, numbers, doubles = doubling()
    with TestDriver(app) as driver:
        driver.run(numbers.send(4, key="a"))
        assert [out.value for out in driver.outputs(doubles)] == [8]


def test_sending_without_a_worker_is_an_error_with_a_way_out() -> None:
    _, numbers, _ = doubling()
    with pytest.raises(RuntimeError, match=r"agentic\.runtime\.session"):
        asyncio.run(numbers.send(1))


def test_what_the_test_sends_must_fit_the_topic() -> None:
    app, numbers, _ = doubling()
    with TestDriver(app) as driver:
        with pytest.raises(CodecError, match=r"value of topic 'numbers'.*str.*int"):
            driver.send(numbers, "one")
        with pytest.raises(ValueError, match="timestamp -1 is negative"):
            driver.send(numbers, 1, timestamp=-1)


def test_internal_topics_carry_the_apps_name() -> None:
    app = App("shop")
    assert app.topic("by-user", internal=True).name == "shop-by-user"


def test_an_agent_that_calls_exit_is_named_whatever_the_policy() -> None:
    app = App("leaving", on_error="skip")
    numbers = app.topic("numbers", key=str, value=int)

    @app.agent(numbers)
    async def leave(stream: Stream[int]) -> None:
        async for _ in stream:
            raise SystemExit(3)

    with (
        TestDriver(app) as driver,
        pytest.raises(AgentFailed, match=r"agent 'leave' failed on numbers-\d offset 0 .*: it called sys\.exit\(3\)"),
    ):
        driver.send(numbers, 1, key="a")


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_an_output_that_the_broker_refuses_fails_its_event_by_the_policy(policy: Any) -> None:
    app = App("refused", on_error=policy, topic_partitions=2)
    numbers = app.topic("numbers", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    rows = app.table("rows", key=str, value=int)

    @app.agent(numbers)
    async def place(stream: Stream[int]) -> None:
        async for n in stream:
            rows[stream.event.key] = n
            await out.send(n, key="a", partition=n)

    with TestDriver(app) as driver:
        driver.send(numbers, 1, key="a")
        if policy == "stop":
            with pytest.raises(
                AgentFailed, match=r"agent 'place' failed on numbers-\d offset 1 key 'a': .*partitions 0 to 1"
            ):
                driver.send(numbers, 7, key="a")
        else:
            driver.send(numbers, 7, key="a")
            assert driver.dropped == {"agent_error": 1}
            assert driver.table(rows) == {"a": 1}
        assert [each.value for each in driver.outputs(out)] == [1]
