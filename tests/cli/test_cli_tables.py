"""Tables from outside: listed and read, on a stopped app, beside a worker, and on Kafka."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter

import pytest
from cli_support import Shell
from tables_support import STATE, Start, count, listed, on_kafka, run, totals, until_ready

# -- listing --------------------------------------------------------------------------------------


def test_the_list_has_a_line_for_each_copy_of_a_tasks_rows(counted: Shell) -> None:
    lines = listed(counted)["totals"]
    assert [task for task, *_ in lines] == ["letters-0", "letters-1"]
    assert sum(int(rows) for _, rows, *_ in lines) == 3
    assert [tuple(line[3:]) for line in lines] == [("0", f"{STATE}/letters-{n}/0", "no") for n in range(2)]
    assert all(int(size.replace(",", "")) > 0 for _, rows, size, *_ in lines if rows != "0")


def test_the_list_says_how_far_the_changelog_is_ahead_of_what_this_machine_has(counted: Shell) -> None:
    counted.ok("tables", "load", "totals", "-", stdin='{"key": "c", "value": 4}\n{"key": "c", "value": 5}\n')
    assert sorted(behind for _, _, _, behind, *_ in listed(counted)["totals"]) == ["0", "2"]
    shutil.rmtree(STATE)
    lines = listed(counted)["totals"]
    assert sum(int(behind) for _, behind, _ in lines) == 5
    assert {copy for *_, copy in lines} == {"none"}


def test_the_list_says_which_copies_are_standbys(counted: Shell, start: Start) -> None:
    workers = [start("--set", "standbys=1", "worker") for _ in range(2)]
    for worker in workers:
        assert worker.stderr is not None
        assert any("standby of task letters-" in line and "up to date" in line for line in worker.stderr)
    uses = Counter((task, use) for task, *_, use in listed(counted)["totals"])
    assert uses == {(f"letters-{n}", use): 1 for n in range(2) for use in ("yes", "standby")}
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
        worker.communicate()
    run(counted)
    assert {use for *_, use in listed(counted)["totals"]} == {"no"}


def test_a_table_of_an_app_that_was_never_started_is_listed_with_the_way_out(app: Shell) -> None:
    result = app("tables", "list")
    assert result.exit_code == 0
    assert "table 'totals' has the partitions of topic 'letters', which the broker has not; start the app" in (
        result.stderr
    )
    assert listed(app)["totals"] == [["none"]]


def test_a_table_that_no_agent_uses_is_listed_and_can_not_be_read(app: Shell) -> None:
    app.write("idle.py", 'from agentic import App\napp = App("idle")\nrows = app.table("rows", key=str, value=int)\n')
    result = app("-A", "idle", "tables")
    assert result.exit_code == 0
    assert "rows" in result.stdout
    assert "no agent uses it" in app.error("-A", "idle", "tables", "ls", "rows")


# -- reading --------------------------------------------------------------------------------------


def test_the_value_of_a_key_is_shown(counted: Shell) -> None:
    assert counted.ok("tables", "get", "totals", "a") == "3\n"


def test_keys_that_are_no_text_are_typed_as_json(app: Shell) -> None:
    app.ok("send", "moves", "2", "--key", "knight", "--timestamp", 7)
    app.ok("send", "prices", "300", "--key", "3")
    run(app)
    assert app.ok("tables", "get", "cells", '["knight", 1]') == '{"at":7}\n'
    assert app.ok("tables", "get", "latest", "3") == "300\n"
    assert "KEY 'three'" in app.error("tables", "get", "latest", "three")


def test_a_key_without_a_row_is_an_error(counted: Shell) -> None:
    result = counted("tables", "get", "totals", "z")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "Error: table 'totals' has no row of key \"z\""


def test_what_is_typed_and_is_no_utf_8_is_bytes_or_an_error(app: Shell) -> None:
    app.ok("topics", "create", "plain")
    app.ok("send", "plain", 5, "--key", "\udcff")
    assert '"key":{"base64":"/w=="}' in app.ok("tail", "plain", "-n", 1, "--jsonl")
    for table, key in [("totals", "\udcff"), ("latest", "\udcff"), ("cells", '["\udcff", 1]')]:
        assert "UTF-8" in app.error("tables", "get", table, key)


def test_a_row_that_another_partitioner_has_placed_is_found(app: Shell) -> None:
    app.ok("send", "letters", "a", "--key", "a", "--partition", 1)
    run(app)
    assert app.ok("tables", "get", "totals", "a") == "1\n"


def test_an_unknown_table_names_the_nearest(app: Shell) -> None:
    for command in (["get", "total", "a"], ["ls", "total"], ["dump", "total"], ["load", "total", "app.py"]):
        assert app.error("tables", *command) == "app 'counting' has no table 'total'; did you mean 'totals'?"


def test_rows_of_all_partitions_come_in_the_order_of_their_keys(counted: Shell) -> None:
    assert counted.ok("tables", "ls", "totals").splitlines() == [
        f'1970-01-01 00:00:01.000Z  "{letter}"  {number}' for letter, number in [("a", 3), ("b", 2), ("d", 1)]
    ]


def test_numbers_are_ordered_by_size(app: Shell) -> None:
    for number in (100, 9, 20):
        app.ok("send", "prices", number, "--key", number)
    run(app)
    assert [line.split()[-1] for line in app.ok("tables", "ls", "latest").splitlines()] == ["9", "20", "100"]


def test_rows_are_limited_by_number_and_by_the_beginning_of_the_key(app: Shell) -> None:
    count(app, ["ab", "ac", "b", "abc"])
    lines = app.ok("tables", "ls", "totals", "--prefix", "ab", "--jsonl").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"key": key, "value": 1, "timestamp": 1000} for key in ("ab", "abc")
    ]
    assert len(app.ok("tables", "ls", "totals", "--limit", 3).splitlines()) == 3


def test_the_beginning_of_a_tuple_is_typed_as_json(app: Shell) -> None:
    app.ok("send", "moves", "1", "--key", "rook", "--timestamp", 7)
    app.ok("send", "moves", "1", "--key", "knight", "--timestamp", 7)
    run(app)
    lines = app.ok("tables", "ls", "cells", "--prefix", '["rook"]', "--jsonl").splitlines()
    assert [json.loads(line)["key"] for line in lines] == [["rook", 0]]
    assert "--prefix" in app.error("tables", "ls", "cells", "--prefix", "rook", code=2)
    assert "--prefix" in app.error("tables", "ls", "latest", "--prefix", "1", code=2)


def test_a_prefix_that_no_key_can_have_is_refused(app: Shell) -> None:
    assert "at most 2 parts" in app.error("tables", "ls", "cells", "--prefix", '["king", 1, 2]', code=2)
    assert "JSON is malformed" in app.error("tables", "ls", "cells", "--prefix", "king", code=2)
    assert "keys of type int have no beginning" in app.error("tables", "ls", "latest", "--prefix", "1", code=2)


def test_a_negative_number_that_is_taken_for_an_option_says_the_way_out(app: Shell) -> None:
    app.ok("send", "--key", -1, "prices", "--", -5)
    run(app)
    assert "write '--' in front" in app.error("tables", "get", "latest", -1, code=2)
    assert app.ok("tables", "get", "latest", "--", -1) == "-5\n"


def test_it_is_said_where_the_rows_come_from(counted: Shell) -> None:
    assert counted("tables", "dump", "totals").stderr == f"totals: partitions 0-1 from {STATE}\n"
    shutil.rmtree(STATE / "letters-1")
    assert counted("tables", "dump", "totals").stderr.splitlines() == [
        f"totals: partition 0 from {STATE}",
        "totals: partition 1 from topic counting-totals-changelog",
    ]


def test_without_a_local_copy_the_changelog_tells_the_same(counted: Shell) -> None:
    before = counted.ok("tables", "dump", "totals")
    shutil.rmtree(STATE)
    assert counted.ok("tables", "dump", "totals") == before
    assert counted.ok("tables", "get", "totals", "b") == "2\n"
    assert len(counted.ok("tables", "ls", "totals", "--prefix", "d").splitlines()) == 1


def test_a_damaged_copy_is_named_and_the_changelog_read_instead(counted: Shell) -> None:
    for data in STATE.rglob("data.mdb"):
        data.write_bytes(b"nonsense" * 4096)
    result = counted("tables", "get", "totals", "a")
    assert result.stdout == "3\n"
    assert "letters-" in result.stderr
    assert "data.mdb: damaged" in result.stderr
    assert "from topic counting-totals-changelog" in result.stderr


def test_what_the_changelog_has_beyond_the_local_copy_is_shown(counted: Shell) -> None:
    rows = [{"key": "a", "value": None}, {"key": "b", "value": 20}, {"key": "c", "value": 40}]
    counted.ok("tables", "load", "totals", "-", stdin="\n".join(map(json.dumps, rows)))
    assert totals(counted) == {"b": 20, "c": 40, "d": 1}
    assert "no row" in counted("tables", "get", "totals", "a").stderr


def test_of_a_table_that_a_topic_fills_only_what_is_committed_is_shown(app: Shell) -> None:
    app.ok("send", "prices", "300", "--key", "3")
    run(app)
    app.ok("send", "prices", "301", "--key", "3")
    assert app.ok("tables", "get", "latest", "3") == "300\n"
    shutil.rmtree(STATE)
    assert app.ok("tables", "get", "latest", "3") == "300\n"
    run(app)
    assert app.ok("tables", "get", "latest", "3") == "301\n"


def test_a_table_without_a_changelog_is_read_where_there_is_a_copy(counted: Shell) -> None:
    assert counted.ok("tables", "get", "scratch", "a") == "3\n"
    shutil.rmtree(STATE)
    result = counted("tables", "ls", "scratch")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "scratch has no changelog, and this machine no copy of partitions 0-1\n"


def test_rows_that_have_expired_by_the_clock_of_their_task_are_not_shown(app: Shell) -> None:
    for key, timestamp in [("c", 1000), ("a", 1000), ("b", 1001), ("a", 11_000), ("d", 1000)]:
        app.ok("send", "letters", key, "--key", key, "--timestamp", timestamp)
    run(app)
    for _ in range(2):
        shown = [line.split()[-2:] for line in app.ok("tables", "ls", "recent").splitlines()]
        assert shown == [['"a"', "2"], ['"b"', "1"], ['"d"', "1"]]
        shutil.rmtree(STATE, ignore_errors=True)


def test_tables_are_read_beside_a_worker(counted: Shell, start: Start) -> None:
    worker = start("worker", "--set", "commit_interval=50ms")
    until_ready(worker)
    assert totals(counted) == {"a": 3, "b": 2, "d": 1}
    while {used for *_, used in listed(counted)["totals"]} != {"yes"}:
        assert worker.poll() is None
    counted.ok("send", "letters", "a", "--key", "a")
    while (value := counted.ok("tables", "get", "totals", "a")) == "3\n":
        assert worker.poll() is None
    assert value == "4\n"
    worker.send_signal(signal.SIGTERM)
    worker.communicate()
    assert worker.returncode == 0


#: Each event changes two rows by the same number.
BALANCE = """
import asyncio
from datetime import timedelta

