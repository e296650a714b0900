"""The disk is full in mid-run: the worker stops and says why; with space again it goes on, and all is counted."""

from __future__ import annotations

import asyncio
import pathlib

import pytest
from scene import Scene

pytestmark = pytest.mark.chaos

LOT = 400


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_full_disk_stops_the_worker_with_one_line_and_costs_no_count(
    url: str, tmp_path: pathlib.Path, delivery: str
) -> None:
    # The store's file is the first to be refused, or on the embedded log that of the log.
    points = ["before-store", "rows-put", *(["changelog-sent"] if url.startswith("local") else [])]

    async def work() -> None:
        async with Scene(url, tmp_path, delivery) as scene:
            for point in points:
                await scene.send(LOT)
                worker = scene.start(point=point, passes=2, action="full")
                code = await scene.struck(worker)
                log = scene.log(worker)
                assert code == 1, log
                reasons = [line for line in log.splitlines() if " ERROR " in line or "Traceback" in line]
                assert len(reasons) == 1, log
                assert "stopped: " in reasons[0], log
                assert "data.mdb: no space left on the device; nothing was half-written: free some" in reasons[0], log
                await scene.check(f"disk full at {point}")
            await scene.send(LOT)
            worker = scene.start()
            await scene.all_out(worker)
            await scene.terminate(worker)
            await scene.verify()

    asyncio.run(work())
