"""How many events to have in flight, when nobody knows how many the service behind takes.

Little's law: while the limit is full, throughput = limit / latency. So latency alone tells whether
more in flight brings more: as long as it stays where it is, throughput grows with the limit; once it
grows as the limit does, the service is at its capacity and the rest only queues. From that:

* The limit grows as long as latency is near the least latency known, and only if it was what kept
  events from starting. It doubles until it has been cut once, and then grows by its square root.
* It is cut by a quarter when latency is half as much again as the least, or when failures have
  become more than usual.
* If latency has hardly fallen after the limit has been cut twice, the latency is not of our making:
  the service is slower now, or takes more time for much that it does at once. Then this latency is
  the one to compare with from now on, and the limit goes back to where it was.

After each change as many events as were in flight are let pass before anything is measured, since
they waited in the queue that was there before. Additive increase, multiplicative decrease, as in
TCP; the comparison with the least latency is TCP Vegas'.
"""

from __future__ import annotations

import math

from agentic.errors import ConfigurationError

#: Where it begins: a few, so that slow calls give a measure in one round.
_START = 8
#: At least so many seconds are measured before the limit is decided anew.
_INTERVAL = 0.5
#: At most so many events are waited for: their mean is known to a tenth even if latencies scatter widely.
_ENOUGH = 100
#: A latency so many times the least is a queue, not chance.
_INFLATED = 1.5
_CUT = 0.75
#: After two cuts a queue of ours would leave at most 0.67 of the latency.
_OURS = 0.8
#: Failures count as more than usual above so large a share and twice the usual one.
_FAILING = 0.05
_SMOOTHING = 0.2


class Adaptive:
    """A limit of events in flight that follows what the service takes.

    The same calls give the same limits: time comes in as an argument, in seconds.

    Args:
        least: the limit is never less.
        most: the limit is never more.

    Attributes:
        limit: how many events may be in flight now.

    Raises:
        ConfigurationError: the bounds are no bounds.
    """

    __slots__ = (
        "_base",
        "_cut_from",
        "_cut_latency",
        "_cuts",
        "_doubling",
        "_due",
        "_failures",
        "_flushing",
        "_full",
        "_latencies",
        "_least",
        "_most",
        "_need",
        "_successes",
        "_usual",
        "limit",
    )

    def __init__(self, least: int = 1, most: int = 500) -> None:
        if not 1 <= least <= most:
            raise ConfigurationError(
                f"concurrency from {least} to {most} is no range; give a least of 1 or more, and a most not below it"
            )
        self._least = least
        self._most = most
        self.limit = min(max(_START, least), most)
        #: The least mean latency known.
        self._base = math.inf
        self._doubling = True
        self._usual = 0.0
        self._cuts = 0
        self._cut_from = self.limit
        self._cut_latency = 0.0
        self._flushing = False
        self._measure(-math.inf)

    def completed(self, latency: float, now: float) -> None:
        """Count an event that succeeded after so many seconds."""
        self._successes += 1
        self._latencies += latency
        if now >= self._due and self._successes + self._failures >= self._need:
            self._decide(now)

    def failed(self, now: float) -> None:
        """Count an attempt that failed."""
        self._failures += 1
        if now >= self._due and self._successes + self._failures >= self._need:
            self._decide(now)

    def saturated(self) -> None:
        """Say that an event could have started, had the limit been greater."""
        self._full = True

    def _measure(self, now: float) -> None:
        self._successes = self._failures = 0
        self._latencies = 0.0
        self._full = False
        self._due = now + _INTERVAL
        self._need = min(2 * self.limit, _ENOUGH)

    def _change(self, limit: int, now: float) -> None:
        in_flight, self.limit = self.limit, min(max(limit, self._least), self._most)
        self._measure(now)
        if self.limit != in_flight:
            self._flushing = True
            self._due = now
            self._need = in_flight

    def _decide(self, now: float) -> None:
        if self._flushing or self._due == -math.inf:
            self._flushing = False
            self._measure(now)
            return
        limit = self.limit
        ended = self._successes + self._failures
        share = self._failures / ended
        failing = share > _FAILING and share > 2 * self._usual
        self._usual += _SMOOTHING * (share - self._usual)
        latency = self._latencies / self._successes if self._successes else self._base
        self._base = min(self._base, latency)
        inflated = latency > _INFLATED * self._base
        if inflated and self._cuts >= 2 and latency > _OURS * self._cut_latency and not failing:
            self._base = latency
            limit = self._cut_from
            self._cuts = 0
        elif inflated or failing:
            if inflated and not self._cuts:
                self._cut_from = limit
                self._cut_latency = latency
            self._cuts = self._cuts + 1 if inflated else 0
            self._doubling = False
            limit = int(limit * _CUT)
        else:
            self._cuts = 0
            if self._full:
                limit += limit if self._doubling else math.isqrt(limit)
        self._change(limit, now)
