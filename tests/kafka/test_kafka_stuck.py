"""A client that does not come back from a call, as librdkafka's does at times, is replaced."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any

import confluent_kafka
import pytest
from kafka_support import PATIENCE

from agentic.brokers.base import Position, TopicPartition
from agentic.brokers.kafka import config
from agentic.brokers.kafka import transactions as module
from agentic.brokers.kafka.consumer import KafkaConsumer
from agentic.brokers.kafka.transactions import TransactionalProducer
from agentic.errors import BrokerUnavailable, TransactionAborted

TP = TopicPartition("t", 0)


class Client:
    """A producer of confluent's that notes what is called; the call named `stuck_in` comes back when it is let go."""

    made: list[Client]
    stuck_in: str

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.calls: list[str] = []
        self.let_go = threading.Event()
        self.closed = threading.Event()
        self._stuck = self.stuck_in if not self.made else ""
        self.made.append(self)

    def __len__(self) -> int:
        return 0

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self._stuck:
            self.let_go.wait(PATIENCE)

    def init_transactions(self, timeout: float) -> None:
        self._call("init")

    def begin_transaction(self) -> None:
        self._call("begin")

    def send_offsets_to_transaction(self, offsets: Any, metadata: Any, timeout: float) -> None:
        self._call("positions")

    def commit_transaction(self, timeout: float) -> None:
        self._call("commit")

    def abort_transaction(self, timeout: float) -> None:
        self._call("abort")

    def poll(self, timeout: float) -> None: ...

    def produce(self, *record: Any) -> None: ...

    def purge(self) -> None: ...

    def close(self) -> None:
        self.closed.set()


class Ours(KafkaConsumer):
    """A member that owns every partition."""

    def __init__(self) -> None:
        pass

    def foreign(self, tps: Any) -> list[TopicPartition]:
        return []

    async def group_metadata(self) -> bytes:
        return b"member"


@pytest.fixture(params=["init", "positions", "commit", "abort"])
def clients(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """The clients made, of which the first is stuck in one call."""
    monkeypatch.setattr(Client, "made", [], raising=False)
    monkeypatch.setattr(Client, "stuck_in", request.param, raising=False)
    monkeypatch.setattr(confluent_kafka, "Producer", Client)
    monkeypatch.setattr(module, "CALL", 0.01)
    monkeypatch.setattr(module, "STUCK", 0.01)
    return Client.made


def test_a_client_that_does_not_come_back_is_replaced_and_closed_when_it_does(clients: list[Client]) -> None:
    async def scenario() -> None:
        settings = config.producer("127.0.0.1:1", {}, "id")
        producer = TransactionalProducer(settings, "kafka://127.0.0.1:1", lambda error: None)
        positions = {TP: Position(1)}
        with pytest.raises((TransactionAborted, BrokerUnavailable), match="did not come back"):
            await producer.ready()
            producer.send("t", b"k", b"v", int(time.time() * 1_000))
            if Client.stuck_in == "abort":
                await producer.abort_transaction()
            await producer.commit_transaction(positions, Ours())
        first, second = clients
        assert first.calls[-1] == Client.stuck_in
        assert not first.closed.is_set()
        # The new one begins with what settles the transaction of the old one.
        await producer.commit_transaction(positions, Ours())
        assert second.calls == ["init", "begin", "positions", "commit"]
        first.let_go.set()
        assert await asyncio.to_thread(first.closed.wait, PATIENCE)
        await producer.close()
        assert second.closed.is_set() and len(clients) == 2

    asyncio.run(scenario())
