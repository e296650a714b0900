"""Agents that await: a hot key, calls that fail, events that are put off, the processor time of a call.

    python tests/benchmarks/calls.py hot        the rate of other keys beside one that has a share of all events
    python tests/benchmarks/calls.py failing    calls that fail at first and are tried again: rate, gaps, commit position
    python tests/benchmarks/calls.py deferred   memory and commits with so many events put off by an hour
    python tests/benchmarks/calls.py cpu        processor seconds for a million calls, and of bare coroutines of the same
    python tests/benchmarks/calls.py all

Everything on an embedded log, or what `--broker` names, in four partitions filled beforehand, with the worker in
this process. What a figure is to be held against is measured by the same command, in the same run. Rates and
processor time are those between 10 % and 90 % of the events. Each command prints JSON, one object a line. Linux
only, since it reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from agentic import App, Retry, Retryable, Stream, brokers  # noqa: E402
from agentic.brokers.base import Broker, TopicPartition, TopicSpec  # noqa: E402
from agentic.runtime.runner import GC_THRESHOLD  # noqa: E402
from agentic.runtime.worker import Worker  # noqa: E402

PARTITIONS = 4
KEYS = 10_000
#: The most that an event waits for its next attempt, in seconds; the wait is drawn from 0 to that.
BACK_OFF = 0.2
#: Of so many calls one fails at first.
ONE_IN = 10
#: Commits that are measured at each number of events put off.
COMMITS = 30
HOUR = timedelta(hours=1)
BODY = "/shop/item?from=mail Mozilla/5.0 X11 "


class Progress:
    """When events were done.

    Attributes:
        over: set when 90 % are.
        longest_gap: the longest time in which none was done, between 10 % and 90 %, in seconds.
    """

    def __init__(self, total: int) -> None:
        self.done = 0
        self.over = asyncio.Event()
        self.longest_gap = 0.0
        self._begin, self._end = total // 10, total * 9 // 10
        self._began = self._ended = (0.0, 0.0)
        self._last = 0.0

    def note(self) -> None:
        """One more event is done."""
        self.done += 1
        now = time.perf_counter()
        if self._begin < self.done <= self._end:
            self.longest_gap = max(self.longest_gap, now - self._last)
        self._last = now
        if self.done == self._begin:
            self._began = now, time.process_time()
        if self.done == self._end:
            self._ended = now, time.process_time()
            self.over.set()

    @property
    def rate(self) -> float:
        """Events a second."""
        return (self._end - self._begin) / (self._ended[0] - self._began[0])

    @property
    def cpu(self) -> float:
        """Processor seconds of the whole process for a million events."""
        return (self._ended[1] - self._began[1]) / (self._end - self._begin) * 1e6


@dataclass
class Place:
    """A broker with two topics of a run's own.

    Attributes:
        name: of the app, and what the names of its topics begin with.
        broker: for those that read and write from outside.
        directory: for the local state.
    """

    name: str
    url: str
    broker: Broker
    directory: pathlib.Path

    async def send(self, keys: Iterable[str], **more: Any) -> None:
        """Write an event of each key."""
        producer = self.broker.producer()
        for n, key in enumerate(keys):
            value = {"n": n, "page": BODY, **more}
            producer.send(f"{self.name}-in", key.encode(), json.dumps(value).encode(), 1_700_000_000_000 + n)
            if n % 1_000 == 0:
                await producer.ready()
        await producer.flush()
        await producer.close()


@asynccontextmanager
async def place(options: argparse.Namespace, keys: Iterable[str] = ()) -> AsyncIterator[Place]:
    """A place with an event of each key; its topics are removed at the end."""
    with tempfile.TemporaryDirectory(prefix="bench-calls-") as path:
        url, name = options.broker or f"local://{path}/log", f"bench-{os.urandom(4).hex()}"
        broker = brokers.connect(url)
        await broker.open(10)
        # The records carry old timestamps, which a retention of a week would take for long expired.
        keep = {"retention.ms": "-1"}
        await broker.create_topics([TopicSpec(f"{name}-{end}", PARTITIONS, config=keep) for end in ("in", "out")])
        at = Place(name, url, broker, pathlib.Path(path))
        try:
            await at.send(keys)
            yield at
        finally:
            await broker.delete_topics([topic for topic in await broker.topics() if topic.startswith(name)])
            await broker.close()


class Bench:
    """A worker whose agent makes calls that take a while; `note` is told the number and key of each that is done.

    The agent's function is `work`, or one call for each event.
    """

    def __init__(
        self,
        at: Place,
        options: argparse.Namespace,
        note: Callable[[int, str], None],
        work: Callable[[Stream[Any]], Any] | None = None,
        **execution: Any,
    ) -> None:
        app = App(at.name, topic_partitions=PARTITIONS, log_level="error")
        app.configure(broker=at.url, state_dir=str(at.directory / "state"))
        source, sink = (app.topic(f"{at.name}-{end}", key=str, value=dict) for end in ("in", "out"))

        async def calls(stream: Stream[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
            async for value in stream:
                await asyncio.sleep(options.call)
                note(value["n"], stream.event.key)
                yield value

        app.agent(source, to=sink, name="calls", concurrency=options.at_once, **execution)(work or calls)
        self.worker = Worker(app)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.worker.start()
        # As a worker's process does.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        yield
        await self.worker.stop()
        if self.worker.failure is not None:
            raise self.worker.failure


def user(n: int) -> str:
    """Return one of many keys: all of them take turns."""
    return f"user-{n * 7919 % KEYS:06}"


def memory(field: str) -> float:
    """MB of this process by the kernel's account: VmRSS, RssAnon."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) * 1024 / 1e6


