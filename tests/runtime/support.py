"""Real worker processes on an embedded log, for the tests of a worker's life."""

from __future__ import annotations

import asyncio
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable

from agentic import brokers
from agentic.brokers.base import TopicPartition, TopicSpec

ROOT = pathlib.Path(__file__).resolve().parents[2]
#: Seconds after which a wait has failed.
PATIENCE = 60.0


class Process:
    """A worker of an app whose source is given, in a directory of its own; its log is read line by line."""

    def __init__(self, directory: pathlib.Path, source: str, **settings: str) -> None:
        (directory / "module.py").write_text(textwrap.dedent(source))
        env = {**os.environ, "PYTHONPATH": str(ROOT), "AGENTIC_BROKER": f"local://{directory / 'log'}"}
        env |= {f"AGENTIC_{name.upper()}": value for name, value in settings.items()}
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-c", "import sys; from module import app; sys.exit(app.run())"],
            cwd=directory,
            env=env,
            stderr=subprocess.PIPE,
        )
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        self._partial = b""

    def wait_for(self, text: str) -> str:
        """Return the first log line with this text, as soon as it is there."""
        deadline = time.monotonic() + PATIENCE
        looked = 0
        while time.monotonic() < deadline:
            for line in self.lines[looked:]:
                if text in line:
                    return line
            looked = len(self.lines)
            if not self._read(1.0) and self._process.poll() is not None and looked == len(self.lines):
                break
        raise AssertionError(f"no line with {text!r} in:\n" + "\n".join(self.lines))

    def _read(self, timeout: float) -> bool:
        assert self._process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stderr, selectors.EVENT_READ)
            if not selector.select(timeout):
                return False
        data = self._process.stderr.read()
        *lines, self._partial = (self._partial + (data or b"")).split(b"\n")
        self.lines += [line.decode() for line in lines]
        return bool(data)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """Return the exit code once the process has ended; its log is whole then."""
        code = self._process.wait(PATIENCE)
        while self._read(0.1):
            pass
        return code

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

    @property
    def log(self) -> str:
        return "\n".join(self.lines)


def append(
    directory: pathlib.Path, topic: str, values: Iterable[bytes], partitions: int = 1, key: bytes | None = None
) -> None:
    """Append values to partition 0 of a topic, which is made if it is missing."""

    async def work() -> None:
        broker = brokers.connect(f"local://{directory / 'log'}")
        await broker.open(10)
        if topic not in await broker.topics():
            await broker.create_topics([TopicSpec(topic, partitions)])
        producer = broker.producer()
        for value in values:
            producer.send(topic, key, value, 1_000, partition=0)
        await producer.flush()
        await producer.close()
        await broker.close()

    asyncio.run(work())


def read(directory: pathlib.Path, topic: str) -> list[bytes | None]:
    """Return all values of partition 0 of a topic."""

    async def work() -> list[bytes | None]:
        broker = brokers.connect(f"local://{directory / 'log'}")
        await broker.open(10)
        tp = TopicPartition(topic, 0)
        end = (await broker.end_offsets([tp]))[tp]
        reader = broker.reader({tp: 0})
        values: list[bytes | None] = []
        position = 0
        while position < end:
            for batch in await reader.poll(1.0):
                values += batch.values
                position = batch.position
        await reader.close()
        await broker.close()
        return values

    return asyncio.run(work())


def committed(directory: pathlib.Path, group: str, topic: str) -> int | None:
    """Return what a group has committed of partition 0."""

    async def work() -> int | None:
        broker = brokers.connect(f"local://{directory / 'log'}")
        await broker.open(10)
        position = (await broker.describe_group(group)).positions.get(TopicPartition(topic, 0))
        await broker.close()
        return None if position is None else position.offset

    return asyncio.run(work())