from agentic import App

app = App("bank", topic_partitions=2, delivery="exactly_once", commit_interval=timedelta(milliseconds=20))
transfers = app.topic("transfers", value=int)
accounts = app.table("accounts", key=str, value=int, default=int, check_keys=False)


@app.agent(transfers)
async def transfer(stream):
    async for amount in stream:
        accounts[f"from {amount % 50}"] -= amount
        accounts[f"to {amount % 70}"] += amount
        await asyncio.sleep(0.0001)
"""


def test_a_dump_beside_a_worker_shows_whole_checkpoints(app: Shell, start: Start) -> None:
    app.write("bank.py", BALANCE)
    lines = "".join(json.dumps({"value": n, "partition": n % 2}) + "\n" for n in range(4_000))
    app.ok("-A", "bank", "send", "transfers", "--jsonl", "-", stdin=lines)
    worker = start("-A", "bank", "run")
    until_ready(worker)
    moved = set()
    while worker.poll() is None:
        rows = [json.loads(line) for line in app.ok("-A", "bank", "tables", "dump", "accounts").splitlines()]
        for partition in (0, 1):
            assert sum(row["value"] for row in rows if row["partition"] == partition) == 0
        moved.add(sum(abs(row["value"]) for row in rows))
    assert worker.returncode == 0
    assert len(moved) > 2, "some were dumped in mid-run"


GLOBAL = """
from agentic import App

