"""What becomes of an event after an attempt at it failed.

A user declares it by `Retry`, and says what a failure means by the class of what is raised:
`Retryable`, `RetryLater`, `Poison` or `Fatal`. Whatever else is raised counts as retryable, so
that an error nobody thought of is tried again before it is given up. `judge` is the one place that
decides. Source: spec rule 19 and B7.7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Literal

from agentic.core.times import seconds
from agentic.errors import ConfigurationError


@dataclass(frozen=True)
class Retry:
    """How often, and after which waits, an event whose attempt failed is tried again.

    The wait after the n-th failed attempt is drawn anew each time between 0 and
    ``min(max, first * factor ** (n - 1))`` ("full jitter"), so that events which failed together do
    not come back together. An event that waits holds no slot; later events of its key wait behind it.

    `attempts` and `within` both bound it, whichever is reached first. No attempt begins after
    `within`: a wait that would end past it is not waited for. Only a wait that the agent itself
    asks for, by `RetryLater`, may reach past it; the attempt that follows is the last one then.

    Attributes:
        attempts: how many attempts there are in all, the first one included.
        first: upper end of the first wait, in seconds or as a timedelta.
        factor: by how much the upper end grows from one wait to the next.
        max: upper end of every wait, in seconds or as a timedelta.
        within: for how long since the first attempt began another one may begin, in seconds or as a
            timedelta; None: for any time.
        jitter: ``"full"``, or ``"none"`` for waits of exactly the upper end.

    Durations are kept as seconds.

    Raises:
        ConfigurationError: a value makes no sense.
    """

    attempts: int = 8
    first: float | timedelta = 0.2
    factor: float = 2.0
    max: float | timedelta = 30.0
    within: float | timedelta | None = 120.0
    jitter: Literal["full", "none"] = "full"

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int) or isinstance(self.attempts, bool) or self.attempts < 1:
            raise ConfigurationError(
                f"Retry(attempts={self.attempts!r}) is no number of attempts; give an int of at least 1, "
                "which counts the first attempt"
            )
        factor = self.factor
        if not isinstance(factor, int | float) or isinstance(factor, bool) or not 1 <= factor < math.inf:
            raise ConfigurationError(
                f"Retry(factor={factor!r}) would make waits shrink or never end; give a number of at least 1"
            )
        for name in ("first", "max", "within"):
            value = getattr(self, name)
            if name == "within" and value is None:
                continue
            try:
                object.__setattr__(self, name, seconds(value))
            except (TypeError, ValueError) as error:
                raise ConfigurationError(f"Retry({name}={value!r}): {error}") from error
        if self.within == 0:
            raise ConfigurationError(
                "Retry(within=0) leaves no time for a second attempt; give more than 0 seconds, None for no bound, "
                "or attempts=1"
            )
        if seconds(self.max) < seconds(self.first):
            raise ConfigurationError(
                f"Retry(max={self.max!r}) is less than first={self.first!r}; raise max, or lower first"
            )
        if self.jitter not in ("full", "none"):
            raise ConfigurationError(f"Retry(jitter={self.jitter!r}) is unknown; give 'full' or 'none'")

    def delay(self, attempt: int, uniform: Callable[[], float]) -> float:
        """Return the seconds to wait after an attempt failed.

        Args:
            attempt: which one it was, counted from 1.
            uniform: gives a random number between 0 and 1, as `random.Random.random`.
        """
        first, longest = seconds(self.first), seconds(self.max)
        try:
            longest = min(longest, first * self.factor ** (attempt - 1))
        except OverflowError:
            longest = longest if first else 0.0
        return longest * uniform() if self.jitter == "full" else longest


class Retryable(Exception):
    """Raise it, or a subclass, in an agent: this attempt failed, another one may succeed.

    Any exception that agentic does not know counts as such. It is for saying so, and for subclasses.
    """


class RetryLater(Retryable):
    """Raise it in an agent: try this event again, and not before so much time has passed.

    It takes the place of the wait that `Retry` would draw, as when a service says by
    ``Retry-After`` when to come back. It counts as an attempt. In an agent without ``retry=`` it is
    bounded by the defaults of `Retry`.

    Args:
        after: seconds, or a timedelta.
        message: what was the matter.

    Raises:
        ValueError: the time is negative, not a number, or longer than a century.
        TypeError: it is neither a timedelta nor a number.
    """

    def __init__(self, after: float | timedelta, message: str = "") -> None:
        self.after = seconds(after)
        # Both, so that it can be copied and pickled like any exception.
        super().__init__(self.after, message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.message or 'asked to be tried again'} (after {self.after:g} s)"


class Poison(Exception):
    """Raise it, or a subclass, in an agent: this event can never succeed.

    It is not tried again: what ``on_exhausted=`` and ``dead_letter=`` say happens at once. It is no
    sign that a service is ill, so a `Breaker` does not count it.
    """


class Fatal(Exception):
    """Raise it, or a subclass, in an agent: nothing can go on. The worker stops.

    Nothing is committed past the event, which is delivered again when a worker starts.
    """


class Verdict(Enum):
    """What becomes of an event whose attempt failed."""

    #: Another attempt, after the delay.
    RETRY = "retry"
    #: No attempt is left: what the agent declares for it.
    EXHAUSTED = "exhausted"
    #: No attempt can succeed: as exhausted, at once.
    POISON = "poison"
    #: The worker stops.
    FATAL = "fatal"


_BY_DEFAULT = Retry()


def judge(
    error: BaseException, *, attempt: int, elapsed: float, retry: Retry | None, uniform: Callable[[], float]
) -> tuple[Verdict, float]:
    """Decide what becomes of an event whose attempt failed, and after how many seconds (0 unless it is retried).

    * `Fatal`, and what is no `Exception` at all, as `SystemExit`, is fatal; so is a `ConfigurationError`
      of ours, since what is wrong is the app, and no event. A cancellation that the worker itself asked
      for is no failure, and not to be judged.
    * `Poison` is poison.
    * `RetryLater` is retried after its own time as long as another attempt is left and `within` has
      not passed yet. Without a policy the defaults of `Retry` bound it, since who raises it wants a retry.
    * All else, a `TimeoutError` too, is retried as the policy says; without one it is exhausted.

    In a group of exceptions, as a `TaskGroup` raises, the gravest decides, in this order; of several
    `RetryLater` the longest time.

    Args:
        error: what the attempt raised.
        attempt: which attempt it was, counted from 1.
        elapsed: seconds since the first attempt began.
        retry: the agent's policy, if it has one.
        uniform: gives a random number between 0 and 1.
    """
    errors = list(_leaves(error))
    if any(isinstance(one, Fatal | ConfigurationError) or not isinstance(one, Exception) for one in errors):
        return Verdict.FATAL, 0.0
    if any(isinstance(one, Poison) for one in errors):
        return Verdict.POISON, 0.0
    asked = max((one.after for one in errors if isinstance(one, RetryLater)), default=None)
    if retry is None:
        if asked is None:
            return Verdict.EXHAUSTED, 0.0
        retry = _BY_DEFAULT
    if attempt >= retry.attempts:
        return Verdict.EXHAUSTED, 0.0
    within = math.inf if retry.within is None else seconds(retry.within)
    if asked is not None:
        return (Verdict.RETRY, asked) if elapsed < within else (Verdict.EXHAUSTED, 0.0)
    delay = retry.delay(attempt, uniform)
    return (Verdict.RETRY, delay) if elapsed + delay <= within else (Verdict.EXHAUSTED, 0.0)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error
