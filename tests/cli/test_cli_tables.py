"""Tables from outside: listed, read, dumped and loaded, with and without a worker; and an app that begins anew."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from cli_support import Shell

Start = Callable[..., subprocess.Popen[str]]

#: An app with tables of several kinds; letters that come are counted.
APP = """
from datetime import timedelta

from agentic import App

app = App("counting", topic_partitions=2)
letters = app.topic("letters", key=str, value=str)
prices = app.topic("prices", key=int, value=int)
moves = app.topic("moves", key=str, value=int)
seen = app.topic("seen", key=str, value=bool)
totals = app.table("totals", key=str, value=int, default=int)
latest = app.table("latest", source=prices)
cells = app.table("cells", key=tuple[str, int], value=dict, check_keys=False)
scratch = app.table("scratch", key=str, value=int, changelog=False)
recent = app.table("recent", key=str, value=int, ttl=timedelta(seconds=10))


@app.agent(letters, to=seen)
async def count(stream):
    async for letter in stream:
        totals[letter] += 1
        scratch[letter] = recent[letter] = totals[letter]
        yield app.settings.repair


@app.agent(moves)
async def move(stream):
    async for event in stream.events():
        for row in range(event.value):
            cells[event.key, row] = {"at": event.timestamp}
"""

STATE = Path(".agentic/state/counting/state")


@pytest.fixture
def app(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell beside ``app.py``, which need not be named."""
    shell.write("app.py", APP)
    monkeypatch.setenv("AGENTIC_APP", "app")
    return shell


@pytest.fixture
def counted(app: Shell) -> Shell:
    """The same after a run in which a, b and d were counted 3, 2 and 1 times; a and b are in partition 0, d in 1."""
    count(app, "aaabbd")
    return app


@pytest.fixture
def start(app: Shell) -> Iterator[Start]:
    """Start processes that are gone after the test, whatever happens."""
    processes: list[subprocess.Popen[str]] = []

    def begin(*args: object) -> subprocess.Popen[str]:
        processes.append(app.start(*args))
        return processes[-1]

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def count(shell: Shell, letters: Iterable[str], *options: object) -> None:
    """Send letters, each under itself as the key, and work them off."""
    lines = "".join(json.dumps({"key": letter, "value": letter, "timestamp": 1000}) + "\n" for letter in letters)
    shell.ok("send", "letters", "--jsonl", "-", *options, stdin=lines)
    run(shell, *options)


def run(shell: Shell, *options: object) -> None:
    process = shell.start("run", *options)
    _, log = process.communicate()
    assert process.returncode == 0, log


def until_ready(worker: subprocess.Popen[str]) -> None:
    assert worker.stderr is not None
    assert any("ready" in line for line in worker.stderr)


def totals(shell: Shell, *options: object) -> dict[str, int]:
    """The table as 'tables dump' writes it."""
    lines = [json.loads(line) for line in shell.ok("tables", "dump", "totals", *options).splitlines()]
    return {line["key"]: line["value"] for line in lines}


def listed(shell: Shell) -> dict[str, list[list[str]]]:
    """The lines of 'tables' by table, without its name."""
    found: dict[str, list[list[str]]] = {}
    for line in shell.ok("tables").splitlines()[2:]:
        name, *cells = line.split()
        found.setdefault(name, []).append(cells)
    return found


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


# -- dumping and loading --------------------------------------------------------------------------


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


def test_a_row_that_can_not_be_loaded_is_named_by_its_line(app: Shell) -> None:
    for line, why in [
        ('{"value": 1}', "it has no key"),
        ('{"key": "b", "value": "x"}', "int"),
        ('{"key": 5, "value": 1}', "str"),
    ]:
        said = app.error("tables", "load", "totals", "-", stdin='{"key": "a", "value": 1}\n' + line)
        assert said.startswith("standard input, line 2: ")
        assert why in said
        assert said.endswith("1 records before it were sent")


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


# -- beginning anew -------------------------------------------------------------------------------


