"""An event is put off, and its worker is killed meanwhile: it runs once, and later events of its key behind it."""

from __future__ import annotations

import asyncio
import pathlib

import pytest
from async_account import put_off
from async_fleet import AsyncScene

pytestmark = pytest.mark.chaos

BOTH = pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
#: Seconds for which events are put off: longer than a worker takes to be started again.
LONG = 3.0
#: Of a worker whose state directory is gone nobody knows the transactional id: its transaction has to time out.
FORGETFUL = {"AGENTIC_KAFKA": '{"transaction.timeout.ms": 2000, "socket.timeout.ms": 1500}'}
#: Few keys, so that many an event waits behind one that was put off.
SOME = 40
#: Steps of a checkpoint that moves events to the table of deferred ones, or from it.
POINTS = {
    "exactly_once": ["rows-applied", "changelog-sent", "before-commit", "committed", "before-store"],
    "at_least_once": ["rows-applied", "changelog-sent", "before-offsets", "offsets-committed", "before-store"],
}


@BOTH
def test_an_event_that_was_put_off_survives_its_worker(shared_url: str, tmp_path: pathlib.Path, delivery: str) -> None:
    async def work() -> None:
        extra = {"CHAOS_PUT_OFF_FOR": f"{LONG:g}", "AGENTIC_SESSION_TIMEOUT": "1s", **FORGETFUL}
        async with AsyncScene(shared_url, tmp_path, delivery, extra, keys=SOME) as scene:
            await scene.send(200)
            first = scene.start()
            await scene.until(lambda: scene.diary.committed_upto() == scene.sent, "not all is committed")
            first.kill()
            await scene.ended(first)
            second = scene.start()
            await scene.until(scene.diary.begun_again, "none of those that were put off has come again")
            # Amid the ones that have become due.
            second.kill()
            await scene.ended(second)
            scene.lose_disk()
            third = scene.start()
            await scene.all_out(third)
            await scene.terminate(third)
            await scene.verify()
            begun, again = scene.diary.begun(), scene.diary.begun_again()
            late = [n for n in range(scene.sent) if put_off(n) and n in begun]
            assert late
            for n in late:
                assert min(again[n]) >= min(begun[n]) + LONG * 1000, f"{n} came too soon"

    asyncio.run(work())


@BOTH
def test_a_death_while_events_are_put_off_or_come_again_loses_and_doubles_none(
    tmp_path: pathlib.Path, delivery: str
) -> None:
    async def work() -> None:
        url = f"local://{tmp_path / 'log'}"
        extra = {"CHAOS_PUT_OFF_FOR": "0.1", "AGENTIC_SESSION_TIMEOUT": "1s"}
        async with AsyncScene(url, tmp_path, delivery, extra, keys=SOME) as scene:
            for number, point in enumerate(POINTS[delivery]):
                await scene.send(400)
                await scene.killed(scene.start(point=point, passes=2 + number))
            await scene.send(400)
            worker = scene.start()
            await scene.all_out(worker)
            await scene.terminate(worker)
            await scene.verify()

    asyncio.run(work())
