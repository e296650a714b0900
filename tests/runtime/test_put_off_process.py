"""An event is put off by an hour and its worker killed; the wall clock of the last one is an hour ahead."""

from __future__ import annotations

import pathlib
import signal

from support import Process, append, read

APP = """
    import sys, time
    from agentic import App

    now = time.time_ns
    time.time_ns = lambda: now() + {ahead} * 1_000_000_000

    app = App("later")
    requests = app.topic("requests", key=str, value=int, partitions=1)
    replies = app.topic("replies", key=str, value=int, partitions=1)

    @app.agent(requests, to=replies, concurrency=4)
    async def reply(stream):
        async for n in stream:
            if n == 1 and not {ahead}:
                stream.defer(3_600)
            if stream.event.key == "other":
                await stream.commit()  # what came before it is safe
            print("has seen", n, file=sys.stderr, flush=True)
            yield n
"""


def test_an_event_put_off_by_an_hour_is_done_once_and_before_its_keys_later_ones_though_workers_are_killed(
    tmp_path: pathlib.Path,
) -> None:
    workers: list[Process] = []

    def start(ahead: int) -> Process:
        workers.append(Process(tmp_path, APP.format(ahead=ahead), delivery="exactly_once", commit_interval="1h"))
        return workers[-1]

    try:
        append(tmp_path, "requests", [b"1", b"2"], key=b"one")
        append(tmp_path, "requests", [b"3"], key=b"other")
        worker = start(0)
        worker.wait_for("has seen 3")
        worker.signal(signal.SIGKILL)
        worker.wait()
        # The hour is not over: what comes now waits as well.
        append(tmp_path, "requests", [b"4"], key=b"one")
        append(tmp_path, "requests", [b"5"], key=b"other")
        worker = start(0)
        worker.wait_for("has seen 5")
        worker.signal(signal.SIGKILL)
        worker.wait()
        assert not [line for line in worker.lines if line in ("has seen 1", "has seen 2", "has seen 4")]
        worker = start(3_600)
        worker.wait_for("has seen 4")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        worker = start(7_200)
        worker.wait_for("ready")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        replies = [int(value or b"") for value in read(tmp_path, "replies")]
        assert [n for n in replies if n in (1, 2, 4)] == [1, 2, 4]
        assert sorted(replies) == [1, 2, 3, 4, 5]
    finally:
        for worker in workers:
            worker.kill()
