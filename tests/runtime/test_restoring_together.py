"""Many tables restored together: what they collect before they write it has a limit in all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from agentic import App
from agentic.brokers.base import Batch, Broker, TopicPartition
from agentic.runtime import restoring
from agentic.runtime.replay import Replay, Replayed
from agentic.runtime.restoring import Restoration, restore
from agentic.runtime.tables import Layout

PARTITIONS = 50
RECORDS = 40
VALUE = bytes(1_000)


class Log:
    """A broker of one changelog, whose reader brings a record of each partition in turn."""

    def reader(self, starts: Mapping[TopicPartition, int], *, bulk: bool) -> Log:
        self._batches = [
            Batch(tp, [n], [1], [b"%d" % n], [VALUE], [None], n + 1) for n in range(RECORDS) for tp in starts
        ]
        return self

    async def poll(self, timeout: float) -> Sequence[Batch]:
        batches, self._batches = self._batches[:PARTITIONS], self._batches[PARTITIONS:]
        return batches

    async def close(self) -> None: ...


class Rows:
    """Keeps what it is given."""

    closed = False

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}

    async def write(self, rows: Replayed, position: int, observed: int) -> None:
        self.rows |= rows


def test_the_more_tables_are_restored_the_less_each_collects(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 100 * len(VALUE)
    monkeypatch.setattr(restoring, "ALL_BYTES", limit)
    table = App("scene", broker="memory://").table("rows", key=str, value=bytes)
    sinks = [Rows() for _ in range(PARTITIONS)]
    every = [
        Restoration("rows", TopicPartition("log", n), 0, RECORDS, 0, Replay(table, Layout(table)), sink)
        for n, sink in enumerate(sinks)
    ]
    collected = []

    def took(each: Restoration, count: int) -> None:
        collected.append(sum(other.replay.size for other in every))

    done: list[Any] = []
    asyncio.run(restore(cast(Broker, Log()), every, took, done.append))
    assert max(collected) <= limit + 2 * len(VALUE)
    assert done == every
    assert {len(sink.rows) for sink in sinks} == {RECORDS}
