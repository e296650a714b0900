"""The app that is killed with much in flight: its calls take a while, fail, are given up and put off.

What it does with a number `async_account` says. It keeps a diary of what begins and what is committed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from async_account import DEAF_TO, failures, poison, put_off

from agentic import App, Poison, Retry, Retryable, Stream
from agentic.brokers.base import Position, TopicPartition
from agentic.runtime import assignment, run_worker
from agentic.runtime.deferrals import Parked
from agentic.runtime.partition import SourcePartition
from agentic.runtime.purge import Purge

TOPIC = os.environ["CHAOS_TOPIC"]
PUT_OFF_FOR = float(os.environ.get("CHAOS_PUT_OFF_FOR", "0.3"))
#: Seconds for which calls about the first numbers ignore their cancellation; 0: they don't.
DEAF_FOR = float(os.environ.get("CHAOS_DEAF_FOR", "0"))

app = App("slow")
numbers = app.topic(f"{TOPIC}-in", key=str, value=int)
passed = app.topic(f"{TOPIC}-out", key=str, value=tuple[int, int, int, int])
refused = app.topic(f"{TOPIC}-refused", key=str, value=int)
sums = app.table("sums", key=str, value=tuple[int, int])


class Unavailable(Retryable):
    """What the service says now and then."""


@app.agent(numbers, to=passed, concurrency=64, retry=Retry(attempts=4, first=0.005, max=0.02), dead_letter=refused)
async def slow(stream: Stream[int]) -> AsyncIterator[tuple[int, int, int, int]]:
    async for n in stream:
        event = stream.event
        waited = isinstance(event.origin, Parked)
        origin = "deferred" if waited else "read"
        note("begins", event.partition, event.offset, stream.attempt, origin, time.time_ns() // 1_000_000, n)
        if put_off(n) and not waited:
            stream.defer(PUT_OFF_FOR)
            continue
        if DEAF_FOR and n < DEAF_TO and stream.attempt == 1:
            await deaf(DEAF_FOR)
            note("returns", event.partition, n)
        else:
            await asyncio.sleep(random.uniform(0, 0.02))
        if stream.attempt <= failures(n):
            raise Unavailable(f"attempt {stream.attempt} at {n}")
        if poison(n):
            raise Poison(f"{n} is poison")
        count, total = sums.get(event.key, (0, 0))
        sums[event.key] = count + 1, total + n
        yield n, count + 1, total + n, os.getpid()


async def deaf(seconds: float) -> None:
    """Sleep, and let nobody wake one up."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


def note(*words: object) -> None:
    """Append a line to the diary: what, by whom, the rest."""
    what, *rest = words
    os.write(_diary, (" ".join(map(str, (what, os.getpid(), *rest))) + "\n").encode())


def keep_diary() -> None:
    """Note what partitions are taken over, and what is committed of them."""
    take, committed = SourcePartition.__init__, Purge.committed

    def taking(self: Any, topic: Any, tp: TopicPartition, position: Position | None, **how: Any) -> None:
        note("takes", tp.partition, *(position or (0, "")))
        take(self, topic, tp, position, **how)

    def committing(self: Any, positions: Mapping[TopicPartition, Position]) -> None:
        for tp, position in positions.items():
            note("commits", tp.partition, *position)
        committed(self, positions)

    SourcePartition.__init__ = taking  # type: ignore[assignment,method-assign]
    Purge.committed = committing  # type: ignore[method-assign]


if __name__ == "__main__":
    _diary = os.open(os.environ["CHAOS_DIARY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    keep_diary()
    if "CHAOS_REVOKE_TIMEOUT" in os.environ:
        assignment.REVOKE_TIMEOUT = float(os.environ["CHAOS_REVOKE_TIMEOUT"])
    if "CHAOS_POINT" in os.environ:
        import crash_points

        crash_points.arm_by_environment()
    sys.exit(run_worker(app, ends=False))
