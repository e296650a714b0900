"""What is under way when a worker stops may finish, and no attempt has more time for that than its time-out says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from agentic import App, Retry, Stream
from agentic.testing import TestDriver

STOP_TIMEOUT = 30
TIMEOUT = 5
TOO_LONG = 3_600


class Calling:
    """An app whose agent awaits for so many seconds as its event says, and what became of its attempts.

    Attributes:
        begun: the events of the attempts, in order; those of a new life behind None.
        took: how long the stop took, in seconds.
        letters, answered: what came of the first life.
    """

    def __init__(self, *waits: int, **options: Any) -> None:
        app = App("calling", topic_partitions=1, stop_timeout=timedelta(seconds=STOP_TIMEOUT))
        topic = app.topic("waits", key=str, value=int)
        answers = app.topic("answers", key=str, value=int)
        failed = app.topic("failed", key=str, value=int)
        self.begun: list[int | None] = []

        @app.agent(topic, to=answers, concurrency=4, dead_letter=failed, **options)
        async def call(stream: Stream[int]) -> AsyncIterator[int]:
            async for seconds in stream:
                self.begun.append(seconds)
                await asyncio.sleep(seconds)
                yield seconds

        with TestDriver(app) as driver:
            for number, seconds in enumerate(waits):
                driver.send(topic, seconds, key=str(number))
            before = driver._now()
            driver._stop()
            self.took = (driver._now() - before) / 1_000
            self.letters = [letter.value for letter in driver.outputs(failed)]
            self.answered = [answer.value for answer in driver.outputs(answers)]
            self.begun.append(None)
            driver.crash()


@pytest.mark.parametrize("emit", ["completion", "offset"])
def test_a_call_that_hangs_holds_a_stop_up_for_its_time_out_only_and_is_given_up(emit: str) -> None:
    calling = Calling(TOO_LONG, 3, timeout=TIMEOUT, emit=emit)
    assert TIMEOUT <= calling.took < STOP_TIMEOUT
    assert (calling.letters, calling.answered) == ([TOO_LONG], [3])
    assert calling.begun == [TOO_LONG, 3, None], "both are committed"


def test_one_that_would_be_tried_again_is_left_to_the_next_owner() -> None:
    calling = Calling(TOO_LONG, 3, timeout=TIMEOUT, retry=Retry(attempts=3, first=1))
    assert TIMEOUT <= calling.took < STOP_TIMEOUT
    assert (calling.letters, calling.answered) == ([], [3])
    assert calling.begun == [TOO_LONG, 3, None, TOO_LONG]


def test_the_pin_limit_holds_in_a_stop_as_well() -> None:
    calling = Calling(TOO_LONG, pin_limit=TIMEOUT)
    assert TIMEOUT <= calling.took < STOP_TIMEOUT
    assert calling.letters == [TOO_LONG]
    assert calling.begun == [TOO_LONG, None]


def test_when_the_stop_has_no_more_time_a_call_is_ended_and_not_given_up() -> None:
    calling = Calling(TOO_LONG, 3, timeout=STOP_TIMEOUT + 1)
    assert calling.took >= STOP_TIMEOUT
    assert (calling.letters, calling.answered) == ([], [3])
    assert calling.begun == [TOO_LONG, 3, None, TOO_LONG]
