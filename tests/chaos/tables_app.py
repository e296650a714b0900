"""The app with tables that is killed: counts and adds up numbers by key, and remembers the latest of each key.

The second table deletes as much as it writes: a row for each number, gone with the next number of its key.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator

from agentic import App, Stream
from agentic.runtime import restorers, run_worker

TOPIC = os.environ["CHAOS_TOPIC"]
#: Of so many numbers one takes a while, so that work is under way whenever a checkpoint begins.
PAUSE_EVERY = int(os.environ.get("CHAOS_PAUSE_EVERY", "25"))

if "CHAOS_APART" in os.environ:
    # However little there is to restore, processes of their own do it.
    restorers.WORTH = 1

app = App("numbers")
numbers = app.topic(f"{TOPIC}-in", key=str, value=int)
passed = app.topic(f"{TOPIC}-out", key=str, value=tuple[int, int, int])
#: How many numbers a key has had, and their sum.
sums = app.table("sums", key=str, value=tuple[int, int])
latest = app.table("latest", key=str, value=int, check_keys=False)


@app.agent(numbers, to=passed)
async def total(stream: Stream[int]) -> AsyncIterator[tuple[int, int, int]]:
    async for n in stream:
        if n % PAUSE_EVERY == 0:
            await asyncio.sleep(0.004)
        key = stream.event.key
        count, total = sums.get(key, (0, 0))
        sums[key] = count + 1, total + n
        for former, _ in list(latest.prefix(f"{key}/")):
            del latest[former]
        latest[f"{key}/{n}"] = n
        yield n, count + 1, total + n


if __name__ == "__main__":
    if "CHAOS_POINT" in os.environ:
        import crash_points

        crash_points.arm_by_environment()
    sys.exit(run_worker(app, ends="CHAOS_ENDS" in os.environ))
