"""What open windows wait for, and their rows, from outside: on a stopped app, beside a worker, and on Kafka."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_support import Shell
from tables_support import run, until_ready

from agentic.cli.records import clock_time

#: Counts by window, one event after the other and many at once; means by session.
APP = """
import asyncio
from datetime import timedelta

from agentic import App, RetryLater

SECOND = timedelta(seconds=1)

app = App("shop", topic_partitions=2)
clicks = app.topic("clicks", key=str, value=int)
calls = app.topic("calls", key=str, value=str)
plain = app.table("plain", key=str, value=int)
views = app.table("views", key=str, value=int).tumbling(SECOND, grace=10 * SECOND).count()
means = app.table("means", key=str).session(SECOND).mean()
answered = app.table("answered", key=str, value=int).tumbling(SECOND).count()


@app.agent(clicks)
async def count(stream):
    async for click in stream:
        views.add(stream.event.key, click)
        means.add(stream.event.key, click)
        plain[stream.event.key] = click


full = app.table("full", key=str, value=int).tumbling(SECOND).count()


@app.agent(clicks)
async def fill(stream):
    async for click in stream:
        full.add(stream.event.key, click)


@app.agent(full.emit_final(on_close=lambda window: window.start == 3000))
async def filled(windows):
    async for window in windows:
        pass


@app.agent(calls, concurrency=8)
async def call(stream):
    async for what in stream:
        if what == "hang":
            await asyncio.sleep(3600)
        if what == "later":
            stream.defer(timedelta(days=1))
        else:
            answered.add(stream.event.key, what)
