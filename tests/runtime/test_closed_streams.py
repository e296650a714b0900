"""Agents that ask a closed stream for more: they end with their worker all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentic import App, Stream
from agentic.testing import TestDriver

KINDS = pytest.mark.parametrize("options", [{}, {"concurrency": 2}], ids=["serial", "concurrent"])


@KINDS
def test_an_agent_that_begins_its_loop_anew_is_cancelled(options: dict[str, Any]) -> None:
    app = App("anew", topic_partitions=1)
    source, out = app.topic("in", key=str, value=int), app.topic("out", key=str, value=int)
    ended = []

    @app.agent(source, to=out, **options)
    async def again(stream: Stream[int]) -> AsyncIterator[int]:
        try:
            while True:
                async for value in stream:
                    yield value
        finally:
            ended.append(True)

    with TestDriver(app) as driver:
        driver.send(source, 1, key="a")
        assert [output.value for output in driver.outputs(out)] == [1]
        assert not ended
    assert all(ended) and ended


@KINDS
def test_a_second_loop_over_a_closed_stream_ends_as_the_first_did(options: dict[str, Any]) -> None:
    app = App("second", topic_partitions=1)
    source = app.topic("in", key=str, value=int)
    came: list[Any] = []

    @app.agent(source, **options)
    async def twice(stream: Stream[int]) -> None:
        for which in ("first", "second"):
            async for value in stream:
                came.append((which, value))
                if value == 1:
                    break
        came.append("over")

    with TestDriver(app) as driver:
        driver.send(source, 1, key="a")
        driver.send(source, 2, key="a")
    assert came[:2] == [("first", 1), ("second", 2)]
    assert "over" in came
