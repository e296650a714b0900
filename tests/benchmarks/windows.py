#!/usr/bin/env python3
"""A million open windows in one task: what an add costs, what closing them all at once does, and what they leave behind.

    windows.py add [--open 10000,1000000] [--adds 500000]   microseconds of processor time an add, by how many are open
    windows.py close [--open 1000000]                       windows/s given out, the longest pause of the loop, memory
    windows.py many [--adds 500000]                         how much faster add_many is than add, an event each
    windows.py days [--keys 2000] [--days 24]               the size of the store's file after each simulated day
    windows.py all

Each command prints JSON objects, one a line. A worker runs in this process, on an embedded log and a store on disk; an
event adds to a hundred windows, so that what an event costs beside is little. Where others use the machine too, look
at the processor time. Linux only, since it reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from agentic import App, Stream  # noqa: E402
from agentic.runtime.runner import GC_THRESHOLD  # noqa: E402
from agentic.runtime.worker import Worker  # noqa: E402

HOUR = 3_600_000
#: Adds of one event.
TOGETHER = 100
#: Windows that are added to, where it is not all of them.
HOT = 10_000


class Bench:
    """A worker whose agent adds to windows of an hour, and reads what comes out of them.

    Attributes:
        given: how many windows have come out.
    """

    def __init__(self, directory: str) -> None:
        self.given = 0
        self.directory = pathlib.Path(directory)
        app = App("bench", topic_partitions=1, log_level="warning")
        app.configure(broker=f"local://{directory}/log", state_dir=f"{directory}/state")
        self._source = app.topic("in", value=list)
        views = app.table("views", key=str, value=int, check_keys=False).tumbling(timedelta(hours=1)).count()

        @app.agent(self._source)
        async def add(stream: Stream[Any]) -> None:
            async for keys in stream:
                for key in keys:
                    views.add(key, None)

        @app.agent(views.emit_final())
        async def take(windows: Stream[Any]) -> None:
            async for _ in windows:
                self.given += 1

        self._worker = Worker(app)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self._worker.start()
        # As a process of its own does that is nothing but a worker.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        yield
        await self._worker.stop()
        if self._worker.failure is not None:
            raise self._worker.failure

    async def feed(self, keys: Iterable[int], timestamp: int) -> None:
        """Let events add to the windows of these keys, and return when all is committed."""
        producer = self._worker.broker.producer()
        keys = list(keys)
        for first in range(0, len(keys), TOGETHER):
            value = json.dumps([f"key-{key:08}" for key in keys[first : first + TOGETHER]]).encode()
            producer.send("in", b"", value, timestamp, partition=0)
            if first % (100 * TOGETHER) == 0:
                await producer.ready()
        await producer.flush()
        await producer.close()
        await self._worker.used_up()

    @property
    def file_mib(self) -> float:
        """The size of the stores' files."""
        files = (self.directory / "state").rglob("data.mdb")
        return sum(file.stat().st_blocks * 512 for file in files) / (1 << 20)


