"""Stream time with holds, against a model that looks at every hold again at each step."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.core.clock import NEVER, Clock, Hold, Holds


class Model:
    """The formula as it stands in the spec: ``in = max(in, min(seen, holds))``, a hold as the last value allowed."""

    def __init__(self, restored: int | None = None) -> None:
        self.now = self.seen = NEVER if restored is None else restored
        self.holds: dict[int, int] = {}
        self.placed = 0

    def issue(self, timestamp: int) -> int:
        number = self.hold(timestamp)
        self.skip(timestamp)
        return number

    def skip(self, timestamp: int) -> None:
        self.seen = max(self.seen, timestamp)
        self.recompute()

    def hold(self, at: int) -> int:
        self.placed += 1
        self.holds[self.placed] = max(at - 1, self.now)
        self.recompute()
        return self.placed

    def release(self, number: int) -> None:
        del self.holds[number]
        self.recompute()

    def recompute(self) -> None:
        self.now = max(self.now, min(self.seen, *self.holds.values(), self.seen))

    def oldest(self) -> int | None:
        return min(self.holds, key=lambda number: (self.holds[number], number), default=None)


# -- one event after the other --------------------------------------------------------------------


def test_a_task_that_has_seen_nothing_stands_before_any_timestamp() -> None:
    clock = Clock()
    assert clock.now == NEVER
    assert clock.oldest is None


@given(st.lists(st.integers(0, 50)))
def test_one_at_a_time_the_clock_is_the_greatest_timestamp_so_far(timestamps: list[int]) -> None:
    clock, greatest = Clock(), NEVER
    for timestamp in timestamps:
        hold = clock.issue(timestamp)
        assert clock.now == max(greatest, timestamp - 1)
        clock.release(hold)
        greatest = max(greatest, timestamp)
        assert clock.now == greatest


# -- events in flight -----------------------------------------------------------------------------


def test_a_later_event_that_finishes_first_does_not_move_the_clock_past_an_earlier_one() -> None:
    clock = Clock()
    early, late = clock.issue(10), clock.issue(100)
    clock.release(late)
    assert clock.now == 9
    clock.release(early)
    assert clock.now == 100


def test_a_late_event_keeps_the_clock_where_it_is() -> None:
    clock = Clock()
    clock.release(clock.issue(100))
    late = clock.issue(7)
    clock.release(clock.issue(200))
    assert (clock.now, late.at) == (100, 101)
    clock.release(late)
    assert clock.now == 200


def test_what_holds_a_time_not_reached_yet_does_not_pull_the_clock_to_it() -> None:
    clock = Clock()
    deferred = clock.hold(500, "deferral")
    clock.release(clock.issue(100))
    assert clock.now == 100
    clock.release(clock.issue(1_000))
    assert clock.now == 499
    clock.release(deferred)
    assert clock.now == 1_000


def test_an_event_that_is_deferred_hands_its_hold_over() -> None:
    clock = Clock()
    event = clock.issue(100, "event")
    clock.issue(300, "next")
    deferral = clock.hold(100, "deferral")
    clock.release(event)
    assert (clock.now, deferral.at) == (99, 100)
    assert clock.oldest is deferral


def test_what_was_done_before_a_restart_moves_the_clock_only_with_what_was_not() -> None:
    clock = Clock(restored=9)
    unfinished = clock.issue(10)
    clock.skip(100)
    assert clock.now == 9
    clock.release(unfinished)
    assert clock.now == 100


def test_a_restored_clock_goes_on_where_it_stood() -> None:
    clock = Clock(restored=1_000)
    assert clock.now == 1_000
    clock.release(clock.issue(40))
    assert clock.now == 1_000


def test_the_oldest_hold_tells_its_owner_and_of_equals_it_is_the_first() -> None:
    clock = Clock()
    first = clock.issue(10, "offset 1")
    second = clock.issue(10, "offset 2")
    clock.issue(11, "offset 3")
    assert clock.oldest is first
    clock.release(first)
    assert clock.oldest is second
    assert "offset 2" in repr(second)


def test_a_hold_is_released_once_and_on_its_own_clock() -> None:
    clock, other = Clock(), Clock()
    hold = clock.issue(10)
    with pytest.raises(ValueError, match="not held by this clock"):
        other.release(hold)
    clock.release(hold)
    with pytest.raises(ValueError, match="not held by this clock"):
        clock.release(hold)


def test_a_hold_that_stays_does_not_keep_in_memory_what_is_released_behind_it() -> None:
    clock = Clock()
    parked = clock.hold(0, "deferral")
    for timestamp in range(1, 10_000):
        clock.release(clock.issue(timestamp))
        assert clock.holds == 1
    assert len(clock._heap) < 200
    clock.release(parked)
    assert (clock.now, clock.holds) == (9_999, 0)


def test_a_hundred_thousand_holds_are_released_in_any_order() -> None:
    clock = Clock()
    holds = [clock.issue(timestamp) for timestamp in range(100_000)]
    random.Random(1).shuffle(holds)
    held = {hold.at for hold in holds}
    for i, hold in enumerate(holds):
        clock.release(hold)
        held.discard(hold.at)
        if not i % 20_000:
            assert clock.now == min(held) - 1
    assert (clock.now, clock.holds, clock.oldest) == (99_999, 0, None)


# -- against the model ----------------------------------------------------------------------------

# The last: which of the live holds is meant.
STEPS = st.lists(
    st.tuples(st.sampled_from(["issue", "issue", "hold", "skip", "release", "release"]), st.integers(0, 30)),
    max_size=200,
)


@given(st.none() | st.integers(0, 20), STEPS)
@settings(max_examples=300)
def test_any_history_gives_the_time_of_the_formula(restored: int | None, steps: list[tuple[str, int]]) -> None:
    clock, model = Clock(restored), Model(restored)
    live: list[tuple[Hold, int]] = []
    before = clock.now
    for step, number in steps:
        if step == "issue":
            live.append((clock.issue(number), model.issue(number)))
        elif step == "hold":
            live.append((clock.hold(number), model.hold(number)))
        elif step == "skip":
            clock.skip(number)
            model.skip(number)
        elif live:
            hold, modelled = live.pop(number % len(live))
            clock.release(hold)
            model.release(modelled)
        assert (clock.now, clock.seen) == (model.now, model.seen)
        assert clock.holds == len(model.holds) == len(live)
        assert clock.now >= before, "the clock went back"
        before = clock.now
        oldest = model.oldest()
        assert clock.oldest is next((hold for hold, modelled in live if modelled == oldest), None)
        assert all(clock.now <= hold.at - 1 for hold, _ in live)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=60))
def test_no_event_in_flight_is_later_than_it_would_be_one_at_a_time(events: list[tuple[int, int]]) -> None:
    """Issued in their order, each finished some events later: what is late is late by its own timestamp."""
    clock, greatest = Clock(), NEVER
    flying: list[tuple[int, Hold, int, int]] = []
    for i, (timestamp, stays) in enumerate(events):
        flying.append((i + stays, clock.issue(timestamp), timestamp, greatest))
        greatest = max(greatest, timestamp)
        for until, hold, _, _ in flying:
            if until <= i:
                clock.release(hold)
        flying = [flight for flight in flying if flight[0] > i]
        for _, _, own, serial in flying:
            assert clock.now <= max(own - 1, serial)
    for _, hold, _, _ in flying:
        clock.release(hold)
    assert clock.now == greatest


# -- many holds of one holder ---------------------------------------------------------------------


@given(st.tuples(st.integers(0, 20), st.integers(0, 20)), STEPS)
@settings(max_examples=300)
def test_holds_that_are_kept_together_hold_each_clock_as_each_of_them_would(
    restored: tuple[int, int], steps: list[tuple[str, int]]
) -> None:
    """Two clocks that stand elsewhere, and events of their own that hold them besides."""
    together, apart = [Clock(time) for time in restored], [Clock(time) for time in restored]
    holds = Holds(together)
    live: list[tuple[int, list[Hold]]] = []
    for step, number in steps:
        if step == "hold":
            holds.place(number)
            live.append((number, [clock.hold(number) for clock in apart]))
        elif step == "release" and live:
            at, each = live.pop(number % len(live))
            holds.lift(at)
            for hold in each:
                hold.release()
        elif step == "issue":
            together[number % 2].release(together[number % 2].issue(number))
            apart[number % 2].release(apart[number % 2].issue(number))
        elif step == "skip":
            for clock in (*together, *apart):
                clock.skip(number)
        assert [clock.now for clock in together] == [clock.now for clock in apart]
        assert len(holds) == len(live)
        assert all(clock.holds == bool(live) for clock in together)


def test_of_holds_that_are_kept_together_one_that_stays_does_not_keep_the_others_in_memory() -> None:
    clock = Clock()
    holds = Holds([clock])
    holds.place(0)
    clock.skip(9_999)
    for at in range(1, 10_000):
        holds.place(at)
        holds.lift(at)
    assert len(holds) == 1
    assert len(holds._ats) < 200
    assert clock.now == -1
    holds.lift(0)
    assert (clock.now, clock.holds, len(holds)) == (9_999, 0, 0)


def test_of_holds_that_are_kept_together_only_what_was_placed_is_lifted() -> None:
    holds = Holds([Clock()])
    with pytest.raises(ValueError, match="nothing holds at 5"):
        holds.lift(5)
    holds = Holds([Clock()])
    holds.place(7)
    with pytest.raises(ValueError, match="nothing holds at 5"):
        holds.lift(5)
