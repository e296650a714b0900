"""A month of flights counted by carrier: the template's table is what SQLite says of the same file."""

from __future__ import annotations

import asyncio
import gzip
import importlib.util
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentic.cli.new import create
from agentic.testing import TestDriver

DATA = Path(__file__).parents[1] / "data" / "january.jsonl.gz"


class Row(NamedTuple):
    """What there is to say of a carrier."""

    departures: int
    minutes: int
    mean_delay: float


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    with gzip.open(DATA) as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def by_sqlite(records: list[dict[str, Any]]) -> dict[str, Row]:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE flights (carrier TEXT, dep_delay INTEGER)")
    values = (record["value"] for record in records)
    database.executemany("INSERT INTO flights VALUES (:carrier, :dep_delay)", values)
    found = database.execute("SELECT carrier, COUNT(*), SUM(dep_delay), AVG(dep_delay) FROM flights GROUP BY carrier")
    rows = {carrier: Row(count, total, round(mean, 2)) for carrier, count, total, mean in found}
    database.close()
    return rows


@pytest.fixture
def project(tmp_path: Path) -> Path:
    create(tmp_path / "january", "flights")
    return tmp_path / "january"


class Worker:
    """A command of the project in a process of its own, whose log is read."""

    def __init__(self, project: Path, *command: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENTIC_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentic", "-A", "app", *command],
            cwd=project,
            env=kept,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def kill_when_it_says(self, words: str) -> None:
        with self._process:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                if words in line:
                    self._process.send_signal(signal.SIGKILL)
        assert self._process.returncode == -signal.SIGKILL

    def finish(self) -> str:
        said, _ = self._process.communicate()
        assert self._process.returncode == 0, said
        return said


def table_of(project: Path) -> dict[str, Row]:
    """The table as the command line shows it."""
    dump = [sys.executable, "-m", "agentic", "-A", "app", "tables", "dump", "carriers"]
    lines = subprocess.run(dump, cwd=project, capture_output=True, text=True, check=True).stdout.splitlines()
    return {row["key"]: Row(**row["value"]) for row in map(json.loads, lines)}


def test_the_drivers_table_is_what_sqlite_says(
    project: Path, records: list[dict[str, Any]], by_sqlite: dict[str, Row]
) -> None:
    spec = importlib.util.spec_from_file_location("january_app", project / "app.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    async def send(record: dict[str, Any]) -> None:
        flight = module.Flight(**record["value"])
        await module.departures.send(flight, key=record["key"], timestamp=record["timestamp"])

    async def send_all() -> None:
        await asyncio.gather(*map(send, records))

    with TestDriver(module.app) as driver:
        driver.run(send_all())
        driver.crash()
        rows = driver.table(module.carriers)
    assert {carrier: Row(row.departures, row.minutes, row.mean_delay) for carrier, row in rows.items()} == by_sqlite


def test_two_workers_count_what_sqlite_says_after_a_third_was_killed(project: Path, by_sqlite: dict[str, Row]) -> None:
    Worker(project, "send", "departures", "--jsonl", str(DATA)).finish()
    Worker(project, "worker").kill_when_it_says("ready")
    workers = [Worker(project, "run"), Worker(project, "run")]
    for worker in workers:
        worker.finish()
    assert table_of(project) == by_sqlite
