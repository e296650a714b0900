"""Looking at topics and groups, making and deleting topics."""

from __future__ import annotations

import shlex

import pytest
from cli_support import Shell

from agentic.brokers.base import Position, TopicPartition
from agentic.cli.choice import Choice
from agentic.cli.topics import span


def rows(table: str) -> list[list[str]]:
    """The cells of a table, without its head."""
    return [line.split() for line in table.splitlines()[2:]]


def test_all_topics_that_the_app_misses_are_created_at_once(words: Shell) -> None:
    said = words.ok("-A", "app", "topics", "create")
    assert said.splitlines() == [
        "created words with 2 partitions",
        "created lengths with 2 partitions",
        "created numbers with 3 partitions",
    ]
    assert words.ok("-A", "app", "topics", "create") == "nothing to create: the app's topics are all there\n"


def test_one_topic_is_created_as_it_is_declared_or_as_said(words: Shell) -> None:
    assert words.ok("-A", "app", "topics", "create", "numbers") == "created numbers with 3 partitions\n"
    assert words.ok("-A", "app", "topics", "create", "words", "--partitions", 1) == "created words with 1 partition\n"
    assert words.ok("-A", "app", "topics", "create", "other") == "created other with 2 partitions\n"


def test_a_topic_that_is_there_is_not_created_again(words: Shell) -> None:
    words.ok("-A", "app", "topics", "create", "words")
    assert "'words'" in words.error("-A", "app", "topics", "create", "words")


def test_a_name_that_can_not_be_is_refused(words: Shell) -> None:
    assert "a/b" in words.error("-A", "app", "topics", "create", "a/b")


def test_the_list_shows_partitions_offsets_and_what_is_missing(words: Shell) -> None:
    words.ok("-A", "app", "topics", "create", "words")
    words.ok("-A", "app", "send", "words", "one")
    assert rows(words.ok("-A", "app", "topics")) == [
        ["words", "2", "1"],
        ["lengths", "missing"],
        ["numbers", "missing"],
    ]
    assert words.ok("-A", "app", "topics", "list") == words.ok("-A", "app", "topics")


def test_topics_of_the_brokers_own_are_listed_only_with_all(words: Shell) -> None:
    words.ok("-A", "app", "topics", "create")
    words.ok("-A", "app", "topics", "create", "__state", "--partitions", 1)
    assert "__state" not in words.ok("-A", "app", "topics")
    assert ["__state", "1", "0"] in rows(words.ok("-A", "app", "topics", "--all"))
    assert words.ok("-A", "app", "topics", "list", "--all") == words.ok("-A", "app", "topics", "--all")


@pytest.mark.parametrize(
    ("ms", "words"),
    [(0, "0 ms"), (604_800_000, "7 days"), (86_400_000, "1 day"), (5_400_000, "1 hour 30 min"), (1_001, "1 s 1 ms")],
)
def test_a_retention_is_said_in_the_units_it_has(ms: int, words: str) -> None:
    assert span(ms) == words


def test_a_topic_is_described_by_partition(words: Shell) -> None:
    words.ok("-A", "app", "send", "words", "one", "--partition", 1)
    described = words.ok("-A", "app", "topics", "describe", "words")
    assert described.startswith("words: all records kept\n")
    assert rows(described)[1:] == [["0", "0", "0", "0"], ["1", "0", "1", "1"]]


def test_a_compacted_topic_says_so(words: Shell) -> None:
    words.ok("-A", "app", "topics", "create", "latest", "--compacted")
    assert words.ok("-A", "app", "topics", "describe", "latest").startswith("latest: compacted\n")


def test_describing_an_unknown_topic_names_it(words: Shell) -> None:
    broker = "local://.agentic/log"
    words.ok("-A", "app", "topics", "create")
    for command in (["topics", "describe", "nothing-here"], ["tail", "nothing-here"]):
        said = words.error(*command, "--broker", broker)
        assert "has no topic 'nothing-here' (there are lengths, numbers, words)" in said
        advice = shlex.split(said.partition("make it with '")[2].removesuffix("'"))
        assert words.ok(*advice[1:]) == "created nothing-here with 4 partitions\n"
        words.ok("topics", "delete", "nothing-here", "--yes", "--broker", broker)


def test_deleting_asks_and_without_anyone_to_ask_wants_a_yes(words: Shell) -> None:
    words.ok("-A", "app", "topics", "create")
    assert words.error("-A", "app", "topics", "delete", "words") == "nobody is there to ask; say --yes to delete"
    assert words.ok("-A", "app", "topics", "delete", "words", "lengths", "--yes") == "deleted words, lengths\n"
    assert [row[0] for row in rows(words.ok("topics", "--broker", "local://.agentic/log"))] == ["numbers"]


def test_of_several_topics_none_is_deleted_when_one_is_unknown(words: Shell) -> None:
    words.ok("-A", "app", "topics", "create")
    assert "nope" in words.error("-A", "app", "topics", "delete", "words", "nope", "--yes")
    assert len(rows(words.ok("topics", "--broker", "local://.agentic/log"))) == 3


def commit(group: str, topic: str, partition: int, offset: int) -> None:
    """Commit for a group without members."""
    positions = {TopicPartition(topic, partition): Position(offset)}
    Choice(overrides={"broker": "local://.agentic/log"}).with_broker(
        lambda broker: broker.set_positions(group, positions)
    )


def test_a_group_is_described_by_what_is_committed_and_what_is_behind(words: Shell) -> None:
    for n in range(3):
        words.ok("-A", "app", "send", "words", n, "--partition", 1)
    commit("words", "words", 1, 2)
    assert rows(words.ok("-A", "app", "groups", "describe")) == [["words", "1", "2", "3", "1", "nobody"]]
    assert rows(words.ok("-A", "app", "groups")) == [["words", "0", "1"]]


def test_a_group_whose_topic_is_gone_has_no_lag(words: Shell) -> None:
    words.ok("-A", "app", "send", "words", "x", "--partition", 1)
    commit("words", "words", 1, 1)
    words.ok("-A", "app", "topics", "delete", "words", "--yes")
    assert rows(words.ok("-A", "app", "groups", "describe", "words")) == []


def test_an_unknown_group_is_named_with_those_there_are(words: Shell) -> None:
    words.ok("-A", "app", "topics", "create")
    assert words.error("-A", "app", "groups", "describe", "nope").endswith("knows no group 'nope'; there are: none")


def test_a_group_is_deleted_and_no_other(words: Shell) -> None:
    words.ok("-A", "app", "send", "words", "x", "--partition", 1)
    for group in ("one", "other"):
        commit(group, "words", 1, 1)
    assert words.error("-A", "app", "groups", "delete", "one") == "nobody is there to ask; say --yes to delete"
    assert words.ok("-A", "app", "groups", "delete", "one", "--yes") == "deleted group one\n"
    assert [row[0] for row in rows(words.ok("-A", "app", "groups"))] == ["other"]
    assert words.error("-A", "app", "groups", "delete", "one", "--yes").endswith(
        "knows no group 'one'; there are: other"
    )
