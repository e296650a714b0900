"""Workers with many calls in flight on a real Kafka are killed at random; every record is accounted for."""

from __future__ import annotations

import os
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import pytest
from async_fleet import AsyncFleet, verify
from fleet import run
from scene import QUICK

pytestmark = pytest.mark.chaos

BOTH = pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])


@pytest.fixture(scope="module")
def node(kafka_tool: types.ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A broker of these tests' own, which takes a member for dead after a second."""
    directory = tmp_path_factory.mktemp("kafka") / "node"
    kafka_tool.held(directory, os.getpid(), QUICK)
    node = kafka_tool.Node(directory)
    yield node
    kafka_tool.release(directory)


@BOTH
def test_kills_with_much_in_flight_lose_nothing_and_begin_nothing_again_that_was_committed(
    node: Any, tmp_path: pathlib.Path, delivery: str
) -> None:
    fleet = AsyncFleet(f"kafka://{node.bootstrap}", tmp_path, delivery=delivery, count=6_000, kills=12)
    run(fleet)
    replays = verify(fleet, delivery)
    assert replays.repeated, "none was killed with work in hand"


@BOTH
def test_members_that_join_and_leave_with_much_in_flight_lose_nothing(
    node: Any, tmp_path: pathlib.Path, delivery: str
) -> None:
    fleet = AsyncFleet(f"kafka://{node.bootstrap}", tmp_path, delivery=delivery, count=6_000, kills=5, seed=2)
    run(fleet, churn=True)
    verify(fleet, delivery)
