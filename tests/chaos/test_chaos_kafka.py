"""Workers on a real Kafka are killed at random, and the broker too; every record is accounted for."""

from __future__ import annotations

import asyncio
import os
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import pytest
from fleet import Fleet, run, verify

pytestmark = pytest.mark.chaos

#: A dead member is noticed in a second and a half, so that thirty deaths take less than a minute.
QUICK = ["group.consumer.session.timeout.ms=1500", "group.consumer.heartbeat.interval.ms=300"]


@pytest.fixture
def node(kafka_tool: types.ModuleType, tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A broker of the test's own, to be killed or frozen; parametrise it with True for a controller apart."""
    kafka_tool.held(tmp_path / "node", os.getpid(), QUICK, apart=getattr(request, "param", False))
    node = kafka_tool.Node(tmp_path / "node")
    yield node
    kafka_tool.release(node.directory)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_thirty_kills_lose_nothing_and_repeat_nothing_that_must_not_be(
    node: Any, tmp_path: pathlib.Path, delivery: str
) -> None:
    fleet = Fleet(f"kafka://{node.bootstrap}", tmp_path, delivery=delivery, count=50_000, kills=30)
    run(fleet)
    verify(fleet, delivery)


@pytest.mark.parametrize("node", [True], indirect=True, ids=["controller-apart"])
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_thirty_kills_and_two_of_the_broker_lose_nothing(node: Any, tmp_path: pathlib.Path, delivery: str) -> None:
    fleet = Fleet(f"kafka://{node.bootstrap}", tmp_path, delivery=delivery, count=50_000, kills=30)

    async def interlude(kills: int) -> None:
        if kills in (10, 20):
            await asyncio.to_thread(node.crash)

    run(fleet, interlude=interlude)
    verify(fleet, delivery)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_members_that_join_and_leave_every_second_lose_nothing(
    node: Any, tmp_path: pathlib.Path, delivery: str
) -> None:
    fleet = Fleet(f"kafka://{node.bootstrap}", tmp_path, delivery=delivery, count=50_000, kills=12, seed=2)
    run(fleet, churn=True)
    verify(fleet, delivery)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_broker_that_stands_still_for_longer_than_a_transaction_lives_loses_nothing(
    node: Any, tmp_path: pathlib.Path, delivery: str
) -> None:
    """Commits go out that nobody answers; members are taken for dead as soon as the broker is back."""
    extra = {"AGENTIC_KAFKA": '{"transaction.timeout.ms": 2000, "socket.timeout.ms": 1500}'}
    fleet = Fleet(f"kafka://{node.bootstrap}", tmp_path, delivery=delivery, count=20_000, kills=6, extra=extra)

    async def interlude(kills: int) -> None:
        if kills in (2, 4):
            node.freeze()
            await asyncio.sleep(6)
            node.thaw()

    run(fleet, interlude=interlude)
    verify(fleet, delivery)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_worker_that_stood_still_past_its_session_changes_nothing(
    node: Any, tmp_path: pathlib.Path, delivery: str
) -> None:
    """Its partitions have gone to others meanwhile; what it held uncommitted must not come out on top."""
    fleet = Fleet(f"kafka://{node.bootstrap}", tmp_path, delivery=delivery, count=20_000, kills=6)

    async def interlude(kills: int) -> None:
        if kills in (2, 4):
            await fleet.stand_still(3.0)

    run(fleet, interlude=interlude)
    verify(fleet, delivery)
