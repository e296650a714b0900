"""An app that begins anew, and one whose local state is damaged."""

from __future__ import annotations

import json
import signal

import pytest
from cli_support import Shell
from tables_support import STATE, Start, run, totals, until_ready

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


def test_a_worker_that_was_killed_does_not_hinder_a_reset(counted: Shell, start: Start) -> None:
    worker = start("worker")
    until_ready(worker)
    worker.kill()
    worker.communicate()
    assert "begins anew" in counted.ok("reset", "--yes")


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
