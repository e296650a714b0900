"""Workers that count in tables on a real Kafka are killed at random, and the broker too; every count is right."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import types
from collections.abc import Iterator
from typing import Any

import pytest
from fleet import run
from scene import QUICK, Scene
from table_fleet import TableFleet, verify

pytestmark = pytest.mark.chaos

BOTH = pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
#: Of a worker whose state directory is gone nobody knows the transactional id: its transaction has to time out.
FORGETFUL = {"AGENTIC_KAFKA": '{"transaction.timeout.ms": 2000, "socket.timeout.ms": 1500}'}


@pytest.fixture
def node(kafka_tool: types.ModuleType, tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A broker of the test's own; parametrise it with True for a controller apart, so that it can be killed."""
    kafka_tool.held(tmp_path / "node", os.getpid(), QUICK, apart=getattr(request, "param", False))
    node = kafka_tool.Node(tmp_path / "node")
    yield node
    kafka_tool.release(node.directory)


@pytest.mark.parametrize(
    ("delivery", "shared"),
    [("exactly_once", False), ("exactly_once", True), ("at_least_once", True)],
    ids=["exactly-once-a-directory-each", "exactly-once-one-directory", "at-least-once-one-directory"],
)
def test_fifty_kills_and_lost_disks_leave_every_count_right(
    node: Any, tmp_path: pathlib.Path, delivery: str, shared: bool
) -> None:
    fleet = TableFleet(
        f"kafka://{node.bootstrap}",
        tmp_path,
        delivery=delivery,
        count=20_000,
        kills=50,
        shared=shared,
        forgetful=0.3,
        extra=FORGETFUL,
    )
    run(fleet)
    verify(fleet, delivery)
    assert fleet.forgotten


@BOTH
def test_members_that_join_and_leave_every_second_leave_every_count_right(
    node: Any, tmp_path: pathlib.Path, delivery: str
) -> None:
    fleet = TableFleet(f"kafka://{node.bootstrap}", tmp_path, delivery=delivery, count=20_000, kills=12, seed=2)
    run(fleet, churn=True)
    verify(fleet, delivery)


@pytest.mark.parametrize("node", [True], indirect=True, ids=["controller-apart"])
@BOTH
def test_a_broker_killed_during_a_commit_leaves_every_count_right(
    node: Any, tmp_path: pathlib.Path, delivery: str
) -> None:
    # A restart of the broker takes its time: these are where most is under way.
    points = {
        "exactly_once": ["changelog-sent", "within-commit", "before-ends"],
        "at_least_once": ["changelog-sent", "before-offsets"],
    }

    async def work() -> None:
        async with Scene(f"kafka://{node.bootstrap}", tmp_path, delivery) as scene:
            for point in points[delivery]:
                await scene.send(400)
                worker = scene.start(point=point, passes=2, action="SIGSTOP")
                await scene.stopped(worker)
                await asyncio.to_thread(node.crash)
                worker.send_signal(signal.SIGCONT)
                await scene.all_out(worker)
                await scene.terminate(worker)
                await scene.check(f"broker killed at {point}")
            await scene.verify()

    asyncio.run(work())