"""

Start = Callable[..., subprocess.Popen[str]]

#: Its local state.
STATE = Path(".agentic/state/shop/state")


@pytest.fixture
def app(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    shell.write("app.py", APP)
    monkeypatch.setenv("AGENTIC_APP", "app")
    return shell


@pytest.fixture
def clicked(app: Shell) -> Shell:
    """After a run over clicks of a at 1.5, 2.5 and 3.5 s and of b at 0.1 s, all in partition 0."""
    clicks = [("a", 1, 1500), ("a", 2, 2500), ("a", 3, 3500), ("b", 7, 100)]
    lines = (json.dumps({"key": key, "value": value, "timestamp": time}) for key, value, time in clicks)
    app.ok("send", "clicks", "--jsonl", "-", stdin="\n".join(lines))
    run(app)
    return app


def second(n: float) -> str:
    return f"1970-01-01 00:00:{n:06.3f}Z"


def parts(text: str) -> dict[str, dict[str, str]]:
    """What is said of each task, by the words before it; of several open windows the first."""
    found: dict[str, dict[str, str]] = {}
    task = ""
    for line in text.splitlines():
        if not line.startswith(" "):
            task = line
            found[task] = {}
        elif not line.startswith(" " * 5):
            name, said = re.split(r"\s{2,}|(?<=stream time)\s+", line.strip(), maxsplit=1)
            found[task][name] = said
    return found


# -- rows -----------------------------------------------------------------------------------------


def test_rows_are_shown_by_key_and_window_and_the_times_are_not_among_them(clicked: Shell) -> None:
    assert clicked.ok("tables", "ls", "views").splitlines() == [
        f'"a"  [{second(1)}, {second(2)})  1',
        f'"a"  [{second(2)}, {second(3)})  1',
        f'"a"  [{second(3)}, {second(4)})  1',
        f'"b"  [{second(0)}, {second(1)})  1',
    ]
    assert clicked.ok("tables", "ls", "views", "--prefix", "b").count("\n") == 1


def test_a_value_is_shown_as_agents_read_it(clicked: Shell) -> None:
    assert clicked.ok("tables", "get", "means", "a") == f'"a"  [{second(1.5)}, {second(3.5)}]  2.0\n'
    assert json.loads(clicked.ok("tables", "dump", "means")) == {
        "key": "a",
        "start": 1500,
        "end": 3500,
        "value": 2.0,
        "timestamp": 3500,
    }


def test_the_windows_of_a_key_come_newest_first(clicked: Shell) -> None:
    assert [line.split(", ")[0][-24:] for line in clicked.ok("tables", "get", "views", "a").splitlines()] == [
        second(n) for n in (3, 2, 1)
    ]
    result = clicked("tables", "get", "views", "z")
    assert result.stderr.splitlines()[-1] == "Error: table 'views' has no window of key \"z\""


def test_without_a_local_copy_the_changelog_tells_the_same_windows(clicked: Shell) -> None:
    commands = (("tables", "dump", "views"), ("tables", "get", "means", "a"), ("why", "views"))
    before = [clicked.ok(*command) for command in commands]
    shutil.rmtree(STATE)
    assert [clicked.ok(*command) for command in commands] == before


def test_a_window_that_came_out_early_is_not_there_any_more(clicked: Shell) -> None:
    assert clicked.ok("tables", "ls", "full") == ""
    assert "no window of key" in clicked("tables", "get", "full", "a").stderr
    assert "0 open" in parts(clicked.ok("why", "full"))["clicks-0, which no worker has"]


def test_the_times_are_not_counted_as_a_row(clicked: Shell) -> None:
    rows = [line.split()[:3] for line in clicked.ok("tables").splitlines() if line.startswith("views")]
    assert rows == [["views", "clicks-0", "4"], ["views", "clicks-1", "0"]]


def test_rows_of_windows_are_not_loaded(clicked: Shell) -> None:
    assert "has windows" in clicked.error("tables", "load", "views", "-", stdin="{}")


# -- why ------------------------------------------------------------------------------------------


def test_of_a_stopped_app_stream_time_and_what_is_left_of_each_window_are_said(clicked: Shell) -> None:
    said = clicked.ok("why", "views", "--limit", 2)
    first, other = parts(said).items()
    assert first == (
        "clicks-0, which no worker has",
        {
            "stream time": second(3.5),
            "closed": "nothing so far",
            "4 open": f'"b"  [{second(0)}, {second(1)})  closes in 7 s 500 ms of stream time',
            "quiet": "all is read, and no worker is there to let time pass; "
            "without idle_after= open windows wait for an event after them, however long",
        },
    )
    assert other == ("clicks-1, which no worker has", {"stream time": "none: no event has come to the table"})
    assert said.count("closes in") == 2


def test_of_a_key_its_own_windows_are_said(clicked: Shell) -> None:
    ((task, said),) = parts(clicked.ok("why", "views", "a")).items()
    assert task.startswith("clicks-0")
    assert said["3 open"].startswith('"a"  ')
    assert "0 open" in parts(clicked.ok("why", "means", "b"))["clicks-0, which no worker has"]


def test_of_a_session_the_gap_is_counted_in(clicked: Shell) -> None:
    said = parts(clicked.ok("why", "means", "a"))["clicks-0, which no worker has"]
    assert said["1 open"] == f'"a"  [{second(1.5)}, {second(3.5)}]  closes in 1 s 1 ms of stream time'
    assert said["closed"] == f"what ends {second(2.499)} or before"


def test_records_that_are_still_to_be_read_are_counted(clicked: Shell) -> None:
    clicked.ok("send", "clicks", "5", "--key", "a", "--timestamp", 9000)
    said = parts(clicked.ok("why", "views"))["clicks-0, which no worker has"]
    assert said["behind"] == "clicks-0 by 1 record, from offset 4 on"
    assert said["quiet"] == "no: there is something to do, for a worker"


def test_with_idle_after_it_is_said_when_time_passes_by_itself(clicked: Shell) -> None:
    said = clicked.ok("why", "views", "--set", "idle_after=5m")
    assert "when nothing has come for 5 min, stream time follows the wall clock (idle_after=)" in said


def test_an_event_that_was_put_off_is_named(app: Shell) -> None:
    app.ok("send", "calls", "later", "--key", "a", "--timestamp", 100)
    app.ok("send", "calls", "x", "--key", "b", "--timestamp", 5000)
    run(app)
    said = parts(app.ok("why", "answered"))["calls-0, which no worker has"]
    assert said["held by"].startswith(f"calls-0@0, key \"a\", of {second(0.1)}, put off by agent 'call' until 20")


def test_an_event_in_flight_is_named_beside_a_worker(app: Shell, start: Start) -> None:
    worker = start("worker", "--set", "commit_interval=50ms", "--set", "stop_timeout=100ms")
    until_ready(worker)
    app.ok("send", "calls", "hang", "--key", "a", "--timestamp", 100)
    app.ok("send", "calls", "x", "--key", "b", "--timestamp", 5000)
    while "held by" not in (text := app.ok("why", "answered")):
        assert worker.poll() is None
    (task, said), *_ = parts(text).items()
    assert re.fullmatch(r"calls-0, which \S+ has", task)
    assert said["held by"] == (
        f"calls-0@0, key \"a\", of {second(0.1)}, in flight at the last commit: agent 'call' has not finished it"
    )
    assert "it alone knows" in text.splitlines()[-1]
    worker.send_signal(signal.SIGKILL)


def test_a_table_without_windows_names_those_that_have_some(app: Shell) -> None:
    assert (
        app.error("why", "plain")
        == "table 'plain' has no windows; with windows there are: views, means, answered, full"
    )
    assert app.error("why", "view") == "app 'shop' has no table 'view'; did you mean 'views'?"


def test_on_kafka_the_same_is_said(app: Shell, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = uuid.uuid4().hex[:8]
    text = (app.directory / "app.py").read_text()
    for name in ("shop", "clicks", "calls"):
        text = text.replace(f'"{name}"', f'"{name}-{mark}"')
    app.write("app.py", text)
    monkeypatch.setenv("AGENTIC_BROKER", f"kafka://{kafka_bootstrap}")
    monkeypatch.setenv("AGENTIC_CREATE_TOPICS", "true")
    try:
        app.ok("topics", "create")
        # Kafka does not keep what is older than a week.
        now = int(time.time()) * 1000
        lines = (json.dumps({"key": "a", "value": 1, "timestamp": now + offset}) for offset in (0, 500, 1500))
        app.ok("send", f"clicks-{mark}", "--jsonl", "-", stdin="\n".join(lines))
        run(app)
        app.ok("send", f"clicks-{mark}", "5", "--key", "a", "--timestamp", now + 9000)
        said = parts(app.ok("why", "views", "a"))[f"clicks-{mark}-0, which no worker has"]
        assert said["stream time"] == clock_time(now + 1500)
        assert said["2 open"].endswith("closes in 9 s 500 ms of stream time")
        assert said["behind"].startswith(f"clicks-{mark}-0 by 1 record")
    finally:
        app("reset", "--yes")
        app("topics", "delete", "--yes", f"clicks-{mark}", f"calls-{mark}")
