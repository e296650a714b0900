"""Shells for the tests of the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
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
    """Start processes that are gone after the test, whatever happens."""
    processes: list[subprocess.Popen[str]] = []

    def start(*args: object) -> subprocess.Popen[str]:
        processes.append(words.start(*args))
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
