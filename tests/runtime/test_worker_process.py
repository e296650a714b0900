"""The life of a worker process: ready, signals, failures, exit codes."""

from __future__ import annotations

import json
import pathlib
import shutil
import signal
from collections.abc import Callable, Iterator

import pytest
from support import Process, append, committed, read

Start = Callable[..., Process]

DOUBLING = """
    import asyncio
    from agentic import App

    app = App("doubling")
    numbers = app.topic("numbers", value=int, partitions=1)
    doubles = app.topic("doubles", value=int, partitions=1)

    @app.agent(numbers, to=doubles)
    async def double(stream):
        async for n in stream:
            if n == 13:
                raise ValueError("thirteen")
            if n < 0:
                print("asleep", file=__import__("sys").stderr, flush=True)
                await asyncio.sleep(-n)
            yield 2 * n
"""


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Start]:
    processes: list[Process] = []

    def start(source: str = DOUBLING, **settings: str) -> Process:
        processes.append(Process(tmp_path, source, **settings))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_commits_and_ends_with_zero(
    tmp_path: pathlib.Path, start: Start, number: signal.Signals
) -> None:
    append(tmp_path, "numbers", [b"1", b"-1"])
    worker = start()
    worker.wait_for("asleep")
    worker.signal(number)
    assert worker.wait() == 0
    assert read(tmp_path, "doubles") == [b"2", b"-2"]
    assert committed(tmp_path, "doubling", "numbers") == 2


def test_what_does_not_finish_in_time_is_left_undone_and_said(tmp_path: pathlib.Path, start: Start) -> None:
    append(tmp_path, "numbers", [b"1", b"-1000", b"2"])
    worker = start(stop_timeout="100ms")
    worker.wait_for("asleep")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "left undone" in worker.log
    assert read(tmp_path, "doubles") == [b"2"]
    assert committed(tmp_path, "doubling", "numbers") == 1


def test_a_second_signal_ends_at_once(tmp_path: pathlib.Path, start: Start) -> None:
    append(tmp_path, "numbers", [b"-1000"])
    worker = start()
    worker.wait_for("asleep")
    worker.signal(signal.SIGTERM)
    worker.wait_for("stopping")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 128 + signal.SIGTERM


def test_an_agent_that_raises_ends_the_worker_with_the_whole_story(tmp_path: pathlib.Path, start: Start) -> None:
    append(tmp_path, "numbers", [b"1", b"13", b"2"])
    worker = start()
    assert worker.wait() == 1
    assert "agent 'double' failed on numbers-0 offset 1 key None: ValueError: thirteen" in worker.log
    assert 'raise ValueError("thirteen")' in worker.log  # the traceback shows the user's line
    assert read(tmp_path, "doubles") == [b"2"]
    assert committed(tmp_path, "doubling", "numbers") == 1


def test_a_killed_worker_does_its_uncommitted_work_again(tmp_path: pathlib.Path, start: Start) -> None:
    append(tmp_path, "numbers", [b"1", b"-1000"])
    worker = start()
    worker.wait_for("asleep")
    worker.signal(signal.SIGKILL)
    assert worker.wait() == -signal.SIGKILL
    again = start()
    again.wait_for("asleep")


def test_log_lines_may_be_json(tmp_path: pathlib.Path, start: Start) -> None:
    append(tmp_path, "numbers", [b"13"])
    worker = start(log="json")
    assert worker.wait() == 1
    entries = [json.loads(line) for line in worker.lines]
    assert {"time", "level", "logger", "message"} <= set(entries[0])
    assert "ValueError: thirteen" in entries[-1]["traceback"]
    assert entries[-1]["level"] == "error"


def test_a_task_that_raises_ends_the_worker(start: Start) -> None:
    worker = start(
        """
        from agentic import App
        app = App("tasks")

        @app.task
        async def broken():
            raise RuntimeError("no luck")
        """
    )
    assert worker.wait() == 1
    assert "task 'broken' failed: RuntimeError: no luck" in worker.log


def test_a_lifespan_that_fails_on_exit_is_told_and_changes_the_exit_code(start: Start) -> None:
    worker = start(
        """
        from agentic import App
        app = App("lifespans")

        @app.lifespan
        async def around():
            yield
            raise RuntimeError("no luck")
        """
    )
    worker.wait_for("ready")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 1
    assert "lifespan failed on exit: RuntimeError: no luck" in worker.log


