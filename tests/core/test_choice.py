"""Which source gives the next event."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentic.core.choice import Head, Wait, choose


def test_the_smallest_head_timestamp_goes_first() -> None:
    assert choose([Head(5, True), Head(3, False), Head(4, True)], 0, 0) == 1


def test_ties_go_by_the_order_of_the_sources() -> None:
    assert choose([Head(7, True), Head(3, True), Head(3, True)], 0, 0) == 1


def test_a_source_that_is_not_read_to_its_end_is_waited_for_whatever_max_idle_says() -> None:
    assert choose([Head(5, True), Head(None, False)], 1e9, 0) == Wait(idle=False)


def test_a_source_at_its_end_is_waited_for_as_long_as_max_idle_says() -> None:
    heads = [Head(5, True), Head(None, True)]
    assert choose(heads, 0.4, 0.5) == Wait(idle=True)
    assert choose(heads, 0.5, 0.5) == 0


def test_without_max_idle_nobody_is_waited_for() -> None:
    assert choose([Head(None, False), Head(5, False)], 0, None) == 1


def test_with_nothing_there_nothing_is_chosen() -> None:
    assert choose([Head(None, True), Head(None, True)], 99, 0) == Wait(idle=True)


@given(st.lists(st.builds(Head, st.none() | st.integers(0, 5), st.booleans()), min_size=1, max_size=5))
def test_what_is_chosen_is_a_least_head(heads: list[Head]) -> None:
    chosen = choose(heads, 0, 0)
    if not isinstance(chosen, Wait):
        there = [head.timestamp for head in heads if head.timestamp is not None]
        assert heads[chosen].timestamp == min(there)
        assert [head.timestamp for head in heads].index(min(there)) == chosen
