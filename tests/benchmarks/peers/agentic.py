# /// script
# dependencies = []
# [tool.bench]
# about = "agentic"
# [tool.bench.workloads]
# map = 800_000
# latency = 2_000
# [tool.bench.cannot]
# count = "no tables yet"
# tumbling = "no windows yet"
# hopping = "no windows yet"
# enrich = "no tables yet"
# async = "no concurrency within a partition yet"
# eos = "no tables yet"
# recovery = "no tables yet"
# ///
"""agentic with its defaults, run by the interpreter that runs the harness."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))

from agentic import App

app = App(
    os.environ["GROUP"], broker=f"kafka://{os.environ['BOOTSTRAP']}", state_dir=os.environ["STATE"], log_level="warning"
)
source = app.topic(os.environ["INPUT"], value=dict)
output = app.topic(os.environ["OUTPUT"], value=dict)


@app.agent(source, to=output)
async def double(stream):
    async for value in stream:
        value["ms"] *= 2
        yield value


sys.exit(app.run())
