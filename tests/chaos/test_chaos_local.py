"""Workers on the embedded log are killed at random; every record is accounted for."""

from __future__ import annotations

import pathlib

import pytest
from fleet import Fleet, run, verify

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_thirty_kills_lose_nothing_and_repeat_nothing_that_must_not_be(tmp_path: pathlib.Path, delivery: str) -> None:
    fleet = Fleet(f"local://{tmp_path / 'log'}", tmp_path, delivery=delivery, count=50_000, kills=30)
    run(fleet)
    verify(fleet, delivery)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_members_that_join_and_leave_every_second_lose_nothing(tmp_path: pathlib.Path, delivery: str) -> None:
    fleet = Fleet(f"local://{tmp_path / 'log'}", tmp_path, delivery=delivery, count=50_000, kills=12, seed=2)
    run(fleet, churn=True)
    verify(fleet, delivery)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_worker_that_stood_still_past_its_session_changes_nothing(tmp_path: pathlib.Path, delivery: str) -> None:
    extra = {"AGENTIC_SESSION_TIMEOUT": "1s"}
    fleet = Fleet(f"local://{tmp_path / 'log'}", tmp_path, delivery=delivery, count=20_000, kills=6, extra=extra)

    async def interlude(kills: int) -> None:
        if kills in (2, 4):
            await fleet.stand_still(3.0)

    run(fleet, interlude=interlude)
    verify(fleet, delivery)
