"""A worker stands still past its session while another takes over, and goes on: it must change nothing."""

from __future__ import annotations

import asyncio
import pathlib
import signal

import pytest
from scene import Scene

pytestmark = pytest.mark.chaos

#: Where it stands still: with work of its own that is not committed, in its commit, and behind it, where
#: it has not told its store of it. In the commit of an embedded log it would hold the lock of all writers.
POINTS = {
    "local": [
        "effects-sent", "rows-taken", "changelog-sent", "flushed", "before-ends", "ends-known", "before-commit",
        "committed", "before-store", "stored", "acknowledged",
    ],
    "kafka": ["effects-sent", "changelog-sent", "ends-known", "within-commit", "committed", "stored"],
}  # fmt: skip
#: Numbers that are sent between two things that happen.
LOT = 300


def test_a_worker_that_stood_still_past_its_session_changes_nothing(url: str, tmp_path: pathlib.Path) -> None:
    extra = {
        "AGENTIC_SESSION_TIMEOUT": "1s",
        "AGENTIC_KAFKA": '{"transaction.timeout.ms": 2000, "socket.timeout.ms": 1500}',
    }

    async def work() -> None:
        async with Scene(url, tmp_path, "exactly_once", extra) as scene:
            for point in POINTS[url.partition(":")[0]]:
                await scene.send(LOT)
                zombie = scene.start(state="zombie", point=point, passes=2, action="SIGSTOP")
                await scene.stopped(zombie)
                other = scene.start(state="other")
                await scene.send(LOT)
                await scene.all_out(other)
                zombie.send_signal(signal.SIGCONT)
                await scene.says(zombie, " assigned ", times=2)
                # It comes back to what it has kept of its former life, which must not be wrong either.
                await scene.terminate(other)
                await scene.send(LOT)
                await scene.all_out(zombie)
                await scene.terminate(zombie)
                await scene.check(f"stood still at {point}")
            await scene.verify()

    asyncio.run(work())
