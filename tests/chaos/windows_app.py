"""The app with windows that is killed: counts numbers by a time of their own, in windows and in sessions.

What that time is, and what has to come out, `window_fleet` says.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from window_fleet import GAP, GRACE, PAUSE_EVERY, SIZE, time_of

from agentic import App, Stream
from agentic.runtime import run_worker

TOPIC = os.environ["CHAOS_TOPIC"]
MS = timedelta(milliseconds=1)

app = App("windows")
numbers = app.topic(f"{TOPIC}-in", key=str, value=int)
passed = app.topic(f"{TOPIC}-out", key=str, value=int)
closed = app.topic(f"{TOPIC}-finals", key=str, value=list)
refused = app.topic(f"{TOPIC}-late", key=str, value=list)
spans = app.table("spans", key=str, value=list).tumbling(SIZE * MS, grace=GRACE * MS).collect()
visits = app.table("visits", key=str, value=list).session(GAP * MS, grace=GRACE * MS).collect()


@app.agent(numbers, to=passed)
async def add(stream: Stream[int]) -> AsyncIterator[int]:
    async for n in stream:
        if n % PAUSE_EVERY == 0:
            await asyncio.sleep(0.004)
        spans.add(stream.event.key, n, timestamp=time_of(n))
        visits.add(stream.event.key, n, timestamp=time_of(n))
        yield n


@app.agent(spans.emit_final(), visits.emit_final(), to=closed)
async def close(windows: Stream[Any]) -> AsyncIterator[list[Any]]:
    async for w in windows:
        kind = "span" if stream_of(windows) is spans else "visit"
        yield [kind, w.key, w.start, w.end, w.value]


@app.agent(spans.late, visits.late, to=refused)
async def refuse(values: Stream[Any]) -> AsyncIterator[list[Any]]:
    async for late in values:
        kind = "span" if stream_of(values) is spans else "visit"
        yield [kind, late.key, late.start, late.end, late.value]


def stream_of(stream: Stream[Any]) -> object:
    """Return the table that the current event comes from."""
    return spans if stream.event.topic.endswith(spans.name) else visits


if __name__ == "__main__":
    sys.exit(run_worker(app))
