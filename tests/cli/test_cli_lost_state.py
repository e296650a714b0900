"""An app that has lost a part of what it remembers, and the commands that its errors name."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from cli_support import Shell
from tables_support import STATE, count, on_kafka, run, totals


def refused(shell: Shell) -> str:
    """Start the app, which must not do a thing; return the line that says why."""
    process = shell.start("run")
    _, log = process.communicate()
    assert process.returncode == 1, log
    return next(line for line in reversed(log.splitlines()) if "agentic" in line)


def advised(said: str, command: str) -> list[str]:
    """The arguments of a command that a message names."""
    found = re.search(f"'agentic ([^']*{command}[^']*)'", said)
    assert found is not None, said
    return shlex.split(found[1])


def test_an_app_whose_group_was_deleted_goes_on_where_its_error_says(counted: Shell) -> None:
    counted.ok("groups", "delete", "counting", "--yes")
    said = refused(counted)
    assert totals(counted) == {"a": 3, "b": 2, "d": 1}
    counted.ok(*advised(said, "groups set"))
    count(counted, "a")
    assert totals(counted) == {"a": 4, "b": 2, "d": 1}


def test_an_app_whose_group_was_deleted_begins_anew_when_it_is_reset(counted: Shell) -> None:
    counted.ok("groups", "delete", "counting", "--yes")
    refused(counted)
    counted.ok("reset", "--yes")
    run(counted)
    assert totals(counted) == {"a": 3, "b": 2, "d": 1}


def test_rows_whose_changelog_was_deleted_are_saved_and_loaded_again(counted: Shell) -> None:
    counted.ok("topics", "delete", "counting-totals-changelog", "--yes")
    said = refused(counted)
    assert "table 'totals'" in said
    Path("rows.jsonl").write_text(counted.ok(*advised(said, "tables dump")))
    counted.ok("tables", "load", "totals", "rows.jsonl")
    assert "table 'totals'" in refused(counted)
    run(counted, "--repair")
    assert totals(counted) == {"a": 3, "b": 2, "d": 1}
    assert list(STATE.glob("letters-*/*former*"))
    count(counted, "a")
    assert totals(counted) == {"a": 4, "b": 2, "d": 1}


def test_what_is_dumped_from_this_machine_is_what_its_copies_have(counted: Shell) -> None:
    counted.ok("tables", "load", "totals", "-", stdin='{"key": "a", "value": 40}\n')
    assert '"value":40' in counted.ok("tables", "dump", "totals")
    assert '"value":40' not in counted.ok("tables", "dump", "totals", "--local")


def test_positions_are_set_for_several_partitions_and_no_other(counted: Shell) -> None:
    before = counted.ok("groups", "describe")
    said = counted.ok("groups", "set", "letters-0=1", "letters-1=0")
    assert said == (
        "group counting goes on with offset 1 of letters-0\ngroup counting goes on with offset 0 of letters-1\n"
    )
    committed = {tuple(line.split()[:2]): line.split()[2] for line in counted.ok("groups", "describe").splitlines()[2:]}
    assert committed[("letters", "0")] == "1"
    assert committed[("letters", "1")] == "0"
    assert len(committed) == len(before.splitlines()) - 2
    assert "group other goes on" in counted.ok("groups", "set", "letters-0=1", "--group", "other")


@pytest.mark.parametrize(
    ("position", "said"),
    [
        ("letters-7=1", "no partition letters-7"),
        ("nothing-0=1", "no partition nothing-0"),
        ("letters-0=99", "offsets 0 to"),
    ],
)
def test_a_position_that_can_not_be_is_refused(counted: Shell, position: str, said: str) -> None:
    before = counted.ok("groups", "describe")
    assert said in counted.error("groups", "set", "letters-1=0", position)
    assert counted.ok("groups", "describe") == before


@pytest.mark.parametrize("text", ["letters", "letters-0", "letters=1", "letters-0=", "letters-0=-1", "-0=1"])
def test_what_is_no_position_is_shown_how_to_be_written(counted: Shell, text: str) -> None:
    assert "TOPIC-PARTITION=OFFSET" in counted.error("groups", "set", "--", text, code=2)


def test_on_kafka_nothing_is_lost_either(app: Shell, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(json.dumps({"key": letter, "value": letter}) + "\n" for letter in "aaabbd")
    with on_kafka(app, kafka_bootstrap, monkeypatch) as mark:
        app.ok("send", f"letters-{mark}", "--jsonl", "-", stdin=lines)
        run(app)
        app.ok("groups", "delete", f"counting-{mark}", "--yes")
        app.ok(*advised(refused(app), "groups set"))
        run(app)
        assert totals(app) == {"a": 3, "b": 2, "d": 1}
        app.ok("topics", "delete", f"counting-{mark}-totals-changelog", "--yes")
        Path("rows.jsonl").write_text(app.ok(*advised(refused(app), "tables dump")))
        app.ok("tables", "load", "totals", "rows.jsonl")
        run(app, "--repair")
        app.ok("send", f"letters-{mark}", "a", "--key", "a")
        run(app)
        assert totals(app) == {"a": 4, "b": 2, "d": 1}
