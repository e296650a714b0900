"""A fleet of real worker processes under fire, and the account of every record afterwards."""

from __future__ import annotations

import asyncio
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from agentic import brokers
from agentic.brokers.base import Broker, Reader, TopicPartition, TopicSpec

HERE = pathlib.Path(__file__).resolve().parent
PARTITIONS = 4
KEYS = 50
#: Seconds after which a run has failed, unless a fleet says otherwise. Several times what it takes when all is well.
PATIENCE = 240.0


@dataclass
class Account:
    """What came out: for each key its numbers in order, over all keys how often each number."""

    by_key: dict[bytes | None, list[int]] = field(default_factory=dict)
    seen: Counter[int] = field(default_factory=Counter)


class Fleet:
    """Workers on one broker, killed and started again by a plan that the seed decides.

    Args:
        url: of the broker.
        directory: for logs and state.
        delivery: as in the app's settings.
        count: how many numbers are sent; they are appended while the workers are killed.
        kills: how many workers are killed with SIGKILL at least.
        extra: further environment of the workers.
    """

    #: The module that a worker runs.
    app = "numbers_app.py"
    #: How many keys the numbers have.
    keys = KEYS
    #: By the ends of their names, the topics in which a number may come out.
    outputs: tuple[str, ...] = ("out",)
    #: Seconds after which a run has failed.
    patience = PATIENCE

    def __init__(
        self,
        url: str,
        directory: pathlib.Path,
        *,
        delivery: str,
        count: int,
        kills: int,
        workers: int = 3,
        seed: int = 1,
        extra: dict[str, str] | None = None,
    ) -> None:
        self.url = url
        self.topic = f"chaos-{os.urandom(4).hex()}"
        self.count = count
        self.kills = kills
        self.killed = 0
        self.draw = random.Random(seed)
        self.account = Account()
        self.reached: dict[TopicPartition, int] = {}
        self._directory = directory
        self._slots: list[subprocess.Popen[bytes] | None] = [None] * workers
        self._env = {
            **os.environ,
            "PYTHONPATH": str(HERE.parents[1]),
            "AGENTIC_NAME": self.topic,
            "AGENTIC_BROKER": url,
            "AGENTIC_DELIVERY": delivery,
            "AGENTIC_STATE_DIR": str(directory / "state"),
            "CHAOS_TOPIC": self.topic,
            **(extra or {}),
        }

    # -- workers ------------------------------------------------------------------------------

    def environment(self, slot: int) -> dict[str, str]:
        """Return the environment of the worker that is about to be started in a slot."""
        return self._env

    def topics(self) -> list[TopicSpec]:
        """Return what topics are made beside input and output."""
        return []

    def start(self, slot: int) -> None:
        environment = self.environment(slot)
        with open(self._directory / f"worker-{slot}.log", "ab") as log:
            self._slots[slot] = subprocess.Popen(
                [sys.executable, str(HERE / self.app)], env=environment, stdout=log, stderr=log
            )

    def end(self, slot: int, number: signal.Signals) -> None:
        """Signal a worker and wait for its end; SIGTERM must end it with exit code 0.

        One that has only just been started may not have come to the point where it handles signals.
        """
        process = self._slots[slot]
        assert process is not None
        self._look_at(slot)
        process.send_signal(number)
        code = process.wait(60)
        self._slots[slot] = None
        if number == signal.SIGKILL:
            self.killed += 1
        elif code not in (0, -signal.SIGTERM):
            raise AssertionError(f"worker {slot} ended with {code}:\n{self._log(slot)}")

    async def stand_still(self, seconds: float) -> None:
        """Stop one worker for a while as a debugger does, then let it go on."""
        process = next(process for process in self._slots if process is not None)
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    def _look_at(self, slot: int) -> None:
        process = self._slots[slot]
        if process is not None and process.poll() is not None:
            raise AssertionError(f"worker {slot} ended by itself with {process.returncode}:\n{self._log(slot)}")

    def _log(self, slot: int) -> str:
        return (self._directory / f"worker-{slot}.log").read_text()[-3_000:]

    def logs(self) -> str:
        """The ends of all workers' logs, for who has to find out why something is wrong."""
        return "\n".join(f"-- worker {slot}\n{self._log(slot)}" for slot in range(len(self._slots)))

    def close(self) -> None:
        for process in self._slots:
            if process is not None:
                process.kill()
                process.wait()

    # -- the run ------------------------------------------------------------------------------

    async def run(
        self,
        *,
        churn: bool = False,
        interlude: Callable[[int], Awaitable[None]] | None = None,
    ) -> Account:
        """Send, kill and restart until every number has come out; return the account.

        Args:
            churn: members join and leave, every second, in place of dying.
            interlude: awaited after each kill with the number of kills so far.
        """
        broker = brokers.connect(self.url)
        await broker.open(30)
        try:
            # The records carry old timestamps, which a retention of a week would take for long expired.
            keep = {"retention.ms": "-1"}
            await broker.create_topics(
                [TopicSpec(f"{self.topic}-{end}", PARTITIONS, config=keep) for end in ("in", *self.outputs)]
                + self.topics()
            )
            reader = broker.reader(dict.fromkeys(self._partitions(*self.outputs), 0))
            for slot in range(len(self._slots)):
                self.start(slot)
            await self._append(broker, 0, self.count // self.kills)
            deadline = time.monotonic() + self.patience
            await self._fight(broker, reader, deadline, churn, interlude)
            while len(self.account.seen) < self.count:
                await self._read(reader, deadline)
            for slot, process in enumerate(self._slots):
                if process is not None:
                    self.end(slot, signal.SIGTERM)
            # What a dying worker had sent may still come; whatever is there now is all.
            while await self._read(reader, deadline):
                pass
            await reader.close()
        finally:
            self.close()
            await broker.close()
        return self.account

    def _partitions(self, *ends: str) -> list[TopicPartition]:
        return [TopicPartition(f"{self.topic}-{end}", n) for end in ends for n in range(PARTITIONS)]

    async def _fight(
        self,
        broker: Broker,
        reader: Reader,
        deadline: float,
        churn: bool,
        interlude: Callable[[int], Awaitable[None]] | None,
    ) -> None:
        sent = self.count // self.kills
        for blow in range(1, self.kills + 1):
            upto = self.count if blow == self.kills else self.count * (blow + 1) // (self.kills + 1)
            await self._append(broker, sent, upto)
            # Strike in the midst of work: when a random part of what was there has come out.
            goal = len(self.account.seen) + self.draw.randrange(1, max(2, (upto - sent) // 2))
            sent = upto
            struck = time.monotonic()
            while len(self.account.seen) < min(goal, sent) or (churn and time.monotonic() < struck + 1):
                await self._read(reader, deadline)
            slot = self.draw.randrange(len(self._slots))
            if self._slots[slot] is not None:
                self.end(slot, signal.SIGTERM if churn else signal.SIGKILL)
            if churn:
                self.killed += 1
            if self._slots[slot] is None and (not churn or blow % 2):
                self.start(slot)
            if not any(self._slots):
                self.start(slot)
            if interlude is not None:
                await interlude(blow)

    async def _append(self, broker: Broker, first: int, end: int) -> None:
        producer = broker.producer()
        for n in range(first, end):
            producer.send(f"{self.topic}-in", b"key-%d" % (n % self.keys), b"%d" % n, 1_700_000_000_000 + n)
            if n % 1_000 == 0:
                await producer.ready()
        await producer.flush()
        await producer.close()

    async def _where(self) -> str:
        """How far everything has come, for who has to find out why something did not."""
        broker = brokers.connect(self.url)
        await broker.open(30)
        tps = {end: self._partitions(end) for end in ("in", *self.outputs)}
        lines = [f"group: {await broker.describe_group(self.topic)}", f"read so far: {self.reached}"]
        for end, partitions in tps.items():
            lines.append(f"{end} ends: {list((await broker.end_offsets(partitions)).values())}")
            lines.append(f"{end} with open: {list((await broker.end_offsets(partitions, with_open=True)).values())}")
        await broker.close()
        return "\n".join(lines)

    def number(self, topic: str, key: bytes | None, value: bytes) -> int:
        """Return the number that a record of an output is about."""
        return int(value)

    async def _read(self, reader: Reader, deadline: float) -> int:
        found = 0
        for batch in await reader.poll(0.2):
            self.reached[batch.tp] = batch.position
            for key, value in zip(batch.keys, batch.values):
                n = self.number(batch.tp.topic, key, value or b"")
                self.account.seen[n] += 1
                self.account.by_key.setdefault(key, []).append(n)
            found += len(batch)
        if time.monotonic() > deadline:
            missing = sorted(set(range(self.count)) - set(self.account.seen))
            where = await self._where()
            raise AssertionError(f"{len(missing)} numbers did not come, from {missing[:10]} on\n{where}\n{self.logs()}")
        return found


def verify(fleet: Fleet, delivery: str) -> None:
    """Every number at least once; under exactly once, once, and in order per key."""
    account = fleet.account
    assert set(account.seen) == set(range(fleet.count))
    assert fleet.killed >= fleet.kills
    if delivery == "exactly_once":
        repeated = {n: times for n, times in account.seen.items() if times > 1}
        assert not repeated
        for key, numbers in account.by_key.items():
            assert numbers == sorted(numbers), f"key {key!r} is out of order"


def run(fleet: Fleet, **how: object) -> None:
    asyncio.run(fleet.run(**how))  # type: ignore[arg-type]
