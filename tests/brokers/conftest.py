"""One suite, three drivers: a test that takes `log` runs on each of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_support import RECORD_LIMIT, Log

#: Seconds that a test may take: a hang is a failure with a name.
LIMIT = 90.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), LIMIT))
    return True


def _log(kind: str, request: pytest.FixtureRequest, directory: Path) -> Log:
    options = {"record_limit": RECORD_LIMIT}
    if kind == "memory":
        return Log(kind, f"memory://{Log.name('log')}", options)
    if kind == "local":
        return Log(kind, f"local://{directory / 'log'}", options)
    return Log(kind, f"kafka://{request.getfixturevalue('kafka_bootstrap')}")


@pytest.fixture(params=["memory", "local", pytest.param("kafka", marks=pytest.mark.kafka)])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    yield _log(request.param, request, tmp_path)


@pytest.fixture(params=["memory", "local"])
def embedded_log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    """The drivers whose log this process can reach into."""
    return _log(request.param, request, tmp_path)


@pytest.fixture
def local_log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    return _log("local", request, tmp_path)
