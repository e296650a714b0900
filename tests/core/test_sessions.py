"""Session windows: what Kafka Streams makes of the same records, and what a plain loop does."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from windows_support import AGGREGATES, MemoryRows, Operator, play, records, scenarios, trace

from agentic.core.sessions import SessionWindows
from agentic.core.windows import Aggregate

#: Shows each merge, and each initial value.
TELLING = Aggregate(
    lambda: "I",
    lambda old, value: old + ("null" if value is None else value),
    merge=lambda left, right: f"({left}|{right})",
)


@pytest.mark.parametrize("forgets", [False, True], ids=["keeps", "forgets"])
@pytest.mark.parametrize("scenario", scenarios("session"), ids=lambda scenario: scenario["name"])
def test_the_same_rows_come_out_as_of_kafka_streams(scenario: dict[str, Any], forgets: bool) -> None:
    play(scenario, forgets=forgets)


def test_updates_come_as_in_kafkas_trace() -> None:
    operator = Operator(SessionWindows(10), TELLING, final=False)
    steps = ["A a@0", "A b@10", "A c@21", "A d@32", "A e@20", "A f@32", "A g@43", "A null@43"]
    assert trace(operator, *steps) == [
        "A[0,0]=Ia@0",
        "A[0,0]=null@0, A[0,10]=(I|Ia)b@10",
        "A[21,21]=Ic@21",
        "A[32,32]=Id@32",
        "",
        "A[32,32]=(I|Id)f@32",
        "A[43,43]=Ig@43",
        "A[43,43]=(I|Ig)null@43",
    ]
    assert operator.dropped == {"late": 1}


def test_a_closed_session_is_not_merged_as_in_kafkas_trace_with_grace() -> None:
    operator = Operator(SessionWindows(10, grace=20), TELLING, final=False)
    assert trace(operator, "A a@0", "A b@20", "A c@40", "A m@10", "A n@30") == [
        "A[0,0]=Ia@0",
        "A[20,20]=Ib@20",
        "A[40,40]=Ic@40",
        "A[20,20]=null@20, A[10,20]=(I|Ib)m@20",
        "A[10,20]=null@20, A[40,40]=null@40, A[10,40]=((I|(I|Ib)m)|Ic)n@40",
    ]


def test_finals_come_as_in_kafkas_trace() -> None:
    operator = Operator(SessionWindows(10), TELLING, final=True)
    steps = ["B a@0", "A b@0", "A c@5", "B x@10", "A z@15", "A d@16", "C e@21", "C f@22", "G g@40", "D h@500"]
    assert trace(operator, *steps) == [
        *[""] * 6,
        "B[0,10]=(I|Ia)x@10",
        "",
        "A[0,16]=(I|(I|(I|Ib)c)z)d@16, C[21,22]=(I|Ie)f@22",
        "G[40,40]=Ig@40",
    ]


def test_a_session_that_ends_on_the_closing_edge_is_extended() -> None:
    operator = Operator(SessionWindows(10), TELLING, final=False)
    trace(operator, "A a@0", "A b@5", "B c@15")
    assert trace(operator, "A d@5") == ["A[0,5]=null@5, A[0,5]=(I|(I|Ia)b)d@5"]


def test_a_closed_session_is_never_found_though_it_is_still_there() -> None:
    operator = Operator(SessionWindows(10), TELLING, final=False)
    trace(operator, "A a@0", "B b@16")
    assert trace(operator, "A c@6") == ["A[6,6]=Ic@6"]
    assert operator.rows.get(b"A", 0, 0) == (0, 0, "Ia", 0)


def test_finals_of_one_end_come_by_their_starts_and_then_by_their_keys() -> None:
    operator = Operator(SessionWindows(10), AGGREGATES["concat"], final=True)
    steps = ["B b@7", "C c@5", "A a@7", "Z z@3", "C c@9", "Z z@9", "B b@9", "A a@9", "X x@30"]
    assert trace(operator, *steps)[-1] == "Z[3,9]=zz@9, C[5,9]=cc@9, A[7,9]=aa@9, B[7,9]=bb@9"


def test_a_late_record_makes_one_of_the_sessions_on_both_sides() -> None:
    operator = Operator(SessionWindows(10, grace=100), AGGREGATES["concat"], final=False)
    trace(operator, "A a@0", "A b@11", "A c@22", "A d@35")
    assert trace(operator, "A e@12") == ["A[11,11]=null@11, A[22,22]=null@22, A[11,22]=bce@22"]


def test_without_an_initial_value_only_sessions_are_merged() -> None:
    merged: list[tuple[str, str]] = []

    def merge(left: str, right: str) -> str:
        merged.append((left, right))
        return left + right

    aggregate = Aggregate(lambda: "I", lambda old, value: old + value, merge=merge, first=str)
    operator = Operator(SessionWindows(10, grace=100), aggregate, final=False)
    trace(operator, "A a@0", "A b@20", "A c@25")
    assert merged == []
    assert trace(operator, "A d@10") == ["A[0,0]=null@0, A[20,25]=null@25, A[0,25]=abcd@25"]
    assert merged == [("a", "bc")]


def test_updates_tell_what_was_before() -> None:
    operator = Operator(SessionWindows(10), AGGREGATES["concat"], final=False)
    trace(operator, "A a@0", "A b@0", "A c@5")
    assert [[update.old for update in change.updates] for change in operator.changes] == [[None], ["a"], ["ab", None]]


def test_an_erased_session_is_gone() -> None:
    operator = Operator(SessionWindows(10), AGGREGATES["erasable"], final=False)
    assert trace(operator, "A a@0", "A !@5", "A b@5") == [
        "A[0,0]=a@0",
        "A[0,0]=null@0, A[0,5]=null@5",
        "A[5,5]=b@5",
    ]


def test_a_late_record_would_have_been_a_session_of_its_own() -> None:
    operator = Operator(SessionWindows(10, grace=5), AGGREGATES["concat"], final=False)
    trace(operator, "A a@50", "A b@34", "A c@35")
    assert [list(change.refused) for change in operator.changes] == [[], [(34, 34)], []]


def test_what_is_closed_starts_before_the_time_needed() -> None:
    windows = SessionWindows(10, grace=5)
    close = windows.close(100)
    assert close == 85
    assert [end for end in range(80, 90) if windows.closed(end, close)] == [80, 81, 82, 83, 84]
    assert windows.last_closed(close) == 84
    assert windows.needed_until(close) == 85


def test_an_aggregate_that_cannot_merge_is_named() -> None:
    with pytest.raises(ValueError, match="merge="):
        SessionWindows(10).add(MemoryRows(), b"a", 1, 0, 0, -10, Aggregate(int, max))


@given(records(), st.integers(1, 12), st.integers(0, 12))
def test_finals_are_those_of_a_batch_over_the_accepted_records(
    sent: list[tuple[str, int]], gap: int, grace: int
) -> None:
    operator = Operator(SessionWindows(gap, grace), AGGREGATES["concat"], final=True, forgets=True)
    came = []
    accepted: dict[str, list[tuple[int, str]]] = {"a": [], "b": []}
    # What is closed stays as it is: a record near it begins anew. So the batch is over the records between closings.
    closed: list[tuple[str, int, int, frozenset[str]]] = []
    time = -1
    for number, (key, timestamp) in enumerate(sent):
        time = max(time, timestamp)
        close = time - grace - gap
        for owner, kept in accepted.items():
            for run in runs(kept, gap):
                if run[-1][0] < close:
                    closed.append((owner, run[0][0], run[-1][0], frozenset(value for _, value in run)))
                    kept[:] = [one for one in kept if one not in run]
        value = f"{number};"
        if timestamp >= close or any(
            run[0][0] - gap <= timestamp <= run[-1][0] + gap for run in runs(accepted[key], gap)
        ):
            accepted[key].append((timestamp, value))
        came += operator.send(key, value, timestamp)
    came += operator.finals(time + 1)
    for owner, kept in accepted.items():
        for run in runs(kept, gap):
            closed.append((owner, run[0][0], run[-1][0], frozenset(value for _, value in run)))
    assert sorted(
        (row["key"], row["start"], row["end"], sorted(row["value"].split(";")[:-1])) for row in came
    ) == sorted((key, start, end, sorted(one.rstrip(";") for one in values)) for key, start, end, values in closed)
    assert [(row["end"], row["start"], row["key"]) for row in came] == sorted(
        (row["end"], row["start"], row["key"]) for row in came
    )


def runs(kept: list[tuple[int, str]], gap: int) -> list[list[tuple[int, str]]]:
    """Split records into sessions."""
    ordered = sorted(kept)
    cuts = [number for number, (one, other) in enumerate(pairwise(ordered), 1) if other[0] - one[0] > gap]
    return [ordered[start:end] for start, end in pairwise([0, *cuts, len(ordered)]) if start < end]
