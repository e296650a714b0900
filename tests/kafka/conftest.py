"""Brokers and topics for the tests of the Kafka driver."""

from __future__ import annotations

import os
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import pytest
from kafka_support import Cluster


@pytest.fixture
def cluster(kafka_bootstrap: str) -> Cluster:
    return Cluster(kafka_bootstrap)


@pytest.fixture(params=["consumer", "classic"])
def protocol(request: pytest.FixtureRequest) -> str:
    """Both group protocols, as values of group.protocol."""
    return str(request.param)


@pytest.fixture
def kafka_node(kafka_tool: types.ModuleType, tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A broker of the test's own, to be killed and frozen; parametrise it with further broker properties."""
    bootstrap = kafka_tool.held(tmp_path / "node", os.getpid(), getattr(request, "param", ()))
    node = kafka_tool.Node(tmp_path / "node")
    assert node.bootstrap == bootstrap
    yield node
    kafka_tool.release(node.directory)


@pytest.fixture
def kafka_classic(kafka_tool: types.ModuleType, tmp_path: pathlib.Path) -> Iterator[Cluster]:
    """A broker that does not know the KIP-848 protocol."""
    directory = tmp_path / "classic"
    yield Cluster(kafka_tool.held(directory, os.getpid(), ["group.coordinator.rebalance.protocols=classic"]))
    kafka_tool.release(directory)
