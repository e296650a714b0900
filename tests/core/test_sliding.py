"""Sliding windows: what Kafka Streams makes of the same records, and what they are by their definition."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from windows_support import AGGREGATES, Operator, play, records, scenarios, trace

from agentic.core.sliding import SlidingWindows
from agentic.core.windows import Aggregate


@pytest.mark.parametrize("forgets", [False, True], ids=["keeps", "forgets"])
@pytest.mark.parametrize("scenario", scenarios("sliding"), ids=lambda scenario: scenario["name"])
def test_the_same_rows_come_out_as_of_kafka_streams(scenario: dict[str, Any], forgets: bool) -> None:
    play(scenario, forgets=forgets)


def of_strings(windowing: SlidingWindows, *, final: bool = False) -> Operator:
    return Operator(windowing, AGGREGATES["concat"], final=final)


def test_updates_come_as_in_kafkas_trace() -> None:
    assert trace(of_strings(SlidingWindows(10)), "A a@10", "A b@15", "A c@20", "A d@26", "A e@50") == [
        "A[0,10]=a@10",
        "A[11,21]=b@15, A[5,15]=ab@15",
        "A[11,21]=bc@20, A[16,26]=c@20, A[10,20]=abc@20",
        "A[16,26]=cd@26, A[21,31]=d@26",
        "A[40,50]=e@50",
    ]


def test_updates_of_records_out_of_order_come_as_in_kafkas_trace() -> None:
    operator = of_strings(SlidingWindows(10, grace=100))
    steps = ["A a@20", "A b@30", "A c@25", "A d@20", "A e@5", "A f@3", "A g@0", "A null@30"]
    assert trace(operator, *steps) == [
        "A[10,20]=a@20",
        "A[21,31]=b@30, A[20,30]=ab@30",
        "A[21,31]=bc@30, A[20,30]=abc@30, A[15,25]=ac@25, A[26,36]=b@30",
        "A[20,30]=abcd@30, A[15,25]=acd@25, A[10,20]=ad@20",
        "A[0,10]=e@5",
        "A[4,14]=e@5, A[0,10]=ef@5",
        "A[1,11]=ef@5, A[0,10]=efg@5",
        "",
    ]
    assert operator.dropped == {"null_value": 1}


def test_finals_come_as_in_kafkas_trace() -> None:
    operator = of_strings(SlidingWindows(10, grace=5), final=True)
    steps = ["A a@10", "B b@12", "A c@15", "A d@25", "A e@26", "A f@31", "A x@5", "B g@60"]
    assert trace(operator, *steps) == [
        *[""] * 3,
        "A[0,10]=a@10, B[2,12]=b@12, A[5,15]=ac@15",
        "",
        "A[11,21]=c@15, A[15,25]=cd@25",
        "",
        "A[16,26]=de@26, A[21,31]=def@31, A[26,36]=ef@31, A[27,37]=f@31",
    ]
    assert operator.dropped == {"late": 1}


def test_early_records_let_no_finals_come() -> None:
    operator = of_strings(SlidingWindows(10), final=True)
    assert trace(operator, "A 1@9", "A 2@3", "B x@25") == ["", "", "A[0,10]=12@9, A[4,14]=1@9"]
    assert [change.finals for change in operator.changes] == [False, False, True]


def test_the_final_of_a_window_comes_at_the_first_record_past_its_end() -> None:
    assert trace(of_strings(SlidingWindows(10), final=True), "A 1@10", "A 2@10", "A 3@11") == ["", "", "A[0,10]=12@10"]


def test_a_record_late_as_a_whole_is_refused_once_with_the_window_that_it_would_end() -> None:
    operator = of_strings(SlidingWindows(10))
    trace(operator, "A a@50", "A b@39", "A c@5")
    assert [list(change.refused) for change in operator.changes] == [[], [(29, 39)], [(0, 10)]]
    assert not operator.changes[-1].finals


def test_a_record_may_be_refused_by_some_windows_only() -> None:
    operator = of_strings(SlidingWindows(10))
    trace(operator, "A a@40", "A b@50", "A c@45")
    assert operator.changes[-1].refused == [(35, 45)]
    assert operator.dropped == {"late": 1}


def test_updates_tell_what_was_before() -> None:
    operator = of_strings(SlidingWindows(10))
    trace(operator, "A a@10", "A b@15", "A c@20")
    assert [update.old for update in operator.changes[-1].updates] == ["b", None, None]


def test_a_window_that_is_right_of_one_record_and_left_of_the_next_comes_twice_with_what_was_before() -> None:
    operator = of_strings(SlidingWindows(10))
    assert trace(operator, "A x@11", "A a@20", "A b@31")[2] == "A[21,31]=b@31, A[21,31]=b@31"
    assert [update.old for update in operator.changes[-1].updates] == [None, "b"]


def test_windows_do_not_share_an_aggregate_that_is_changed_in_place() -> None:
    def append(old: list[str], value: str) -> list[str]:
        old.append(value)
        return old

    operator = Operator(SlidingWindows(10, grace=100), Aggregate(list, append), final=False)
    for timestamp in (20, 30, 25, 28, 22, 3, 5, 4):
        operator.send("A", str(timestamp), timestamp)
    expected = by_definition([(timestamp, str(timestamp)) for timestamp in (20, 30, 25, 28, 22, 3, 5, 4)], 10)
    assert {row.start: set(row.value) for row in operator.rows.of(b"A")} == expected


def test_windows_are_needed_as_long_as_a_record_may_be_made_of_them() -> None:
    windows = SlidingWindows(10, grace=5)
    close = windows.close(100)
    assert windows.needed_until(close) == 100 - 5 - 30
    assert windows.last_closed(close) == 94
    assert windows.closed(94, close)
    assert not windows.closed(95, close)


@given(records(), st.integers(1, 12), st.booleans())
def test_windows_are_those_of_their_definition_if_no_record_is_late(
    sent: list[tuple[str, int]], size: int, forgets: bool
) -> None:
    """One window ends with each record, and one begins right after each, if any record lies in it."""
    operator = Operator(SlidingWindows(size, grace=10_000), AGGREGATES["concat"], final=True, forgets=forgets)
    batch: dict[str, list[tuple[int, str]]] = {"a": [], "b": []}
    for number, (key, timestamp) in enumerate(sent):
        assert operator.send(key, f"{number};", timestamp) == []
        batch[key].append((timestamp, str(number)))
    came = operator.finals(10**6)
    for key, kept in batch.items():
        mine = [row for row in came if row["key"] == key]
        assert {row["start"]: set(row["value"].split(";")[:-1]) for row in mine} == by_definition(kept, size)
        latest = {row["start"]: row["ts"] for row in mine}
        assert all(
            latest[start] == max(timestamp for timestamp, value in kept if value in values)
            for start, values in by_definition(kept, size).items()
        )
    assert [(row["end"], row["key"]) for row in came] == sorted((row["end"], row["key"]) for row in came)


def by_definition(kept: list[tuple[int, str]], size: int) -> dict[int, set[str]]:
    """Return the values of each window of a key, by its start."""
    windows: dict[int, set[str]] = {}
    for timestamp, _ in kept:
        for start in (max(0, timestamp - size), timestamp + 1):
            inside = {value for other, value in kept if start <= other <= start + size}
            if inside:
                windows[start] = inside
    return windows


@given(records(), st.integers(1, 12), st.integers(0, 12))
def test_what_is_forgotten_is_not_missed(sent: list[tuple[str, int]], size: int, grace: int) -> None:
    for final in (False, True):
        keeping, forgetting = (
            Operator(SlidingWindows(size, grace), AGGREGATES["concat"], final=final, forgets=forgets)
            for forgets in (False, True)
        )
        for number, (key, timestamp) in enumerate(sent):
            assert keeping.send(key, f"{number};", timestamp) == forgetting.send(key, f"{number};", timestamp)
        assert keeping.dropped == forgetting.dropped


@given(records(), st.integers(1, 12), st.integers(0, 12))
def test_a_window_holds_the_records_within_its_bounds_that_no_window_refused(
    sent: list[tuple[str, int]], size: int, grace: int
) -> None:
    """A record that its own closed window refused leaves no trace if no other window is open: later ones miss it."""
    operator = Operator(SlidingWindows(size, grace), AGGREGATES["concat"], final=True, forgets=True)
    time = -1
    came = []
    in_time_until: list[int] = []
    for number, (key, timestamp) in enumerate(sent):
        time = max(time, timestamp)
        in_time_until.append(time - grace)
        came += operator.send(key, f"{number};", timestamp)
    came += operator.finals(time + grace + 10 * size)
    for row in came:
        values = [int(value) for value in row["value"].split(";")[:-1]]
        inside = [
            number
            for number, (key, timestamp) in enumerate(sent)
            if key == row["key"] and row["start"] <= timestamp <= row["end"] and row["end"] >= in_time_until[number]
        ]
        assert len(set(values)) == len(values)
        assert set(values) <= set(inside)
        assert not [number for number in set(inside) - set(values) if not operator.changes[number].refused]
    ended = {(row["key"], row["end"]) for row in came}
    for (key, timestamp), change in zip(sent, operator.changes, strict=True):
        assert change.refused or (key, max(size, timestamp)) in ended
