"""The embedded log, killed at random points of its write path: it opens, and what was acknowledged is there."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from crash_writer import KEYS, PARTITIONS

from agentic.brokers.base import Position, TopicPartition, TopicSpec
from agentic.brokers.local import LocalBroker

WRITER = Path(__file__).with_name("crash_writer.py")
#: What a writer does of LMDB calls and of system calls (their entries and exits) in a round, about.
CALLS = 1_500
STOPS = 1_000


class Writers:
    """A process that forks a writer each round, and what writers have acknowledged so far."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acknowledged: Counter[str] = Counter(
            dict.fromkeys(("append", "transact", "commit", "replace", "expire", "remove", "topics"), 0)
        )
        self._server = subprocess.Popen(
            [sys.executable, str(WRITER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def round(self, seed: int, *, kill_after: int | None = None, **how: int) -> dict[str, int]:
        """Let one writer work, die or end; return what it said at its end."""
        assert self._server.stdin is not None and self._server.stdout is not None
        order = {"url": self.url, "seed": seed, "done": self.acknowledged, **how}
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        said: dict[str, int] = {}
        acknowledgements = 0
        while "ended" not in said:
            word, number = self._server.stdout.readline().split()
            said[word] = int(number)
            if word in self.acknowledged:
                self.acknowledged[word] = int(number)
                acknowledgements += 1
                if acknowledgements == kill_after:
                    with suppress(ProcessLookupError):
                        os.kill(said["pid"], signal.SIGKILL)
        assert said["ended"] in (0, signal.SIGKILL), "the writer failed, and was not killed: see its traceback"
        return said

    def close(self) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.close()
        assert self._server.wait(10) == 0


class Checker:
    """Opens the log and holds it to what was acknowledged; reads only what it has not read before."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._read: Counter[TopicPartition] = Counter()

    async def check(self, acknowledged: Counter[str]) -> None:
        """Fail if something acknowledged is missing or something is there in part; note what there is."""
        broker = LocalBroker(self.url)
        await broker.open(5)
        try:
            there = await self._look(broker)
        finally:
            await broker.close()
        for kind, count in acknowledged.items():
            assert there[kind] >= count, f"{kind}: {count} acknowledged, {there[kind]} there"
        acknowledged.update({kind: count - acknowledged[kind] for kind, count in there.items()})

    async def _look(self, broker: LocalBroker) -> dict[str, int]:
        appended = await broker.describe_topic("appended")
        n = sum(end for _, end in appended.offsets.values())
        for partition in range(PARTITIONS):
            # All numbers below n, each in its partition: a write of several partitions was whole.
            assert appended.offsets[partition] == (0, len(range(partition, n, PARTITIONS)))
            for offset, _, value in self._news(broker, TopicPartition("appended", partition)):
                assert value == b"%d" % (partition + PARTITIONS * offset)
        positions = (await broker.describe_group("group")).positions
        transacted = await broker.describe_topic("transacted")
        (ends,) = {end for _, end in transacted.offsets.values()}
        at = positions.get(TopicPartition("source", 0), Position(0, "0"))
        assert at == (ends, str(ends)), "records without their position, or the other way round"
        for partition in range(PARTITIONS):
            for offset, _, value in self._news(broker, TopicPartition("transacted", partition)):
                assert value == b"%d" % offset
        (committed,) = {positions.get(TopicPartition("source", p), Position(0)) for p in (1, 2)}
        assert committed.metadata == "m" * committed.offset
        last = {key: int(value) for _, key, value in self._records(broker, TopicPartition("compacted", 0), 0)}
        assert len(last) in (0, KEYS) and len(set(last.values())) <= 1
        _, expired = (await broker.describe_topic("expiring")).offsets[0]
        for offset, _, value in self._records(broker, TopicPartition("expiring", 0), 0):
            assert value == b"%d" % offset
        removed = await broker.describe_topic("removed")
        (start,) = {start for start, _ in removed.offsets.values()}
        for partition, (_, end) in removed.offsets.items():
            read = [offset for offset, _, _ in self._records(broker, TopicPartition("removed", partition), 0)]
            assert read == list(range(start, end))
        made = [int(name.removeprefix("topic-")) for name in await broker.topics() if name.startswith("topic-")]
        self._count_bytes(broker)
        return {
            "append": n,
            "transact": ends,
            "commit": committed.offset,
            "replace": max(last.values(), default=-1) + 1,
            "expire": expired,
            "remove": start,
            "topics": max(made, default=-1) + 1,
        }

    def _news(self, broker: LocalBroker, tp: TopicPartition) -> Iterator[tuple[int, bytes | None, Any]]:
        for record in self._records(broker, tp, self._read[tp]):
            self._read[tp] = record[0] + 1
            yield record

    def _records(self, broker: LocalBroker, tp: TopicPartition, at: int) -> Iterator[tuple[int, bytes | None, Any]]:
        with broker._store.view() as view:
            start, end = view.bounds(tp)
            at = max(at, start)
            while at < end:
                batch = view.read(tp, at, 1_000)
                assert batch.position > at
                yield from zip(batch.offsets, batch.keys, batch.values, strict=True)
                at = batch.position

    def _count_bytes(self, broker: LocalBroker) -> None:
        with broker._store.view() as view:
            for name, n in view.topics().items():
                for partition in range(n):
                    topic_id, row = view.locate(TopicPartition(name, partition))
                    assert row.size == sum(len(data) for _, data in view.chunks(topic_id, partition, 0))


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[Writers]:
    url = f"local://{tmp_path / 'log'}"

    async def make() -> None:
        broker = LocalBroker(url)
        await broker.open(5)
        await broker.create_topics(
            [
                TopicSpec("source", PARTITIONS),
                TopicSpec("appended", PARTITIONS),
                TopicSpec("transacted", PARTITIONS),
                TopicSpec("compacted", 1, compacted=True),
                TopicSpec("expiring", 1, retention_bytes=2_000),
                TopicSpec("removed", PARTITIONS),
            ]
        )
        producer = broker.producer()
        for n in range(PARTITIONS * 1_000):
            producer.send("source", None, b"", 0, None, n % PARTITIONS)
        await producer.close()
        await broker.close()

    asyncio.run(make())
    writers = Writers(url)
    yield writers
    writers.close()


def crash_often(writers: Writers, rounds: int, how: Any) -> Counter[str]:
    """Run the rounds, each to be killed as `how` says; return what was acknowledged and survived in all of them."""
    checker = Checker(writers.url)
    killed = 0
    for seed in range(rounds):
        killed += writers.round(seed, **how(random.Random(seed)))["ended"] == signal.SIGKILL
        asyncio.run(checker.check(writers.acknowledged))
    assert killed > rounds // 2, "most rounds ended before the kill: the range of kill points is too wide"
    return writers.acknowledged


def test_killed_at_any_call_of_lmdb(writers: Writers) -> None:
    work = crash_often(writers, 100, lambda random: {"die_at_call": random.randint(1, CALLS)})
    assert all(work.values()), f"some kind of work was never done: {work}"


def test_killed_after_any_acknowledgement(writers: Writers) -> None:
    work = crash_often(writers, 60, lambda random: {"kill_after": random.randint(1, 10)})
    assert all(work.values()), f"some kind of work was never done: {work}"


@pytest.mark.skipif(sys.platform != "linux", reason="system calls are stepped through by Linux's ptrace")
def test_killed_between_any_two_system_calls(writers: Writers) -> None:
    work = crash_often(writers, 60, lambda random: {"die_at_stop": random.randint(1, STOPS)})
    assert all(work.values()), f"some kind of work was never done: {work}"
