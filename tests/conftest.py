"""A real Kafka for the tests that ask for one: a single broker for the whole run, started when first needed."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pathlib
import shutil
import types

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"kafka_bootstrap", "kafka_tool"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("kafka")


@pytest.fixture(scope="session")
def kafka_tool() -> types.ModuleType:
    """The module kafka/kafka.py, where there is all that a broker needs; under CI nothing may be missing."""
    path = pathlib.Path(__file__).parent / "kafka" / "kafka.py"
    spec = importlib.util.spec_from_file_location("agentic_kafka_tool", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    missing = [tool for tool in ("java", "mvn") if not shutil.which(tool)]
    if missing:
        why = f"no Kafka: {' and '.join(missing)} not on the PATH (Java 17 and Maven are needed)"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    return module


@pytest.fixture(scope="session")
def kafka_bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a Kafka broker: the one in AGENTIC_TEST_KAFKA, or one that all test processes share.

    It belongs to the run, not to the process that started it: a keeper stops it when the run's
    main process has ended, however it ended.
    """
    if given := os.environ.get("AGENTIC_TEST_KAFKA"):
        return given
    tool = request.getfixturevalue("kafka_tool")
    shared = tmp_path_factory.getbasetemp()
    main_process = os.getpid()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared, main_process = shared.parent, os.getppid()
    with open(shared / "kafka.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return str(tool.held(shared / "kafka", main_process))
