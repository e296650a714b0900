"""How many events to have in flight, when nobody knows how many the service behind takes.

Little's law: while the limit is full, throughput = limit / latency. So latency alone tells whether
more in flight brings more: while it stays where it is, throughput grows with the limit; once it
grows as the limit does, the service is at its capacity and the rest only queues. From that:

* The limit grows as long as latency is near the least that is known, and only if it was what kept
  events from starting. It doubles until it is cut for the first time, and then grows by its square
  root, or an eighth of it if that is less.
* It is cut when latency is half as much again as the least, or when more fails than usual. The cut
  is deep enough to end below what the least latency belongs to. So a least latency that was taken
  while events queued already is found out, step by step.
* If latency has hardly fallen after two cuts, it is not of our making: the service is slower now, or
  takes its time for much that it does at once. Then this latency is what to compare with from now
  on, and the limit goes back to where it was before the cuts.

Means of few events scatter. So a latency is less than the least only by two standard errors, and
more by as many; and likewise for failures. After each change of the limit as many events as were in
flight are let pass before anything is measured, since they stood in the queue that was there before.

Additive increase and multiplicative decrease are TCP's; the comparison with the least latency is
TCP Vegas'.
"""

from __future__ import annotations

import math

from agentic.errors import ConfigurationError

#: Where the limit begins: enough that slow calls give a measure in a round or two, and few for any service.
_START = 8
#: At least so many seconds are measured before the limit is decided anew.
_INTERVAL = 0.5
#: For at most so many events: two standard errors are a fifth of the mean then, even if latencies scatter widely.
_ENOUGH = 100
#: A latency so many times the least is a queue, not chance.
_INFLATED = 1.5
#: _INFLATED * _CUT is less than 1, so that a cut ends below the capacity that the least latency speaks of.
_CUT = 0.6
#: A queue of ours, of half as much again, leaves 0.67 of the latency when it is gone.
_OURS = 0.8
#: A share of failures that is never too much.
_FEW_FAILURES = 0.05
#: How fast a share of failures that stays becomes the usual one: in two or three decisions.
_SMOOTHING = 0.5


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
        "_least_latency",
        "_most",
        "_need",
        "_squares",
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
        self._least_latency = math.inf
        self._doubling = True
        self._usual = 0.0
        self._cuts = 0
        self._cut_from = self.limit
        self._cut_latency = 0.0
        self._flushing = True
        self._measure(-math.inf)

    def completed(self, latency: float, now: float) -> None:
        """Count an event that succeeded after so many seconds."""
        self._successes += 1
        self._latencies += latency
        self._squares += latency * latency
        if now >= self._due and self._successes + self._failures >= self._need:
            self._decide(now)

    def failed(self, now: float) -> None:
        """Count an attempt that failed, for another reason than `Poison`, which says nothing of the service."""
        self._failures += 1
        if now >= self._due and self._successes + self._failures >= self._need:
            self._decide(now)

    def saturated(self) -> None:
        """Say that an event could have started, had the limit been greater."""
        self._full = True

    def _measure(self, now: float) -> None:
        """Begin to measure."""
        self._successes = self._failures = 0
        self._latencies = self._squares = 0.0
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
        if self._flushing:
            self._flushing = False
            self._measure(now)
            return
        limit = self.limit
        failing = self._failing()
        latency, error = self._latency()
        self._least_latency = min(self._least_latency, latency + error)
        inflated = latency - error > _INFLATED * self._least_latency
        if inflated and not failing and self._cuts >= 2 and latency > _OURS * self._cut_latency:
            self._least_latency = latency + error
            limit = self._cut_from
            self._cuts = 0
        elif inflated or failing:
            self._doubling = False
            if not inflated:
                self._cuts = 0
            else:
                if not self._cuts:
                    self._cut_from = limit
                    self._cut_latency = 0.0
                # The greatest: the first measure may be of the time before the queue was full.
                self._cut_latency = max(self._cut_latency, latency)
                self._cuts += 1
            # From below where it was found too much, so that the least limits are cut as deep.
            limit = int((limit - 1) * _CUT)
        else:
            self._cuts = 0
            if self._full:
                limit += limit if self._doubling else max(1, min(math.isqrt(limit), limit // 8))
        self._change(limit, now)

    def _failing(self) -> bool:
        """Return whether more failed than usual, by more than two standard errors."""
        failures, ended = self._failures, self._successes + self._failures
        failing = failures - 2 * math.sqrt(failures) > ended * max(_FEW_FAILURES, self._usual)
        self._usual += _SMOOTHING * (failures / ended - self._usual)
        return failing

    def _latency(self) -> tuple[float, float]:
        """Return the mean latency of what succeeded, and two standard errors of it."""
        n = self._successes
        if not n:
            return self._least_latency, 0.0
        mean = self._latencies / n
        return mean, 2 * math.sqrt(max(0.0, self._squares / n - mean * mean) / n)
