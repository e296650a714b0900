"""Tumbling and hopping windows: what Kafka Streams makes of the same records, and what a plain loop does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from windows_support import AGGREGATES, MemoryRows, Operator, play, records, scenarios, trace

from agentic.core.windows import Aggregate, TimeWindows


@pytest.mark.parametrize("forgets", [False, True], ids=["keeps", "forgets"])
@pytest.mark.parametrize("scenario", scenarios("tumbling", "hopping"), ids=lambda scenario: scenario["name"])
def test_the_same_rows_come_out_as_of_kafka_streams(scenario: dict[str, Any], forgets: bool) -> None:
    play(scenario, forgets=forgets)


def of_strings(windowing: TimeWindows, *, final: bool) -> Operator:
    return Operator(windowing, AGGREGATES["concat"], final=final)


def test_hopping_windows_come_out_final_as_in_kafkas_trace() -> None:
    operator = of_strings(TimeWindows(10, 5, grace=5), final=True)
    steps = [
        "B b1@1",
        "A a1@2",
        "A a2@7",
        "B b2@14",
        "A a3@15",
        "B x@4",
        "B l@9",
        "C c@20",
        "A a4@40",
        "A z@0",
        "A y@41",
    ]
    came = trace(operator, *steps)
    assert came == [
        *[""] * 4,
        "A[0,10]=a1a2@7, B[0,10]=b1@1",
        "",
        "",
        "A[5,15]=a2@7, B[5,15]=b2l@14",
        "A[10,20]=a3@15, B[10,20]=b2@14, A[15,25]=a3@15, C[15,25]=c@20, C[20,30]=c@20",
        "",
        "",
    ]
    assert operator.dropped == {"late": 3}


def test_each_update_of_tumbling_windows_comes_as_in_kafkas_trace() -> None:
    operator = of_strings(TimeWindows(10, 10, grace=3), final=False)
    came = trace(operator, "A 1@0", "A 2@12", "A 3@9", "A 4@13", "A 5@9", "A 6@10", "null n@100", "A 7@10")
    assert came == [
        "A[0,10]=1@0",
        "A[10,20]=2@12",
        "A[0,10]=13@9",
        "A[10,20]=24@13",
        "",
        "A[10,20]=246@13",
        "",
        "A[10,20]=2467@13",
    ]
    assert operator.dropped == {"late": 1, "null_key": 1}


def test_no_final_is_lost_when_stream_time_jumps() -> None:
    came = trace(of_strings(TimeWindows(10, 10), final=True), "A 1@0", "A 2@25", "A 3@34", "A 4@47")
    assert came == ["", "A[0,10]=1@0", "A[20,30]=2@25", "A[30,40]=3@34"]


def test_a_refused_record_lets_finals_come_and_a_null_key_does_not() -> None:
    came = trace(of_strings(TimeWindows(10, 10), final=True), "A 1@0", "null n@50", "A 2@12", "A 3@1")
    assert came == ["", "", "A[0,10]=1@0", ""]


@pytest.mark.parametrize(
    ("size", "advance", "timestamp", "starts"),
    [
        (10, 10, 0, [0]),
        (10, 10, 9, [0]),
        (10, 10, 10, [10]),
        (10, 5, 1, [0]),
        (10, 5, 5, [0, 5]),
        (10, 3, 12, [3, 6, 9, 12]),
        (10, 10, 1_700_000_000_007, [1_700_000_000_000]),
    ],
)
def test_a_record_is_in_each_window_over_it(size: int, advance: int, timestamp: int, starts: list[int]) -> None:
    assert list(TimeWindows(size, advance).starts(timestamp)) == starts


def test_an_update_tells_what_was_before() -> None:
    operator = of_strings(TimeWindows(10, 10), final=False)
    trace(operator, "A 1@0", "A 2@5", "B 3@5")
    assert [update.old for change in operator.changes for update in change.updates] == [None, "1", None]


def test_a_refused_window_is_named() -> None:
    operator = of_strings(TimeWindows(10, 5), final=False)
    trace(operator, "A 1@20", "A 2@14")
    assert operator.changes[-1].refused == [(5, 15), (10, 20)]


def test_an_erased_window_begins_anew() -> None:
    operator = Operator(TimeWindows(10, 10), AGGREGATES["erasable"], final=False)
    assert trace(operator, "A 1@3", "A !@4", "A 2@2") == ["A[0,10]=1@3", "A[0,10]=null@4", "A[0,10]=2@2"]


def test_the_first_value_of_a_window_may_be_taken_as_it_is() -> None:
    aggregate = Aggregate(list, lambda old, value: f"{old}+{value}", first=str)
    operator = Operator(TimeWindows(10, 10), aggregate, final=False)
    assert trace(operator, "A 1@0", "A 2@0") == ["A[0,10]=1@0", "A[0,10]=1+2@0"]


def test_what_starts_before_the_time_needed_is_closed_and_what_is_closed_starts_before_it() -> None:
    windows = TimeWindows(10, 5, grace=3)
    close = windows.close(44)
    needed = windows.needed_until(close)
    assert [start for start in range(60) if windows.closed(start + 10, close)] == list(range(needed))
    assert windows.closed(windows.last_closed(close), close)
    assert not windows.closed(windows.last_closed(close) + 1, close)


@given(records(), st.integers(1, 12), st.integers(1, 12), st.integers(0, 12))
def test_finals_are_those_of_a_batch_over_the_accepted_records(
    sent: list[tuple[str, int]], size: int, advance: int, grace: int
) -> None:
    advance = min(advance, size)
    operator = Operator(TimeWindows(size, advance, grace), AGGREGATES["concat"], final=True, forgets=True)
    batch: dict[tuple[str, int], str] = {}
    late = 0
    time = -1
    came = []
    for number, (key, timestamp) in enumerate(sent):
        value = f"{number};"
        time = max(time, timestamp)
        for start in range(0, timestamp + 1, advance):
            if start + size <= timestamp:
                continue
            if start + size > time - grace:
                batch[key, start] = batch.get((key, start), "") + value
            else:
                late += 1
        came += operator.send(key, value, timestamp)
    came += operator.finals(time + grace + size)
    assert [(row["end"], row["key"]) for row in came] == sorted((start + size, key) for key, start in batch)
    assert {(row["key"], row["start"]): row["value"] for row in came} == batch
    assert operator.dropped["late"] == late


def test_rows_of_one_key_are_not_those_of_another() -> None:
    rows = MemoryRows()
    windows = TimeWindows(10, 10)
    for key in (b"a", b"ab"):
        windows.add(rows, key, 1, 5, 5, 5, AGGREGATES["sum"])
    assert rows.get(b"a", 0, 10) == rows.get(b"ab", 0, 10) == (0, 10, 1, 5)
