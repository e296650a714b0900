"""Several processes on one embedded log."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator

import pytest
from broker_support import Log, read_all
from local_peer import Peer, Refused, until

from agentic.brokers import connect
from agentic.brokers.base import TopicSpec

#: Seconds; longer than any test takes, so that nobody's lease ends by itself.
LONG = 300.0
#: A lease for members that are to lose it.
SHORT = 0.6


@pytest.fixture
def peer(local_log: Log) -> Iterator[Callable[..., Peer]]:
    """Makes processes on a log with the topic t of 4 partitions."""

    async def make() -> None:
        broker = connect(local_log.url)
        await broker.open(5)
        await broker.create_topics([TopicSpec("t", 4)])
        await broker.close()

    asyncio.run(make())
    peers: list[Peer] = []

    def new(**options: object) -> Peer:
        peers.append(Peer(local_log.url, **options))
        return peers[-1]

    yield new
    for each in peers:
        if each.process.poll() is None:
            each.signal(signal.SIGCONT)
            assert each.close() == 0


def contents(log: Log) -> dict[int, list[int]]:
    async def read() -> dict[int, list[int]]:
        broker = connect(log.url)
        await broker.open(5)
        found = await read_all(broker, "t", 4)
        await broker.close()
        return {partition: [int(row[3]) for row in rows] for partition, rows in found.items()}

    return asyncio.run(read())


def owned(*peers: Peer) -> list[set[int]]:
    """What each member owns by what it was told since the last call for it."""
    result = []
    for each in peers:
        have: set[int] = each.__dict__.setdefault("owned", set())
        for what, partitions in each("listen"):
            have = have | set(partitions) if what == "assigned" else have - set(partitions)
        each.__dict__["owned"] = have
        result.append(have)
    return result


def test_processes_append_at_once_and_nothing_is_lost_or_out_of_order(
    local_log: Log, peer: Callable[..., Peer]
) -> None:
    peers = [peer() for _ in range(3)]
    for n, each in enumerate(peers):
        each.ask("send", partition=0, first=n * 1_000, count=300)
    for each in peers:
        each.answer()
    values = contents(local_log)[0]
    for n in range(3):
        assert [v for v in values if v // 1_000 == n] == list(range(n * 1_000, n * 1_000 + 300))
    assert len(values) == 900


def test_a_process_that_dies_in_the_middle_of_its_writes_keeps_nobody_from_writing(
    local_log: Log, peer: Callable[..., Peer]
) -> None:
    survivor = peer()
    survivor("ends")
    for n in range(5):
        victim = peer()
        victim.ask("send", partition=1, first=0, count=1_000_000)
        enough = survivor("ends")["1"] + 20 * n
        until(lambda enough=enough: survivor("ends")["1"] > enough)
        victim.kill()
        survivor("send", partition=0, first=n * 100, count=100)
    assert contents(local_log)[0] == list(range(500))


def test_members_of_several_processes_share_the_partitions(peer: Callable[..., Peer]) -> None:
    first, second = peer(), peer()
    first("join", session_timeout=LONG)
    until(lambda: owned(first) == [{0, 1, 2, 3}])
    second("join", session_timeout=LONG)
    until(lambda: owned(first, second) == [{0, 1}, {2, 3}])
    first("leave")
    until(lambda: owned(second) == [{0, 1, 2, 3}])


def test_a_killed_process_is_no_member_though_nobody_has_come_by_since(
    local_log: Log, peer: Callable[..., Peer]
) -> None:
    async def members() -> int:
        broker = connect(local_log.url)
        await broker.open(5)
        group = await broker.describe_group("group")
        await broker.close()
        return len(group.members)

    first = peer()
    first("join", session_timeout=LONG)
    assert asyncio.run(members()) == 1
    first.kill()
    assert asyncio.run(members()) == 0


def test_the_partitions_of_a_killed_process_are_taken_without_waiting_for_its_lease(peer: Callable[..., Peer]) -> None:
    first, second = peer(), peer()
    for member in (first, second):
        member("join", session_timeout=LONG)
    until(lambda: owned(first, second) == [{0, 1}, {2, 3}])
    first("commit", positions={"0": 5})
    first.kill()
    until(lambda: owned(second) == [{0, 1, 2, 3}])


def test_a_frozen_member_loses_its_partitions_and_finds_its_commits_refused(
    local_log: Log, peer: Callable[..., Peer]
) -> None:
    first, second = peer(), peer()
    first("join", session_timeout=SHORT)
    until(lambda: owned(first) == [{0, 1, 2, 3}])
    first.signal(signal.SIGSTOP)
    second("join", session_timeout=LONG)
    until(lambda: owned(second) == [{0, 1, 2, 3}])
    second("commit", positions={"0": 7})
    # Its commit waits already when it goes on: it comes before any look at the group.
    first.ask("commit", positions={"0": 3})
    first.signal(signal.SIGCONT)
    with pytest.raises(Refused, match="NotOwner"):
        first.answer()
    told: list[list[object]] = []
    until(lambda: told.extend(first("listen")) or ["lost", [0, 1, 2, 3]] in told)
    until(lambda: told.extend(first("listen")) or told[-1][0] == "assigned")
    until(lambda: owned(second) == [{2, 3}] or owned(second) == [{0, 1}])


def test_a_frozen_member_s_transaction_is_undone(local_log: Log, peer: Callable[..., Peer]) -> None:
    first, second = peer(), peer()
    first("join", session_timeout=SHORT)
    until(lambda: owned(first) == [{0, 1, 2, 3}])
    first("send", partition=0, first=0, count=10, transactional_id="one")
    first.signal(signal.SIGSTOP)
    second("join", session_timeout=LONG)
    until(lambda: owned(second) == [{0, 1, 2, 3}])
    first.ask("end", transactional_id="one", positions={"0": 3})
    first.signal(signal.SIGCONT)
    with pytest.raises(Refused, match="TransactionAborted"):
        first.answer()
    assert contents(local_log)[0] == []
    first("send", partition=0, first=50, count=2, transactional_id="one")
    first("end", transactional_id="one", positions={})
    assert contents(local_log)[0] == [50, 51]


def test_a_transactional_id_belongs_to_the_process_that_took_it_last(local_log: Log, peer: Callable[..., Peer]) -> None:
    first, second = peer(), peer()
    first("send", partition=0, first=0, count=2, transactional_id="id")
    second("send", partition=0, first=10, count=2, transactional_id="id")
    with pytest.raises(Refused, match="Fenced"):
        first("end", transactional_id="id", positions={})
    second("end", transactional_id="id", positions={})
    assert contents(local_log)[0] == [10, 11]


def test_a_static_id_is_refused_to_a_second_process_while_the_first_lives(peer: Callable[..., Peer]) -> None:
    first, second = peer(), peer()
    first("join", instance="one", session_timeout=LONG)
    until(lambda: owned(first) == [{0, 1, 2, 3}])
    with pytest.raises(Refused, match=rf"Fenced.*'one'.*{first.process.pid}"):
        second("join", instance="one", session_timeout=LONG)
    first.kill()
    second("join", instance="one", session_timeout=LONG)
    until(lambda: owned(second) == [{0, 1, 2, 3}])


def test_the_share_of_a_static_member_waits_for_its_restart(peer: Callable[..., Peer]) -> None:
    first, second, again = peer(), peer(), peer()
    first("join", instance="one", session_timeout=LONG)
    second("join", instance="two", session_timeout=LONG)
    until(lambda: owned(first, second) == [{0, 1}, {2, 3}])
    first.kill()
    again("join", instance="one", session_timeout=LONG)
    until(lambda: owned(again) == [{0, 1}])
    assert owned(second) == [{2, 3}]


def test_a_process_with_a_small_map_follows_one_that_let_the_file_grow(
    local_log: Log, peer: Callable[..., Peer]
) -> None:
    small, large = peer(map_size=40 << 20), peer()
    small("send", partition=0, first=0, count=1)
    large("send", partition=0, first=1, count=60, size=1_000_000)
    assert small("ends")["0"] == 61
    small("join", session_timeout=LONG)
    seen: list[int] = []
    until(lambda: seen.extend(small("poll", timeout=0.1).get("0", [])) or len(seen) == 61)
    small("send", partition=0, first=61, count=1)
    assert contents(local_log)[0] == list(range(62))


def test_a_member_hears_at_once_of_what_another_process_writes(peer: Callable[..., Peer]) -> None:
    reader, writer = peer(), peer()
    reader("join", session_timeout=LONG)
    until(lambda: owned(reader) == [{0, 1, 2, 3}])
    until(lambda: not reader("poll", timeout=0.02))
    reader.ask("poll", timeout=30.0)
    writer("send", partition=2, first=7, count=1)
    assert reader.answer() == {"2": [7]}
