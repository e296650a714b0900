"""Which source partition of a task gives the next event.

The smallest head timestamp goes first, ties by the order of the sources (topic name, then
partition). A source without a head may hold the others back, since an older record may still
come from it: always while its end is not known or not reached, and for `max_idle` once it is
reached. Source: Kafka Streams' record choice (KIP-353, KIP-695), spec rule 39.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Head(NamedTuple):
    """What is known of one source.

    Attributes:
        timestamp: of its next event, None when it has none.
        caught_up: it is known to have been read to its end.
    """

    timestamp: int | None
    caught_up: bool


class Wait(NamedTuple):
    """Nothing may be chosen yet.

    Attributes:
        idle: every missing source is caught up, so that only `max_idle` holds the choice back.
    """

    idle: bool


def choose(heads: Sequence[Head], waited: float, max_idle: float | None) -> int | Wait:
    """Return the index of the source to take from, or `Wait`.

    Args:
        heads: the sources in the order that breaks ties.
        waited: seconds for which the task has had some event and waited for a caught-up source.
        max_idle: seconds to wait for a source that is caught up; None: wait for none at all.
    """
    best: int | None = None
    missing = unknown = False
    for i, head in enumerate(heads):
        if head.timestamp is None:
            missing = True
            unknown = unknown or not head.caught_up
        elif best is None or head.timestamp < heads[best].timestamp:  # type: ignore[operator]
            best = i
    if best is None:
        return Wait(idle=not unknown)
    if missing and max_idle is not None:
        if unknown:
            return Wait(idle=False)
        if waited < max_idle:
            return Wait(idle=True)
    return best