def test_reset_deletes_what_the_app_remembers_and_leaves_what_others_made(counted: Shell) -> None:
    assert "begins anew" in counted.ok("reset", "--yes")
    assert not STATE.exists()
    assert "counting" not in counted.ok("groups")
    left = {line.split()[0] for line in counted.ok("topics").splitlines()[2:]}
    assert left == {"letters", "prices", "moves", "seen"}
    run(counted)
    assert totals(counted) == {"a": 3, "b": 2, "d": 1}


def test_reset_first_shows_what_it_will_delete_and_asks(counted: Shell) -> None:
    before = totals(counted)
    result = counted("reset")
    assert result.exit_code == 1
    assert result.stderr == "Error: nobody is there to ask; say --yes to delete\n"
    lines = result.stdout.splitlines()
    assert lines[0] == "group counting: committed in 2 partitions"
    assert lines[1] == "changelog counting-totals-changelog: 3 offsets"
    assert lines[-1].startswith(f"local state {STATE}: ")
    assert totals(counted) == before


def test_reset_without_anything_to_delete_says_so(app: Shell) -> None:
    assert app.ok("reset") == "nothing to delete: app counting remembers nothing\n"


def test_reset_is_refused_while_a_worker_lives(counted: Shell, start: Start) -> None:
    worker = start("worker")
    until_ready(worker)
    assert "stop them before the reset" in counted.error("reset", "--yes")
    worker.send_signal(signal.SIGTERM)
    worker.communicate()
    assert totals(counted) == {"a": 3, "b": 2, "d": 1}


def test_reset_is_refused_while_a_process_has_a_copy_open(counted: Shell) -> None:
    import fcntl

    with open(STATE / "letters-0" / "0.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "letters-0/0: a process" in counted.error("reset", "--yes")
    counted.ok("reset", "--yes")


# -- repairing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "repairs"), [((), False), (("--repair",), True)])
def test_repair_is_a_setting_that_a_flag_sets(app: Shell, options: tuple[str, ...], repairs: bool) -> None:
    app.ok("send", "letters", "a", "--key", "a")
    run(app, *options)
    assert json.loads(app.ok("tail", "seen", "--jsonl"))["value"] is repairs


def test_a_damaged_store_stops_a_worker_until_it_is_told_to_repair_it(counted: Shell) -> None:
    for data in STATE.rglob("data.mdb"):
        data.write_bytes(b"nonsense" * 4096)
    counted.ok("send", "letters", "a", "--key", "a")
    refused = counted.start("run")
    _, log = refused.communicate()
    assert refused.returncode == 1
    assert "--repair" in log
    run(counted, "--repair")
    assert totals(counted) == {"a": 4, "b": 2, "d": 1}
    assert list(STATE.glob("letters-0/*damaged*"))


# -- completion -----------------------------------------------------------------------------------


def test_names_of_tables_are_completed(app: Shell) -> None:
    environ = {"_AGENTIC_COMPLETE": "bash_complete", "COMP_WORDS": "agentic tables get la", "COMP_CWORD": "3"}
    code = "from agentic.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **environ}, capture_output=True, text=True)
    assert done.stdout == "plain,latest\n"


# -- on Kafka -------------------------------------------------------------------------------------


def test_on_kafka_it_is_the_same(app: Shell, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = uuid.uuid4().hex[:8]
    text = (app.directory / "app.py").read_text()
    for name in ("counting", "letters", "prices", "moves", "seen"):
        text = text.replace(f'"{name}"', f'"{name}-{mark}"')
    app.write("app.py", text)
    monkeypatch.setenv("AGENTIC_BROKER", f"kafka://{kafka_bootstrap}")
    monkeypatch.setenv("AGENTIC_CREATE_TOPICS", "true")
    lines = "".join(json.dumps({"key": letter, "value": letter}) + "\n" for letter in "aaabbd")
    try:
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
    finally:
        app("reset", "--yes")
        app("topics", "delete", "--yes", *(f"{name}-{mark}" for name in ("letters", "prices", "moves", "seen")))
