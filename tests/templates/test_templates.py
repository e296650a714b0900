"""Each template makes a project that passes its own tests, and its demo comes out right after any number of kills."""

from __future__ import annotations

import json
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
    """A project with a demo, in a directory of its own."""

    def __init__(self, directory: Path, template: str) -> None:
        self.project = directory / "demo"
        directory.mkdir()
        self.environment = environment(directory)
        create(self.project, template)

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["sh", "demo.sh"],
            cwd=self.project,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def run(self) -> str:
        """Run it to its end; return what it prints."""
        process = self.start()
        printed, _ = process.communicate()
        assert process.returncode == 0, printed
        return printed

    def killed_after(self, seconds: float) -> None:
        """Start it and kill all of its processes after so long, if it still runs then."""
        process = self.start()
        try:
            process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def records(self, topic: str) -> list[str]:
        return self._shown("tail", topic, "--from-beginning", "--jsonl")

    def rows(self, table: str) -> list[str]:
        return self._shown("tables", "dump", table)

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


def flights_found(demo: Demo) -> list[str]:
    """All records of all topics and all rows of the table of carriers of a flights project, as lines."""
    lines: list[str] = []
    for topic in ("departures", "late", "alerts", "hourly", "missed"):
        lines += sorted(f"{topic} {line}" for line in demo.records(topic))
    return lines + demo.rows("carriers")


def test_a_demo_of_flights_that_was_killed_ends_as_one_that_was_not(tmp_path: Path) -> None:
    straight, killed = Demo(tmp_path / "straight", "flights"), Demo(tmp_path / "killed", "flights")
    printed = straight.run()
    assert '"departures":2,"mean_delay":6.5' in printed
    for tenths in range(1, 13):
        killed.killed_after(tenths / 10)
    killed.run()
    expected = flights_found(straight)
    assert len(expected) > 6_042
    counted = [json.loads(line)["value"]["departures"] for line in straight.records("hourly")]
    assert sum(counted) + len(straight.records("missed")) == 6_042
    assert flights_found(killed) == expected
    killed.run()
    assert flights_found(killed) == expected


def test_a_demo_of_the_slow_service_that_was_killed_has_counted_each_payment_once(tmp_path: Path) -> None:
    demo = Demo(tmp_path / "slow", "slow-service")
    for seconds in (1.0, 3.5, 4.5):
        demo.killed_after(seconds)
    printed = demo.run()

    counts = {row["key"]: row["value"] for row in map(json.loads, demo.rows("outcomes"))}
    assert set(counts) == {"answered at once", "answered after retries", "dead-lettered"}
    for outcome, number in counts.items():
        assert f'"{outcome}"  {number}' in printed
    answered = [json.loads(line)["value"]["number"] for line in demo.records("assessed")]
    failed = [json.loads(line)["value"]["number"] for line in demo.records("failed")]
    assert sorted(answered + failed) == list(range(1, 401))
    assert len(failed) == counts["dead-lettered"]
    assert sum(counts.values()) == 400
    # What can never be answered, and how often that was tried.
    assert printed.count("1 attempt  Poison: currency") == 7
    assert printed.count("5 attempts  Retryable: the service answered 500") == 2
