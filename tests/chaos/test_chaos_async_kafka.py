"""Workers with many calls in flight on a real Kafka are killed at random; every record is accounted for."""

from __future__ import annotations

import pathlib

import pytest
from async_fleet import AsyncFleet, verify
from fleet import run

pytestmark = pytest.mark.chaos

BOTH = pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])


@BOTH
def test_kills_with_much_in_flight_lose_nothing_and_begin_nothing_again_that_was_committed(
    quick_kafka: str, tmp_path: pathlib.Path, delivery: str
) -> None:
    fleet = AsyncFleet(f"kafka://{quick_kafka}", tmp_path, delivery=delivery, count=6_000, kills=12)
    run(fleet)
    replays = verify(fleet, delivery)
    assert replays.repeated, "none was killed with work in hand"


@BOTH
def test_members_that_join_and_leave_with_much_in_flight_lose_nothing(
    quick_kafka: str, tmp_path: pathlib.Path, delivery: str
) -> None:
    fleet = AsyncFleet(f"kafka://{quick_kafka}", tmp_path, delivery=delivery, count=6_000, kills=5, seed=2)
    run(fleet, churn=True)
    verify(fleet, delivery)
