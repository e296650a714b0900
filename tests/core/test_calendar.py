"""Calendar windows: days, weeks and months as the clocks of a place show them."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from windows_support import AGGREGATES, Operator, trace

from agentic.core.calendar import CalendarWindows, Unit

HOUR = 3_600_000


def at(zone: str, text: str, fold: int = 0) -> int:
    """Return what a local time is in ms since 1970."""
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()) * 1000


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("UTC", "2024-03-31", 24),
        ("Europe/Berlin", "2024-03-30", 24),
        ("Europe/Berlin", "2024-03-31", 23),
        ("Europe/Berlin", "2024-10-27", 25),
        ("America/New_York", "2024-03-10", 23),
        ("America/New_York", "2024-11-03", 25),
        # Half an hour only.
        ("Australia/Lord_Howe", "2024-10-06", 23.5),
        # Midnight is skipped.
        ("America/Sao_Paulo", "2018-11-04", 23),
        ("America/Havana", "2024-03-10", 23),
        # Midnight is shown twice, at the beginning of the day; clocks go back to before midnight, at its end.
        ("America/Havana", "2024-11-03", 25),
        ("America/Sao_Paulo", "2018-02-17", 25),
        # At 00:01 clocks went back to 23:01: the next day had begun.
        ("America/St_Johns", "2006-10-28", 24),
        ("America/St_Johns", "2006-10-29", 25),
        # There was no 30th of December.
        ("Pacific/Apia", "2011-12-29", 24),
        ("Pacific/Apia", "2011-12-31", 24),
    ],
)
def test_a_day_has_the_hours_between_two_midnights(zone: str, day: str, hours: float) -> None:
    start, end = CalendarWindows("day", zone).bounds(at(zone, f"{day}T12:00"))
    assert end - start == hours * HOUR


def test_a_day_whose_midnight_is_skipped_begins_with_the_first_moment_of_its_date() -> None:
    windows = CalendarWindows("day", "America/Sao_Paulo")
    first = at("America/Sao_Paulo", "2018-11-04T01:00")
    assert windows.bounds(first)[0] == first
    assert windows.bounds(first - 1)[1] == first


def test_a_day_whose_midnight_lies_within_what_is_skipped_begins_where_the_clocks_jump() -> None:
    """In 1919 clocks in Toronto went from 23:30 to 00:30; no zone did so since 1970."""
    windows = CalendarWindows("day", "America/Toronto")
    jump = at("America/Toronto", "1919-03-31T00:30")
    assert windows._midnight(date(1919, 3, 31)) == jump


def test_what_the_clocks_show_of_yesterday_once_the_day_has_begun_is_of_the_day() -> None:
    zone = "America/St_Johns"
    windows = CalendarWindows("day", zone)
    again = at(zone, "2006-10-28T23:30", fold=1)
    assert windows.bounds(again) == windows.bounds(at(zone, "2006-10-29T12:00"))
    assert windows.bounds(at(zone, "2006-10-28T23:30")) == windows.bounds(at(zone, "2006-10-28T12:00"))


def test_a_week_begins_on_monday() -> None:
    zone = "Europe/Berlin"
    for day in ("2024-12-30T00:00", "2025-01-01T12:00", "2025-01-05T23:59"):
        assert CalendarWindows("week", zone).bounds(at(zone, day)) == (
            at(zone, "2024-12-30T00:00"),
            at(zone, "2025-01-06T00:00"),
        )


def test_a_month_begins_on_its_first_day() -> None:
    zone = "Asia/Tokyo"
    windows = CalendarWindows("month", zone)
    for day in ("2024-02-01T00:00", "2024-02-29T23:59"):
        assert windows.bounds(at(zone, day)) == (at(zone, "2024-02-01T00:00"), at(zone, "2024-03-01T00:00"))
    assert windows.bounds(at(zone, "2024-12-31T23:59"))[1] == at(zone, "2025-01-01T00:00")


def test_no_window_starts_before_1970() -> None:
    assert CalendarWindows("week", "UTC").bounds(0) == (0, at("UTC", "1970-01-05T00:00"))
    assert CalendarWindows("day", "America/New_York").bounds(0) == (0, 5 * HOUR)
    assert CalendarWindows("month", "Asia/Tokyo").bounds(0) == (0, at("Asia/Tokyo", "1970-02-01T00:00"))


def test_finals_come_at_the_first_record_of_the_next_day() -> None:
    zone = "Europe/Berlin"
    day = [at(zone, f"2024-03-{number}T00:00") for number in (30, 31)]
    end = day[1] + 23 * HOUR
    operator = Operator(CalendarWindows("day", zone), AGGREGATES["concat"], final=True, forgets=True)
    came = trace(operator, f"A a@{day[0]}", f"B b@{day[1] - 1}", f"A c@{end - 1}", f"A d@{end}", f"A e@{end - 1}")
    assert came == [
        "",
        "",
        f"A[{day[0]},{day[1]}]=a@{day[0]}, B[{day[0]},{day[1]}]=b@{day[1] - 1}",
        f"A[{day[1]},{end}]=c@{end - 1}",
        "",
    ]
    assert operator.dropped == {"late": 1}
    assert operator.changes[-1].refused == ((day[1], end),)


def test_an_update_tells_what_was_before_and_has_the_greatest_timestamp() -> None:
    operator = Operator(CalendarWindows("day", "UTC"), AGGREGATES["concat"], final=False)
    assert trace(operator, "A a@5", "A b@3") == [f"A[0,{24 * HOUR}]=a@5", f"A[0,{24 * HOUR}]=ab@5"]
    assert [update.old for change in operator.changes for update in change.updates] == [None, "a"]


def test_grace_keeps_a_day_open() -> None:
    operator = Operator(CalendarWindows("day", "UTC", grace=HOUR), AGGREGATES["concat"], final=True)
    day = 24 * HOUR
    came = trace(operator, "A a@5", f"A b@{day + HOUR - 1}", "A c@7", f"A d@{day + HOUR}")
    assert came == ["", "", "", f"A[0,{day}]=ac@7"]


@pytest.mark.parametrize("unit", ["day", "week", "month"])
@given(
    zone=st.sampled_from(
        ["UTC", "Europe/Berlin", "America/St_Johns", "America/Havana", "Pacific/Apia", "Africa/Monrovia", "Asia/Gaza"]
    ),
    times=st.lists(st.integers(0, 2_500_000_000_000), max_size=8),
    step=st.sampled_from([1, HOUR // 2, 24 * HOUR]),
)
def test_windows_lie_end_to_end_and_each_time_is_in_its_own(unit: Unit, zone: str, times: list[int], step: int) -> None:
    windows = CalendarWindows(unit, zone)
    most = {"day": 2, "week": 8, "month": 32}[unit] * 24 * HOUR
    for time in times:
        for timestamp in (time, time + step):
            start, end = windows.bounds(timestamp)
            assert start <= timestamp < end <= start + most
            assert CalendarWindows(unit, zone).bounds(end)[0] == end
            assert CalendarWindows(unit, zone).bounds(end - 1) == (start, end)
            first = datetime.fromtimestamp(start // 1000, ZoneInfo(zone))
            if start > 0:
                before = first.astimezone(ZoneInfo("UTC")) - timedelta(milliseconds=1)
                assert before.astimezone(ZoneInfo(zone)).date() < first.date()
                assert first.weekday() == 0 or unit != "week" or zone == "Pacific/Apia"
                assert first.day == 1 or unit != "month"


@given(st.integers(-(10**10), 2_500_000_000_000), st.sampled_from(["UTC", "America/Havana"]))
def test_what_starts_before_the_time_needed_is_closed_and_what_is_closed_starts_before_it(
    close: int, zone: str
) -> None:
    windows = CalendarWindows("day", zone)
    needed = windows.needed_until(close)
    if close < 0:
        assert needed < 0
        return
    start, end = windows.bounds(close)
    assert needed == start
    assert not windows.closed(end, close)
    assert windows.closed(windows.last_closed(close), close)
    if start > 0:
        assert windows.closed(windows.bounds(start - 1)[1], close)


def test_equal_declarations_are_equal_whatever_they_have_seen() -> None:
    one, other = CalendarWindows("day", "UTC"), CalendarWindows("day", "UTC")
    one.bounds(5)
    assert one == other
    assert hash(one) == hash(other)


def test_an_unknown_unit_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"'year'.*day, week, month"):
        CalendarWindows("year", "UTC")  # type: ignore[arg-type]


@pytest.mark.parametrize("zone", ["Europe/Bonn", "", "../etc/passwd", "Europe"])
def test_an_unknown_zone_is_named_with_the_way_out(zone: str) -> None:
    with pytest.raises(ValueError, match=r"time zone '.*' is unknown.*Europe/Berlin"):
        CalendarWindows("day", zone)


@pytest.mark.parametrize("timestamp", [253_402_300_800_000, 10**15, 10**18])
def test_a_time_beyond_the_calendar_is_named(timestamp: int) -> None:
    with pytest.raises(ValueError, match=rf"timestamp {timestamp} is in no day.*9999"):
        CalendarWindows("day", "UTC").bounds(timestamp)


def test_a_time_before_1970_is_named() -> None:
    with pytest.raises(ValueError, match="timestamp -1 is before 1970"):
        CalendarWindows("day", "UTC").bounds(-1)