def test_a_lifespan_that_never_ends_is_told_and_left_behind(start: Start) -> None:
    worker = start(
        """
        import asyncio
        from agentic import App
        from agentic.runtime import services

        services.LAST_COMMIT = 0.1
        app = App("lifespans")

        @app.lifespan
        async def around():
            yield
            await asyncio.Event().wait()
        """,
        stop_timeout="100ms",
    )
    worker.wait_for("ready")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 1
    assert "stopped: the app's lifespan did not end within 0.1 s" in worker.log


def test_a_slow_partition_does_not_hold_up_the_others(tmp_path: pathlib.Path, start: Start) -> None:
    """Partition 0 sleeps with a full buffer behind it; partition 1 goes on all the same."""
    append(tmp_path, "numbers", [b"-1000"] + [b"0"] * 500, partitions=2)
    worker = start(
        """
        import asyncio, sys
        from agentic import App

        app = App("slow", max_buffered=50)
        numbers = app.topic("numbers", value=int)

        @app.task
        async def feed():
            await asyncio.sleep(0.5)
            for n in range(1, 300):
                await numbers.send(n, partition=1)

        @app.agent(numbers)
        async def work(stream):
            async for n in stream:
                if n < 0:
                    await asyncio.sleep(-n)
                if n == 299:
                    print("all of partition 1", file=sys.stderr, flush=True)
        """,
        stop_timeout="100ms",
    )
    worker.wait_for("all of partition 1")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


IMPATIENT = """
    import asyncio, sys
    from agentic import App
    from agentic.runtime import runner, worker

    runner.LAST_WAIT = worker.TASK_TIMEOUT = 0.1
    app = App("impatient")
"""


def test_a_task_that_swallows_its_cancellation_is_named_and_left_behind(start: Start) -> None:
    worker = start(
        IMPATIENT
        + """
    @app.task
    async def stubborn():
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                print("no", file=sys.stderr, flush=True)
    """
    )
    worker.wait_for("ready")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 1
    assert "stopped: task 'stubborn' did not end within 0.1 s after being cancelled" in worker.log
    assert "does not end although all else has: task 'stubborn'; ending the process" in worker.log


def test_a_thread_that_does_not_end_is_left_behind(start: Start) -> None:
    worker = start(
        IMPATIENT
        + """
    import threading

    @app.task
    async def blocking():
        await asyncio.to_thread(threading.Event().wait)
    """
    )
    worker.wait_for("ready")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 1
    assert "does not end although all else has: thread asyncio_0; ending the process" in worker.log


@pytest.mark.parametrize("code", ["", "0", "3", "'no luck'"])
def test_a_task_that_calls_exit_is_named(start: Start, code: str) -> None:
    worker = start(
        f"""
        import sys
        from agentic import App
        app = App("exits")

        @app.task
        async def leaving():
            sys.exit({code})
        """
    )
    assert worker.wait() == 1
    assert f"stopped: task 'leaving' failed: it called sys.exit({code}); to stop a worker" in worker.log


@pytest.mark.parametrize(("before", "when"), [(True, "entry"), (False, "exit")])
def test_a_lifespan_that_calls_exit_is_named(start: Start, before: bool, when: str) -> None:
    worker = start(
        f"""
        import sys
        from agentic import App
        app = App("exits")

        @app.lifespan
        async def around():
            if {before}:
                sys.exit(3)
            yield
            sys.exit(3)
        """
    )
    if not before:
        worker.wait_for("ready")
        worker.signal(signal.SIGTERM)
    assert worker.wait() == 1
    assert f"the app's lifespan failed on {when}: it called sys.exit(3)" in worker.log


def test_a_log_that_is_removed_under_a_worker_stops_it_with_the_directorys_name(
    tmp_path: pathlib.Path, start: Start
) -> None:
    append(tmp_path, "numbers", [b"1"])
    worker = start()
    worker.wait_for("ready")
    shutil.rmtree(tmp_path / "log")
    assert worker.wait() == 1
    assert f"{tmp_path / 'log'}: the log was removed while it was in use" in worker.log
