"""Tables restored by processes beside the worker: the same rows, whatever becomes of the process."""

from __future__ import annotations

import asyncio
import enum
import logging
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agentic import App, Stream
from agentic.errors import StateMismatch, StorageCorrupt
from agentic.runtime import restorers
from agentic.runtime.restorers import Restorers
from agentic.runtime.worker import Worker
from agentic.state.lmdb import ClaimedStore
from agentic.table import Table
from agentic.topic import Topic
from agentic.windows import WindowedTable

PATIENCE = 60.0
KEYS = 500
PARTITIONS = 3

#: What a process runs that dies in place of saying that a task is done.
SILENT = """
import os, signal
from agentic.runtime import restorer

say = restorer._say

def none_of_it(**word):
    if "back" in word:
        os.kill(os.getpid(), signal.SIGKILL)
    say(**word)

restorer._say = none_of_it
restorer.main()
"""

#: A worker whose restoring processes stop at once, and are told of.
WORKER = """
import os
import signal
import sys
from pathlib import Path

from agentic.runtime import restorers
from tests.runtime.test_restorers import Scene

start = restorers._start

async def stopped(claims):
    process = await start(claims)
    os.kill(process.pid, signal.SIGSTOP)
    print(process.pid, flush=True)
    return process

restorers.WORTH, restorers._start = 1, stopped
Scene(Path(sys.argv[1]), restore_processes=2).app.run()
"""


class Colour(enum.Enum):
    """A type that another process could only have by importing this module."""

    RED = "red"
    BLUE = "blue"


class Scene:
    """An app with tables of several kinds over an embedded log, and all rows of them that its worker has."""

    def __init__(self, directory: Path, key: type = str, **settings: Any) -> None:
        self.app = App(
            "scene",
            broker=f"local://{directory}/log",
            state_dir=str(directory / "state"),
            topic_partitions=PARTITIONS,
            **settings,
        )
        self.directory = directory
        self.words: Topic[Any, int] = self.app.topic("words", key=key, value=int)
        counts: Table[Any, int] = self.app.table("counts", key=key, value=int, default=int)
        last: Table[Any, dict[str, int]] = self.app.table("last", key=key, value=dict)
        minute, day = timedelta(minutes=1), timedelta(days=1)
        minutes: WindowedTable[Any, int] = (
            self.app.table("minutes", key=key, value=int).tumbling(minute, retention=day).count()
        )
        visits: WindowedTable[Any, int] = (
            self.app.table("visits", key=key, value=int).session(minute, retention=day).count()
        )
        self.tables: list[Table[Any, Any]] = [counts, last, minutes, visits]

        @self.app.agent(self.words)
        async def note(stream: Stream[int]) -> None:
            async for value in stream:
                key = stream.event.key
                counts[key] += value
                last[key] = {"value": value}
                minutes.add(key, value)
                visits.add(key, value)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Worker]:
        worker = Worker(self.app)
        await worker.start()
        try:
            yield worker
        finally:
            await worker.stop()
        if worker.failure is not None:
            raise worker.failure

    async def work(self, events: int) -> None:
        """Have events counted."""
        async with self.running() as worker:
            producer = worker.broker.producer()
            for n in range(events):
                producer.send("words", b"%d" % (n % KEYS), b"%d" % n, 1_700_000_000_000 + n * 20)
            await producer.flush()
            await producer.close()
            await worker.used_up()

    def rows(self, worker: Worker) -> dict[str, list[tuple[Any, Any]]]:
        """All rows, by table."""
        assert worker.assignment is not None
        states = [task.state for task in worker.assignment.tasks.values() if task.state is not None]
        return {
            table.name: sorted((key, value) for state in states for _, key, value in state.rows(table))
            for table in self.tables
        }

    async def restored(self) -> dict[str, list[tuple[Any, Any]]]:
        """Return the rows of a worker that has brought its tasks up."""
        async with self.running() as worker:
            await until(lambda: all_begun(worker))
            return self.rows(worker)

    def copies(self) -> list[str]:
        """Return the numbers of the copies of all tasks."""
        return sorted(path.name for path in (self.directory / "state").glob("scene/state/*/*") if path.is_dir())

    def lose_the_disk(self) -> None:
        shutil.rmtree(self.directory / "state")


def all_begun(worker: Worker, tasks: int = PARTITIONS) -> bool:
    if worker.failure is not None:
        raise worker.failure
    there = worker.assignment.tasks.values() if worker.assignment is not None else ()
    return len(there) == tasks and all(task.started for task in there)


