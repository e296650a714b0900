"""The app that is killed with much in flight: its calls take a while, fail, are given up and put off.

What it does with a number `async_account` says. It keeps a diary of what begins and what is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from async_account import DEAF_TO, failures, poison, put_off

from agentic import App, Poison, Retry, Retryable, Stream
from agentic.brokers.base import Position, TopicPartition
from agentic.runtime import assignment, run_worker
from agentic.runtime.deferrals import Parked
from agentic.runtime.partition import SourcePartition
from agentic.runtime.purge import Purge
from agentic.stream import BlockingStream

TOPIC = os.environ["CHAOS_TOPIC"]
PUT_OFF_FOR = float(os.environ.get("CHAOS_PUT_OFF_FOR", "0.3"))
#: Until there is this file, calls about the first numbers do not end, and ignore their cancellation; None: all end.
DEAF_UNTIL = pathlib.Path(path) if (path := os.environ.get("CHAOS_DEAF_UNTIL")) else None
#: Does the agent block in threads, in place of awaiting?
THREADS = "CHAOS_THREADS" in os.environ

app = App("slow")
numbers = app.topic(f"{TOPIC}-in", key=str, value=int)
passed = app.topic(f"{TOPIC}-out", key=str, value=tuple[int, int, int, int])
refused = app.topic(f"{TOPIC}-refused", key=str, value=int)
sums = app.table("sums", key=str, value=tuple[int, int])


#: A number, how many its key has had, their sum, and who worked on it.
Result = tuple[int, int, int, int]


class Unavailable(Retryable):
    """What the service says now and then."""


def begin(stream: Stream[int] | BlockingStream[int], n: int) -> bool:
    """Note that an attempt begins; return whether there is more to be done than to put the event off."""
    event = stream.event
    waited = isinstance(event.origin, Parked)
    origin = "deferred" if waited else "read"
    note("begins", event.partition, event.offset, stream.attempt, origin, time.time_ns() // 1_000_000, n)
    if put_off(n) and not waited:
        stream.defer(PUT_OFF_FOR)
        return False
    return True


def is_deaf(stream: Stream[int] | BlockingStream[int], n: int) -> bool:
    return DEAF_UNTIL is not None and n < DEAF_TO and stream.attempt == 1


def conclude(stream: Stream[int] | BlockingStream[int], n: int) -> Result:
    """Fail, or count the number and return what is to be said of it."""
    if stream.attempt <= failures(n):
        raise Unavailable(f"attempt {stream.attempt} at {n}")
    if poison(n):
        raise Poison(f"{n} is poison")
    key = stream.event.key
    count, total = sums.get(key, (0, 0))
    sums[key] = count + 1, total + n
    return n, count + 1, total + n, os.getpid()


def may_end() -> bool:
    return DEAF_UNTIL is not None and DEAF_UNTIL.exists()


async def awaiting(stream: Stream[int]) -> AsyncIterator[Result]:
    async for n in stream:
        if begin(stream, n):
            await asyncio.sleep(random.uniform(0, 0.02))
            if is_deaf(stream, n):
                while not may_end():
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.sleep(0.05)
                note("returns", n)
            yield conclude(stream, n)


def blocking(stream: BlockingStream[int]) -> Iterator[Result]:
    for n in stream:
        if begin(stream, n):
            time.sleep(random.uniform(0, 0.02))
            if is_deaf(stream, n):
                while not may_end():
                    time.sleep(0.05)
                note("returns", n)
            yield conclude(stream, n)


app.agent(
    numbers,
    to=passed,
    name="slow",
    tables=[sums],
    concurrency=16 if THREADS else 64,
    retry=Retry(attempts=4, first=0.005, max=0.02),
    dead_letter=refused,
    deferral=True,
    threads=THREADS,
)(blocking if THREADS else awaiting)


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
