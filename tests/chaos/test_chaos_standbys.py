"""Workers with standbys and without are killed, join and leave; every count in their tables is right afterwards."""

from __future__ import annotations

import asyncio
import os
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import QUICK
from fleet import run
from table_fleet import TableFleet, verify

pytestmark = pytest.mark.chaos

BOTH = pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])


class StandbyFleet(TableFleet):
    """Workers of which some keep standbys, and a worker that is started again does otherwise than before."""

    started = 0

    def environment(self, slot: int) -> dict[str, str]:
        self.started += 1
        return {**super().environment(slot), "AGENTIC_STANDBYS": str(self.started % 3)}

    def told(self) -> str:
        return "".join(path.read_text() for path in self._directory.glob("worker-*.log"))

    async def settle(self) -> None:
        """Let a standby become up to date, if one does within some looks of the workers."""
        before = self.told().count("is up to date")
        for _ in range(100):
            if self.told().count("is up to date") > before:
                return
            await asyncio.sleep(0.1)


@pytest.fixture
def node(kafka_tool: types.ModuleType, tmp_path: pathlib.Path) -> Iterator[Any]:
    """A broker of the test's own, to be killed, with a controller apart."""
    kafka_tool.held(tmp_path / "node", os.getpid(), QUICK, apart=True)
    node = kafka_tool.Node(tmp_path / "node")
    yield node
    kafka_tool.release(node.directory)


@pytest.mark.parametrize("shared", [False, True], ids=["a-directory-each", "one-directory"])
@BOTH
def test_kills_and_lost_disks_leave_every_count_right(tmp_path: pathlib.Path, delivery: str, shared: bool) -> None:
    fleet = StandbyFleet(
        f"local://{tmp_path / 'log'}",
        tmp_path,
        delivery=delivery,
        count=20_000,
        kills=20,
        seed=3,
        shared=shared,
        forgetful=0.2,
    )
    run(fleet)
    verify(fleet, delivery)
    assert "given up" not in fleet.told()


@BOTH
def test_members_that_join_and_leave_every_second_leave_every_count_right(
    tmp_path: pathlib.Path, delivery: str
) -> None:
    fleet = StandbyFleet(f"local://{tmp_path / 'log'}", tmp_path, delivery=delivery, count=20_000, kills=6, seed=4)
    run(fleet, churn=True)
    verify(fleet, delivery)
    assert "given up" not in fleet.told()


@BOTH
def test_kills_of_workers_and_of_the_broker_leave_every_count_right(
    node: Any, tmp_path: pathlib.Path, delivery: str
) -> None:
    fleet = StandbyFleet(f"kafka://{node.bootstrap}", tmp_path, delivery=delivery, count=10_000, kills=8, seed=5)

    async def interlude(kills: int) -> None:
        await fleet.settle()
        if kills == 4:
            await asyncio.to_thread(node.crash)

    run(fleet, interlude=interlude)
    verify(fleet, delivery)
    assert "given up" not in fleet.told()
