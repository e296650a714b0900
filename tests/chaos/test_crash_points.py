"""A worker dies at each step of its checkpoint and of its recovery; no count is wrong for it."""

from __future__ import annotations

import asyncio
import pathlib

import pytest
from scene import Scene

pytestmark = pytest.mark.chaos

#: Steps of an event and of a checkpoint, with what is different between the two ways to deliver.
CHECKPOINT = [
    "effects-sent", "rows-applied", "held", "snapshot-taken", "rows-taken", "changelog-begun", "changelog-sent",
    "flushed", "before-ends", "ends-known", "before-store", "rows-put", "before-store-commit", "stored", "acknowledged",
]  # fmt: skip
COMMIT = {
    "exactly_once": ["before-commit", "within-commit", "committed"],
    "at_least_once": ["before-offsets", "offsets-committed"],
}
#: Steps of bringing a task up. All but the last come without local state alone.
RECOVERY = ["before-clear", "cleared", "restored-in-part", "before-begin"]
#: Numbers that are sent before each death: several checkpoints' worth.
LOT = 400


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_death_at_any_step_leaves_every_count_right(url: str, tmp_path: pathlib.Path, delivery: str) -> None:
    async def work() -> None:
        async with Scene(url, tmp_path, delivery) as scene:
            for number, point in enumerate([*CHECKPOINT, *COMMIT[delivery]]):
                await scene.send(LOT)
                await scene.killed(scene.start(point=point, passes=1 + number % 3))
                await scene.check(f"dead at {point}")
            for point in RECOVERY:
                await scene.send(LOT)
                scene.lose_disk()
                await scene.killed(scene.start(point=point, passes=2))
                await scene.check(f"dead at {point}")
            await scene.send(LOT)
            worker = scene.start()
            await scene.all_out(worker)
            await scene.terminate(worker)
            await scene.verify()

    asyncio.run(work())
