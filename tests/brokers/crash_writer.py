"""Forks writers to an embedded log, one a round, and has each of them die as it is told; for test_local_crashes.

A round is a line of JSON on stdin; acknowledged work comes back as lines on stdout.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from agentic.brokers.base import Position, TopicPartition, TopicSpec
from agentic.brokers.local import LocalBroker, housekeeping
from agentic.brokers.local.housekeeping import Housekeeper

#: Pieces of work that a writer does if nothing stops it.
PIECES = 12
PARTITIONS = 4
KEYS = 4

_TRACEME, _SYSCALL, _SETOPTIONS, _TRACESYSGOOD = 0, 24, 0x4200, 1


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Dying:
    """Stands before an LMDB object and kills the process before or after one of its calls."""

    countdown = 0

    def __init__(self, real: Any) -> None:
        self._real = real

    @classmethod
    def _step(cls) -> None:
        cls.countdown -= 1
        if cls.countdown == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def _wrap(self, result: Any) -> Any:
        return Dying(result) if type(result).__name__ in ("Transaction", "Cursor") else result

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)

        def call(*args: Any, **options: Any) -> Any:
            self._step()
            result = self._wrap(real(*args, **options))
            self._step()
            return result

        return call

    def __enter__(self) -> Dying:
        self._real.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._step()
        self._real.__exit__(*error)
        self._step()


class Writer:
    """Does pieces of work in random order, each with the next number of its kind, and says so when one is done."""

    def __init__(self, url: str, seed: int, done: Mapping[str, int]) -> None:
        self.random = random.Random(seed)
        self.done = dict(done)
        self.broker = LocalBroker(url)
        self.assigned = asyncio.Event()

    async def on_assigned(self, positions: Mapping[TopicPartition, Position | None]) -> None:
        self.assigned.set()

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        pass

    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        pass

    async def work(self, die_at_call: int | None) -> None:
        await self.broker.open(5)
        environment = self.broker._store.environment
        if die_at_call is not None:
            Dying.countdown = die_at_call
            environment.lmdb = Dying(environment.lmdb)
        housekeeping.STEP_ROWS = 3
        self.keeper = Housekeeper(self.broker._store)
        self.producer = self.broker.producer()
        self.transactional = self.broker.producer(transactional_id="id")
        self.consumer = self.broker.consumer("group", ["source"])
        await self.consumer.start(self)
        await self.assigned.wait()
        pieces = [
            self.append,
            self.transact,
            self.commit,
            self.replace,
            self.expire,
            self.remove,
            self.tidy,
            self.topics,
        ]
        for _ in range(PIECES):
            await self.random.choice(pieces)()
        await self.consumer.close()
        await self.broker.close()

    def _say(self, kind: str, count: int) -> None:
        self.done[kind] += count
        say(kind, self.done[kind])

    async def append(self) -> None:
        """Number n goes to partition n modulo their count."""
        first, count = self.done["append"], self.random.randint(1, 50)
        for n in range(first, first + count):
            self.producer.send("appended", None, b"%d" % n, n, None, n % PARTITIONS)
        await self.producer.flush()
        self._say("append", count)

    async def transact(self) -> None:
        """One record in each partition, and the position."""
        n = self.done["transact"]
        for partition in range(PARTITIONS):
            self.transactional.send("transacted", b"key", b"%d" % n, n, None, partition)
        if self.random.random() < 0.2:
            await self.transactional.abort_transaction()
            return
        position = {TopicPartition("source", 0): Position(n + 1, str(n + 1))}
        await self.transactional.commit_transaction(position, self.consumer)
        self._say("transact", 1)

    async def commit(self) -> None:
        n = self.done["commit"] + 1
        await self.consumer.commit({TopicPartition("source", p): Position(n, "m" * n) for p in (1, 2)})
        self._say("commit", 1)

    async def replace(self) -> None:
        n = self.done["replace"]
        for key in range(KEYS):
            self.producer.send("compacted", b"%d" % key, b"%d" % n, n)
        await self.producer.flush()
        self._say("replace", 1)

    async def expire(self) -> None:
        first, count = self.done["expire"], self.random.randint(1, 5)
        for n in range(first, first + count):
            self.producer.send("expiring", None, b"%d" % n, n)
            await self.producer.flush()
            self._say("expire", 1)

    async def remove(self) -> None:
        """Some records in each partition, and so many removed from the head of each."""
        count = self.random.randint(1, 5)
        for i in range(PARTITIONS * count):
            self.producer.send("removed", None, b"x", 1, None, i % PARTITIONS)
        await self.producer.flush()
        start = self.done["remove"] + count
        await self.broker.delete_records({TopicPartition("removed", n): start for n in range(PARTITIONS)})
        self._say("remove", count)

    async def tidy(self) -> None:
        topics = self.broker._store.topics
        for _ in self.keeper.compact(TopicPartition("compacted", 0), topics["compacted"]):
            await asyncio.sleep(0)
        for _ in self.keeper.retain(TopicPartition("expiring", 0), topics["expiring"]):
            await asyncio.sleep(0)
        for n in range(PARTITIONS):
            for _ in self.keeper.retain(TopicPartition("removed", n), topics["removed"]):
                await asyncio.sleep(0)

    async def topics(self) -> None:
        """There is always the topic with the highest number, and seldom another."""
        old = [name for name in await self.broker.topics() if name.startswith("topic-")]
        n = self.done["topics"] = max((int(name.removeprefix("topic-")) + 1 for name in old), default=0)
        await self.broker.create_topics([TopicSpec(f"topic-{n}", 2)])
        self.producer.send(f"topic-{n}", None, b"x", 1)
        await self.producer.flush()
        await self.broker.delete_topics(old)
        self._say("topics", 1)
        for _ in self.keeper.round():
            await asyncio.sleep(0)


def trace(pid: int, die_at_stop: int) -> int:
    """Let a stopped child go from system call to system call, and kill it at the entry or exit of one."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    _, status = os.waitpid(pid, 0)
    ptrace(_SETOPTIONS, pid, None, _TRACESYSGOOD)
    stops = 0
    while os.WIFSTOPPED(status):
        number = os.WSTOPSIG(status)
        is_call = number == signal.SIGTRAP | 0x80
        stops += is_call
        if stops == die_at_stop:
            os.kill(pid, signal.SIGKILL)
        ptrace(_SYSCALL, pid, None, None if is_call or number == signal.SIGSTOP else number)
        _, status = os.waitpid(pid, 0)
    say("stops", stops)
    return status


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                if "die_at_stop" in order:
                    ctypes.CDLL(None).ptrace(_TRACEME, 0, None, None)
                    os.kill(os.getpid(), signal.SIGSTOP)
                say("pid", os.getpid())
                writer = Writer(order["url"], order["seed"], order["done"])
                asyncio.run(writer.work(order.get("die_at_call")))
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        status = trace(pid, order["die_at_stop"]) if "die_at_stop" in order else os.waitpid(pid, 0)[1]
        say("ended", status)


if __name__ == "__main__":
    main()
