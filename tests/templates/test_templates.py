"""Each template makes a project that passes its own tests, and the demo is the same after any number of kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentic.cli.new import PLACEHOLDER, create, templates

NAMES = sorted(path.parent.name for path in templates().glob("*/app.py"))


def environment(directory: Path) -> dict[str, str]:
    """An environment where `agentic` is the one under test, and no setting comes from outside."""
    bin_directory = directory / "bin"
    bin_directory.mkdir(exist_ok=True)
    command = bin_directory / "agentic"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m agentic "$@"\n')
    command.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENTIC_")}
    return {**kept, "PATH": f"{bin_directory}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize("name", NAMES)
def test_the_project_made_of_a_template_passes_its_own_tests(name: str, tmp_path: Path) -> None:
    project = tmp_path / "my-project"
    create(project, name)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", NAMES)
def test_the_projects_name_stands_where_the_placeholder_did(name: str, tmp_path: Path) -> None:
    project = tmp_path / "my-project"
    create(project, name)
    texts = [path.read_text() for path in project.rglob("*") if path.suffix in (".py", ".md", ".sh")]
    assert any('App("my-project"' in text for text in texts)
    assert not any(PLACEHOLDER in text for text in texts)


class Demo:
    """A flights project in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.project = directory / "demo"
        directory.mkdir()
        self.environment = environment(directory)
        create(self.project, "flights")

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["sh", "demo.sh"],
            cwd=self.project,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def run(self) -> None:
        assert self.start().wait() == 0

    def killed_after(self, seconds: float) -> None:
        """Start it and kill all of its processes after so long, if it still runs then."""
        process = self.start()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def result(self) -> list[str]:
        """All records of all topics and all rows of the table, as lines."""
        lines: list[str] = []
        for topic in ("departures", "late", "alerts"):
            lines += sorted(f"{topic} {line}" for line in self._shown("tail", topic, "--from-beginning", "--jsonl"))
        return lines + self._shown("tables", "dump", "carriers")

    def _shown(self, *command: str) -> list[str]:
        ran = subprocess.run(
            ["agentic", "-A", "app", *command],
            cwd=self.project,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return ran.stdout.splitlines()


def test_a_demo_that_was_killed_ends_as_one_that_was_not(tmp_path: Path) -> None:
    straight, killed = Demo(tmp_path / "straight"), Demo(tmp_path / "killed")
    straight.run()
    for tenths in range(1, 13):
        killed.killed_after(tenths / 10)
    killed.run()
    expected = straight.result()
    assert len(expected) > 6_042
    assert killed.result() == expected
    killed.run()
    assert killed.result() == expected
