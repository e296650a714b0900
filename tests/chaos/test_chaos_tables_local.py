"""Workers that count in tables on the embedded log are killed at random; every count is right afterwards."""

from __future__ import annotations

import pathlib

import pytest
from fleet import run
from table_fleet import TableFleet, verify

pytestmark = pytest.mark.chaos

BOTH = pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])


@pytest.mark.parametrize("shared", [False, True], ids=["a-directory-each", "one-directory"])
@BOTH
def test_fifty_kills_and_lost_disks_leave_every_count_right(
    tmp_path: pathlib.Path, delivery: str, shared: bool
) -> None:
    fleet = TableFleet(
        f"local://{tmp_path / 'log'}", tmp_path, delivery=delivery, count=20_000, kills=50, shared=shared, forgetful=0.3
    )
    run(fleet)
    verify(fleet, delivery)
    assert fleet.forgotten


@BOTH
def test_members_that_join_and_leave_every_second_leave_every_count_right(
    tmp_path: pathlib.Path, delivery: str
) -> None:
    fleet = TableFleet(f"local://{tmp_path / 'log'}", tmp_path, delivery=delivery, count=20_000, kills=12, seed=2)
    run(fleet, churn=True)
    verify(fleet, delivery)