def say(**figures: Any) -> None:
    print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()}), flush=True)


# -- one hot key among many -----------------------------------------------------------------------


async def hot(options: argparse.Namespace) -> None:
    """Let other keys be worked on without the hot one, then beside it, with its events waiting and parked."""
    alone = await _others(options, 0.0, "wait")
    say(hot_share=0.0, others_per_s=alone)
    for hot_key in ("wait", "park"):
        rate = await _others(options, options.share, hot_key)
        say(hot_share=options.share, hot_key=hot_key, others_per_s=rate, ratio=rate / alone)


async def _others(options: argparse.Namespace, share: float, hot_key: str) -> float:
    others = Progress(options.events)
    seen: list[int] = []

    def note(n: int, key: str) -> None:
        if key == "hot":
            seen.append(n)
        else:
            others.note()

    def keys() -> Iterator[str]:
        owed = 0.0
        for n in range(options.events):
            yield user(n)
            owed += share / (1 - share)
            while owed >= 1:
                yield "hot"
                owed -= 1

    async with place(options, keys()) as at, Bench(at, options, note, hot_key=hot_key).running():
        await others.over.wait()
    if seen != sorted(seen):
        raise SystemExit(f"hot_key={hot_key!r}: the hot key's events were done out of order")
    return others.rate


# -- calls that fail at first ---------------------------------------------------------------------


async def failing(options: argparse.Namespace) -> None:
    """Let no call fail, then one in ten at its first attempt; look at the commit positions meanwhile."""
    rates = []
    for one_in in (0, ONE_IN):
        progress = Progress(options.events)

        async def work(stream: Stream[Any], one_in: int = one_in, note: Any = progress.note) -> AsyncIterator[Any]:
            async for value in stream:
                await asyncio.sleep(options.call)
                if one_in and value["n"] % one_in == 0 and stream.attempt == 1:
                    raise Retryable("not at first")
                note()
                yield value

        async with place(options, map(user, range(options.events))) as at:
            bench = Bench(at, options, lambda n, key: None, work, retry=Retry(attempts=3, first=BACK_OFF))
            async with bench.running():
                still = await _longest_still(bench.worker, progress)
        rates.append(progress.rate)
        say(
            fails_at_first=1 / one_in if one_in else 0.0,
            events_per_s=progress.rate,
            ratio=progress.rate / rates[0],
            longest_gap_s=progress.longest_gap,
            position_still_s=still,
            retry_bound_s=options.call + (BACK_OFF + options.call if one_in else 0.0),
        )


async def _longest_still(worker: Worker, progress: Progress) -> float:
    """Return how long the lowest unfinished offset of a partition was the same, while events were done."""
    longest = 0.0
    stands: dict[TopicPartition, tuple[int | None, float]] = {}
    while not progress.over.is_set():
        now = time.perf_counter()
        sources = {} if worker.assignment is None else worker.assignment.sources
        for tp, source in sources.items():
            base, since = stands.get(tp, (None, now))
            if base is None or source.ledger.base != base or not source.ledger.unfinished:
                stands[tp] = source.ledger.base, now
            else:
                longest = max(longest, now - since)
        await asyncio.sleep(0.01)
    return longest


# -- events that are put off ----------------------------------------------------------------------


