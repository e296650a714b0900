"""Dead letters and deferred events from the command line: shown, chosen, and sent back once."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from cli_support import Shell
from hypothesis import given
from hypothesis import strategies as st

from agentic.brokers import connect
from agentic.brokers.base import Position, TopicInfo, TopicPartition
from agentic.cli import replaying
from agentic.cli.replaying import Account, Letters, Plan
from agentic.core.metadata import decode
from agentic.errors import ConfigurationError
from agentic.runtime.letters import REPLAYED, STORY, Story

#: Negative orders fail in the agent `ship`, odd ones in `tax`, 7 is put off, and what is no number can't be decoded.
APP = """
import os
from datetime import timedelta

from agentic import App

app = App("shop", topic_partitions=2, dead_letter="garbled", on_decode_error="dead_letter")
orders = app.topic("orders", key=str, value=int)
returns = app.topic("returns", key=str, value=int)
failed = app.topic("failed", key=str, value=int)
shipped = app.topic("shipped", key=str, value=int)


@app.agent(orders, to=shipped, dead_letter=failed)
async def ship(stream):
    async for count in stream:
        if count < 0 and "MENDED" not in os.environ:
            raise ValueError(f"negative: {count}")
        if count == 7:
            stream.defer(timedelta(hours=1), reason="seven\\nof them")
        yield count


@app.agent(returns, dead_letter=failed)
async def tax(stream):
    async for count in stream:
        if count % 2:
            stream.reject(f"Odd: {count}")
"""

Record = dict[str, Any]


def order(key: str | None, value: Any, timestamp: int = 1_000, **more: Any) -> Record:
    return {"key": key, "value": value, "timestamp": timestamp, **more}


def send(shell: Shell, topic: str, *records: Record) -> None:
    """Send past the app's declarations, so that values need not fit."""
    lines = "".join(json.dumps(record) + "\n" for record in records)
    shell.ok("-A", "loose", "send", topic, "--jsonl", "-", stdin=lines)


