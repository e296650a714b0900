"""What can be seen to be wrong in a declaration is refused there, and not at the first event."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from agentic import App
from agentic.core.times import seconds, timestamp_ms
from agentic.errors import ConfigurationError


async def is_odd(n: int) -> bool:
    return n % 2 == 1


async def several(n: int) -> AsyncIterator[int]:
    yield n


class AsyncCall:
    async def __call__(self, n: int) -> bool:
        return n % 2 == 1


ASYNC = [is_odd, several, AsyncCall(), functools.partial(is_odd, 1)]


@pytest.mark.parametrize("fn", ASYNC)
def test_an_async_filter_is_refused(fn: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"topic 'numbers': filter\(\) takes a plain function, .* is async"):
        App("shop").topic("numbers").filter(fn)


@pytest.mark.parametrize("fn", [*ASYNC, 5, "at"])
def test_a_timestamp_that_is_no_plain_function_is_refused(fn: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"topic 'numbers': timestamp= takes a plain function of the value"):
        App("shop").topic("numbers", timestamp=fn)


def test_a_table_whose_changelog_no_broker_would_take_is_refused() -> None:
    app = App("a" * 100)
    assert app.table("b" * 138, key=str).changelog_topic == f"{'a' * 100}-{'b' * 138}-changelog"
    app.table("c" * 139, key=str, changelog=False)
    with pytest.raises(ConfigurationError, match="of 250 characters, and a topic's name has at most 249"):
        app.table("d" * 139, key=str)


@pytest.mark.parametrize("declare", [App.table, App.global_table])
def test_a_part_of_a_topic_fills_no_table(declare: Any) -> None:
    app = App("shop")
    part = app.topic("numbers", key=str, value=int).filter(bool)
    with pytest.raises(
        ConfigurationError,
        match=r"table 'rows': source= is a part of 'numbers', and only a whole topic .*; give the topic",
    ):
        declare(app, "rows", source=part)


def test_a_callable_object_may_filter_and_tell_the_time() -> None:
    topic = App("shop").topic("numbers", timestamp=int)
    assert topic.filter(functools.partial(max, 0)).topic is topic


class Upper:
    def decode(self, data: bytes) -> str:
        return data.decode().upper()

    def encode(self, value: str) -> bytes:
        return value.encode()


@pytest.mark.parametrize(("codec", "hint"), [(Upper, r"write Upper\(\)"), (5, "not 5"), ("json", "not 'json'")])
def test_a_codec_that_is_no_codec_is_refused(codec: Any, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"topic 'numbers': codec= takes an object with .*{hint}"):
        App("shop").topic("numbers", codec=codec)


@pytest.mark.parametrize("partitions", [0, -1, True, 1.5, "4"])
def test_partitions_that_can_not_be_counted_are_refused(partitions: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"topic 'numbers': partitions must be a number, at least 1"):
        App("shop").topic("numbers", partitions=partitions)


@pytest.mark.parametrize("config", [5, ["retention.ms"], {"retention.ms": -1}, {5: "x"}, {"cleanup.policy": None}])
def test_a_topics_config_has_strings_only(config: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"topic 'numbers': config"):
        App("shop").topic("numbers", config=config)


@pytest.mark.parametrize("name", [5, b"numbers", "", "a/b", "..", "a" * 250])
def test_a_topic_name_that_can_not_be_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="topic name"):
        App("shop").topic(name)


@pytest.mark.parametrize("name", [5, "", b"x"])
def test_an_agents_name_is_a_string(name: Any) -> None:
    app = App("shop")

    async def work(stream: Any) -> None: ...

    with pytest.raises(ConfigurationError, match=r"agent 'work': name=.* a name is a string"):
        app.agent(app.topic("numbers"), name=name)(work)


@pytest.mark.parametrize("when", [2**63, 10**30, -(2**63) - 1, 1 << 10_000])
def test_a_timestamp_beyond_63_bits_is_refused(when: int) -> None:
    with pytest.raises(ValueError, match=r"timestamp has \d+ bits, and a log keeps 63"):
        timestamp_ms(when)


def test_a_timestamp_of_63_bits_is_taken_and_a_negative_one_is_not() -> None:
    assert timestamp_ms(2**63 - 1) == 2**63 - 1
    with pytest.raises(ValueError, match="timestamp -1 is negative"):
        timestamp_ms(-1)


@pytest.mark.parametrize("duration", [float("nan"), float("inf"), 1e30, timedelta.max, 10**30])
def test_a_duration_that_no_clock_can_count_is_refused(duration: Any) -> None:
    with pytest.raises(ValueError, match="is no time to wait"):
        seconds(duration)


def test_a_command_needs_no_parentheses() -> None:
    app = App("shop")

    @app.command
    def open_shop() -> str:
        return "open"

    assert open_shop() == "open"
    assert list(app.commands) == ["open-shop"]
    assert app.commands["open-shop"].params == ()


@pytest.mark.parametrize("internal", [False, True])
def test_a_topics_name_is_a_str(internal: bool) -> None:
    with pytest.raises(ConfigurationError, match=r"topic name (5|\[\]) is a (int|list), and must be a str"):
        App("shop").topic(5 if internal else [], internal=internal)  # type: ignore[arg-type]
