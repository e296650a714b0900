#!/usr/bin/env python3
"""The embedded log and the worker's own costs, each figure with its command.

    local.py appends [--records 600000]     records/s appended in batches, 200 bytes, one partition and four
    local.py map [--events 400000]          events/s end to end of one worker process on local://
    local.py latency [--seconds 10]         2,000 events/s through a worker on local://: p50 and p99 in ms
    local.py scale [--broker URL]           a CPU-bound agent: events/s of two processes over those of one
    local.py flat [--events 10000000]       a worker's own resident memory after each million events
    local.py flat --work count              the same while it counts by 10,000 keys in a table
    local.py stops [--broker URL] [--events 3000000]   exactly once, counting: the longest stop in each second
    local.py scans [--events 1000000]       rows/s of items() and of ranges of 100 rows, in a table of so many rows
    local.py costs [--broker URL]           import time, time until a worker is ready, its idle memory
    local.py all

Each command prints one JSON object a line. Linux only, since it reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from agentic import App, Stream, Topic, brokers  # noqa: E402
from agentic.brokers.base import Broker, TopicPartition, TopicSpec  # noqa: E402
from agentic.runtime.worker import Worker  # noqa: E402

PARTITIONS = 4
RATE = 2_000
#: Warm-up of the latency measurement, in seconds.
WARM_UP = 3.0
VALUE = b'{"page":"/shop/item-%04d?from=mail","user":"user-%06d","ms":%d,"n":%d,"agent":"Mozilla/5.0 X11"}'


def app_of(work: str) -> App:
    """The app that a worker process of ours runs; broker and state come from the environment."""
    app = App(os.environ.get("BENCH_NAME", "bench"), log_level="info")
    source = app.topic("bench-in", key=str, value=dict)
    sink = app.topic("bench-out", key=str, value=dict)
    if work in ("count", "stops", "scans"):
        counting(app, source, sink, work)
        return app

    @app.agent(source, to=sink)
    async def double(stream: Stream[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
        async for value in stream:
            if work == "burn":
                sum(range(5_000))  # about 60 microseconds of one core
            value["ms"] *= 2
            yield value

    return app


def counting(app: App, source: Topic[str, Any], sink: Topic[str, Any], work: str) -> None:
    counts = app.table("counts", key=str, value=int, default=int)
    stops: list[float] = []
    # One for all tasks: while one of them works, the worker does not stand still.
    last, second, longest = time.perf_counter(), 0.0, 0.0

    @app.agent(source, to=sink)
    async def count(stream: Stream[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
        nonlocal last, second, longest
        async for _ in stream:
            key = stream.event.key
            counts[key] += 1
            if work == "stops":
                now = time.perf_counter()
                longest = max(longest, now - last)
                last = now
                if now - second >= 1:
                    stops.append(longest)
                    second, longest = now, 0.0
            yield {"n": counts[key]}

    @app.lifespan
    async def report() -> AsyncIterator[None]:
        yield
        # The first seconds have the start in them, the last one the wait for the end.
        at = pathlib.Path(os.environ["BENCH_REPORT"])
        await asyncio.to_thread(at.write_text, json.dumps(stops[3:-1]))


class Place:
    """A broker with the two topics, and worker processes on it."""

    def __init__(self, url: str, directory: pathlib.Path, name: str) -> None:
        self.url, self.directory, self.name = url, directory, name
        self.report = directory / "report"

    def worker(self, work: str = "map") -> subprocess.Popen[bytes]:
        env = {
            **os.environ,
            "AGENTIC_BROKER": self.url,
            "AGENTIC_STATE_DIR": str(self.directory / "state"),
            "AGENTIC_CREATE_TOPICS": "true",
            "AGENTIC_DELIVERY": "exactly_once" if work == "stops" else "at_least_once",
            "BENCH_NAME": self.name,
            "BENCH_REPORT": str(self.report),
        }
        return subprocess.Popen([sys.executable, __file__, "serve", work], env=env, stderr=subprocess.PIPE)


@contextmanager
def place(url: str | None = None) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="bench-local-") as directory:
        path = pathlib.Path(directory)
        yield Place(url or f"local://{path / 'log'}", path, f"bench-{os.urandom(4).hex()}")


def ready(process: subprocess.Popen[bytes], what: bytes = b" ready on ") -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if what in line:
            return
    raise SystemExit("the worker ended before it was ready")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)


async def opened(url: str, partitions: int = PARTITIONS) -> Broker:
    broker = brokers.connect(url)
    await broker.open(10)
    known = await broker.topics()
    if old := [topic for topic in ("bench-in", "bench-out") if topic in known]:
        await broker.delete_topics(old)
        while set(old) & set(await broker.topics()):
            await asyncio.sleep(0.1)
    # The records carry old timestamps, which a retention of a week would take for long expired.
    keep = {"retention.ms": "-1"}
    await broker.create_topics([TopicSpec(name, partitions, config=keep) for name in ("bench-in", "bench-out")])
    return broker


async def fill(broker: Broker, first: int, count: int) -> None:
    producer = broker.producer()
    for n in range(first, first + count):
        user = n * 7919 % 10_000
        value = VALUE % (user * 7 % 1000, user, 50 + n % 400, n)
        producer.send("bench-in", b"user-%06d" % user, value, 1_700_000_000_000 + n)
        if n % 1_000 == 0:
            await producer.ready()
    await producer.flush()
    await producer.close()


async def size(broker: Broker, topic: str = "bench-out") -> int:
    return sum((await broker.end_offsets([TopicPartition(topic, n) for n in range(PARTITIONS)])).values())


async def rate(broker: Broker, total: int) -> float:
    """Events a second between the moments at which 10 % and 90 % of the outputs had appeared."""
    begin = end = 0.0
    while not end:
        done, now = await size(broker), time.monotonic()
        if not begin and done >= total * 0.1:
            begin, at_begin = now, done
        if done >= total * 0.9:
            end, at_end = now, done
        await asyncio.sleep(0.005)
    return (at_end - at_begin) / (end - begin)


def rss(pid: int) -> float:
    """Resident memory of the process's own in MB: without pages of files, such as the log's, that can go at any time."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) * 1024 / 1e6


