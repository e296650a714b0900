"""Logs for the tests that are the same on each of them."""

from __future__ import annotations

import os
import pathlib
import types
from collections.abc import Iterator

import pytest
from scene import QUICK


@pytest.fixture(params=["local", "kafka"])
def url(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[str]:
    """The embedded log, and a Kafka broker of the test's own."""
    if request.param == "local":
        yield f"local://{tmp_path / 'log'}"
        return
    tool: types.ModuleType = request.getfixturevalue("kafka_tool")
    yield f"kafka://{tool.held(tmp_path / 'node', os.getpid(), QUICK)}"
    tool.release(tmp_path / "node")
