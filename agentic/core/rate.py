"""How many events an agent may start in a second."""

from __future__ import annotations

import math
import re

from agentic.errors import ConfigurationError

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*/\s*([smh])")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
#: A bucket holds what comes in so many seconds, unless told otherwise: enough to even out the
#: worker's own hiccups, too little to be felt by the service.
_BURST_SECONDS = 0.1
#: So much of a token may be missing: else the sum of the tokens of a burst, rounded, denies its last one.
_ROUNDING = 0.001


def parse_rate(text: str | float) -> float:
    """Return events in a second, given ``"100/s"``, ``"6000/m"``, ``"10/h"``, or a number of events in a second.

    Raises:
        ConfigurationError: it is none of these, or not above 0.
    """
    rate = math.nan
    if isinstance(text, str):
        if match := _RATE.fullmatch(text.strip()):
            rate = float(match[1]) / _SECONDS[match[2]]
    elif isinstance(text, int | float) and not isinstance(text, bool):
        rate = text if text < math.inf else math.nan
    # In this form for what is no number: it is not above 0 either.
    if not 0 < rate < math.inf:
        raise ConfigurationError(
            f"rate {text!r} is no rate; give events by second, minute or hour, as '100/s', '6000/m' or '10/h', "
            "or a number above 0, of events in a second"
        )
    return float(rate)


class TokenBucket:
    """Lets events start at a rate, and as many at once as it holds tokens.

    It is full at first, gains `rate` tokens in a second, and never holds more than `burst`. Kept as the
    time at which it will be full again (the "virtual scheduling" form of the leaky bucket, ITU-T
    I.371), so that an event that starts exactly at `next_at` is never refused.

    When the clock goes back, the tokens that are there stay there, and none is gained before the
    clock passes the latest time that it has shown.

    Args:
        rate: tokens in a second.
        burst: how many it holds, at least 1; by default what comes in a tenth of a second, or 1.

    Raises:
        ConfigurationError: the rate is not above 0, or the burst less than 1.
    """

    __slots__ = ("_full_at", "_interval", "_latest", "_tolerance")

    def __init__(self, rate: float, burst: float | None = None) -> None:
        if not 0 < rate < math.inf:
            raise ConfigurationError(f"rate {rate!r} is no rate; give a number above 0, of events in a second")
        if burst is None:
            burst = max(1.0, rate * _BURST_SECONDS)
        if not 1 <= burst < math.inf:
            raise ConfigurationError(f"burst {burst!r} lets nothing start, or all; give a number of at least 1")
        self._interval = 1 / rate
        self._tolerance = (burst - 1 + _ROUNDING) * self._interval
        self._full_at = self._latest = -math.inf

    def take(self, now: float) -> bool:
        """Take a token, and return whether there was one."""
        if now > self._latest:
            self._latest = now
        else:
            now = self._latest
        full_at = self._full_at
        if now < full_at - self._tolerance:
            return False
        self._full_at = (full_at if full_at > now else now) + self._interval
        return True

    def next_at(self, now: float) -> float:
        """Return when there will be a token: now, or later."""
        at = self._full_at - self._tolerance
        return at if at > now and at > self._latest else now
