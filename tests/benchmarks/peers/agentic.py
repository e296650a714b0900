# /// script
# dependencies = []
# [tool.bench]
# about = "agentic"
# [tool.bench.workloads]
# map = 800_000
# count = 600_000
# eos = 600_000
# enrich = 400_000
# recovery = 1_000_000
# latency = 2_000
# async = 20_000
# wide = 200_000
# swift = 800_000
# tumbling = 600_000
# hopping = 200_000
# session = 400_000
# sliding = 300_000
# ///
"""agentic with its defaults, run by the interpreter that runs the harness."""

import asyncio
import os
import pathlib
import sys
from datetime import timedelta

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))

from agentic import App

WORKLOAD = sys.argv[1]

app = App(
    os.environ["GROUP"],
    broker=f"kafka://{os.environ['BOOTSTRAP']}",
    state_dir=os.environ["STATE"],
    log_level="warning",
    delivery="exactly_once" if WORKLOAD == "eos" else "at_least_once",
)
source = app.topic(os.environ["INPUT"], key=str, value=dict)
output = app.topic(os.environ["OUTPUT"], key=str, value=dict)


if WORKLOAD in ("map", "latency"):

    @app.agent(source, to=output)
    async def double(stream):
        async for value in stream:
            value["ms"] *= 2
            yield value

elif WORKLOAD in ("async", "wide", "swift"):
    # In each of four partitions: 100 at once in all, 1,000, and 256 of calls that return at once.
    AT_ONCE = {"async": 25, "wide": 250, "swift": 64}[WORKLOAD]

    @app.agent(source, to=output, concurrency=AT_ONCE)
    async def call(stream):
        async for value in stream:
            if WORKLOAD != "swift":
                await asyncio.sleep(0.05)
            value["ms"] *= 2
            yield value

elif WORKLOAD in ("tumbling", "hopping", "session", "sliding"):
    WINDOWS = app.table("windows", key=str, value=int)
    GRACE = timedelta(seconds=2)
    windows = {
        "tumbling": lambda: WINDOWS.tumbling(timedelta(seconds=10), grace=GRACE),
        "hopping": lambda: WINDOWS.hopping(timedelta(seconds=60), every=timedelta(seconds=10), grace=GRACE),
        "session": lambda: WINDOWS.session(timedelta(seconds=30), grace=GRACE),
        "sliding": lambda: WINDOWS.sliding(timedelta(seconds=20), grace=GRACE),
    }[WORKLOAD]().count()

    @app.agent(source)
    async def add(stream):
        async for value in stream:
            windows.add(stream.event.key, value)

    async def report(closed):
        async for window in closed:
            yield {"start": window.start, "n": window.value}

    async def report_session(closed):
        async for session in closed:
            yield {"start": session.start, "end": session.end, "n": session.value}

    app.agent(windows.emit_final(), to=output)(report_session if WORKLOAD == "session" else report)

elif WORKLOAD == "enrich":
    users = app.table("users", source=app.topic(os.environ["TABLE"], key=str, value=dict))

    @app.agent(source, to=output)
    async def enrich(stream):
        async for value in stream:
            value["name"] = users[stream.event.key]["name"]
            yield value

else:
    counts = app.table("counts", key=str, value=int, default=int)

    @app.agent(source, to=output)
    async def count(stream):
        async for _ in stream:
            key = stream.event.key
            counts[key] += 1
            yield {"n": counts[key]}


sys.exit(app.run())
