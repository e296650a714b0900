"""Sending records and looking at them."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from cli_support import Shell
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentic.app import App
from agentic.brokers import connect
from agentic.brokers.base import TopicSpec
from agentic.cli.loading import There
from agentic.cli.records import Form, Record, line_of, read_line
from agentic.errors import ConfigurationError


def lines(*records: dict[str, object]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def values(shell: Shell, topic: str, *options: object) -> list[object]:
    shown = shell.ok("-A", "app", "tail", topic, "--jsonl", "--from-beginning", *options)
    return [json.loads(line)["value"] for line in shown.splitlines()]


# -- old records ----------------------------------------------------------------------------------


def keeping(retention_ms: int | None) -> None:
    """Make the topic `words` on the embedded log."""

    async def make() -> None:
        broker = connect("local://.agentic/log")
        await broker.open(10)
        await broker.create_topics([TopicSpec("words", 2, retention_ms=retention_ms)])
        await broker.close()

    asyncio.run(make())


def test_records_that_are_older_than_their_topic_keeps_any_are_told_of(words: Shell) -> None:
    keeping(7 * 86_400_000)
    now = time.time_ns() // 1_000_000
    text = lines({"value": "a", "timestamp": now}, {"value": "b", "timestamp": 5})
    result = words("-A", "app", "send", "words", "--jsonl", "-", stdin=text)
    assert result.stdout == "sent 2 records to words\n"
    assert result.stderr == (
        "warning: what was sent is as old as 1970-01-01 00:00:00.005Z, and words keeps records for 7 days after their "
        "timestamps: they may be removed at any moment; a topic whose property retention.ms is -1 keeps all\n"
    )
    assert "as old as 1970" in words("-A", "app", "send", "words", "c", "--timestamp", 5).stderr
    for recent in (now, now - 2 * 3_600_000):
        assert words("-A", "app", "send", "words", "d", "--timestamp", recent).stderr == ""


def test_of_a_topic_that_keeps_all_nothing_is_told(words: Shell) -> None:
    keeping(None)
    assert words("-A", "app", "send", "words", "a", "--timestamp", 5).stderr == ""


# -- one record -----------------------------------------------------------------------------------


def test_a_record_goes_out_as_it_was_typed(words: Shell) -> None:
    sent = ("--key", "en", "--timestamp", 5, "--header", "by=me", "--header", "by=you", "--partition", 1)
    words.ok("-A", "app", "send", "words", "hello", *sent)
    (line,) = words.ok("-A", "app", "tail", "words", "--jsonl").splitlines()
    assert json.loads(line) == {
        "key": "en",
        "value": "hello",
        "timestamp": 5,
        "partition": 1,
        "headers": [["by", "me"], ["by", "you"]],
    }


def test_a_time_may_be_written_with_its_zone(words: Shell) -> None:
    words.ok("-A", "app", "send", "words", "x", "--timestamp", "1970-01-01T01:00:01+01:00")
    assert "1970-01-01 00:00:01.000Z" in words.ok("-A", "app", "tail", "words")


@pytest.mark.parametrize("when", ["-1", "yesterday", "2020-01-01T00:00:00"])
def test_a_time_that_can_not_be_is_refused(words: Shell, when: str) -> None:
    line = words.error("-A", "app", "send", "words", "x", "--timestamp", when, code=2)
    assert f"Invalid value for --timestamp: '{when}'" in line


def test_a_tombstone_is_a_null(words: Shell) -> None:
    words.ok("-A", "app", "send", "words", "--tombstone", "--key", "en")
    assert values(words, "words") == [None]


def test_a_value_that_does_not_fit_the_declared_type_is_refused(words: Shell) -> None:
    assert words.error("-A", "app", "send", "numbers", "many", "--key", 1).startswith("value 'many': ")
    assert words.error("-A", "app", "send", "numbers", 5, "--key", "many").startswith("--key 'many': ")


def test_without_an_app_a_value_is_json_and_a_key_is_text(words: Shell) -> None:
    broker = ("--broker", "local://log")
    words.ok("topics", "create", "loose", "--partitions", 1, *broker)
    words.ok("send", "loose", '{"a": 1}', "--key", "k", *broker)
    assert '"k"  {"a":1}' in words.ok("tail", "loose", *broker)
    assert "a text stands in quotes" in words.error("send", "loose", "a", *broker)


def test_an_unknown_topic_is_named_with_the_nearest_and_the_way_to_make_it(words: Shell) -> None:
    words.ok("-A", "app", "send", "words", "x")
    line = words.error("-A", "app", "send", "wrds", "x")
    assert "has no topic 'wrds' (did you mean 'words'?); make it with 'agentic -A app topics create wrds'" in line


def test_a_partition_that_the_topic_has_not_is_refused(words: Shell) -> None:
    line = words.error("-A", "app", "send", "words", "x", "--partition", 2)
    assert line == "topic 'words' has no partition 2, only 0 to 1"


@pytest.mark.parametrize(
    "args", [[], ["x", "--tombstone"], ["x", "--jsonl", "-"], ["x", "--resume"], ["--jsonl", "-", "--key", "k"]]
)
def test_what_does_not_go_together_is_refused(words: Shell, args: list[str]) -> None:
    assert words("-A", "app", "send", "words", *args).exit_code == 2


# -- files ----------------------------------------------------------------------------------------


def test_lines_are_sent_from_standard_input(words: Shell) -> None:
    text = lines({"value": "one"}, {"value": "two"}) + "\n" + lines({"value": "three"})
    assert words.ok("-A", "app", "send", "words", "--jsonl", "-", stdin=text) == "sent 3 records to words\n"
    assert sorted(map(str, values(words, "words"))) == ["one", "three", "two"]


def test_a_gzipped_file_is_understood_whatever_its_name(words: Shell) -> None:
    packed = gzip.compress(lines({"value": "one"}).encode())
    (words.directory / "data").write_bytes(packed)
    words.ok("-A", "app", "send", "words", "--jsonl", "data")
    words.ok("-A", "app", "send", "words", "--jsonl", "-", stdin=packed)
    assert values(words, "words") == ["one", "one"]


def test_a_truncated_gzip_file_is_an_error_that_names_it(words: Shell) -> None:
    packed = gzip.compress(lines(*({"value": str(n)} for n in range(1000))).encode())
    (words.directory / "data.gz").write_bytes(packed[:-20])
    assert words.error("-A", "app", "send", "words", "--jsonl", "data.gz").startswith(
        "data.gz: the gzip file is damaged"
    )


def test_a_gzip_file_that_breaks_off_late_says_what_was_sent_before(words: Shell) -> None:
    packed = gzip.compress(many(5000).encode())
    (words.directory / "data.gz").write_bytes(packed[: len(packed) * 3 // 4])
    line = words.error("-A", "app", "send", "words", "--jsonl", "data.gz")
    sent = int(line.rpartition("; ")[2].removesuffix(" records before it were sent").replace(",", ""))
    assert sent > 0
    assert len(values(words, "words", "-n", 5000)) == sent
    (words.directory / "data.gz").write_bytes(packed)
    assert words.ok("-A", "app", "send", "words", "--jsonl", "data.gz", "--resume").startswith(
        f"sent {5000 - sent:,} records"
    )


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_byte_order_mark_is_no_part_of_the_first_line(words: Shell, pack: Callable[[bytes], bytes]) -> None:
    (words.directory / "data").write_bytes(pack(lines({"value": "one"}, {"value": "two"}).encode("utf-8-sig")))
    words.ok("-A", "app", "send", "words", "--jsonl", "data")
    assert values(words, "words") == ["one", "two"]
    (words.directory / "data").write_bytes(pack(lines({"value": "one"}).encode("utf-16")))
    line = words.error("-A", "app", "send", "words", "--jsonl", "data")
    assert line == "data: it is UTF-16; write it as UTF-8; 0 records before it were sent"


def test_one_line_is_spoken_of_as_one(words: Shell) -> None:
    text = lines({"value": "one"})
    assert words.ok("-A", "app", "send", "words", "--jsonl", "-", stdin=text) == "sent 1 record to words\n"


def test_an_empty_file_sends_nothing(words: Shell) -> None:
    words.write("data", "")
    assert words.ok("-A", "app", "send", "words", "--jsonl", "data") == "sent 0 records to words\n"


def test_a_time_beyond_every_calendar_is_shown_and_one_beyond_63_bits_refused(words: Shell) -> None:
    words.ok("-A", "app", "send", "words", "late", "--timestamp", 2**63 - 1)
    assert words.ok("-A", "app", "tail", "words").startswith(f"{2**63 - 1} ms  ")
    line = words.error("-A", "app", "send", "words", "later", "--timestamp", 2**63, code=2)
    assert "timestamp has 64 bits, and a log keeps 63" in line
    line = words.error("-A", "app", "send", "words", "--jsonl", "-", stdin=lines({"value": "a", "timestamp": 2**63}))
    assert "timestamp has 64 bits" in line


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"value": ', "truncated"),
        ('{"key": "a"}', "missing required field `value`"),
        ('{"value": 5}', "Expected `str`, got `int`"),
        ('{"value": "a", "key": 5}', "Expected `str`, got `int`"),
        ('{"value": "a", "timestamp": -5}', "timestamp -5 is negative"),
        ('{"value": "a", "partition": 7}', "has no partition 7, only 0 to 1"),
        ('{"value": "a", "partition": -1}', "partition -1 can't be"),
        ('{"value": "a", "headers": {"a": 5}}', "Expected `str | object`"),
        ('{"value": "a", "vlaue": "a"}', "unknown field `vlaue`"),
        ("[]", "Expected `object`, got `array`"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_what_was_sent_before(words: Shell, line: str, why: str) -> None:
    words.write("data.jsonl", lines({"value": "one"}, {"value": "two"}) + line + "\n" + lines({"value": "four"}))
    error = words.error("-A", "app", "send", "words", "--jsonl", "data.jsonl")
    assert error.startswith("data.jsonl, line 3: ")
    assert why in error
    assert error.endswith("; 2 records before it were sent")
    assert sorted(map(str, values(words, "words"))) == ["one", "two"]


def test_a_file_that_is_not_there_is_refused(words: Shell) -> None:
    assert "'nope.jsonl' does not exist" in words.error("-A", "app", "send", "words", "--jsonl", "nope.jsonl", code=2)


# -- resuming -------------------------------------------------------------------------------------


def many(count: int) -> str:
    return lines(*({"key": f"k{n % 7}", "value": f"v{n}"} for n in range(count)))


@pytest.mark.parametrize("before", [0, 1, 13, 50])
def test_a_resumed_send_leaves_out_what_is_there(words: Shell, before: int) -> None:
    words.write("half.jsonl", many(before))
    words.write("whole.jsonl", many(50))
    words.ok("-A", "app", "send", "words", "--jsonl", "half.jsonl")
    said = words.ok("-A", "app", "send", "words", "--jsonl", "whole.jsonl", "--resume")
    there = f" ({before} were there already)" if before else ""
    assert said == f"sent {50 - before} records to words{there}\n"
    resumed = words.ok("-A", "app", "tail", "words", "--from-beginning", "--jsonl")
    assert sorted(json.loads(line)["value"] for line in resumed.splitlines()) == sorted(f"v{n}" for n in range(50))


def test_a_partition_may_be_ahead_of_another_when_a_send_is_resumed(words: Shell) -> None:
    spread = [{"value": f"v{n}", "partition": n % 2} for n in range(20)]
    words.write("ahead.jsonl", lines(*[each for each in spread if each["partition"] == 1][:6]))
    words.write("whole.jsonl", lines(*spread))
    words.ok("-A", "app", "send", "words", "--jsonl", "ahead.jsonl")
    words.ok("-A", "app", "send", "words", "--jsonl", "whole.jsonl", "--resume")
    assert values(words, "words", "-n", 100).count("v1") == 1
    assert len(values(words, "words")) == 20


def test_a_send_is_not_resumed_over_other_records(words: Shell) -> None:
    words.write("whole.jsonl", many(20))
    words.ok("-A", "app", "send", "words", "something else", "--key", "k0")
    line = words.error("-A", "app", "send", "words", "--jsonl", "whole.jsonl", "--resume")
    assert "holds another record, so --resume can't go on; the topic was not made of this file alone" in line


def test_a_send_is_not_resumed_over_records_that_retention_took() -> None:
    there = There("words", starts=[1], ends=[1], last={})
    with pytest.raises(ConfigurationError, match=r"line 1: .* words-0 offset 0 is gone, by the topic's retention"):
        there.has(Record(None, b"v", timestamp=0, headers=None, partition=0), "line 1")


def test_a_send_is_not_resumed_where_the_topic_has_more_than_the_file(words: Shell) -> None:
    words.write("half.jsonl", many(20))
    words.write("whole.jsonl", many(50))
    words.ok("-A", "app", "send", "words", "--jsonl", "whole.jsonl")
    line = words.error("-A", "app", "send", "words", "--jsonl", "half.jsonl", "--resume")
    assert "the topic was not made of this file alone" in line


def test_a_send_of_lines_that_could_be_anywhere_is_not_resumed(words: Shell) -> None:
    text = lines({"value": "a"})
    line = words.error("-A", "app", "send", "words", "--jsonl", "-", "--resume", stdin=text)
    assert line.startswith("standard input, line 1: it has neither key nor partition")


# -- tail -----------------------------------------------------------------------------------------


def test_tail_shows_the_last_records_of_all_partitions_by_their_time(words: Shell) -> None:
    records = [{"key": f"k{n}", "value": f"v{n}", "timestamp": n} for n in range(30)]
    words.ok("-A", "app", "send", "words", "--jsonl", "-", stdin=lines(*records))
    shown = words.ok("-A", "app", "tail", "words", "-n", 3).splitlines()
    assert [line.split("  ")[3] for line in shown] == ['"v27"', '"v28"', '"v29"']
    assert len(words.ok("-A", "app", "tail", "words").splitlines()) == 10
    assert len(words.ok("-A", "app", "tail", "words", "-n", 0).splitlines()) == 0
    assert len(words.ok("-A", "app", "tail", "words", "-n", 1000).splitlines()) == 30
    assert len(words.ok("-A", "app", "tail", "words", "--from-beginning", "-n", 4).splitlines()) == 4


def test_tail_of_an_empty_topic_shows_nothing(words: Shell) -> None:
    words.ok("-A", "app", "topics", "create")
    assert words.ok("-A", "app", "tail", "words") == ""


def test_tail_of_an_unknown_topic_says_so(words: Shell) -> None:
    assert "wrods" in words.error("-A", "app", "tail", "wrods")


def test_what_tail_writes_send_reads_again(words: Shell) -> None:
    words.ok("-A", "app", "send", "numbers", 5, "--key", 7, "--header", "a=b")
    words.ok("-A", "app", "send", "numbers", "--tombstone", "--key", 8)
    before = words.ok("-A", "app", "tail", "numbers", "--jsonl")
    words.ok("-A", "app", "send", "numbers", "--jsonl", "-", "--broker", "local://other", stdin=before)
    assert words.ok("-A", "app", "tail", "numbers", "--jsonl", "--broker", "local://other") == before


def test_followers_see_what_comes(words: Shell) -> None:
    words.ok("-A", "app", "send", "words", "early")
    tail = subprocess.Popen(
        [sys.executable, "-m", "agentic", "-A", "app", "tail", "words", "--follow", "--from-beginning"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert tail.stdout is not None
        assert '"early"' in tail.stdout.readline()
        words.ok("-A", "app", "send", "words", "late")
        assert '"late"' in tail.stdout.readline()
    finally:
        tail.kill()
        tail.communicate()


anything = st.one_of(st.none(), st.binary(max_size=20))


@given(
    key=anything,
    value=anything,
    timestamp=st.integers(0, 2**42),
    headers=st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5))),
    partition=st.integers(0, 3),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_bytes_survive_the_way_through_a_line(
    key: bytes | None, value: bytes | None, timestamp: int, headers: list[tuple[str, bytes]], partition: int
) -> None:
    app = App("bytes")
    app.topic("raw", key=bytes, value=bytes)
    form = Form.of("raw", app)
    record = read_line(line_of(form, key, value, timestamp, headers, partition), form)
    assert record == (key, value, timestamp, tuple(headers) or None, partition)


def test_base64_that_is_none_is_refused() -> None:
    app = App("bytes")
    app.topic("raw", key=bytes, value=bytes)
    with pytest.raises(ConfigurationError, match="base64 'é'"):
        read_line('{"value": {"base64": "é"}}'.encode(), Form.of("raw", app))


def test_a_record_that_its_codec_can_not_read_is_shown_as_bytes(words: Shell) -> None:
    broker = ("--broker", "local://log")
    words.ok("topics", "create", "numbers", "--partitions", 1, *broker)
    words.ok("send", "numbers", '"no number"', "--key", "k", *broker)
    assert '"k"  "no number"' in words.ok("tail", "numbers", "-A", "app", *broker)


def test_a_reader_that_has_enough_ends_the_command_without_a_word(words: Shell) -> None:
    words.ok("-A", "app", "send", "words", "--jsonl", "-", stdin=many(5000))
    tail = subprocess.Popen(
        [sys.executable, "-m", "agentic", "-A", "app", "tail", "words", "--from-beginning"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert tail.stdout is not None and tail.stderr is not None
    tail.stdout.readline()
    tail.stdout.close()
    assert tail.stderr.read() == b""
    assert tail.wait() == 141
