"""The limit that follows what a service takes, run against services that are known.

Each test simulates a service with so many slots, first come first served, and an agent that keeps as
many events in flight as the limit allows. Time is simulated, chance has a seed.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.core.adaptive import Adaptive
from agentic.errors import ConfigurationError

UNLIMITED = 1_000_000


class Second(NamedTuple):
    """What one simulated second showed."""

    limit: int
    ended: int


class Service:
    """A service, and an agent in front of it that has events without end, or at a rate."""

    def __init__(self, *, slots: int, takes: float, scatter: bool = False, seed: int = 1) -> None:
        self.slots = slots
        self.takes = takes
        self.failing = 0.0
        self.offered: float | None = None
        self._scatter = scatter
        self._random = random.Random(seed)
        self._now = 0.0
        self._waiting: deque[float] = deque()
        self._running: list[tuple[float, int, float]] = []
        self._started = 0
        self._arrived = 0.0
        self._backlog = 0

    def run(self, adaptive: Adaptive, seconds: float) -> list[Second]:
        """Let so much time pass, and return what each second showed."""
        shown: list[Second] = []
        end, tick, ended = self._now + seconds, self._now + 1, 0
        while True:
            self._start(adaptive)
            arrival = self._arrived if self.offered is not None else end
            now = min(arrival, self._running[0][0] if self._running else end)
            while now >= tick:
                shown.append(Second(adaptive.limit, ended))
                tick, ended = tick + 1, 0
            if now >= end:
                self._now = end
                return shown
            self._now = now
            if self._running and self._running[0][0] == now:
                ended += 1
                self._end(adaptive)
            else:
                self._backlog += 1
                self._arrived += 1 / (self.offered or 1)

    def _start(self, adaptive: Adaptive) -> None:
        while self.offered is None or self._backlog:
            if len(self._waiting) + len(self._running) >= adaptive.limit:
                adaptive.saturated()
                break
            self._waiting.append(self._now)
            self._backlog -= self.offered is not None
        while self._waiting and len(self._running) < self.slots:
            takes = self._random.expovariate(1 / self.takes) if self._scatter else self.takes
            self._started += 1
            heapq.heappush(self._running, (self._now + takes, self._started, self._waiting.popleft()))

    def _end(self, adaptive: Adaptive) -> None:
        now, _, since = heapq.heappop(self._running)
        if self._random.random() < self.failing:
            adaptive.failed(now)
        else:
            adaptive.completed(now - since, now)


def limits(seconds: list[Second]) -> tuple[int, int]:
    return min(second.limit for second in seconds), max(second.limit for second in seconds)


def rate(seconds: list[Second]) -> float:
    return sum(second.ended for second in seconds) / len(seconds)


# -- a service that stays as it is ----------------------------------------------------------------


@pytest.mark.parametrize("scatter", [False, True], ids=["fixed", "scattered"])
@pytest.mark.parametrize("slots", [3, 10, 100])
def test_the_limit_comes_near_what_the_service_takes_and_stays_there(slots: int, scatter: bool) -> None:
    adaptive, service = Adaptive(), Service(slots=slots, takes=0.05, scatter=scatter)
    service.run(adaptive, 120)
    settled = service.run(adaptive, 60)
    least, most = limits(settled)
    assert 0.6 * slots <= least
    assert most <= 3 * slots
    assert rate(settled) >= 0.93 * slots / 0.05


def test_a_service_that_takes_one_at_a_time_is_found_out_from_above() -> None:
    adaptive, service = Adaptive(), Service(slots=1, takes=0.01)
    service.run(adaptive, 30)
    settled = service.run(adaptive, 30)
    assert limits(settled)[1] <= 2
    assert rate(settled) == pytest.approx(100, abs=1)


@pytest.mark.parametrize("scatter", [False, True], ids=["fixed", "scattered"])
def test_a_service_that_takes_any_number_is_given_the_most(scatter: bool) -> None:
    adaptive, service = Adaptive(most=500), Service(slots=UNLIMITED, takes=0.05, scatter=scatter)
    service.run(adaptive, 10)
    assert limits(service.run(adaptive, 20)) == (500, 500)


@pytest.mark.parametrize("seed", range(4))
def test_slow_calls_that_scatter_widely_are_not_taken_for_a_queue(seed: int) -> None:
    adaptive, service = Adaptive(), Service(slots=UNLIMITED, takes=10, scatter=True, seed=seed)
    service.run(adaptive, 400)
    assert sum(second.limit for second in service.run(adaptive, 400)) / 400 >= 300


def test_the_first_seconds_double_the_limit() -> None:
    adaptive, service = Adaptive(), Service(slots=UNLIMITED, takes=0.05)
    assert service.run(adaptive, 6)[-1].limit == 500


# -- a service that changes -----------------------------------------------------------------------


def test_a_service_that_loses_most_of_its_capacity_is_relieved_within_seconds() -> None:
    adaptive, service = Adaptive(), Service(slots=100, takes=0.05)
    service.run(adaptive, 40)
    service.slots = 10
    service.run(adaptive, 15)
    settled = service.run(adaptive, 60)
    assert limits(settled)[1] <= 20
    assert rate(settled) >= 0.93 * 200


def test_a_service_that_gains_capacity_is_used() -> None:
    adaptive, service = Adaptive(), Service(slots=10, takes=0.05)
    service.run(adaptive, 40)
    service.slots = 100
    service.run(adaptive, 30)
    settled = service.run(adaptive, 60)
    assert rate(settled) >= 0.93 * 2_000
    assert limits(settled)[1] <= 250


@pytest.mark.parametrize("scatter", [False, True], ids=["fixed", "scattered"])
def test_a_service_that_is_slower_of_itself_is_not_given_fewer(scatter: bool) -> None:
    adaptive, service = Adaptive(), Service(slots=UNLIMITED, takes=0.05, scatter=scatter)
    service.run(adaptive, 30)
    service.takes = 0.2
    service.run(adaptive, 5)
    assert rate(service.run(adaptive, 10)) >= 0.9 * 500 / 0.2


def test_a_service_that_is_faster_is_not_flooded() -> None:
    adaptive, service = Adaptive(), Service(slots=100, takes=0.2)
    service.run(adaptive, 40)
    service.takes = 0.05
    service.run(adaptive, 60)
    settled = service.run(adaptive, 60)
    assert limits(settled)[1] <= 250
    assert rate(settled) >= 0.93 * 2_000


# -- failures -------------------------------------------------------------------------------------


def test_failures_that_rise_cut_the_limit_and_it_comes_back_when_they_are_gone() -> None:
    adaptive, service = Adaptive(), Service(slots=100, takes=0.05)
    service.run(adaptive, 30)
    before = adaptive.limit
    service.failing = 0.3
    assert limits(service.run(adaptive, 5))[0] <= before / 2
    service.failing = 0
    service.run(adaptive, 30)
    assert rate(service.run(adaptive, 20)) >= 0.93 * 2_000


@pytest.mark.parametrize("failing", [0.02, 0.1, 0.5])
def test_a_share_of_failures_that_stays_is_got_used_to(failing: float) -> None:
    adaptive, service = Adaptive(), Service(slots=100, takes=0.05)
    service.failing = failing
    service.run(adaptive, 60)
    assert rate(service.run(adaptive, 60)) >= 0.85 * 2_000


def test_all_that_fails_gives_no_latency_and_yet_a_limit() -> None:
    adaptive, service = Adaptive(least=2), Service(slots=100, takes=0.05)
    service.failing = 1.0
    assert limits(service.run(adaptive, 60))[0] >= 2


# -- what keeps it from growing -------------------------------------------------------------------


def test_a_limit_that_is_not_reached_does_not_grow() -> None:
    adaptive, service = Adaptive(), Service(slots=UNLIMITED, takes=0.05, scatter=True)
    service.offered = 50
    assert limits(service.run(adaptive, 60))[1] <= 16


def test_the_limit_stays_within_its_bounds() -> None:
    assert limits(Service(slots=UNLIMITED, takes=0.05).run(Adaptive(most=20), 20))[1] == 20
    assert limits(Service(slots=1, takes=0.05).run(Adaptive(least=5), 60))[0] == 5
    assert Adaptive(least=1, most=3).limit == 3
    assert Adaptive(least=50).limit == 50


@pytest.mark.parametrize(("least", "most"), [(0, 10), (-1, 10), (5, 4)])
def test_bounds_that_are_none_are_refused(least: int, most: int) -> None:
    with pytest.raises(ConfigurationError, match=f"from {least} to {most}"):
        Adaptive(least, most)


@given(
    st.integers(1, 20),
    st.integers(0, 30),
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 100), st.booleans(), st.booleans()), max_size=300),
)
@settings(max_examples=50)
def test_whatever_is_measured_the_limit_keeps_its_bounds_and_is_the_same_again(
    least: int, above: int, story: list[tuple[float, float, bool, bool]]
) -> None:
    one, other, now = Adaptive(least, least + above), Adaptive(least, least + above), 0.0
    for latency, gap, failed, full in story:
        now += gap
        for adaptive in (one, other):
            if full:
                adaptive.saturated()
            if failed:
                adaptive.failed(now)
            else:
                adaptive.completed(latency, now)
        assert least <= one.limit == other.limit <= least + above
