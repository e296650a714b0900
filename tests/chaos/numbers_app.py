"""The app that is killed: passes numbers on, now and then with a pause so that work is under way."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from datetime import timedelta

from agentic import App, Stream

app = App("numbers", commit_interval=timedelta(milliseconds=100))
numbers = app.topic(os.environ["CHAOS_TOPIC"] + "-in", key=str, value=int)
passed = app.topic(os.environ["CHAOS_TOPIC"] + "-out", key=str, value=int)


@app.agent(numbers, to=passed)
async def through(stream: Stream[int]) -> AsyncIterator[int]:
    async for n in stream:
        if n % 25 == 0:
            await asyncio.sleep(0.004)
        yield n


if __name__ == "__main__":
    sys.exit(app.run())
