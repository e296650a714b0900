"""When to stop starting work, because nearly all of it fails.

Without it a service that is down sends every event through its retries to the dead letter. With it
an agent waits, its events stay where they are, and one attempt at a time probes whether the service
is back. Source: spec B7.7.

Counts are kept in tenths of the window, so that an event costs no more than an addition: what is
counted is between nine tenths and the whole of the window.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from agentic.core.times import seconds
from agentic.errors import ConfigurationError

_BUCKETS = 10


@dataclass(frozen=True)
class Breaker:
    """Stop starting an agent's events while too many of them fail, and probe one at a time until one succeeds.

    Events that wait are not failed: they lose no attempt, and intake pauses behind them. An attempt that is let
    through as a probe counts for its event, the time that it has waited does not. `Poison` does not count, since
    it says something of the event and nothing of the service.

    Attributes:
        share: stop when this share of the attempts within the window failed; above 0, at most 1.
        least: so many attempts must have ended within the window before the share says anything.
        window: over how long attempts are counted, in seconds or as a timedelta.
        pause: how long nothing starts before a probe, in seconds or as a timedelta.

    Durations are kept as seconds.

    Raises:
        ConfigurationError: a value makes no sense.
    """

    share: float = 0.5
    least: int = 20
    window: float | timedelta = 30.0
    pause: float | timedelta = 5.0

    def __post_init__(self) -> None:
        share = self.share
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share <= 1:
            raise ConfigurationError(f"Breaker(share={share!r}) is no share; give a number above 0, and at most 1")
        if not isinstance(self.least, int) or isinstance(self.least, bool) or self.least < 1:
            raise ConfigurationError(
                f"Breaker(least={self.least!r}) is no number of attempts; give an int of at least 1"
            )
        for name in ("window", "pause"):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, seconds(value))
            except (TypeError, ValueError) as error:
                raise ConfigurationError(f"Breaker({name}={value!r}): {error}") from error
            if getattr(self, name) == 0:
                raise ConfigurationError(f"Breaker({name}=0) is no time at all; give more than 0 seconds")


class Circuit:
    """The breaker of one agent in one worker.

    * closed: attempts start. When the share of failures passes the threshold, it opens. Only a
      failure opens it, never a success that makes the number of attempts large enough.
    * open: nothing starts for the pause.
    * half-open: one probe starts. Its success closes the circuit, with nothing counted, its failure
      opens it for another pause.

    An attempt that started before the circuit opened says nothing about the service now. Who tells
    when an attempt `started` has such ones ignored; otherwise whatever ends while the circuit is
    half-open is taken for the probe. Times are seconds of one clock that does not go back.

    Attributes:
        state: ``"closed"``, ``"open"`` or ``"half-open"``.
    """

    __slots__ = (
        "_bucket",
        "_bucket_until",
        "_failures",
        "_least",
        "_past",
        "_pause",
        "_probe",
        "_probed_at",
        "_share",
        "_successes",
        "_until",
        "_width",
        "state",
    )

    def __init__(self, breaker: Breaker) -> None:
        self.state: Literal["closed", "open", "half-open"] = "closed"
        self._share = breaker.share
        self._least = breaker.least
        self._pause = seconds(breaker.pause)
        self._width = seconds(breaker.window) / _BUCKETS
        self._until = -math.inf
        self._probe = False
        self._probed_at = -math.inf
        self._clear()

    def may_start(self, now: float) -> bool:
        """Return whether an attempt may start now. Who is told so starts one, and tells how it ended.

        A circuit that is not closed gives its probe away by it.
        """
        if self.state == "closed":
            return True
        if self._probe or now < self._until:
            return False
        self.state = "half-open"
        self._probe = True
        self._probed_at = now
        return True

    def starts_at(self) -> float | None:
        """Return the end of the pause when the circuit is open.

        None when there is no time to wait for: attempts may start now, or the end of the probe decides.
        """
        return self._until if self.state == "open" else None

    def succeeded(self, now: float, started: float = math.inf) -> None:
        """Count an attempt that succeeded."""
        if self.state == "closed":
            if now >= self._bucket_until:
                self._turn(now)
            if started >= self._probed_at:
                self._successes += 1
        elif self._probe and started >= self._probed_at:
            self.state = "closed"
            self._probe = False
            self._clear()

    def failed(self, now: float, started: float = math.inf) -> None:
        """Count an attempt that failed, for another reason than `Poison`."""
        if started < self._probed_at:
            return
        if self.state == "closed":
            if now >= self._bucket_until:
                self._turn(now)
            self._failures += 1
            failures = self._failures + sum(failed for _, failed, _ in self._past)
            ended = failures + self._successes + sum(succeeded for succeeded, _, _ in self._past)
            if ended >= self._least and failures >= self._share * ended:
                self._open(now)
        elif self._probe:
            self._open(now)

    def abandoned(self, started: float = math.inf) -> None:
        """Say that an attempt ended without a verdict on the service: cancelled, or `Poison`. Another may probe."""
        if started >= self._probed_at:
            self._probe = False

    def _open(self, now: float) -> None:
        self.state = "open"
        self._probe = False
        self._until = now + self._pause

    def _clear(self) -> None:
        self._successes = self._failures = 0
        # (succeeded, failed, number) of the buckets before the current one.
        self._past: deque[tuple[int, int, int]] = deque()
        self._bucket = 0
        self._bucket_until = -math.inf

    def _turn(self, now: float) -> None:
        """Begin another bucket, and forget those that are out of the window."""
        if self._successes or self._failures:
            self._past.append((self._successes, self._failures, self._bucket))
            self._successes = self._failures = 0
        self._bucket = int(now // self._width)
        self._bucket_until = (self._bucket + 1) * self._width
        while self._past and self._past[0][2] <= self._bucket - _BUCKETS:
            self._past.popleft()