async def deferred(options: argparse.Namespace) -> None:
    """Put more and more events off, each of a key of its own, and commit a few others meanwhile."""

    async def work(stream: Stream[Any]) -> None:
        async for value in stream:
            if "later" in value:
                stream.defer(HOUR)

    async with place(options) as at:
        bench = Bench(at, options, lambda n, key: None, work, deferral=True)
        async with bench.running():
            # Idle is who has had as many events, and put none off.
            await at.send(map(user, range(options.parked[-1])))
            await bench.worker.used_up()
            idle = dict.fromkeys(("VmRSS", "RssAnon"), 0.0)
            parked = 0
            for count in (0, *options.parked):
                await at.send((f"later-{n:08}" for n in range(parked, count)), later=True)
                parked = count
                await bench.worker.used_up()
                wall, used = await _commits(bench.worker, at)
                gc.collect()
                now = {field: memory(field) for field in idle}
                idle = idle if count else now
                say(
                    parked=count,
                    commit_ms=wall * 1e3,
                    commit_cpu_ms=used * 1e3,
                    resident_over_idle_mb=now["VmRSS"] - idle["VmRSS"],
                    own_over_idle_mb=now["RssAnon"] - idle["RssAnon"],
                )


async def _commits(worker: Worker, at: Place) -> tuple[float, float]:
    """Commit a few events a few times; return the median time and processor time of a commit, in seconds."""
    assert worker.assignment is not None, "it has an agent"
    walls, useds = [], []
    for _ in range(COMMITS):
        reached = [source.reached or 0 for source in worker.assignment.sources.values()]
        await at.send(map(user, range(20)))
        while sum(source.reached or 0 for source in worker.assignment.sources.values()) < sum(reached) + 20:
            await asyncio.sleep(0.001)
        while worker.assignment.backlog:
            await asyncio.sleep(0.001)
        wall, used = time.perf_counter(), time.process_time()
        await worker.checkpoint()
        walls.append(time.perf_counter() - wall)
        useds.append(time.process_time() - used)
    return statistics.median(walls), statistics.median(useds)


# -- processor time of a call ---------------------------------------------------------------------


async def cpu(options: argparse.Namespace) -> None:
    """Make calls in bare coroutines, then in an agent that has as many under way."""
    for name, run in (("bare", _bare), ("agentic", _agent)):
        progress = Progress(options.events)
        async with place(options, map(user, range(options.events))) as at:
            await run(at, options, progress)
        say(by=name, events_per_s=progress.rate, cpu_s_per_million=progress.cpu)


async def _agent(at: Place, options: argparse.Namespace, progress: Progress) -> None:
    async with Bench(at, options, lambda n, key: progress.note()).running():
        await progress.over.wait()


async def _bare(at: Place, options: argparse.Namespace, progress: Progress) -> None:
    """As many coroutines as there are calls at once, each taking the next record: no order, no commits."""
    at_once = options.at_once * PARTITIONS
    reader = at.broker.reader({TopicPartition(f"{at.name}-in", n): 0 for n in range(PARTITIONS)})
    producer = at.broker.producer()
    records: asyncio.Queue[tuple[bytes | None, bytes | None, int]] = asyncio.Queue(at_once)

    async def read() -> None:
        while True:
            for batch in await reader.poll(1.0):
                for record in zip(batch.keys, batch.values, batch.timestamps):
                    await records.put(record)

    async def handle() -> None:
        while True:
            key, data, timestamp = await records.get()
            value = json.loads(data or b"")
            await asyncio.sleep(options.call)
            progress.note()
            producer.send(f"{at.name}-out", key, json.dumps(value).encode(), timestamp)

    tasks = [asyncio.create_task(read()), *(asyncio.create_task(handle()) for _ in range(at_once))]
    await progress.over.wait()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await producer.flush()
    await producer.close()
    await reader.close()


COMMANDS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "hot": hot,
    "failing": failing,
    "deferred": deferred,
    "cpu": cpu,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=[*COMMANDS, "all"])
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--call", type=float, default=0.05, help="seconds that a call takes")
    parser.add_argument("--at-once", type=int, default=25, help="calls at once in each partition")
    parser.add_argument("--share", type=float, default=0.2, help="of the hot key in all events")
    parser.add_argument(
        "--parked", type=lambda text: [int(n) for n in text.split(",")], default=[1_000, 10_000, 100_000]
    )
    parser.add_argument("--broker", help="kafka://HOST:PORT in place of a fresh embedded log")
    options = parser.parse_args()
    if options.command == "all":
        # Each in a process of its own, since memory is a process's.
        for command in COMMANDS:
            subprocess.run([sys.executable, __file__, command, *sys.argv[2:]], check=True)
        return
    asyncio.run(COMMANDS[options.command](options))


if __name__ == "__main__":
    main()
