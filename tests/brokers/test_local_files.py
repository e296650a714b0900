"""The embedded log in directories and files that are not as they must be: one line, the file's name, a way out."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb
import pytest
from broker_support import Log, read_all

from agentic.brokers.base import Position, TopicPartition, TopicSpec
from agentic.brokers.local import LocalBroker, layout
from agentic.brokers.local.environment import Environment
from agentic.errors import BrokerError, ConfigurationError, RecordTooLarge, StorageCorrupt


def refusal(directory: Path, kind: type[BrokerError]) -> str:
    """The message with which the log in a directory is refused; it is one line that names the directory."""

    async def open_it() -> None:
        broker = LocalBroker(f"local://{directory}")
        with pytest.raises(kind) as caught:
            await broker.open(1)
        message = str(caught.value)
        assert "\n" not in message and str(directory) in message
        messages.append(message)

    messages: list[str] = []
    asyncio.run(open_it())
    return messages[0]


class Listening:
    """A listener that says when partitions have come."""

    def __init__(self, assigned: asyncio.Event) -> None:
        self._assigned = assigned

    async def on_assigned(self, positions: Mapping[TopicPartition, Position | None]) -> None:
        self._assigned.set()

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        pass

    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        pass


async def fill(broker: Any, topic: str, count: int, size: int = 100) -> None:
    producer = broker.producer()
    for n in range(count):
        producer.send(topic, None, b"%d" % n + b" " * size, 1, None, 0)
        await producer.ready()
    await producer.flush()


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A directory with a log of some megabytes."""
    directory = tmp_path / "log"

    async def make() -> None:
        broker = LocalBroker(f"local://{directory}")
        await broker.open(1)
        await broker.create_topics([TopicSpec("t")])
        await fill(broker, "t", 20_000)
        await broker.close()

    asyncio.run(make())
    return directory


def run(program: str, *arguments: object) -> str:
    """Run a coroutine's body in a process of its own; return what it printed."""
    source = (
        textwrap.dedent(
            """
        import asyncio, os, resource, sys
        from agentic.brokers.base import *
        from agentic.brokers.local import LocalBroker
        from agentic.errors import *
        async def main():
        """
        )
        + textwrap.indent(textwrap.dedent(program), "    ")
        + "\nasyncio.run(main())\n"
    )
    command = [sys.executable, "-c", source, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_url_without_a_directory_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no directory"):
        LocalBroker("local://")


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="'linger_ms'"):
        LocalBroker("local://x", {"linger_ms": 5})


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("sync=maybe", "sync 'maybe'"),
        ("record_limit=few", "record_limit 'few'"),
        ("record_limit=0", "0"),
        ("map_size=9000000000000000000", "at most"),
        ("x=1", "'x'"),
    ],
)
def test_an_option_in_the_url_that_can_t_be_is_refused(query: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        LocalBroker(f"local://x?{query}")


async def test_options_stand_in_the_url(tmp_path: Path) -> None:
    broker = LocalBroker(f"local://{tmp_path / 'log'}?sync=true&record_limit=10")
    await broker.open(1)
    assert broker._store.environment.lmdb.flags()["sync"] is True
    await broker.create_topics([TopicSpec("t")])
    producer = broker.producer()
    with pytest.raises(RecordTooLarge, match="at most 10"):
        producer.send("t", None, bytes(11), 1)
    producer.send("t", None, bytes(10), 1)
    await producer.flush()
    await broker.close()
    assert (tmp_path / "log" / "data.mdb").exists()


async def test_who_asks_for_synced_writes_does_not_get_others_unsynced_ones(tmp_path: Path) -> None:
    first, second = (LocalBroker(f"local://{tmp_path / 'log'}{query}") for query in ("", "?sync=true"))
    await first.open(1)
    with pytest.raises(BrokerError, match="without sync"):
        await second.open(1)
    await first.close()
    await second.open(1)
    await second.close()


def test_a_missing_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = LocalBroker(f"local://{tmp_path / 'a' / 'b'}")
        await broker.open(1)
        await broker.close()

    asyncio.run(scenario())
    assert (tmp_path / "a" / "b" / "data.mdb").exists()


def topic_id(directory: Path) -> str:
    """Return the id of topic t of the log in a directory; topic and log are made where they are missing."""

    async def scenario() -> str:
        broker = LocalBroker(f"local://{directory}")
        await broker.open(1)
        if "t" not in await broker.topics():
            await broker.create_topics([TopicSpec("t")])
        info = await broker.describe_topic("t")
        await broker.close()
        return info.id

    return asyncio.run(scenario())


def test_topics_of_two_logs_have_different_ids_and_keep_them(tmp_path: Path) -> None:
    one, other = topic_id(tmp_path / "one"), topic_id(tmp_path / "other")
    assert one != other
    assert topic_id(tmp_path / "one") == one


def test_a_log_made_when_logs_had_no_id_has_the_numbers_of_its_topics(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    topic_id(directory)
    with lmdb.open(str(directory), max_dbs=16) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True) as txn:
            assert txn.delete(layout.LOG_ID_KEY, db=meta)
    assert topic_id(directory) == "1"


def test_a_newer_format_is_refused_by_name(filled: Path) -> None:
    with lmdb.open(str(filled), max_dbs=16) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True) as txn:
            txn.put(layout.FORMAT_KEY, layout.U64.pack(layout.FORMAT + 1), db=meta)
    message = refusal(filled, StorageCorrupt)
    assert f"format {layout.FORMAT + 1}" in message and "upgrade agentic" in message


