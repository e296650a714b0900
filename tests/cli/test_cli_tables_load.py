"""Rows of a table written to a file, and brought back from one."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from cli_support import Shell
from tables_support import Start, count, run, totals, until_ready


def test_a_dump_is_loaded_into_an_app_that_was_never_started(counted: Shell, tmp_path: Path) -> None:
    dumped = counted.ok("tables", "dump", "totals")
    fresh = ("--broker", "local://fresh/log", "--set", "state_dir=fresh/state")
    assert counted.ok("tables", "load", "totals", "-", *fresh, stdin=dumped) == "loaded 3 rows into totals\n"
    assert counted.ok("tables", "dump", "totals", *fresh) == dumped
    count(counted, "ac", *fresh)
    assert totals(counted, *fresh) == {"a": 4, "b": 2, "c": 1, "d": 1}


def test_a_worker_counts_on_from_what_was_loaded(counted: Shell) -> None:
    path = counted.write("rows.jsonl", '{"key": "a", "value": 100}\n{"key": "b", "value": null}\n')
    assert counted.ok("tables", "load", "totals", path) == "loaded 2 rows into totals\n"
    count(counted, "abc")
    assert totals(counted) == {"a": 101, "b": 1, "c": 1, "d": 1}


def test_rows_whose_partition_does_not_follow_from_the_key_stay_in_theirs(app: Shell) -> None:
    for key in ("rook", "knight", "king"):
        app.ok("send", "moves", "3", "--key", key, "--timestamp", 7)
    run(app)
    dumped = app.ok("tables", "dump", "cells")
    lines = [json.loads(line) for line in dumped.splitlines()]
    assert {line["partition"] for line in lines} == {0, 1}
    app.ok("reset", "--yes")
    app.ok("tables", "load", "cells", "-", stdin=dumped)
    assert app.ok("tables", "dump", "cells") == dumped
    assert app.ok("tables", "get", "cells", '["king", 2]') == '{"at":7}\n'


def test_rows_that_another_partitioner_has_placed_are_found_and_stay_in_theirs(app: Shell) -> None:
    lines = [{"key": key, "value": key, "timestamp": 7, "partition": n % 2} for n, key in enumerate("aabb")]
    app.ok("send", "letters", "--jsonl", "-", stdin="\n".join(map(json.dumps, lines)))
    run(app)
    dumped = app.ok("tables", "dump", "totals")
    assert [(row["key"], row.get("partition")) for row in map(json.loads, dumped.splitlines())] == [
        ("a", None),
        ("a", 1),
        ("b", None),
        ("b", 1),
    ], "what is not where its key belongs says so"
    app.ok("reset", "--yes")
    app.ok("tables", "load", "totals", "-", stdin=dumped)
    assert app.ok("tables", "dump", "totals") == dumped


def test_one_row_is_spoken_of_as_one(app: Shell) -> None:
    assert app.ok("tables", "load", "totals", "-", stdin='{"key": "a", "value": 1}') == "loaded 1 row into totals\n"


def test_a_row_that_can_not_be_loaded_is_named_by_its_line(app: Shell) -> None:
    for line, why in [
        ('{"value": 1}', "it has no key"),
        ('{"key": "b", "value": "x"}', "int"),
        ('{"key": 5, "value": 1}', "str"),
    ]:
        said = app.error("tables", "load", "totals", "-", stdin='{"key": "a", "value": 1}\n' + line)
        assert said.startswith("standard input, line 2: ")
        assert why in said
        assert said.endswith("1 record before it was sent")


def test_nothing_is_loaded_while_a_worker_lives(app: Shell, start: Start) -> None:
    worker = start("worker")
    until_ready(worker)
    said = app.error("tables", "load", "totals", "-", stdin='{"key": "a", "value": 1}')
    assert said.startswith("app 'counting' has live worker ")
    assert "stop them before the loading" in said
    worker.send_signal(signal.SIGTERM)
    worker.communicate()
    assert totals(app) == {}


def test_a_table_that_a_topic_fills_is_not_loaded_but_sent_to(app: Shell) -> None:
    assert app.error("tables", "load", "latest", "-") == (
        "table 'latest' is filled by topic 'prices': send to that one, 'agentic -A app send prices --jsonl FILE'"
    )


def test_a_table_without_a_changelog_can_not_be_loaded(app: Shell) -> None:
    assert "changelog=False" in app.error("tables", "load", "scratch", "-")


# -- versions -------------------------------------------------------------------------------------

VERSIONED = """
from datetime import timedelta
from agentic import App

app = App("history", topic_partitions=2)
names = app.topic("names", key=str, value=str)
given = app.table("given", key=str, value=str, versioned=timedelta(seconds=10))
fed = app.table("fed", source=names, versioned=timedelta(seconds=10))


@app.agent(names)
async def note(stream):
    async for event in stream.events():
        if event.value is None:
            given.pop(event.key, None)
        else:
            given[event.key] = event.value
"""


@pytest.fixture
def history(app: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell beside an app with versions: of a there are three, of b one and a deletion."""
    app.write("history.py", VERSIONED)
    monkeypatch.setenv("AGENTIC_APP", "history")
    updates = [("a", "x", 1000), ("a", "y", 9000), ("a", "z", 5000), ("b", "v", 1000), ("b", None, 2000)]
    lines = [{"key": key, "value": value, "timestamp": timestamp} for key, value, timestamp in updates]
    app.ok("send", "names", "--jsonl", "-", stdin="\n".join(map(json.dumps, lines)))
    run(app)
    return app


VERSIONS = [
    {"key": "a", "value": "x", "timestamp": 1000},
    {"key": "a", "value": "z", "timestamp": 5000},
    {"key": "a", "value": "y", "timestamp": 9000},
    {"key": "b", "value": "v", "timestamp": 1000},
    {"key": "b", "value": None, "timestamp": 2000},
]


@pytest.mark.parametrize("table", ["given", "fed"])
def test_of_a_table_with_versions_the_latest_are_shown_and_all_are_dumped(history: Shell, table: str) -> None:
    for _ in range(2):
        assert history.ok("tables", "ls", table) == '1970-01-01 00:00:09.000Z  "a"  "y"\n'
        assert history.ok("tables", "get", table, "a") == '"y"\n'
        assert "no row" in history("tables", "get", table, "b").stderr
        assert [json.loads(line) for line in history.ok("tables", "dump", table).splitlines()] == VERSIONS
        shutil.rmtree(history.directory / ".agentic" / "state", ignore_errors=True)


def test_versions_are_loaded_in_any_order_as_the_row_that_they_make(history: Shell) -> None:
    history.ok("reset", "--yes")
    lines = "\n".join(json.dumps(line) for line in reversed(VERSIONS))
    assert history.ok("tables", "load", "given", "-", stdin=lines) == "loaded 5 rows into given\n"
    assert [json.loads(line) for line in history.ok("tables", "dump", "given").splitlines()] == VERSIONS
    run(history)
    assert [json.loads(line) for line in history.ok("tables", "dump", "given").splitlines()] == VERSIONS
