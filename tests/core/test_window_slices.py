"""Stretches of time that lie in the same windows, against the windows of each single time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.core.calendar import CalendarWindows
from agentic.core.windows import TimeWindows

SIZES = st.integers(1, 30).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size)))


@given(SIZES, st.integers(0, 100))
def test_a_slice_is_the_longest_stretch_with_the_windows_of_its_time(bounds: tuple[int, int], time: int) -> None:
    windows = TimeWindows(*bounds)
    begun, over, starts = windows.slice(time)
    assert begun <= time < over
    assert all(list(windows.starts(each)) == list(starts) for each in range(begun, over))
    assert begun == 0 or list(windows.starts(begun - 1)) != list(starts)
    assert list(windows.starts(over)) != list(starts)


@given(SIZES, st.integers(0, 100))
def test_a_slices_windows_are_those_that_hold_its_time(bounds: tuple[int, int], time: int) -> None:
    windows = TimeWindows(*bounds)
    _, _, starts = windows.slice(time)
    size, advance = bounds
    assert list(starts) == [start for start in range(0, time + 1, advance) if start <= time < start + size]
    assert [windows.start(windows.end(start)) for start in starts] == list(starts)


@pytest.mark.parametrize("unit", ["day", "week", "month"])
def test_a_slice_of_the_calendar_is_its_window(unit: str) -> None:
    windows = CalendarWindows(unit, "Europe/Berlin")  # type: ignore[arg-type]
    time = 1_774_746_000_000  # the night of 2026-03-29, when clocks go forward
    begun, over, starts = windows.slice(time)
    assert (begun, over) == windows.bounds(time)
    assert starts == (begun,)
    assert windows.start(over) == begun
