"""A partition moves on, or its worker stops, while calls are under way that ignore their cancellation."""

from __future__ import annotations

import asyncio
import pathlib

import pytest
from async_account import DEAF_TO
from async_fleet import AsyncScene

pytestmark = pytest.mark.chaos

#: Seconds that events under way have to finish; with the time for a cancelled agent to end, several sessions' length.
EXTRA = {"AGENTIC_SESSION_TIMEOUT": "1s", "CHAOS_REVOKE_TIMEOUT": "1"}
#: Calls that swallow their cancellation, and calls in threads, which nobody can cancel.
CALLS: dict[str, dict[str, str]] = {"awaiting": {}, "in-threads": {"CHAOS_THREADS": "1"}}


def all_begun(scene: AsyncScene) -> bool:
    """Have the deaf calls begun?"""
    return scene.diary.begun().keys() >= set(range(DEAF_TO))


@pytest.mark.parametrize(("delivery", "calls"), [("exactly_once", "awaiting"), ("at_least_once", "in-threads")])
def test_a_partition_is_handed_over_though_its_calls_ignore_their_cancellation(
    shared_url: str, tmp_path: pathlib.Path, delivery: str, calls: str
) -> None:
    async def work() -> None:
        now = tmp_path / "now"
        async with AsyncScene(shared_url, tmp_path, delivery, EXTRA | CALLS[calls]) as scene:
            first = scene.start(state="first", extra={"CHAOS_DEAF_UNTIL": str(now)})
            await scene.says(first, " assigned ")
            await scene.send(DEAF_TO)
            await scene.until(lambda: all_begun(scene), "not all deaf calls have begun")
            (member,) = await scene.members()
            second = scene.start(state="second")
            await scene.says(first, "gave back ")
            await scene.says(second, " assigned ")
            moved = scene.diary.taken_by(second.pid)
            theirs = scene.numbers_of(moved, range(DEAF_TO))
            ours = sorted(set(range(DEAF_TO)) - set(theirs))
            assert theirs and ours
            await scene.until(lambda: scene.heard.accounted.issuperset(theirs), "what has moved on was not done again")
            # Its heartbeats went on: who gives back so late has still not been taken for dead.
            assert member in await scene.members()
            now.touch()
            await scene.until(lambda: len(scene.diary.returned()) == DEAF_TO, "the deaf calls do not end")
            await scene.send(400)
            await scene.all_out(first, second)
            assert " lost " not in scene.log(first)
            await scene.terminate(second)
            await scene.terminate(first)
            await scene.verify()
            # What came too late has changed nothing, under at least once either: each has come out once.
            assert scene.heard.most() == 1
            assert scene.workers_of(theirs) == {second.pid}
            assert scene.workers_of(ours) == {first.pid}

    asyncio.run(work())


@pytest.mark.parametrize("calls", CALLS)
def test_a_worker_ends_by_its_deadline_though_its_calls_ignore_their_cancellation(
    tmp_path: pathlib.Path, calls: str
) -> None:
    async def work() -> None:
        extra = {"AGENTIC_STOP_TIMEOUT": "500ms", **EXTRA, **CALLS[calls]}
        async with AsyncScene(f"local://{tmp_path / 'log'}", tmp_path, "exactly_once", extra) as scene:
            worker = scene.start(extra={"CHAOS_DEAF_UNTIL": str(tmp_path / "never")})
            await scene.says(worker, " assigned ")
            await scene.send(400)
            await scene.until(lambda: all_begun(scene), "not all deaf calls have begun")
            worker.terminate()
            assert await scene.ended(worker) == 1
            assert "does not end although all else has: " in scene.log(worker)
            worker = scene.start()
            await scene.all_out(worker)
            await scene.terminate(worker)
            await scene.verify()
            assert scene.workers_of(range(DEAF_TO)) == {worker.pid}

    asyncio.run(work())