def work(shell: Shell, **environ: str) -> None:
    """Run the app until its input is used up."""
    done = subprocess.run(
        [sys.executable, "-m", "agentic", "-A", "app", "run"],
        cwd=shell.directory,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def records(shell: Shell, topic: str) -> list[Record]:
    shown = shell.ok("tail", topic, "--jsonl", "--from-beginning")
    return sorted(map(json.loads, shown.splitlines()), key=lambda record: record["partition"])


def letters(shell: Shell, *args: object) -> list[Record]:
    return [json.loads(line) for line in shell.ok("dead-letters", "ls", "failed", "--jsonl", *args).splitlines()]


def errors(shell: Shell, *args: object) -> list[str]:
    return sorted(letter["error"] for letter in letters(shell, *args))


def beside_the_app(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    shell.write("app.py", APP)
    shell.write("loose.py", "from agentic import App\n\napp = App('loose')\n")
    monkeypatch.setenv("AGENTIC_APP", "app")
    return shell


@pytest.fixture
def shop(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell beside ``app.py``, whose topics are there."""
    beside_the_app(shell, monkeypatch)
    shell.ok("topics", "create")
    return shell


@pytest.fixture(scope="module")
def log_with_letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of an app of which three events of two agents were given up and one could not be decoded."""
    made = Shell(tmp_path_factory.mktemp("shop"))
    with pytest.MonkeyPatch.context() as patched:
        for name in [name for name in os.environ if name.startswith("AGENTIC_")]:
            patched.delenv(name)
        patched.chdir(made.directory)
        patched.setattr(sys, "path", list(sys.path))
        beside_the_app(made, patched)
        made.ok("topics", "create")
        send(made, "orders", order("a", -1, headers=[["by", "me"]]), order("b", 5), order("c", -2, 2_000))
        send(made, "orders", order("z", "many", 3_000))
        work(made)
        send(made, "returns", order(None, 3, 4_000, partition=1))
        work(made)
        for name in ("app", "loose"):
            del sys.modules[name]
    return made.directory / ".agentic"


@pytest.fixture
def given_up(shell: Shell, monkeypatch: pytest.MonkeyPatch, log_with_letters: Path) -> Shell:
    """A shell beside ``app.py`` with a log of its own like that."""
    shutil.copytree(log_with_letters, shell.directory / ".agentic")
    return beside_the_app(shell, monkeypatch)


# -- looking --------------------------------------------------------------------------------------


def test_a_line_says_where_a_letter_is_from_who_gave_it_up_and_why(given_up: Shell) -> None:
    lines = sorted(given_up.ok("dead-letters", "ls", "failed", "--agent", "ship").splitlines())
    assert len(lines) == 2
    place, came_from, age, agent, attempts, error = lines[0].split("  ")
    assert place == "0@0"
    assert came_from == "orders-0@0"
    assert age.endswith(" d ago")
    assert (agent, attempts, error) == ("ship", "1 attempt", "ValueError: negative: -1")


def test_what_could_not_be_decoded_says_so(given_up: Shell) -> None:
    (line,) = given_up.ok("dead-letters", "ls", "garbled").splitlines()
    assert "  not decoded  0 attempts  value: not int: " in line
    assert given_up.ok("dead-letters", "ls", "garbled", "--agent", "").splitlines() == [line]
    assert letters(given_up, "--agent", "") == []


def test_letters_are_chosen_by_agent_error_and_time(given_up: Shell) -> None:
    one, two, odd = "ValueError: negative: -1", "ValueError: negative: -2", "Odd: 3"
    assert errors(given_up) == [odd, one, two]
    assert errors(given_up, "--agent", "tax") == [odd]
    assert errors(given_up, "--error", "odd") == [odd]
    assert errors(given_up, "--error", "negative", "--since", 2_000) == [two]
    assert errors(given_up, "--since", "1970-01-01T00:00:04+00:00") == [odd]
    assert errors(given_up, "--since", "2h") == []
    assert errors(given_up, "--since", "36500d") == [odd, one, two]


@pytest.mark.parametrize("since", ["yesterday", "-1", "2w", "2020-01-01T00:00:00"])
def test_a_time_that_can_not_be_is_refused(shop: Shell, since: str) -> None:
    line = shop.error("dead-letters", "ls", "failed", "--since", since, code=2)
    assert f"Invalid value for '--since': '{since}'" in line
    assert "or write an age" in line


def test_a_line_of_json_has_all_of_a_letter(given_up: Shell) -> None:
    (letter,) = letters(given_up, "--error=-1")
    assert letter == {
        "place": "0@0",
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "agent": "ship",
        "attempts": 1,
        "error": "ValueError: negative: -1",
        "replays": 0,
        "sent_back": False,
        "key": "a",
        "value": -1,
        "timestamp": 1_000,
        "headers": [["by", "me"]],
    }


def test_without_a_topic_the_apps_are_listed_with_their_counts(given_up: Shell) -> None:
    rows = [line.split() for line in given_up.ok("dead-letters", "ls").splitlines()[2:]]
    assert [row[:3] for row in rows] == [["failed", "3", "0"], ["garbled", "1", "0"]]
    given_up.ok("dead-letters", "replay", "failed", "--agent", "tax", "--yes")
    rows = [line.split() for line in given_up.ok("dead-letters", "ls").splitlines()[2:]]
    assert [row[:3] for row in rows] == [["failed", "3", "1"], ["garbled", "1", "0"]]
    assert "go with a TOPIC" in given_up.error("dead-letters", "ls", "--agent", "ship", code=2)


def test_a_topic_that_is_not_made_yet_is_listed_as_missing(shell: Shell) -> None:
    shell.write("app.py", APP)
    rows = [line.split() for line in shell.ok("-A", "app", "dead-letters", "ls").splitlines()[2:]]
    assert rows == [["failed", "missing"], ["garbled", "missing"]]


def test_an_app_without_dead_letter_topics_says_how_to_declare_one(words: Shell) -> None:
    line = words.error("-A", "app", "dead-letters", "ls")
    assert line.startswith("app 'words' declares no dead letter topic; name one, or write @app.agent")


def test_all_of_a_letter_is_shown_by_the_declaration_of_its_own_topic(given_up: Shell) -> None:
    shown = dict(line.split(maxsplit=1) for line in given_up.ok("dead-letters", "show", "failed", "0@0").splitlines())
    assert shown["letter"] == "failed-0@0"
    assert shown["from"] == "orders-0@0"
    assert shown["time"].startswith("1970-01-01 00:00:01.000Z, ")
    assert (shown["agent"], shown["attempts"], shown["error"]) == ("ship", "1", "ValueError: negative: -1")
    assert (shown["key"], shown["value"], shown["header"]) == ('"a"', "-1", 'by  "me"')


def test_a_letter_is_shown_without_the_app_too(given_up: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTIC_APP")
    (line,) = given_up.ok("dead-letters", "ls", "garbled", "--broker", "local://.agentic/log").splitlines()
    place = line.split()[0].replace("@", ":")
    shown = given_up.ok("dead-letters", "show", "garbled", place, "--broker", "local://.agentic/log")
    assert 'value     "many"' in shown
    assert "none: it could not be decoded" in shown


@pytest.mark.parametrize(
    ("topic", "place", "why"),
    [
        ("failed", "2@0", "topic 'failed' has no partition 2, only 0 to 1"),
        ("failed", "0@99", "failed-0 has no record at offset 99; see 'agentic -A app dead-letters ls failed'"),
        ("orders", "0@0", "orders-0@0 is no dead letter: its headers lack agentic-topic, "),
        ("fialed", "0@0", "has no topic 'fialed' (did you mean 'failed'?)"),
    ],
)
def test_a_letter_that_is_not_there_is_refused(given_up: Shell, topic: str, place: str, why: str) -> None:
    assert why in given_up.error("dead-letters", "show", topic, place)


def test_a_place_is_partition_and_offset(shop: Shell) -> None:
    for place in ("0", "0@", "a@b", "-1@2", "0@1@2"):
        line = shop.error("dead-letters", "show", "failed", "--", place, code=2)
        assert f"'{place}': write PARTITION@OFFSET, such as 0@17" in line


def test_a_topic_without_any_letters_is_refused_by_name(given_up: Shell) -> None:
    for command in (["ls", "shipped"], ["replay", "shipped", "--yes"]):
        line = given_up.error("dead-letters", *command)
        assert line.startswith("topic 'shipped' holds no dead letters: none of its 1 record has the headers of one")
        assert line.endswith("name the topic that is declared as dead_letter=")


def test_records_beside_the_letters_are_told_of_and_stay(given_up: Shell) -> None:
    send(
        given_up,
        "failed",
        order("a", 1, partition=0),
        order("a", 1, headers=[["agentic-topic", "orders"]], partition=1),
    )
    result = given_up("dead-letters", "ls", "failed")
    assert result.stderr.strip() == "failed has 2 records beside, no dead letters"
    assert len(result.stdout.splitlines()) == 3
    assert given_up.ok("dead-letters", "replay", "failed", "--yes").startswith("sent back 3 letters")


# -- sending back ---------------------------------------------------------------------------------


def test_a_record_goes_back_as_it_was_with_a_mark(given_up: Shell) -> None:
    assert given_up.ok("dead-letters", "replay", "failed", "--error=-1", "--yes") == (
        "sent back 1 letter: 1 to orders\n"
    )
    came, went = [record for record in records(given_up, "orders") if record["value"] == -1]
    assert came["headers"] == [["by", "me"]]
    assert went.pop("headers") == [["by", "me"], ["agentic-replayed", "1 failed-0@0"]]
    del came["headers"]
    assert went == came


def test_a_record_goes_back_to_its_partition_even_without_a_key(given_up: Shell) -> None:
    given_up.ok("dead-letters", "replay", "failed", "--agent", "tax", "--yes")
    assert [(record["partition"], record["value"]) for record in records(given_up, "returns")] == [(1, 3), (1, 3)]


def test_what_was_sent_back_is_done_by_an_agent_that_was_mended(given_up: Shell) -> None:
    given_up.ok("dead-letters", "replay", "failed", "--agent", "ship", "--yes")
    work(given_up, MENDED="yes")
    assert sorted(record["value"] for record in records(given_up, "shipped")) == [-2, -1, 5]
    assert len(letters(given_up)) == 3


def test_each_letter_goes_back_once_whatever_was_chosen_before(given_up: Shell) -> None:
    assert "sent back 1 letter" in given_up.ok("dead-letters", "replay", "failed", "--error=-2", "--yes")
    assert [letter["sent_back"] for letter in letters(given_up, "--error=-2")] == [True]
    rest = given_up.ok("dead-letters", "replay", "failed", "--yes").splitlines()
    assert rest == [
        "left out, as sent back before: 1 letter; --again sends them again",
        "sent back 2 letters: 1 to orders, 1 to returns",
    ]
    last = given_up.ok("dead-letters", "replay", "failed", "--yes").splitlines()
    assert last == ["left out, as sent back before: 3 letters; --again sends them again", "nothing to send back"]
    assert len(records(given_up, "orders")) == 6
    assert len(records(given_up, "returns")) == 2


def test_what_was_sent_back_is_remembered_with_and_without_the_app(
    given_up: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up.ok("dead-letters", "replay", "failed", "--yes")
    monkeypatch.delenv("AGENTIC_APP")
    said = given_up.ok("dead-letters", "replay", "failed", "--yes", "--broker", "local://.agentic/log")
    assert said.endswith("nothing to send back\n")


def test_again_sends_what_was_sent_back_before(given_up: Shell) -> None:
    given_up.ok("dead-letters", "replay", "failed", "--error=-1", "--yes")
    assert given_up.ok("dead-letters", "replay", "failed", "--error=-1", "--again", "--yes").startswith("sent back 1")
    assert [record["value"] for record in records(given_up, "orders")].count(-1) == 3
    assert given_up.ok("dead-letters", "replay", "failed", "--yes").startswith(
        "left out, as sent back before: 1 letter"
    )


def test_a_record_that_is_given_up_once_more_keeps_its_mark_and_counts_on(given_up: Shell) -> None:
    for times in (1, 2):
        given_up.ok("dead-letters", "replay", "failed", "--error=-1", "--yes")
        work(given_up)
        last = letters(given_up, "--error=-1")[-1]
        assert (last["replays"], last["attempts"], last["sent_back"]) == (times, 1, False)
        before = letters(given_up, "--error=-1")[-2]["place"]
        assert last["headers"] == [["by", "me"], ["agentic-replayed", f"{times} failed-{before}"]]


def test_single_letters_are_chosen_by_their_places(given_up: Shell) -> None:
    places = [letter["place"] for letter in letters(given_up, "--agent", "ship")]
    chosen = [arg for place in places for arg in ("--offset", place)]
    assert given_up.ok("dead-letters", "replay", "failed", *chosen, "--yes") == "sent back 2 letters: 2 to orders\n"
    assert "has no record at offset 9" in given_up.error("dead-letters", "replay", "failed", "--offset", "0@9", "--yes")


def test_another_topic_may_take_the_records(given_up: Shell) -> None:
    given_up.ok("topics", "create", "mended", "--partitions", 1)
    assert given_up.ok("dead-letters", "replay", "failed", "--to", "mended", "--yes") == (
        "sent back 3 letters: 3 to mended\n"
    )
    assert sorted(record["value"] for record in records(given_up, "mended")) == [-2, -1, 3]
    line = given_up.error("dead-letters", "replay", "failed", "--to", "nowhere", "--yes")
    assert "has no topic 'nowhere'" in line


def test_a_dry_run_sends_nothing_and_remembers_nothing(given_up: Shell) -> None:
    said = given_up.ok("dead-letters", "replay", "failed", "--dry-run")
    assert said == "would send back 3 letters: 2 to orders, 1 to returns\n"
    assert len(records(given_up, "orders")) == 4
    assert given_up.ok("dead-letters", "replay", "failed", "--yes").startswith("sent back 3 letters")


def test_where_nobody_can_be_asked_nothing_is_sent(given_up: Shell) -> None:
    assert given_up.error("dead-letters", "replay", "failed") == "nobody is there to ask; say --yes to send"
    assert len(records(given_up, "orders")) == 4


def test_a_letter_whose_topic_is_gone_is_named_and_stays_while_the_others_go(given_up: Shell) -> None:
    given_up.ok("topics", "delete", "returns", "--yes")
    result = given_up("dead-letters", "replay", "failed", "--yes")
    assert result.exit_code == 1
    assert result.stdout == "sent back 2 letters: 2 to orders\n"
    assert result.stderr.startswith(
        "Error: left 1 letter: there is no topic 'returns' to send to; make it with "
        "'agentic -A app topics create returns', or say --to TOPIC"
    )
    given_up.ok("topics", "create", "returns")
    assert given_up.ok("dead-letters", "replay", "failed", "--yes").endswith("sent back 1 letter: 1 to returns\n")


def test_a_topic_that_was_made_anew_has_letters_of_its_own(given_up: Shell) -> None:
    given_up.ok("dead-letters", "replay", "failed", "--yes")
    given_up.ok("topics", "delete", "failed", "--yes")
    work(given_up)
    assert {letter["sent_back"] for letter in letters(given_up)} == {False}


def test_an_empty_topic_has_nothing_to_send_back(shop: Shell) -> None:
    assert shop.ok("dead-letters", "replay", "failed", "--yes") == "nothing to send back\n"


def test_a_replay_that_was_ended_goes_on_where_it_was(given_up: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "LOT", 1)
    settled: list[int] = []
    settle = Letters._settle

    async def settle_once(self: Letters, *args: Any) -> None:
        if settled:
            raise KeyboardInterrupt
        await settle(self, *args)
        settled.append(1)

    with monkeypatch.context() as patched:
        patched.setattr(Letters, "_settle", settle_once)
        assert given_up("dead-letters", "replay", "failed", "--yes").exit_code == 130
    assert sum(letter["sent_back"] for letter in letters(given_up)) == 1
    assert given_up.ok("dead-letters", "replay", "failed", "--yes").splitlines()[1].startswith("sent back 2 letters")
    marks = [
        header
        for topic in ("orders", "returns")
        for record in records(given_up, topic)
        for header in record.get("headers", [])
    ]
    assert len([name for name, _ in marks if name == REPLAYED]) == 3


def test_of_two_replays_at_once_the_second_is_refused(given_up: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "PATIENCE", 1.0)

    async def both() -> Any:
        broker = connect("local://.agentic/log", {})
        await broker.open(5)
        partitions = [TopicPartition("failed", n) for n in range(2)]
        async with replaying._alone(broker, "failed-replayed", partitions):
            second = await asyncio.to_thread(given_up, "dead-letters", "replay", "failed", "--yes")
        await broker.close()
        return second

    second = asyncio.run(both())
    assert second.exit_code == 1
    assert "group 'failed-replayed' has another member: a replay is under way; wait until it has ended" in second.stderr
    assert given_up.ok("dead-letters", "replay", "failed", "--yes").startswith("sent back 3 letters")


def test_what_was_sent_back_since_it_was_asked_is_not_sent_twice(
    given_up: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_of = Letters.plan

    async def plan_late(self: Letters, *args: Any, **options: Any) -> Plan:
        plan = await plan_of(self, *args, **options)
        monkeypatch.setattr(Letters, "plan", plan_of)
        await asyncio.to_thread(given_up.ok, "dead-letters", "replay", "failed", "--yes")
        return plan

    monkeypatch.setattr(Letters, "plan", plan_late)
    line = given_up.error("dead-letters", "replay", "failed", "--yes")
    assert line == "another replay of 'failed' has sent letters meanwhile; start again"
    assert len(records(given_up, "orders")) == 6


# -- what is remembered ---------------------------------------------------------------------------


def box(kept: dict[int, Position]) -> Letters:
    """The letters of a topic with one partition; what is remembered of it needs no broker."""
    broker: Any = None
    info = TopicInfo("failed", {0: (0, 10**9)})
    return Letters(broker, info, {TopicPartition("failed", n): at for n, at in kept.items()})


@given(st.lists(st.sets(st.integers(0, 30)), max_size=5), st.data())
def test_what_is_remembered_is_what_was_sent_back(choices: list[set[int]], data: st.DataObject) -> None:
    """Replays of any choices, each ended anywhere, against a plain set."""
    kept: dict[int, Position] = {}
    sent: set[int] = set()
    for choice in choices:
        again = data.draw(st.booleans(), "again")
        chosen = sorted(choice if again else choice - sent)
        left = [offset for offset in range(31) if offset not in sent and offset not in chosen]
        if not chosen:
            continue
        count = data.draw(st.integers(1, len(chosen)), "count")
        fresh = [offset for offset in chosen if offset not in sent]
        plan = Plan(chosen={0: chosen}, left={0: left})
        kept[0] = box(kept)._position(plan, 0, count)
        sent |= set(chosen[:count])
        account = Account({TopicPartition("failed", 0): kept[0]}, {0: 10**9})
        open_ones = {offset for offset in range(31) if not account.has(0, offset)}
        assert open_ones == set(range(31)) - sent | (set(fresh) - set(chosen[:count]))


def test_what_can_not_be_remembered_is_refused_before_anything_is_sent() -> None:
    # Every other one of more than the bits that a commit's metadata has.
    chosen, left = list(range(1, 60_000, 2)), list(range(0, 60_000, 2))
    with pytest.raises(ConfigurationError, match=r"failed-0: .* too scattered among .* leave out --agent and --error"):
        box({})._position(Plan(chosen={0: chosen}, left={0: left}), 0, len(chosen))


def test_what_is_remembered_of_twenty_thousand_letters_always_fits() -> None:
    chosen, left = list(range(1, 20_000, 2)), list(range(0, 20_000, 2))
    at = box({})._position(Plan(chosen={0: chosen}, left={0: left}), 0, len(chosen))
    assert len(at.metadata) < 4_096
    assert decode(at.offset, at.metadata).unfinished == tuple(left)


HEADERS = st.lists(st.tuples(st.sampled_from(["by", REPLAYED, *STORY]), st.none() | st.binary(max_size=5)), max_size=12)


@given(HEADERS)
def test_headers_of_any_kind_are_read_or_are_none_of_a_letter(headers: list[tuple[str, bytes | None]]) -> None:
    story = Story.of(headers)
    assert story is None or story.marked("failed-0@1")[-1][0] == REPLAYED


# -- deferred events ------------------------------------------------------------------------------


def test_events_that_were_put_off_are_shown_with_what_waits_behind_them(shop: Shell) -> None:
    send(shop, "orders", order("a", 7), order("a", 1), order("b", 2))
    work(shop)
    first, second = shop.ok("deferred", "ls").splitlines()
    due, came_from, key, reason = first.split("  ")
    assert due.endswith("Z")
    assert (came_from, key, reason) == ("orders-0@0", '"a"', "seven of them")
    assert second == 'after those of its key  orders-0@1  "a"'
    assert shop.ok("deferred", "ls", "ship").splitlines() == [first, second]


def test_an_agent_that_puts_nothing_off_is_refused_with_the_nearest_that_does(shop: Shell) -> None:
    line = shop.error("deferred", "ls", "shp")
    assert line == "app 'shop' has no agent 'shp' that puts events off; did you mean 'ship'?"
    assert "there are ship" in shop.error("deferred", "ls", "tax")


# -- completion, and Kafka ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "proposed"),
    [("dead-letters ls f", "failed"), ("dead-letters replay g", "garbled"), ("deferred ls s", "ship")],
)
def test_names_are_completed(shop: Shell, typed: str, proposed: str) -> None:
    words = {"COMP_WORDS": f"agentic {typed}", "COMP_CWORD": str(len(typed.split()))}
    code = "from agentic.cli import main; main()"
    environ = {**os.environ, "_AGENTIC_COMPLETE": "bash_complete", **words}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.stdout == f"plain,{proposed}\n"


def test_on_kafka_it_is_the_same(shell: Shell, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = uuid.uuid4().hex[:8]
    text = APP
    names = ("shop", "orders", "returns", "failed", "shipped", "garbled")
    for name in names:
        text = text.replace(f'"{name}"', f'"{name}-{mark}"')
    shell.write("app.py", text)
    monkeypatch.setenv("AGENTIC_APP", "app")
    monkeypatch.setenv("AGENTIC_BROKER", f"kafka://{kafka_bootstrap}")
    monkeypatch.setenv("AGENTIC_DELIVERY", "exactly_once")
    failed = f"failed-{mark}"
    try:
        shell.ok("topics", "create")
        lines = "".join(json.dumps({"key": key, "value": n}) + "\n" for key, n in [("a", -1), ("b", 5), ("c", -2)])
        shell.ok("send", f"orders-{mark}", "--jsonl", "-", stdin=lines)
        work(shell)
        replay = ("dead-letters", "replay", failed, "--yes")
        assert shell.ok(*replay, "--error=-1") == f"sent back 1 letter: 1 to orders-{mark}\n"
        assert shell.ok(*replay).endswith(f"sent back 1 letter: 1 to orders-{mark}\n")
        assert shell.ok(*replay).endswith("nothing to send back\n")
        work(shell)
        again = [json.loads(line) for line in shell.ok("dead-letters", "ls", failed, "--jsonl").splitlines()]
        assert sorted((each["value"], each["replays"], each["sent_back"]) for each in again) == [
            (-2, 0, True),
            (-2, 1, False),
            (-1, 0, True),
            (-1, 1, False),
        ]
    finally:
        shell("reset", "--yes")
        shell("groups", "delete", f"{failed}-replayed", "--yes")
        shell("topics", "delete", *(f"{name}-{mark}" for name in names if name != "shop"), "--yes")
