"""Workers that keep windows are killed at random, under exactly once: the final results are those of a plain loop."""

from __future__ import annotations

import pathlib

import pytest
from fleet import run
from window_fleet import WindowFleet, verify

pytestmark = pytest.mark.chaos


def test_kills_neither_lose_nor_repeat_nor_change_a_final_result(shared_url: str, tmp_path: pathlib.Path) -> None:
    fleet = WindowFleet(shared_url, tmp_path, count=6_000, kills=10)
    run(fleet)
    verify(fleet)
