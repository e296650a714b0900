"""Shells for the tests of the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tables_support
from cli_support import APP, Shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """A shell in an empty directory; what a test imports from there is forgotten after it."""
    for name in [name for name in os.environ if name.startswith("AGENTIC_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield Shell(tmp_path)
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def words(shell: Shell) -> Shell:
    """A shell beside ``app.py``."""
    shell.write("app.py", APP)
    return shell


@pytest.fixture
def started(words: Shell) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start processes beside the words that are gone after the test, whatever happens."""
    yield from started_in(words)


@pytest.fixture
def app(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell beside ``app.py``, which need not be named."""
    shell.write("app.py", tables_support.APP)
    monkeypatch.setenv("AGENTIC_APP", "app")
    return shell


@pytest.fixture
def counted(app: Shell) -> Shell:
    """The same after a run in which a, b and d were counted 3, 2 and 1 times; a and b are in partition 0, d in 1."""
    tables_support.count(app, "aaabbd")
    return app


@pytest.fixture
def start(app: Shell) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start processes beside the app with tables that are gone after the test, whatever happens."""
    yield from started_in(app)


def started_in(shell: Shell) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []

    def start(*args: object) -> subprocess.Popen[str]:
        processes.append(shell.start(*args))
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