def memory(field: str) -> float:
    """MiB of this process by the kernel's account: VmRSS, VmHWM, RssAnon."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024


def say(**figures: Any) -> None:
    print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in figures.items()}), flush=True)


async def add(options: argparse.Namespace) -> None:
    """Add to open windows at random: to a few of them, and to all, of which each has to be written by itself."""
    (count,) = options.open
    with tempfile.TemporaryDirectory(prefix="bench-windows-") as directory:
        bench = Bench(directory)
        async with bench.running():
            await bench.feed(range(count), HOUR)
            choose = random.Random(1)
            for over in sorted({min(HOT, count), count}):
                keys = [choose.randrange(over) * (count // over) for _ in range(options.adds)]
                await bench.feed(keys[: options.adds // 10], HOUR)
                wall, used = time.perf_counter(), time.process_time()
                await bench.feed(keys, HOUR + 1)
                wall, used = time.perf_counter() - wall, time.process_time() - used
                say(
                    open=count,
                    added_to=over,
                    add_cpu_us=used / options.adds * 1e6,
                    add_wall_us=wall / options.adds * 1e6,
                    rss_mib=memory("VmRSS"),
                    anonymous_mib=memory("RssAnon"),
                    peak_mib=memory("VmHWM"),
                )


async def close(options: argparse.Namespace) -> None:
    """Close all windows at once by one event, and look at the loop meanwhile."""
    count = options.open[-1]
    with tempfile.TemporaryDirectory(prefix="bench-windows-") as directory:
        bench = Bench(directory)
        async with bench.running():
            await bench.feed(range(count), HOUR)
            say(open=count, rss_mib=memory("VmRSS"), anonymous_mib=memory("RssAnon"), file_mib=bench.file_mib)
            pauses: list[tuple[float, float]] = []
            watch = asyncio.create_task(_watch(pauses))
            wall, used = time.perf_counter(), time.process_time()
            fed = asyncio.create_task(bench.feed([0], 3 * HOUR))
            while bench.given < count and not fed.done():
                await asyncio.sleep(0.001)
            given_wall, given_used = time.perf_counter() - wall, time.process_time() - used
            await fed
            wall = time.perf_counter() - wall
            await asyncio.sleep(0.01)
            watch.cancel()
            say(
                closed=bench.given,
                windows_per_s=bench.given / given_wall,
                windows_per_cpu_s=bench.given / given_used,
                committed_after_s=wall,
                longest_pause_cpu_ms=max(used for used, _ in pauses) * 1e3,
                longest_pause_wall_ms=max(wall for _, wall in pauses) * 1e3,
                rss_mib=memory("VmRSS"),
                peak_mib=memory("VmHWM"),
            )


async def _watch(pauses: list[tuple[float, float]]) -> None:
    """Note how long another task of the loop has to wait for its turn, by processor time and by the clock."""
    while True:
        used, wall = time.process_time(), time.perf_counter()
        await asyncio.sleep(0)
        pauses.append((time.process_time() - used, time.perf_counter() - wall))
        await asyncio.sleep(0.001)


async def many(options: argparse.Namespace) -> None:
    """Put events into windows one by one, and lists of events at once; beside an agent that only reads them."""
    read, one, lists = [await _per_event(options, how) for how in ("read", "add", "add_many")]
    say(
        read_cpu_us=read,
        add_cpu_us=one,
        add_many_cpu_us=lists,
        whole_ratio=one / lists,
        ratio_without_reading=(one - read) / (lists - read),
    )


async def _per_event(options: argparse.Namespace, how: str) -> float:
    """Return the microseconds of processor time that an event takes of a worker."""
    with tempfile.TemporaryDirectory(prefix="bench-windows-") as directory:
        app = App("bench", topic_partitions=1, log_level="warning")
        app.configure(broker=f"local://{directory}/log", state_dir=f"{directory}/state")
        source = app.topic("in", key=str, value=int)
        views = app.table("views", key=str, value=int).tumbling(timedelta(hours=1)).count()

        @app.agent(source)
        async def add(stream: Stream[Any]) -> None:
            if how == "read":
                async for _ in stream:
                    pass
            elif how == "add":
                async for value in stream:
                    views.add(stream.event.key, value)
            else:
                async for events in stream.events().take(500, within=0.05):
                    views.add_many(events)

        worker = Worker(app)
        await worker.start()
        producer = worker.broker.producer()
        choose = random.Random(1)
        began = time.process_time()
        for _ in range(0, options.adds, HOT):
            for _ in range(HOT):
                producer.send("in", b"key-%08d" % choose.randrange(HOT), b"1", HOUR, partition=0)
            await producer.flush()
        await worker.used_up()
        used = time.process_time() - began
        await producer.close()
        await worker.stop()
        if worker.failure is not None:
            raise worker.failure
        return used / options.adds * 1e6


async def days(options: argparse.Namespace) -> None:
    """Let a day after the other pass, each hour with a window for each key."""
    with tempfile.TemporaryDirectory(prefix="bench-windows-") as directory:
        bench = Bench(directory)
        async with bench.running():
            for day in range(1, options.days + 1):
                for hour in range(24):
                    await bench.feed(range(options.keys), (day * 24 + hour) * HOUR)
                say(day=day, given=bench.given, file_mib=bench.file_mib, rss_mib=memory("VmRSS"))


COMMANDS: dict[str, Callable[[argparse.Namespace], Any]] = {"add": add, "many": many, "close": close, "days": days}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=[*COMMANDS, "all"])
    parser.add_argument("--open", type=lambda text: [int(n) for n in text.split(",")], default=[10_000, 1_000_000])
    parser.add_argument("--adds", type=int, default=500_000)
    parser.add_argument("--keys", type=int, default=2_000)
    parser.add_argument("--days", type=int, default=24)
    options = parser.parse_args()
    if options.command == "all" or (options.command == "add" and len(options.open) > 1):
        # Each in a process of its own, since memory is a process's.
        rest = ["--adds", str(options.adds), "--keys", str(options.keys), "--days", str(options.days)]
        runs = [["add", "--open", str(count)] for count in options.open]
        if options.command == "all":
            runs += [["close", "--open", str(options.open[-1])], ["days"]]
        for run in runs:
            subprocess.run([sys.executable, __file__, *run, *rest], check=True)
        return
    asyncio.run(COMMANDS[options.command](options))


if __name__ == "__main__":
    main()
