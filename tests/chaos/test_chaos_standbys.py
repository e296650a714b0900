"""Workers with standbys and without are killed, join and leave; every count in their tables is right afterwards."""

from __future__ import annotations

import pathlib

import pytest
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
    assert "takes over" in fleet.told()
    assert "given up" not in fleet.told()


@BOTH
def test_members_that_join_and_leave_every_second_leave_every_count_right(
    tmp_path: pathlib.Path, delivery: str
) -> None:
    fleet = StandbyFleet(f"local://{tmp_path / 'log'}", tmp_path, delivery=delivery, count=20_000, kills=6, seed=4)
    run(fleet, churn=True)
    verify(fleet, delivery)
    assert "given up" not in fleet.told()
