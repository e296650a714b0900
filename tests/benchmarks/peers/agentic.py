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
# [tool.bench.cannot]
# tumbling = "no windows yet"
# hopping = "no windows yet"
# async = "no concurrency within a partition yet"
# ///
"""agentic with its defaults, run by the interpreter that runs the harness."""

import os
import pathlib
import sys

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