app = App("shop", topic_partitions=2)
rates = app.topic("rates", key=str, value=float)
orders = app.topic("orders", key=str, value=int)
rate_of = app.global_table("rate_of", rates)
by_item = orders.group_by(lambda order: str(order), key=str, name="item")
items = app.table("items", key=str, value=int, default=int)


@app.agent(by_item, tables=[items])
async def convert(stream):
    async for event in stream.events():
        items[event.key] += 1
"""


def test_a_global_table_is_read_from_its_topic_and_survives_a_reset(
    app: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.write("shop.py", GLOBAL)
    monkeypatch.setenv("AGENTIC_APP", "shop")
    for key, value, partition in [("EUR", 1.0, 0), ("EUR", 1.5, 0), ("USD", 1.25, 1), ("GBP", 3.0, 0)]:
        app.ok("send", "rates", value, "--key", key, "--timestamp", 7, "--partition", partition)
    app.ok("send", "rates", "--key", "GBP", "--tombstone", "--partition", 0)
    app.ok("send", "orders", 5, "--key", "x")
    run(app)
    rows = [{"key": "EUR", "value": 1.5, "timestamp": 7}, {"key": "USD", "value": 1.25, "timestamp": 7}]
    assert [json.loads(line) for line in app.ok("tables", "dump", "rate_of").splitlines()] == rows
    assert app.ok("tables", "get", "rate_of", "USD") == "1.25\n"
    assert app.ok("tables", "get", "items", "5") == "1\n"
    assert "is filled by topic 'rates'" in app.error("tables", "load", "rate_of", "-")
    task, of, rows_there, *_, used = listed(app)["rate_of"][0]
    assert (task, of, rows_there, used) == ("global", "rate_of", "2", "no")
    deleted = app.ok("reset", "--yes")
    assert "internal topic shop-item-repartition" in deleted
    assert "rates" not in deleted
    left = {line.split()[0] for line in app.ok("topics").splitlines()[2:] if "missing" not in line}
    assert left == {"rates", "orders"}
    assert [json.loads(line) for line in app.ok("tables", "dump", "rate_of").splitlines()] == rows


# -- completion -----------------------------------------------------------------------------------


def test_names_of_tables_are_completed(app: Shell) -> None:
    environ = {"_AGENTIC_COMPLETE": "bash_complete", "COMP_WORDS": "agentic tables get la", "COMP_CWORD": "3"}
    code = "from agentic.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **environ}, capture_output=True, text=True)
    assert done.stdout == "plain,latest\n"


# -- on Kafka -------------------------------------------------------------------------------------


def test_on_kafka_it_is_the_same(app: Shell, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(json.dumps({"key": letter, "value": letter}) + "\n" for letter in "aaabbd")
    with on_kafka(app, kafka_bootstrap, monkeypatch) as mark:
        app.ok("send", f"letters-{mark}", "--jsonl", "-", stdin=lines)
        run(app)
        assert totals(app) == {"a": 3, "b": 2, "d": 1}
        shutil.rmtree(app.directory / ".agentic")
        assert totals(app) == {"a": 3, "b": 2, "d": 1}
        app.ok("tables", "load", "totals", "-", stdin='{"key": "a", "value": 10}\n{"key": "b", "value": null}')
        assert totals(app) == {"a": 10, "d": 1}
        app.ok("send", f"letters-{mark}", "a", "--key", "a")
        run(app)
        assert totals(app) == {"a": 11, "d": 1}
        assert "begins anew" in app.ok("reset", "--yes")
        assert app.ok("reset") == f"nothing to delete: app counting-{mark} remembers nothing\n"
        run(app)
        assert totals(app) == {"a": 4, "b": 2, "d": 1}