def test_another_programs_lmdb_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), max_dbs=16) as env, env.begin(write=True) as txn:
        txn.put(b"theirs", b"1")
        txn.put(b"theirs too", b"1", db=env.open_db(b"meta", txn=txn))
    before = (tmp_path / "data.mdb").read_bytes()
    assert "another program" in refusal(tmp_path, StorageCorrupt)
    assert (tmp_path / "data.mdb").read_bytes() == before


def test_a_directory_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    assert "thesis.txt" in refusal(tmp_path, StorageCorrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    assert "directory" in refusal(tmp_path / "log", BrokerError)
    refusal(tmp_path / "log" / "below", BrokerError)


@pytest.mark.parametrize("content", [b"garbage" * 10_000, b"\0" * 8_192, b"short"], ids=["words", "zeros", "short"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(content)
    assert "data.mdb" in refusal(tmp_path, StorageCorrupt)


@pytest.mark.parametrize("part", [0.9, 0.5, 0.01])
def test_a_truncated_file_is_refused_before_a_page_of_it_is_read(filled: Path, part: float) -> None:
    file = filled / "data.mdb"
    os.truncate(file, int(file.stat().st_size * part))
    message = refusal(filled, StorageCorrupt)
    assert "truncated" in message and "backup" in message


@pytest.mark.parametrize("with_lock", [True, False])
def test_a_file_that_lost_all_its_bytes_is_no_new_log(filled: Path, with_lock: bool) -> None:
    os.truncate(filled / "data.mdb", 0)
    if not with_lock:
        (filled / "lock.mdb").unlink()
    assert "no bytes left" in refusal(filled, StorageCorrupt)
    assert (filled / "data.mdb").stat().st_size == 0


def test_what_a_dead_process_left_of_a_new_log_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / ".new").mkdir()
    (tmp_path / ".new" / "data.mdb").write_bytes(b"half")

    async def scenario() -> None:
        broker = LocalBroker(f"local://{tmp_path}")
        await broker.open(1)
        assert await broker.topics() == {}
        await broker.close()

    asyncio.run(scenario())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.mdb", "lock.mdb"]


def test_several_processes_that_begin_a_log_at_once_begin_the_same_one(tmp_path: Path) -> None:
    program = """
        import asyncio, sys
        from agentic.brokers.base import TopicSpec
        from agentic.brokers.local import LocalBroker
        async def main():
            sys.stdin.readline()
            broker = LocalBroker("local://" + sys.argv[1])
            await broker.open(5)
            await broker.create_topics([TopicSpec(sys.argv[2])])
            await broker.close()
        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "log")]
    writers = [subprocess.Popen([*command, f"t{n}"], stdin=subprocess.PIPE, text=True) for n in range(4)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0

    async def look() -> dict[str, int]:
        broker = LocalBroker(f"local://{tmp_path / 'log'}")
        await broker.open(5)
        topics = await broker.topics()
        await broker.close()
        return topics

    assert asyncio.run(look()) == {f"t{n}": 1 for n in range(4)}


def remove_directory(directory: Path) -> None:
    shutil.rmtree(directory)


def remove_file(directory: Path) -> None:
    (directory / "data.mdb").unlink()


def remove_lock(directory: Path) -> None:
    (directory / "lock.mdb").unlink()


def move(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))


def replace(directory: Path) -> None:
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    shutil.rmtree(directory)
    copy.rename(directory)


def cut(directory: Path) -> None:
    os.truncate(directory / "data.mdb", 8_192)


@pytest.mark.parametrize("harm", [remove_directory, remove_file, remove_lock, move, replace, cut])
@pytest.mark.parametrize("work", ["read", "write", "follow"])
async def test_a_log_that_is_taken_away_under_its_users_is_told_of(
    filled: Path, harm: Callable[[Path], None], work: str
) -> None:
    """What they wrote would be lost with the file, and what they read would be of a log that is no more."""
    broker = LocalBroker(f"local://{filled}")
    await broker.open(1)
    consumer = broker.consumer("g", ["t"])
    assigned = asyncio.Event()
    if work == "follow":
        await consumer.start(Listening(assigned))
        await assigned.wait()
    harm(filled)
    with pytest.raises(StorageCorrupt, match="while it was in use") as caught:
        if work == "read":
            await broker.topics()
        elif work == "write":
            await broker.create_topics([TopicSpec("u")])
        else:
            while True:
                await consumer.poll(60)
    assert str(filled) in str(caught.value)
    await broker.close()


@pytest.mark.parametrize("writes_after", [0, 1])
def test_a_file_that_lacks_only_pages_never_written_is_right(filled: Path, writes_after: int) -> None:
    environment = Environment.acquire(filled)
    file = filled / "data.mdb"
    for size in range(1, 50):
        with environment.write() as txn:
            txn.put(b"taken and given back", bytes(size * 100_000), db=environment.db[b"meta"])
            txn.delete(b"taken and given back", db=environment.db[b"meta"])
        counted = (environment.lmdb.info()["last_pgno"] + 1) * environment.lmdb.stat()["psize"]
        if file.stat().st_size < counted:
            break
    else:
        pytest.fail("the file was never shorter than counted")
    for _ in range(writes_after):
        with environment.write():
            assert file.stat().st_size == counted
    environment.release()
    environment = Environment.acquire(filled)
    assert file.stat().st_size == counted
    environment.release()


def test_a_record_whose_bytes_changed_is_an_error_that_names_its_place(filled: Path) -> None:
    file = filled / "data.mdb"
    content = bytearray(file.read_bytes())
    place = content.index(b"12345 ")
    content[place : place + 5] = b"54321"
    file.write_bytes(content)

    async def scenario() -> None:
        broker = LocalBroker(f"local://{filled}")
        await broker.open(1)
        with pytest.raises(StorageCorrupt, match=r"data\.mdb: t-0 at offset \d+ is damaged"):
            await read_all(broker, "t")
        await broker.close()

    asyncio.run(scenario())


@pytest.mark.skipif(sys.platform == "win32", reason="users and modes as on Unix")
def test_a_directory_that_may_not_be_written_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    # pytest's own directories are closed to other users, and who is root may write everywhere.
    output = run(
        """
        import pathlib, tempfile
        with tempfile.TemporaryDirectory() as directory:
            os.chmod(directory, 0o755)
            log = pathlib.Path(directory) / "log"
            log.mkdir()
            broker = LocalBroker(f"local://{log}")
            await broker.open(1)
            await broker.close()
            for file in log.iterdir():
                file.chmod(0o444)
            log.chmod(0o555)
            user = os.geteuid()
            if user == 0:
                os.seteuid(65534)
            try:
                await LocalBroker(f"local://{log}").open(1)
            except BrokerError as error:
                print(error)
            try:
                await LocalBroker(f"local://{log}/new").open(1)
            except BrokerError as error:
                print(error)
            os.seteuid(user)
            log.chmod(0o755)
        """
    )
    existing, new = output.splitlines()
    assert "Permission denied" in existing and "check its owner" in existing
    assert "Permission denied" in new and "local://DIR" in new


FULL = """
    directory, = sys.argv[1:]
    broker = LocalBroker(f"local://{directory}")
    await broker.open(1)
    await broker.create_topics([TopicSpec("t")])
    producer = broker.producer()
    LIMIT
    written = 0
    try:
        while True:
            for _ in range(100):
                producer.send("t", None, os.urandom(1_000), written)
            await producer.flush()
            written += 100
    except StorageFull as error:
        print(error)
    print(written, producer.backlog)
    # What could not be written waits; once there is room it is written, once.
    FREE
    await producer.flush()
    print((await broker.end_offsets([TopicPartition("t", 0)]))[TopicPartition("t", 0)])
    await broker.close()
"""


def check_full(output: str, directory: Path) -> None:
    message, counts, end = output.splitlines()
    assert str(directory) in message and "no space" in message and "nothing was half-written" in message
    written, backlog = map(int, counts.split())
    assert backlog == 100
    assert int(end) == written + 100


def test_without_space_a_write_fails_whole_and_succeeds_when_there_is_some(tmp_path: Path) -> None:
    program = FULL.replace("LIMIT", "resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, resource.RLIM_INFINITY))")
    program = program.replace("FREE", "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))")
    check_full(run(program, tmp_path / "log"), tmp_path / "log")


async def test_the_map_grows_with_the_log(tmp_path: Path) -> None:
    broker = LocalBroker(f"local://{tmp_path / 'log'}", {"map_size": 1 << 20})
    await broker.open(1)
    await broker.create_topics([TopicSpec("t")])
    await fill(broker, "t", 100, 1 << 20)
    found = await read_all(broker, "t")
    assert [len(row[3]) >> 20 for row in found[0]] == [1] * 100
    await broker.close()


async def test_a_transaction_larger_than_the_map_is_committed(tmp_path: Path) -> None:
    broker = LocalBroker(f"local://{tmp_path / 'log'}", {"map_size": 1 << 20})
    await broker.open(1)
    await broker.create_topics([TopicSpec("t")])
    producer = broker.producer(transactional_id="id")
    for n in range(200):
        producer.send("t", None, bytes(1 << 20), n)
    await producer.commit_transaction({}, broker.consumer("g", ["t"]))
    assert await broker.end_offsets([TopicPartition("t", 0)]) == {TopicPartition("t", 0): 200}
    await broker.close()


async def test_a_moved_log_is_the_same_log(filled: Path, tmp_path: Path) -> None:
    shutil.move(filled, tmp_path / "moved")
    (tmp_path / "moved" / "lock.mdb").unlink()
    broker = LocalBroker(f"local://{tmp_path / 'moved'}")
    await broker.open(1)
    assert await broker.end_offsets([TopicPartition("t", 0)]) == {TopicPartition("t", 0): 20_000}
    await broker.close()


async def test_brokers_of_one_directory_share_it_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "log")
    (tmp_path / "log").mkdir()
    first, second = (LocalBroker(f"local://{tmp_path / name}") for name in ("log", "link"))
    await first.open(1)
    await second.open(1)
    await first.create_topics([TopicSpec("t")])
    assert await second.topics() == {"t": 1}
    await first.close()
    await second.create_topics([TopicSpec("u")])
    await second.close()


async def test_a_broker_that_is_not_open_says_so(local_log: Log) -> None:
    broker = LocalBroker(local_log.url)
    with pytest.raises(BrokerError, match="not open"):
        await broker.topics()