def appends(options: argparse.Namespace) -> dict[str, object]:
    async def measure(partitions: int) -> float:
        with place() as at:
            broker = await opened(at.url)
            producer = broker.producer()
            value, keys = b"x" * 200, [b"user-%06d" % n for n in range(10_000)]
            started = time.perf_counter()
            for n in range(options.records):
                producer.send("bench-in", keys[n % 10_000], value, 1_700_000_000_000 + n, None, n % partitions)
                if n % 1_000 == 0:
                    await producer.ready()
            await producer.flush()
            took = time.perf_counter() - started
            await producer.close()
            await broker.close()
            return options.records / took

    return {f"appends_per_s_{n}_partitions": round(asyncio.run(measure(n))) for n in (1, 4)}


def map_(options: argparse.Namespace) -> dict[str, object]:
    async def measure() -> float:
        with place(options.broker) as at:
            broker = await opened(at.url)
            await fill(broker, 0, options.events)
            process = at.worker()
            try:
                return await rate(broker, options.events)
            finally:
                stop(process)
                await broker.close()

    return {"map_events_per_s": round(asyncio.run(measure()))}


def latency(options: argparse.Namespace) -> dict[str, object]:
    async def send(broker: Broker, seconds: float) -> None:
        """Each record carries the moment just before its send."""
        producer = broker.producer()
        started = time.monotonic()
        for n in range(int(seconds * RATE)):
            if (wait := started + n / RATE - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            value = b'{"ms":1,"n":%d,"at":%d}' % (n, time.monotonic_ns())
            producer.send("bench-in", b"user-%06d" % (n % 10_000), value, 1_700_000_000_000 + n)
        await producer.flush()
        await producer.close()

    async def receive(broker: Broker, count: int) -> list[float]:
        reader = broker.reader({TopicPartition("bench-out", n): 0 for n in range(PARTITIONS)})
        taken: list[float] = []
        while len(taken) < count:
            for batch in await reader.poll(1.0):
                now = time.monotonic_ns()
                taken += [(now - json.loads(value or b"")["at"]) / 1e6 for value in batch.values]
        await reader.close()
        return taken[int(WARM_UP * RATE) :]

    async def measure() -> list[float]:
        with place(options.broker) as at:
            broker = await opened(at.url)
            process = at.worker()
            try:
                await asyncio.to_thread(ready, process)
                seconds = WARM_UP + options.seconds
                receiving = asyncio.create_task(receive(broker, int(seconds * RATE)))
                # The sender is a process of its own, so that records come from outside.
                env = {**os.environ, "AGENTIC_BROKER": at.url}
                sender = await asyncio.create_subprocess_exec(sys.executable, __file__, "sender", str(seconds), env=env)
                taken = sorted(await receiving)
                await sender.wait()
                return taken
            finally:
                stop(process)
                await broker.close()

    if options.command == "sender":

        async def sender() -> None:
            broker = brokers.connect(os.environ["AGENTIC_BROKER"])
            await broker.open(10)
            await send(broker, float(options.served))
            await broker.close()

        asyncio.run(sender())
        return {}
    taken = asyncio.run(measure())
    return {"p50_ms": round(taken[len(taken) // 2], 2), "p99_ms": round(taken[len(taken) * 99 // 100], 2)}


def scale(options: argparse.Namespace) -> dict[str, object]:
    async def measure(processes: int) -> float:
        with place(options.broker) as at:
            broker = await opened(at.url)
            total = 40_000 * processes
            workers = [at.worker("burn") for _ in range(processes)]
            try:
                for worker in workers:
                    await asyncio.to_thread(ready, worker, b" assigned ")
                await asyncio.sleep(1.0)  # the last partitions change hands
                await fill(broker, 0, total)
                return await rate(broker, total)
            finally:
                for worker in workers:
                    stop(worker)
                await broker.close()

    def bare(processes: int) -> float:
        """What the machine gives to bare loops of the same work at this moment: no worker can scale further."""
        code = (
            "import time\nn, end = 0, time.perf_counter() + 3\n"
            "while time.perf_counter() < end: sum(range(5_000)); n += 1\nprint(n)"
        )
        loops = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(processes)]
        return sum(int(loop.communicate()[0]) for loop in loops) / 3

    one, two = asyncio.run(measure(1)), asyncio.run(measure(2))
    return {
        "one_process": round(one),
        "two_processes": round(two),
        "ratio": round(two / one, 2),
        "ratio_of_bare_loops": round(bare(2) / bare(1), 2),
    }


def flat(options: argparse.Namespace) -> dict[str, object]:
    async def measure() -> list[float]:
        with place(options.broker) as at:
            broker = await opened(at.url)
            process = at.worker(options.work)
            step, taken = 1_000_000, []
            try:
                await asyncio.to_thread(ready, process)
                for n in range(0, options.events, step):
                    await fill(broker, n, step)
                    while await size(broker) < n + step:
                        await asyncio.sleep(0.05)
                    taken.append(round(rss(process.pid)))
                return taken
            finally:
                stop(process)
                await broker.close()

    return {"own_mb_after_each_million": asyncio.run(measure())}


def costs(options: argparse.Namespace) -> dict[str, object]:
    code = "import time; t = time.perf_counter(); import agentic; print(time.perf_counter() - t)"
    imports = [
        float(subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True).stdout)
        for _ in range(7)
    ]
    took, idle = [], []
    with place(options.broker) as at:
        asyncio.run(_made(at.url))
        for _ in range(5):
            started = time.monotonic()
            process = at.worker()
            ready(process)
            took.append(time.monotonic() - started)
            time.sleep(2)
            pages = int(pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            idle.append(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
            stop(process)
    return {
        "import_s": round(statistics.median(imports), 3),
        "ready_s": round(statistics.median(took), 2),
        "idle_rss_mb": round(statistics.median(idle), 1),
    }


def stops(options: argparse.Namespace) -> dict[str, object]:
    async def measure() -> list[float]:
        with place(options.broker) as at:
            broker = await opened(at.url)
            await fill(broker, 0, options.events)
            process = at.worker("stops")
            try:
                while await size(broker) < options.events:
                    await asyncio.sleep(0.2)
            finally:
                stop(process)
                await broker.close()
            return sorted(json.loads(at.report.read_text()))

    taken = asyncio.run(measure())
    quantiles = {f"p{q}_ms": round(1000 * taken[min(len(taken) - 1, len(taken) * q // 100)], 1) for q in (50, 99)}
    return {"seconds": len(taken), **quantiles, "longest_ms": round(1000 * taken[-1], 1)}


def scans(options: argparse.Namespace) -> dict[str, object]:
    app = App("scans", broker="local://unused")
    source = app.topic("in", key=str)
    rows = app.table("rows", key=str, value=int, check_keys=False)
    found: dict[str, object] = {}

    @app.agent(source)
    async def scan(stream: Stream[Any]) -> None:
        async for _ in stream:
            began = time.perf_counter()
            n = sum(1 for _ in rows.items())
            found["items_rows_per_s"] = round(n / (time.perf_counter() - began))
            began, n = time.perf_counter(), 0
            for first in range(0, options.events, 1_000):
                n += len(list(rows.range(f"key-{first:012d}", f"key-{first + 100:012d}")))
            found["ranges_rows_per_s"] = round(n / (time.perf_counter() - began))

    async def measure() -> None:
        with tempfile.TemporaryDirectory(prefix="bench-scans-") as directory:
            app.configure(broker=f"local://{directory}/log", state_dir=f"{directory}/state", topic_partitions="1")
            worker = Worker(app)
            await worker.start()
            assert worker.assignment is not None
            while not worker.assignment.states():
                await asyncio.sleep(0.01)
            (state,) = worker.assignment.states()
            for first in range(0, options.events, 100_000):
                keys = range(first, min(options.events, first + 100_000))
                await state.restore(rows, {f"key-{n:012d}".encode(): (b"%d" % n, n) for n in keys}, 0)
            producer = worker.broker.producer()
            producer.send("in", b"x", b"1", 0)
            await producer.flush()
            await producer.close()
            await worker.used_up()
            await worker.stop()

    asyncio.run(measure())
    return found


async def _made(url: str) -> None:
    await (await opened(url)).close()


COMMANDS = {"appends": appends, "map": map_, "latency": latency, "scale": scale, "flat": flat}
#: Events of the commands that need more than the others.
EVENTS = {"flat": 10_000_000, "stops": 3_000_000, "scans": 1_000_000}
COMMANDS |= {"stops": stops, "scans": scans, "costs": costs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=[*COMMANDS, "all", "serve", "sender"])
    parser.add_argument("served", nargs="?", default="map", help=argparse.SUPPRESS)
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--events", type=int)
    parser.add_argument("--work", dest="work", choices=["map", "count"], default="map", help="for flat")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--broker", help="kafka://HOST:PORT in place of a fresh embedded log")
    options = parser.parse_args()
    if options.command == "serve":
        sys.exit(app_of(options.served).run())
    if options.command == "sender":
        latency(options)
        return
    asked = options.events
    for name in COMMANDS if options.command == "all" else [options.command]:
        options.events = asked or EVENTS.get(name, 400_000)
        print(json.dumps({"measured": name, **COMMANDS[name](options)}), flush=True)


if __name__ == "__main__":
    main()
