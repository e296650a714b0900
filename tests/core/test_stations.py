"""Stations, ledger and clock together, under random histories, against a model that does nothing cleverly.

The table in the docstring of `agentic.core.stations` is the specification: each of its rows is seen,
and nothing else. ``AGENTIC_TEST_HISTORIES`` says how many random histories are tried, and
``AGENTIC_TEST_SEED`` which is the first.
"""

from __future__ import annotations

import os
import random
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from station_histories import STEPS, History, Step, random_steps, transitions_of_the_table

from agentic.core.ledger import MAX_UNFINISHED, OffsetLedger
from agentic.core.metadata import MAX_LENGTH, decode
from agentic.core.stations import State, Stations

HISTORIES = int(os.environ.get("AGENTIC_TEST_HISTORIES", "1200"))
SEED = int(os.environ.get("AGENTIC_TEST_SEED", "1"))


def test_any_number_of_random_histories_is_as_the_model_has_it() -> None:
    seen = set()
    for seed in range(SEED, SEED + HISTORIES):
        history = History(in_order=bool(seed % 2))
        try:
            history.run(random_steps(random.Random(seed)))
        except BaseException as error:
            error.add_note(f"in the history of AGENTIC_TEST_SEED={seed} AGENTIC_TEST_HISTORIES=1")
            raise
        seen |= history.seen
    print(f"{HISTORIES} histories from seed {SEED} on")
    table = transitions_of_the_table()
    assert seen <= table
    assert HISTORIES < 1000 or seen == table


@pytest.mark.parametrize("in_order", [False, True])
@settings(deadline=None, max_examples=150)
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 99), st.integers(0, 99)), max_size=30))
def test_a_history_is_as_the_model_has_it(in_order: bool, steps: list[Step]) -> None:
    History(in_order=in_order).run(steps)


@pytest.mark.parametrize("order", list(permutations(["result", "time-out", "retry"])), ids=" ".join)
def test_an_attempt_ends_once_in_whatever_order_its_result_its_time_out_and_its_retry_come(
    order: tuple[str, ...],
) -> None:
    stations: Stations[str] = Stations()
    station = stations.issue("event", "key", "p", 0)
    stations.begin(0)
    token = station.attempt
    ended = []
    for what in order:
        if what == "result":
            ended += ["done"] if stations.finish(station, token) else []
        elif what == "time-out":
            ended += ["timed out"] if stations.back_off(station, token, due_at=1) else []
        else:
            stations.wake(1)
            begun = stations.begin(1)
            assert (begun is station) is (ended == ["timed out"])
    assert ended == ["done" if order.index("result") < order.index("time-out") else "timed out"]
    if ended == ["done"]:
        assert station.state is State.DONE
    else:
        retried = order.index("time-out") < order.index("retry")
        assert station.state is (State.EXECUTING if retried else State.BACKOFF)


def test_a_late_result_does_not_end_the_attempt_that_came_after() -> None:
    stations: Stations[str] = Stations()
    station = stations.issue("event", "key", "p", 0)
    stations.begin(0)
    assert stations.again(station, 1)
    stations.begin(0)
    assert not stations.finish(station, 1)
    assert stations.finish(station, 2)


def test_five_hundred_unfinished_events_fit_the_metadata_wherever_they_lie() -> None:
    chance = random.Random(SEED)
    for span in (1_000, 24_000, 100_000, 2_000_000):
        ledger = OffsetLedger(0)
        stations: Stations[int] = Stations()
        left = {0, *chance.sample(range(1, span - 1), MAX_UNFINISHED - 1)}
        # Where hardly any two of them are neighbours, the runs are as many as there can be.
        offsets = sorted(left | {offset + 1 for offset in left})
        ledger.deliver(offsets, span)
        for offset in offsets:
            station = stations.issue(offset, None, "p", 0)
            stations.begin(0)
            if offset not in left:
                stations.finish(station, 1)
                stations.retire(station)
                ledger.retire(offset)
        snapshot = ledger.snapshot()
        assert snapshot is not None and len(stations) == MAX_UNFINISHED
        assert len(snapshot.metadata) <= MAX_LENGTH
        # What was never delivered need not be told apart from what is done.
        assert set(decode(*snapshot).unfinished) == {offset for offset in left if offset <= ledger.high_done}


def test_what_executes_behind_an_abandoned_one_takes_no_effect_where_effects_go_in_order() -> None:
    stations: Stations[str] = Stations(in_order=True)
    first, second = stations.issue("first", "a", "p", 0), stations.issue("second", "b", "p", 0)
    elsewhere = stations.issue("elsewhere", "c", "q", 0)
    for _ in range(3):
        stations.begin(0)
    stations.back_off(first, 1, due_at=9)
    assert stations.abandon(lambda station: station.state is not State.EXECUTING) == [first, second]
    assert not stations.finish(second, 1)
    assert stations.applicable(second) == []
    assert stations.finish(elsewhere, 1)
    assert stations.applicable(elsewhere) == [elsewhere]


def test_what_is_queued_behind_an_abandoned_one_is_abandoned_with_it() -> None:
    stations: Stations[str] = Stations()
    first, second = stations.issue("first", "a", "p", 0), stations.issue("second", "a", "p", 0)
    other = stations.issue("other", "b", "p", 0)
    assert stations.abandon(lambda station: station is first) == [first, second]
    assert not stations.busy("a")
    assert stations.begin(0) is other


def test_an_event_that_backs_off_twice_until_the_same_time_is_woken_once() -> None:
    stations: Stations[str] = Stations(in_order=True)
    station = stations.issue("event", None, "p", 0)
    stations.begin(0)
    stations.back_off(station, 1, due_at=5)
    stations.give_up(station)
    stations.again(station, 1)  # its effects were out of date
    stations.begin(0)
    stations.back_off(station, 2, due_at=5)
    assert stations.wake(5) == 1
    assert stations.due_at is None
