"""Logs for the tests that are the same on each of them."""

from __future__ import annotations

import fcntl
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


@pytest.fixture(scope="session")
def quick_kafka(kafka_tool: types.ModuleType, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a Kafka broker that notices a dead member in a second, which all test processes share."""
    shared, main_process = tmp_path_factory.getbasetemp(), os.getpid()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared, main_process = shared.parent, os.getppid()
    with open(shared / "quick-kafka.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return str(kafka_tool.held(shared / "quick-kafka", main_process, QUICK))


@pytest.fixture(params=["local", "kafka"])
def shared_url(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str:
    """The embedded log, and a Kafka broker that other tests use as well."""
    if request.param == "local":
        return f"local://{tmp_path / 'log'}"
    return f"kafka://{request.getfixturevalue('quick_kafka')}"
