"""The doctor's findings, and new projects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tables_support
from cli_support import Shell

from agentic import settings
from agentic.cli import new


def test_a_well_app_is_well(words: Shell) -> None:
    report = words.ok("-A", "app", "doctor")
    assert report.endswith("all is well\n")
    assert "made at start" in report


def test_every_setting_is_shown_with_where_it_comes_from(words: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_COMMIT_INTERVAL", "500ms")
    report = words.ok("-A", "app", "doctor", "--set", "max_buffered=7")
    lines = {line.split()[0]: line.split() for line in report.splitlines() if line}
    for name in settings.names():
        assert name in lines
    assert lines["topic_partitions"] == ["topic_partitions", "2", "4", "app"]
    assert lines["commit_interval"] == ["commit_interval", "0.5s", "1s", "environment"]
    assert lines["max_buffered"] == ["max_buffered", "7", "4000", "command", "line"]
    assert lines["on_error"] == ["on_error", "stop", "stop", "default"]


def test_secrets_are_not_shown(words: Shell) -> None:
    kafka = '{"sasl.password": "hush", "client.id": "me"}'
    report = words.ok("-A", "app", "doctor", "--set", f"kafka={kafka}")
    assert "hush" not in report
    assert "'client.id': 'me'" in report


def test_a_wrong_partition_count_is_found(words: Shell) -> None:
    words.ok("-A", "app", "topics", "create", "numbers", "--partitions", 2)
    result = words("-A", "app", "doctor")
    assert result.exit_code == 1
    assert "wrong: topic 'numbers' has 2 partitions, not 3 as declared" in result.stdout


def test_a_missing_topic_that_nobody_makes_is_found(words: Shell) -> None:
    result = words("-A", "app", "doctor", "--set", "create_topics=false")
    assert result.exit_code == 1
    assert (
        "wrong: topics 'words', 'lengths' and 'numbers' are missing;\n"
        "       make them with 'agentic -A app topics create'\n"
    ) in result.stdout


def states(report: str) -> dict[str, list[str]]:
    """Return the lines of the report about topics, by the topic's name."""
    lines = report.partition("topic ")[2].partition("\n\n")[0].splitlines()[1:]
    return {name: rest for name, *rest in map(str.split, lines)}


def test_changelogs_are_among_the_topics(app: Shell) -> None:
    letters, changelog = "letters", "counting-totals-changelog"
    before = states(app.ok("doctor"))
    assert before[changelog] == ["-", "-", "made", "at", "start"]
    assert not any("scratch" in name or "latest" in name for name in before)
    tables_support.count(app, "a")
    after = states(app.ok("doctor"))
    assert after[letters] == after[changelog] == ["2", "-", "there"]


def test_the_doctor_makes_nothing(app: Shell) -> None:
    assert states(app.ok("doctor")) == states(app.ok("doctor"))


def test_topics_of_a_table_with_other_partition_counts_are_found(shell: Shell) -> None:
    shell.write(
        "app.py",
        """
        from agentic import App

        app = App("x")
        rows = app.table("rows", key=str, value=int)
        few, many = app.topic("few", key=str, partitions=2), app.topic("many", key=str, partitions=3)

        @app.agent(few)
        async def one(stream):
            async for _ in stream:
                rows["a"] = 1

        @app.agent(many)
        async def two(stream):
            async for _ in stream:
                rows["a"] = 2
        """,
    )
    result = shell("-A", "app", "doctor")
    assert result.exit_code == 1
    assert "wrong: topics 'few' (2 partitions) and 'many' (3) meet in table 'rows'" in result.stdout


def test_all_changelogs_that_are_not_as_they_must_be_are_found(app: Shell) -> None:
    app.ok("topics", "create", "counting-totals-changelog", "--partitions", 3, "--compacted")
    app.ok("topics", "create", "counting-cells-changelog", "--partitions", 2)
    result = app("doctor")
    assert result.exit_code == 1
    assert "wrong: changelog 'counting-totals-changelog' has 3 partitions" in result.stdout
    assert "wrong: changelog 'counting-cells-changelog' is not compacted" in result.stdout


def test_an_agent_that_has_nowhere_to_yield_to_is_found(shell: Shell) -> None:
    shell.write(
        "app.py",
        """
        from agentic import App

        app = App("x")

        @app.agent(app.topic("t"))
        async def lost(stream):
            async for value in stream:
                yield value
        """,
    )
    result = shell("-A", "app", "doctor")
    assert result.exit_code == 1
    assert "wrong: agent 'lost' yields, and has no topic to yield to" in result.stdout


def test_a_broker_that_is_not_there_is_found(words: Shell) -> None:
    result = words("-A", "app", "doctor", "--broker", "kafka://127.0.0.1:1", "--set", "start_timeout=1")
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.stdout.partition("\nwrong: ")[2]


def test_without_app_and_broker_none_is_guessed(shell: Shell) -> None:
    assert "No app and no broker named" in shell.ok("doctor")
    assert list(shell.directory.iterdir()) == []


# -- new ------------------------------------------------------------------------------------------


def test_a_new_project_has_the_name_and_runs(shell: Shell) -> None:
    assert shell.ok("new", "shop") == "made shop/: next, cd shop, and read README.md\n"
    text = (shell.directory / "shop" / "app.py").read_text()
    assert 'App("shop"' in text
    assert new.PLACEHOLDER not in text


def test_nothing_is_overwritten(shell: Shell) -> None:
    shell.write("shop", "mine")
    assert "shop is there already, and nothing is overwritten" in shell.error("new", "shop")
    assert (shell.directory / "shop").read_text() == "mine"


@pytest.mark.parametrize("name", ["a b", "-x", "ä"])
def test_a_name_that_no_app_may_have_is_refused(shell: Shell, name: str) -> None:
    assert f"project name '{name}'" in shell.error("new", "--", name)
    assert list(shell.directory.iterdir()) == []


def test_an_unknown_template_is_refused_with_those_there_are(shell: Shell) -> None:
    line = shell.error("new", "shop", "--template", "halo")
    assert line == "no template 'halo'; there are flights, hello, slow-service"


def test_what_a_killed_run_has_left_is_no_hindrance(shell: Shell) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    for pid in (process.pid, os.getpid()):
        left = shell.directory / f".shop.{pid}.agentic-new"
        left.mkdir()
        (left / "half").write_text("a file")
    shell.ok("new", "shop")
    assert [path.name for path in shell.directory.iterdir()] == ["shop"]
    assert not (shell.directory / "shop" / "half").exists()


def test_two_runs_at_once_do_not_disturb_each_other(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when make alone is killed, and is started again while its orphan still copies."""
    orphan = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    theirs = shell.directory / f".shop.{orphan.pid}.agentic-new"
    theirs.mkdir()
    shell.ok("new", "shop")
    assert theirs.exists()
    orphan.communicate(b"\n")
    copy = new._copy

    def late(source: Path, unfinished: Path, project: str) -> None:
        copy(source, unfinished, project)
        (shell.directory / "store").mkdir()
        (shell.directory / "store" / "app.py").write_text("theirs")

    monkeypatch.setattr(new, "_copy", late)
    assert shell.error("new", "store") == "store was made by another process meanwhile; that one stays"
    assert [path.name for path in (shell.directory / "store").iterdir()] == ["app.py"]


def test_a_failure_leaves_no_half_a_project(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert shell.error("new", "shop") == "can't make shop: No space left on device"
    assert not (shell.directory / "shop").exists()