def go_on(processes: list[Any]) -> bool:
    """Let stopped processes go on."""
    for process in processes:
        with suppress(ProcessLookupError):  # it has ended
            process.send_signal(signal.SIGCONT)
    return True


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what a process does has no event here
            await asyncio.sleep(0.005)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Two processes restore, however little there is."""
    monkeypatch.setattr(restorers, "WORTH", 1)
    yield Scene(tmp_path, restore_processes=2)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The processes that were started, each stopped before it does anything."""
    processes: list[Any] = []
    start = restorers._start

    async def stopped(claims: Any) -> Any:
        process = await start(claims)
        os.kill(process.pid, signal.SIGSTOP)
        processes.append(process)
        return process

    monkeypatch.setattr(restorers, "_start", stopped)
    return processes


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The processes that were started."""
    processes: list[Any] = []
    start = restorers._start

    async def counting(claims: Any) -> Any:
        processes.append(await start(claims))
        return processes[-1]

    monkeypatch.setattr(restorers, "_start", counting)
    return processes


@pytest.mark.parametrize("key", [str, int])
def test_processes_bring_the_rows_that_the_worker_itself_would(
    key: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: list[Any]
) -> None:
    monkeypatch.setattr(restorers, "WORTH", 1)
    scene = Scene(tmp_path, key, restore_processes=2)

    async def scenario() -> None:
        await scene.work(3_000)
        expected = await scene.restored()
        assert {name: len(rows) >= KEYS for name, rows in expected.items()} == dict.fromkeys(expected, True)
        assert counted == []
        scene.lose_the_disk()
        assert await scene.restored() == expected
        assert [process.returncode for process in counted] == [0, 0]

    asyncio.run(scenario())


def test_what_processes_restored_is_there_at_the_next_start_and_goes_on(scene: Scene, counted: list[Any]) -> None:
    async def scenario() -> None:
        await scene.work(2_000)
        scene.lose_the_disk()
        await scene.restored()
        assert len(counted) == 2
        await scene.work(1_000)
        assert len(counted) == 2, "nothing was left to restore"
        expected = await scene.restored()
        assert sum(value for _, value in expected["counts"]) == sum(range(2_000)) + sum(range(1_000))
        assert sum(value for *_, value in expected["minutes"]) == 3_000

    asyncio.run(scenario())


def test_a_table_with_versions_that_processes_restored_still_refuses_what_is_older_than_its_history(
    scene: Scene, counted: list[Any]
) -> None:
    prices: Table[str, int] = scene.app.table("prices", key=str, value=int, versioned=timedelta(minutes=1))
    scene.tables = [prices]

    @scene.app.agent(scene.words)
    async def price(stream: Stream[int]) -> None:
        async for value in stream:
            prices[stream.event.key] = value

    async def scenario() -> None:
        await scene.work(6_000)
        scene.lose_the_disk()
        async with scene.running() as worker:
            await until(lambda: all_begun(worker))
            assert len(counted) == 2
            expected = scene.rows(worker)
            producer = worker.broker.producer()
            producer.send("words", b"late", b"1", 1_700_000_000_000)
            await producer.flush()
            await producer.close()
            await worker.used_up()
            assert scene.rows(worker) == expected

    asyncio.run(scenario())


def test_a_process_that_is_killed_is_made_up_for(
    scene: Scene, started: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await scene.work(2_000)
        expected = await scene.restored()
        scene.lose_the_disk()
        async with scene.running() as worker:
            await until(lambda: len(started) == 2)
            started[0].kill()
            os.kill(started[1].pid, signal.SIGCONT)
            await until(lambda: all_begun(worker))
            assert scene.rows(worker) == expected

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "ended with status -9; going on here" in caplog.text


def test_a_process_that_is_killed_when_all_is_done_but_the_word_of_it_is_made_up_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restorers, "_BEGIN", SILENT)

    async def scenario() -> None:
        await scene.work(2_000)
        expected = await scene.restored()
        scene.lose_the_disk()
        assert await scene.restored() == expected

    asyncio.run(scenario())


def test_a_worker_that_stops_has_its_stores_back_first(scene: Scene, started: list[Any]) -> None:
    async def scenario() -> None:
        await scene.work(2_000)
        expected = await scene.restored()
        scene.lose_the_disk()
        worker = Worker(scene.app)
        await worker.start()
        await until(lambda: len(started) == 2)
        stop = asyncio.create_task(worker.stop())
        for process in started:
            os.kill(process.pid, signal.SIGCONT)
        await stop
        assert worker.failure is None
        assert all(process.returncode is not None for process in started)
        started.clear()
        async with scene.running() as worker:
            await until(lambda: started or all_begun(worker))
            await until(lambda: go_on(started) and all_begun(worker))
            assert scene.rows(worker) == expected
        # The claims were free again: no second copy of a task was made.
        assert scene.copies() == ["0"] * PARTITIONS

    asyncio.run(scenario())


def test_a_process_that_hangs_does_not_hold_up_a_rebalance(
    scene: Scene, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restorers, "PATIENCE", 0.05)

    async def scenario() -> None:
        await scene.work(2_000)
        expected = await scene.restored()
        scene.lose_the_disk()
        async with scene.running() as worker:
            await until(lambda: len(started) == 2)
            assert worker.assignment is not None
            await worker.assignment.on_revoked(list(worker.assignment.sources))
            await until(lambda: all(process.returncode is not None for process in started))
        monkeypatch.setattr(restorers, "WORTH", 1_000_000)
        assert await scene.restored() == expected
        assert scene.copies() == ["0"] * PARTITIONS

    asyncio.run(scenario())


def test_stores_that_are_damaged_when_they_come_back_stop_the_worker(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(store: ClaimedStore) -> None:
        raise StorageCorrupt(f"{store.directory}: damaged")

    monkeypatch.setattr(ClaimedStore, "take_back", damaged)

    async def scenario() -> None:
        await scene.work(500)
        scene.lose_the_disk()
        with pytest.raises(StorageCorrupt, match="damaged"):
            await scene.restored()

    asyncio.run(scenario())


def test_what_an_interpreter_prints_at_its_start_is_no_word_of_the_process(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, counted: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(restorers, "_BEGIN", "print('hello', flush=True); " + restorers._BEGIN)

    async def scenario() -> None:
        await scene.work(500)
        expected = await scene.restored()
        scene.lose_the_disk()
        assert await scene.restored() == expected
        assert [process.returncode for process in counted] == [0, 0]

    asyncio.run(scenario())
    assert "a process that restores printed b'hello" in caplog.text


def test_a_file_of_the_app_that_is_called_like_a_module_of_python_is_not_met(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, counted: list[Any]
) -> None:
    for name in ("queue.py", "types.py"):
        (scene.directory / name).write_text("raise ImportError('not of Python')")
    monkeypatch.syspath_prepend(scene.directory)

    async def scenario() -> None:
        await scene.work(500)
        scene.lose_the_disk()
        await scene.restored()
        assert [process.returncode for process in counted] == [0, 0]

    asyncio.run(scenario())


def test_a_broker_driver_that_calls_functions_of_the_app_is_not_had_by_another_process(tmp_path: Path) -> None:
    app = App("scene", broker="kafka://localhost:1", kafka={"oauth_cb": lambda _: ("token", 0.0)})
    assert Restorers(app.settings, 2).processes == 0
    app = App("scene", broker="kafka://localhost:1", kafka={"client.id": "here"})
    assert Restorers(app.settings, 2).processes == 2


def test_a_table_whose_keys_only_the_app_knows_is_restored_by_the_worker(scene: Scene, counted: list[Any]) -> None:
    colours: Table[Colour, int] = scene.app.table("colours", key=Colour, value=int, default=int)
    paint: Topic[Colour, int] = scene.app.topic("paint", key=Colour, value=int)

    @scene.app.agent(paint)
    async def mix(stream: Stream[int]) -> None:
        async for value in stream:
            colours[stream.event.key] += value

    async def scenario() -> None:
        async with scene.running() as worker:
            producer = worker.broker.producer()
            for n in range(20):
                producer.send("paint", b'"red"' if n % 2 else b'"blue"', b"%d" % n, n)
            await producer.flush()
            await producer.close()
            await worker.used_up()
        scene.lose_the_disk()
        async with scene.running() as worker:
            await until(lambda: all_begun(worker, 2 * PARTITIONS))
            assert worker.assignment is not None
            states = [task.state for task in worker.assignment.tasks.values() if task.state is not None]
            rows = {key: value for state in states if colours in state.buffers for _, key, value in state.rows(colours)}
            assert rows == {Colour.BLUE: 90, Colour.RED: 100}
        assert counted == []

    asyncio.run(scenario())


def test_a_small_restoration_and_a_setting_of_none_start_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: list[Any]
) -> None:
    async def restored(scene: Scene) -> None:
        await scene.work(200)
        scene.lose_the_disk()
        assert sum(value for *_, value in (await scene.restored())["minutes"]) == 200
        assert counted == []

    asyncio.run(restored(Scene(tmp_path / "small", restore_processes=2)))
    monkeypatch.setattr(restorers, "WORTH", 1)
    asyncio.run(restored(Scene(tmp_path / "none", restore_processes=0)))


def test_a_changelog_with_other_keys_stops_the_worker_as_ever(scene: Scene, counted: list[Any]) -> None:
    async def scenario() -> None:
        await scene.work(200)
        scene.lose_the_disk()
        async with scene.running() as worker:
            await until(lambda: all_begun(worker))
            producer = worker.broker.producer()
            producer.send("scene-counts-changelog", b"\xff\xfe", b"1", 1, partition=0)
            await producer.flush()
            await producer.close()
        scene.lose_the_disk()
        with pytest.raises(StateMismatch, match="changelog 'scene-counts-changelog' has a key that is not str"):
            await scene.restored()

    asyncio.run(scenario())


def test_a_worker_that_is_killed_leaves_no_process_that_holds_its_stores(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(WORKER)

    async def scenario() -> None:
        await scene.work(2_000)
        expected = await scene.restored()
        scene.lose_the_disk()
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            str(tmp_path / "killed.py"),
            str(tmp_path),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert worker.stdout is not None
        pids = [int(await worker.stdout.readline()) for _ in range(2)]
        worker.kill()
        await worker.wait()
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: not any(map(is_there, pids)))
        assert await scene.restored() == expected
        assert scene.copies() == ["0"] * PARTITIONS

    asyncio.run(scenario())
