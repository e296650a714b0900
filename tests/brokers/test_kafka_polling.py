"""How long the thread that reads from Kafka waits for something, without a Kafka."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentic.brokers.kafka.poller import POLL, POLL_MOST, Poller


class Still(Poller):
    """A thread that is not started; its consumer says how long it was asked to wait, and gives what it is told to."""

    def __init__(self) -> None:
        super().__init__("group 'still'", asyncio.new_event_loop(), "earliest", lambda lot: None, lambda error: None)
        self.waits: list[float] = []
        self.comes: list[Any] = []
        self._consumer = self

    def poll(self, timeout: float) -> Any:
        self.waits.append(timeout)
        return self.comes.pop() if self.comes else None

    def consume(self, most: int, timeout: float) -> list[Any]:
        return []

    def turns(self, number: int) -> list[float]:
        """Return how long some turns wait that bring nothing to the loop."""
        self.waits.clear()
        for _ in range(number):
            self._serve()
            self._fetch()
        return list(self.waits)


@pytest.fixture
def still() -> Any:
    poller = Still()
    yield poller
    poller._loop.close()


def test_while_nothing_comes_each_poll_waits_twice_as_long_up_to_a_bound(still: Still) -> None:
    assert still.turns(5) == [POLL, 2 * POLL, 4 * POLL, POLL_MOST, POLL_MOST]


def test_a_record_makes_the_next_poll_short(still: Still) -> None:
    still.turns(5)
    still.comes = ["a record"]
    assert still.turns(3) == [POLL_MOST, POLL, 2 * POLL]


def test_a_command_makes_the_next_poll_short(still: Still) -> None:
    still.turns(5)
    done: list[str] = []
    still.send(done.append, "committed")
    assert still.turns(2) == [POLL, 2 * POLL]
    assert done == ["committed"]
