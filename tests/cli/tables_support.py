"""An app with tables, and ways to run it and to look into them: what the tests of tables and of their reset share."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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

#: Where its local state is.
STATE = Path(".agentic/state/counting/state")


def count(shell: Shell, letters: Iterable[str], *options: object) -> None:
    """Send letters, each under itself as the key, and work them off."""
    lines = "".join(json.dumps({"key": letter, "value": letter, "timestamp": 1000}) + "\n" for letter in letters)
    shell.ok("send", "letters", "--jsonl", "-", *options, stdin=lines)
    run(shell, *options)


def run(shell: Shell, *options: object) -> None:
    process = shell.start("run", *options)
    _, log = process.communicate()
    assert process.returncode == 0, log


@contextmanager
def on_kafka(shell: Shell, bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Let the app be on a Kafka, under names of its own; yields what its names end with, and cleans up."""
    mark = uuid.uuid4().hex[:8]
    text = (shell.directory / "app.py").read_text()
    for name in ("counting", "letters", "prices", "moves", "seen"):
        text = text.replace(f'"{name}"', f'"{name}-{mark}"')
    shell.write("app.py", text)
    monkeypatch.setenv("AGENTIC_BROKER", f"kafka://{bootstrap}")
    monkeypatch.setenv("AGENTIC_CREATE_TOPICS", "true")
    try:
        yield mark
    finally:
        shell("reset", "--yes")
        shell("topics", "delete", "--yes", *(f"{name}-{mark}" for name in ("letters", "prices", "moves", "seen")))


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
