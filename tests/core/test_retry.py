"""What becomes of an event after a failed attempt."""

from __future__ import annotations

import asyncio
import copy
import math
import pickle
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.core.retry import Fatal, Poison, Retry, Retryable, RetryLater, Verdict, judge
from agentic.errors import ConfigurationError


class Overloaded(Retryable):
    pass


class Malformed(Poison):
    pass


class LicenceGone(Fatal):
    pass


def after(
    error: BaseException, *, attempt: int = 1, elapsed: float = 0.0, retry: Retry | None = None, drawn: float = 0.5
) -> tuple[Verdict, float]:
    return judge(error, attempt=attempt, elapsed=elapsed, retry=retry, uniform=lambda: drawn)


# -- the policy -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"attempts": 0}, "attempts=0"),
        ({"attempts": 2.5}, "attempts=2.5"),
        ({"attempts": True}, "attempts=True"),
        ({"first": -1}, "first=-1"),
        ({"first": "1s"}, "first='1s'"),
        ({"max": math.inf}, "max=inf"),
        ({"within": math.nan}, "within=nan"),
        ({"within": timedelta(0)}, "within=0"),
        ({"factor": 0.9}, "factor=0.9"),
        ({"factor": math.inf}, "factor=inf"),
        ({"factor": math.nan}, "factor=nan"),
        ({"factor": "2"}, "factor='2'"),
        ({"first": 60}, "first=60"),
        ({"first": None}, "first=None"),
        ({"jitter": "equal"}, "jitter='equal'"),
    ],
)
def test_a_policy_of_nonsense_is_refused_by_field_and_value(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Retry(**given)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_durations_are_kept_as_seconds() -> None:
    retry = Retry(first=timedelta(milliseconds=250), max=timedelta(minutes=1), within=timedelta(hours=1))
    assert (retry.first, retry.max, retry.within) == (0.25, 60.0, 3600.0)


def test_waits_grow_by_the_factor_up_to_the_longest() -> None:
    retry = Retry(first=1, factor=3, max=20, jitter="none")
    assert [retry.delay(attempt, lambda: 0.5) for attempt in (1, 2, 3, 4, 5)] == [1, 3, 9, 20, 20]


@given(st.integers(1, 10**9), st.floats(0, 30), st.floats(1, 1e300), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_drawn_between_nothing_and_its_upper_end(
    attempt: int, first: float, factor: float, drawn: float
) -> None:
    longest = Retry(first=first, factor=factor, jitter="none").delay(attempt, lambda: drawn)
    assert min(first, 30) <= longest <= (30 if first else 0)
    assert Retry(first=first, factor=factor).delay(attempt, lambda: drawn) == longest * drawn


# -- what is raised -------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("?"), TimeoutError(), Overloaded("busy"), OSError(111, "refused")])
def test_what_is_not_known_to_be_hopeless_is_tried_again(error: Exception) -> None:
    assert after(error, retry=Retry(first=2)) == (Verdict.RETRY, 1.0)


@pytest.mark.parametrize("error", [ValueError("?"), TimeoutError(), Overloaded("busy")])
def test_without_a_policy_nothing_is_tried_again(error: Exception) -> None:
    assert after(error) == (Verdict.EXHAUSTED, 0.0)


@pytest.mark.parametrize("retry", [None, Retry()])
def test_poison_and_what_is_fatal_are_never_tried_again(retry: Retry | None) -> None:
    assert after(Malformed("no id"), retry=retry) == (Verdict.POISON, 0.0)
    assert after(LicenceGone("expired"), retry=retry) == (Verdict.FATAL, 0.0)


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
def test_what_is_no_exception_of_a_program_is_fatal(error: BaseException) -> None:
    assert after(error, retry=Retry()) == (Verdict.FATAL, 0.0)


def test_the_gravest_of_a_group_decides() -> None:
    both = ExceptionGroup("tasks", [ValueError("?"), ExceptionGroup("more", [Malformed("no id")])])
    assert after(both, retry=Retry())[0] is Verdict.POISON
    assert after(ExceptionGroup("tasks", [both, LicenceGone("expired")]), retry=Retry())[0] is Verdict.FATAL
    assert after(BaseExceptionGroup("tasks", [SystemExit(1), ValueError()]), retry=Retry())[0] is Verdict.FATAL
    later = ExceptionGroup("tasks", [RetryLater(3), ValueError("?"), RetryLater(9)])
    assert after(later, retry=Retry()) == (Verdict.RETRY, 9.0)
    assert after(ExceptionGroup("tasks", [ValueError("?")]), retry=Retry(first=2)) == (Verdict.RETRY, 1.0)


def test_who_asks_to_be_tried_later_is_at_that_time_without_a_policy_too() -> None:
    assert after(RetryLater(timedelta(minutes=1)), retry=Retry()) == (Verdict.RETRY, 60.0)
    assert after(RetryLater(7, "quota")) == (Verdict.RETRY, 7.0)


def test_who_asks_to_be_tried_later_without_a_policy_is_bounded_by_its_defaults() -> None:
    assert after(RetryLater(1), attempt=7)[0] is Verdict.RETRY
    assert after(RetryLater(1), attempt=8)[0] is Verdict.EXHAUSTED
    assert after(RetryLater(1), elapsed=120)[0] is Verdict.EXHAUSTED


@pytest.mark.parametrize("after", [-1, math.nan, math.inf, "1s", None, True])
def test_a_time_to_be_tried_later_that_is_none_is_refused_where_it_is_raised(after: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="duration"):
        RetryLater(after)


def test_what_is_raised_can_be_copied_and_pickled() -> None:
    error = RetryLater(2.5, "quota")
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (again.after, again.message, str(again)) == (2.5, "quota", "quota (after 2.5 s)")
    assert str(RetryLater(3600)) == "asked to be tried again (after 3600 s)"


# -- the bounds -----------------------------------------------------------------------------------


def test_the_attempts_end_it() -> None:
    assert after(ValueError(), attempt=2, retry=Retry(attempts=3))[0] is Verdict.RETRY
    assert after(ValueError(), attempt=3, retry=Retry(attempts=3)) == (Verdict.EXHAUSTED, 0.0)
    assert after(ValueError(), attempt=1, retry=Retry(attempts=1)) == (Verdict.EXHAUSTED, 0.0)


def test_a_wait_that_would_end_past_the_time_allowed_is_not_waited_for() -> None:
    retry = Retry(first=10, within=100, jitter="none")
    assert after(ValueError(), elapsed=90, retry=retry) == (Verdict.RETRY, 10.0)
    assert after(ValueError(), elapsed=90.5, retry=retry) == (Verdict.EXHAUSTED, 0.0)
    assert after(ValueError(), elapsed=1e9, retry=Retry(first=10, within=None))[0] is Verdict.RETRY


def test_a_wait_that_was_asked_for_may_reach_past_the_time_allowed_once() -> None:
    retry = Retry(within=100)
    assert after(RetryLater(3600), elapsed=99, retry=retry) == (Verdict.RETRY, 3600.0)
    assert after(RetryLater(3600), elapsed=3699, attempt=2, retry=retry) == (Verdict.EXHAUSTED, 0.0)


@given(
    st.integers(1, 12),
    st.floats(0.1, 50),
    st.lists(st.tuples(st.floats(0, 5), st.none() | st.floats(0, 5), st.floats(0, 1)), min_size=13, max_size=13),
)
def test_every_event_that_always_fails_comes_to_an_end_within_its_bounds(
    attempts: int, within: float, story: list[tuple[float, float | None, float]]
) -> None:
    """Each attempt takes its time and fails, by RetryLater now and then."""
    retry, now = Retry(attempts=attempts, within=within), 0.0
    for attempt, (takes, asked, drawn) in enumerate(story, start=1):
        assert attempt <= attempts
        now += takes
        error = ValueError() if asked is None else RetryLater(asked)
        verdict, delay = after(error, attempt=attempt, elapsed=now, retry=retry, drawn=drawn)
        if verdict is Verdict.EXHAUSTED:
            assert delay == 0
            assert attempt == attempts or now + 30 > within
            break
        assert verdict is Verdict.RETRY
        assert now < within or (now == within and delay == 0)
        now += delay
        assert asked is not None or now <= within
    else:
        pytest.fail("it is tried for ever")
