"""Rates as they are written, and the bucket that keeps to them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.core.rate import TokenBucket, parse_rate
from agentic.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "rate"),
    [("100/s", 100), ("6000/m", 100), ("36/h", 0.01), ("0.5/s", 0.5), (" 10 / s ", 10), (7, 7), (0.25, 0.25)],
)
def test_a_rate_is_events_by_second_minute_or_hour_or_a_number_by_second(text: str | float, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    "text",
    ["", "100", "100/d", "/s", "-1/s", "1e3/s", "0/s", "ten/s", "9" * 400 + "/s", 0, -1, math.nan, math.inf, True],
)
def test_what_is_no_rate_is_refused_with_examples(text: str | float) -> None:
    with pytest.raises(ConfigurationError, match=r"no rate; give .*'100/s'"):
        parse_rate(text)


def test_a_bucket_without_room_for_a_token_is_refused() -> None:
    for rate, burst in [(0, None), (-1, None), (math.nan, None), (math.inf, None), (10, 0.5), (10, math.nan)]:
        with pytest.raises(ConfigurationError, match="give a number"):
            TokenBucket(rate, burst)


def took(bucket: TokenBucket, now: float) -> int:
    """How many tokens there are at once."""
    number = 0
    while bucket.take(now):
        number += 1
    return number


def test_a_full_bucket_lets_its_burst_start_at_once_and_then_its_rate() -> None:
    bucket = TokenBucket(10, burst=4)
    assert took(bucket, 100.0) == 4
    assert took(bucket, 100.25) == 2
    assert took(bucket, 200.0) == 4


@pytest.mark.parametrize(("rate", "burst"), [(1_000, 100), (10, 1), (0.01, 1)])
def test_by_default_a_tenth_of_a_second_may_start_at_once_but_one_at_least(rate: float, burst: int) -> None:
    assert took(TokenBucket(rate), 5.0) == burst


def test_when_the_clock_goes_back_tokens_stay_and_none_is_made() -> None:
    bucket = TokenBucket(10, burst=5)
    assert bucket.take(100.0)
    assert bucket.next_at(40.0) == 40.0
    assert took(bucket, 40.0) == 4
    for _ in range(50):
        assert not bucket.take(99.0)
        assert not bucket.take(100.0)
    assert bucket.next_at(40.0) == pytest.approx(100.1)


RATES = st.floats(0.01, 10_000)
GAPS = st.lists(st.floats(0, 3), min_size=1, max_size=200)


@given(RATES, st.floats(1, 50), st.floats(0, 2e9), GAPS)
def test_a_token_is_there_exactly_when_it_was_foretold(
    rate: float, burst: float, start: float, gaps: list[float]
) -> None:
    bucket, now = TokenBucket(rate, burst), start
    for gap in gaps:
        now += gap
        at = bucket.next_at(now)
        assert at >= now
        assert bucket.take(now) == (at == now)
        if at > now:
            assert not bucket.take(math.nextafter(at, -math.inf))
            now = at
            assert bucket.take(now)


@given(RATES, st.integers(1, 20), st.lists(st.floats(-2, 3), max_size=200))
def test_never_more_start_than_the_burst_and_what_time_has_brought(rate: float, burst: int, gaps: list[float]) -> None:
    """Against tokens that are counted, on a clock that now and then goes back: a few at once, some time, a few more."""
    bucket = TokenBucket(rate, burst)
    now, latest = 1_000.0, -math.inf
    tokens = float(burst)
    for gap in gaps:
        now += gap
        tokens = min(burst, tokens + max(0.0, now - latest) * rate)
        latest = max(latest, now)
        for _ in range(3):
            if bucket.take(now):
                tokens -= 1
                assert tokens > -2e-3, "a token came from nowhere"
            else:
                assert tokens < 1 + 2e-3, "a token was lost"
