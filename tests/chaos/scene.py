"""One app with tables on one log: its workers come and go one by one, each to an end that the test chooses."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

import table_account
from fleet import HERE, KEYS, PARTITIONS

from agentic import brokers
from agentic.brokers.base import Reader, TopicPartition, TopicSpec

#: What a broker is told. A dead member is noticed in a second, and so is a transaction whose time is over.
QUICK = [
    "group.consumer.session.timeout.ms=1000",
    "group.consumer.heartbeat.interval.ms=250",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=500",
]
#: Seconds after which a wait has failed. Several times what it takes when all is well.
PATIENCE = 60.0
#: Seconds that a commit which is done may take to be visible in all partitions.
VISIBLE = 15.0
#: Seconds after which a worker that has not come to its end gets more to do.
MORE = 3.0
#: In the place of an exit code: it stands still.
STOPPED = 256


class Scene:
    """The log, what has been sent and what has come out.

    Args:
        url: of the broker.
        directory: for logs and state.
        delivery: as in the app's settings.
        extra: further environment of the workers.
    """

    #: The module that a worker runs.
    module = "tables_app.py"
    #: How many keys the numbers have.
    keys = KEYS
    #: By the ends of their names, the topics in which a number may come out.
    outputs: tuple[str, ...] = ("out",)

    def __init__(self, url: str, directory: pathlib.Path, delivery: str, extra: dict[str, str] | None = None) -> None:
        self.app = f"scene-{os.urandom(4).hex()}"
        self.delivery = delivery
        self.sent = 0
        self.said: dict[int, list[tuple[int, int]]] = {}
        self._directory = directory
        self._broker = brokers.connect(url)
        self._reader: Reader | None = None
        self._reached = dict.fromkeys((tp for end in self.outputs for tp in self._topic(end)), 0)
        #: The workers, each with what was to happen to it.
        self._workers: dict[subprocess.Popen[bytes], str] = {}
        self._state_dirs: dict[pathlib.Path, None] = {}
        self._env = {
            **os.environ,
            "PYTHONPATH": str(HERE.parents[1]),
            "AGENTIC_NAME": self.app,
            "AGENTIC_BROKER": url,
            "AGENTIC_DELIVERY": delivery,
            "AGENTIC_COMMIT_INTERVAL": "20ms",
            "CHAOS_TOPIC": self.app,
            "CHAOS_PAUSE_EVERY": "5",
            **(extra or {}),
        }

    def _topic(self, end: str) -> list[TopicPartition]:
        return [TopicPartition(f"{self.app}-{end}", n) for n in range(PARTITIONS)]

    async def __aenter__(self) -> Self:
        await self._broker.open(30)
        # The records carry old timestamps, which a retention of a week would take for long expired.
        keep = {"retention.ms": "-1"}
        await self._broker.create_topics(
            [TopicSpec(f"{self.app}-{end}", PARTITIONS, config=keep) for end in ("in", *self.outputs)]
        )
        self._reader = self._broker.reader(self._reached)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()
        assert self._reader is not None
        await self._reader.close()
        await self._broker.close()

    async def send(self, count: int) -> None:
        """Append so many numbers to the input."""
        producer = self._broker.producer()
        for n in range(self.sent, self.sent + count):
            key = table_account.key_of(n, self.keys).encode()
            producer.send(f"{self.app}-in", key, b"%d" % n, 1_700_000_000_000 + n)
        await producer.flush()
        await producer.close()
        self.sent += count

    # -- workers ------------------------------------------------------------------------------

    def start(
        self,
        *,
        state: str = "state",
        point: str | None = None,
        passes: int = 1,
        action: str = "SIGKILL",
        extra: dict[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a worker.

        Args:
            state: names its state directory.
            point: one of `crash_points`, at whose n-th pass something happens.
            action: what: a signal's name, or "full" for a disk that has no more room.
            extra: further environment of this worker.
        """
        directory = self._directory / state
        self._state_dirs[directory] = None
        env = {**self._env, "AGENTIC_STATE_DIR": str(directory), **(extra or {})}
        if point is not None:
            env |= {"CHAOS_POINT": point, "CHAOS_PASSES": str(passes), "CHAOS_ACTION": action}
        with open(self._directory / f"worker-{len(self._workers)}.log", "wb") as log:
            worker = subprocess.Popen([sys.executable, str(HERE / self.module)], env=env, stdout=log, stderr=log)
        self._workers[worker] = f"worker {len(self._workers)}" + (f", {action} at {point}" if point else "")
        return worker

    def log(self, worker: subprocess.Popen[bytes]) -> str:
        """Return what a worker has logged."""
        return (self._directory / f"worker-{list(self._workers).index(worker)}.log").read_text()

    def _told(self, *workers: subprocess.Popen[bytes]) -> str:
        """Who they are and what they have logged last, for who has to find out why something is wrong."""
        return "".join(f"\n-- {self._workers[worker]}\n{self.log(worker)[-3_000:]}" for worker in workers)

    async def ended(self, worker: subprocess.Popen[bytes]) -> int:
        """Return the exit code of a worker once it has ended, negative after a signal."""
        try:
            return await asyncio.to_thread(worker.wait, PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it goes on after {PATIENCE:g} s:{self._told(worker)}") from None

    async def struck(self, worker: subprocess.Popen[bytes]) -> int:
        """Return the exit code of a worker once its point has ended it, or `STOPPED`; it gets work until then."""
        states = os.WSTOPPED | os.WEXITED | os.WNOWAIT
        waits = asyncio.create_task(asyncio.to_thread(os.waitid, os.P_PID, worker.pid, states))
        deadline = time.monotonic() + PATIENCE
        while not (await asyncio.wait([waits], timeout=MORE))[0]:
            if time.monotonic() > deadline:
                worker.kill()
                await waits
                raise AssertionError(f"it has not come to its point after {PATIENCE:g} s:{self._told(worker)}")
            await self.send(KEYS)
        result = await waits
        return STOPPED if result is not None and result.si_code == os.CLD_STOPPED else worker.wait()

    async def killed(self, worker: subprocess.Popen[bytes]) -> None:
        """Return when a worker has come to its point and is dead."""
        code = await self.struck(worker)
        assert code == -signal.SIGKILL, f"it ended with {code}:{self._told(worker)}"

    async def stopped(self, worker: subprocess.Popen[bytes]) -> None:
        """Return when a worker has come to its point and stands still."""
        code = await self.struck(worker)
        assert code == STOPPED, f"it ended with {code}:{self._told(worker)}"

    async def says(self, worker: subprocess.Popen[bytes], text: str, times: int = 1) -> None:
        """Return when a worker has logged this so many times."""
        deadline = time.monotonic() + PATIENCE
        while self.log(worker).count(text) < times:
            assert worker.poll() is None and time.monotonic() < deadline, f"no word of {text!r}:{self._told(worker)}"
            await self._read(0.05)

    async def terminate(self, worker: subprocess.Popen[bytes]) -> None:
        """Stop a worker in order."""
        assert worker.poll() is None, f"it ended by itself with {worker.returncode}:{self._told(worker)}"
        worker.send_signal(signal.SIGTERM)
        code = await self.ended(worker)
        assert code == 0, f"it ended with {code}:{self._told(worker)}"

    def lose_disk(self, state: str = "state") -> None:
        """Delete a state directory that no worker has."""
        shutil.rmtree(self._directory / state)

    # -- what came of it ----------------------------------------------------------------------

    async def _read(self, timeout: float) -> None:
        assert self._reader is not None
        for batch in await self._reader.poll(timeout):
            self._reached[batch.tp] = batch.position
            for value in batch.values:
                self.hear(batch.tp.topic, value or b"")

    def hear(self, topic: str, value: bytes) -> None:
        """Take down what a record of an output says."""
        n, times, total = json.loads(value)
        self.said.setdefault(n, []).append((times, total))

    async def all_out(self, *workers: subprocess.Popen[bytes]) -> None:
        """Return when each number that was sent has come out.

        Args:
            workers: who has to see to it; that one ends is a failure.
        """
        deadline = time.monotonic() + PATIENCE
        while len(self.said) < self.sent:
            await self._read(0.2)
            gone = [worker for worker in workers if worker.poll() is not None]
            if gone or time.monotonic() > deadline:
                missing = sorted(set(range(self.sent)) - set(self.said))
                where = f"from {missing[:10]} on\n{await self._where()}"
                raise AssertionError(f"{len(missing)} numbers did not come, {where}{self._told(*workers)}")

    async def _where(self) -> str:
        """How far everything has come, for who has to find out why something did not."""
        lines = [f"group: {await self._broker.describe_group(self.app)}", f"read so far: {self._reached}"]
        for end in ("in", *self.outputs):
            tps = self._topic(end)
            lines.append(f"{end} ends: {list((await self._broker.end_offsets(tps)).values())}")
            lines.append(f"{end} with open: {list((await self._broker.end_offsets(tps, with_open=True)).values())}")
        return "\n".join(lines)

    async def _read_on(self) -> None:
        """Read what is committed by now."""
        ends = await self._broker.end_offsets(self._reached)
        deadline = time.monotonic() + PATIENCE
        while any(self._reached[tp] < end for tp, end in ends.items()):
            assert time.monotonic() < deadline, f"outputs are read up to {self._reached} and not to {ends}"
            await self._read(0.2)

    async def check(self, where: str) -> None:
        """Local stores are what changelogs say; exactly once, these are what the outputs so far say.

        A commit that is done becomes visible in one partition after the other: that is waited for.
        """
        deadline = time.monotonic() + VISIBLE
        while True:
            await self._read_on()
            changelogs = await table_account.read(self._broker, self.app, with_open=False)
            marks = table_account.marks(self._state_dirs, self.app)
            ahead = {tp: (mark, changelogs[tp].end) for tp, mark in marks.items() if mark > changelogs[tp].end}
            wrong = f"the store has more than is committed: {ahead}" if ahead else None
            if wrong is None and self.delivery == "exactly_once":
                wanted = table_account.truth(self.said, KEYS)
                wrong = table_account.wrong_tables(table_account.tables(changelogs, self.app), wanted, self.delivery)
            if wrong is None:
                break
            assert time.monotonic() < deadline, f"{where}: {wrong}"
        self._check_stores(changelogs)

    def _check_stores(self, changelogs: table_account.Changelogs) -> int:
        # Kafka leaves the segment alone that is written to, and there is no other yet.
        gaps = any(len(each.records) < each.end - each.start for each in changelogs.values())
        compacted = gaps and self._broker.url.startswith("local")
        return table_account.check_stores(self._state_dirs, self.app, changelogs, compacted=compacted)

    async def verify(self) -> None:
        """All that was sent has been counted as a plain loop counts it, or more under at least once."""
        await self._read_on()
        wrong = table_account.wrong_outputs(self.said, self.sent, KEYS, self.delivery)
        assert wrong is None, wrong
        changelogs = await table_account.read(self._broker, self.app, with_open=True)
        found = table_account.tables(changelogs, self.app)
        wrong = table_account.wrong_tables(found, table_account.truth(range(self.sent), KEYS), self.delivery)
        assert wrong is None, wrong
        assert self._check_stores(changelogs)
