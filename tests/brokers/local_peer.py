"""A process that uses an embedded log as it is told: commands on stdin, answers on stdout, each a line of JSON.

For test_local_processes: `Peer` is the other end, `Worker` what runs in the process.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentic.brokers.base import Consumer, Position, Producer, TopicPartition
from agentic.brokers.local import LocalBroker
from agentic.errors import AgenticError

#: Seconds until a condition that does not come true fails the test.
PATIENCE = 30.0


class Worker:
    """One broker, at most one member, producers by transactional id. Topics are called t."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self.consumer: Consumer | None = None
        self.producers: dict[str | None, Producer] = {}
        self.told: list[tuple[str, list[int]]] = []
        self.committed: dict[int, Position | None] = {}
        self.seen: Counter[int] = Counter()

    async def on_assigned(self, positions: Mapping[TopicPartition, Position | None]) -> None:
        self.told.append(("assigned", [tp.partition for tp in positions]))
        self.committed.update({tp.partition: at for tp, at in positions.items()})

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.told.append(("revoked", [tp.partition for tp in partitions]))

    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.told.append(("lost", [tp.partition for tp in partitions]))

    async def join(self, **options: Any) -> None:
        self.consumer = self.broker.consumer("group", ["t"], **options)
        await self.consumer.start(self)

    async def listen(self) -> list[tuple[str, list[int]]]:
        """What the listener was told since the last time."""
        told, self.told = self.told, []
        return told

    async def poll(self, timeout: float = 0.0) -> dict[int, list[int]]:
        assert self.consumer is not None
        batches = await self.consumer.poll(timeout)
        return {batch.tp.partition: [int(value) for value in batch.values if value] for batch in batches}

    async def commit(self, positions: dict[str, int]) -> None:
        assert self.consumer is not None
        await self.consumer.commit(self._positions(positions))

    @staticmethod
    def _positions(positions: dict[str, int]) -> dict[TopicPartition, Position]:
        return {TopicPartition("t", int(n)): Position(offset) for n, offset in positions.items()}

    async def leave(self) -> None:
        assert self.consumer is not None
        await self.consumer.close()

    def _producer(self, transactional_id: str | None) -> Producer:
        if transactional_id not in self.producers:
            self.producers[transactional_id] = self.broker.producer(transactional_id=transactional_id)
        return self.producers[transactional_id]

    async def send(
        self, partition: int, first: int, count: int, size: int = 0, transactional_id: str | None = None
    ) -> None:
        """Send numbers, flushed one by one unless in a transaction."""
        producer = self._producer(transactional_id)
        for n in range(first, first + count):
            producer.send("t", b" " * size, b"%d" % n, time.time_ns() // 1_000_000, None, partition)
            if transactional_id is None:
                await producer.flush()

    async def end(self, transactional_id: str, positions: dict[str, int]) -> None:
        """Commit the transaction."""
        consumer = self.consumer or self.broker.consumer("group", ["t"])
        await self._producer(transactional_id).commit_transaction(self._positions(positions), consumer)

    async def ends(self) -> dict[int, int]:
        ends = await self.broker.end_offsets([TopicPartition("t", n) for n in range((await self.broker.topics())["t"])])
        return {tp.partition: end for tp, end in ends.items()}


async def serve(url: str, options: dict[str, object]) -> None:
    broker = LocalBroker(url, options)
    await broker.open(5)
    worker = Worker(broker)
    # The loop runs on while the next command is waited for: a member stays alive.
    while line := await asyncio.to_thread(sys.stdin.readline):
        name, arguments = json.loads(line)
        try:
            answer = {"result": await getattr(worker, name)(**arguments)}
        except AgenticError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), flush=True)
    await broker.close()


class Refused(Exception):
    """The peer's broker raised; `kind` is the name of the error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class Peer:
    """Another process on the log."""

    def __init__(self, url: str, **options: object) -> None:
        command = [sys.executable, __file__, url, json.dumps(options)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, name: str, **arguments: Any) -> None:
        """Give a command whose answer is taken later, by `answer`."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, arguments]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Raises `Refused`."""
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise Refused(answer["error"], answer["message"])
        return answer["result"]

    def __call__(self, name: str, **arguments: Any) -> Any:
        self.ask(name, **arguments)
        return self.answer()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> int:
        """End it, by the end of its commands; return its exit code."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(PATIENCE)


def until(condition: Callable[[], Any]) -> Any:
    """Return the first true result."""
    deadline = time.monotonic() + PATIENCE
    while not (result := condition()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)
    return result


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], json.loads(sys.argv[2])))
