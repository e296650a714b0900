"""Groups: who owns what, in which order members are told, and what is refused to former owners."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from broker_support import PATIENCE, Log, Member, until

from agentic.brokers.base import Broker, Position, TopicPartition
from agentic.core.placement import heirs, owner, ranked
from agentic.errors import BrokerError, Fenced, NotOwner, UnknownTopic


def partitions(topic: str, *numbers: int) -> set[TopicPartition]:
    return {TopicPartition(topic, n) for n in numbers}


def shared(topic: str, n: int, *members: Member) -> bool:
    """Do the members own all of the topic, nothing twice, and each its share?"""
    owned = [{tp for tp in member.owned if tp.topic == topic} for member in members]
    sizes = [len(part) for part in owned]
    return sum(sizes) == n == len(set().union(*owned)) and max(sizes) - min(sizes) <= 1


async def at_rest(broker: Broker, group: str, n: int, members: Mapping[str, Member]) -> dict[str, list[int]]:
    """Return what each member owns of the group's one topic once nothing is on its way to another.

    All partitions being owned is not enough: who joined last has nothing until others have given way,
    though by its place among them it will get some. Nothing moves any more when all have what is theirs
    by the order in which the group names them, and know it.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while True:
        described = (await broker.describe_group(group)).members
        due: dict[str, list[int]] = {member: [] for member in described}
        for number in range(n):
            due[owner(number, n, list(described))].append(number)
        owned = {name: sorted(tp.partition for tp in member.owned) for name, member in members.items()}
        if owned == due == {name: [tp.partition for tp in tps] for name, tps in described.items()}:
            return due
        assert loop.time() < deadline, f"not within {PATIENCE} s: {described} described, {owned} owned"
        await asyncio.gather(*(member.poll() for member in members.values()))


async def test_one_member_owns_everything(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker, 4)
        member = await Member(broker, log.name("g"), [topic]).start()
        await until(lambda: len(member.owned) == 4, member)
        assert member.told == [("assigned", partitions(topic, 0, 1, 2, 3))]
        await member.consumer.close()
        assert member.told[1:] == [("revoked", partitions(topic, 0, 1, 2, 3))]


async def test_members_share_and_take_over(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker, 6)
        group = log.name("g")
        a, b, c = (Member(broker, group, [topic]) for _ in range(3))
        await a.start()
        await until(lambda: shared(topic, 6, a), a)
        await b.start()
        await until(lambda: shared(topic, 6, a, b), a, b)
        await c.start()
        await until(lambda: shared(topic, 6, a, b, c), a, b, c)
        await b.consumer.close()
        await until(lambda: shared(topic, 6, a, c), a, c)
        await a.consumer.close()
        await until(lambda: shared(topic, 6, c), c)
        await c.consumer.close()
        assert not (a.owned or b.owned or c.owned)
        assert all(kind != "lost" for member in (a, b, c) for kind, _ in member.told)


async def test_a_partition_is_given_only_after_its_owner_gave_it_up(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker, 4)
        group = log.name("g")
        history: list[tuple[str, str, TopicPartition]] = []
        a, b = Member(broker, group, [topic]), Member(broker, group, [topic])

        def note(member: Member, name: str) -> None:
            async def came(positions: Mapping[TopicPartition, Position | None]) -> None:
                history.extend((name, "came", tp) for tp in positions)

            async def went(tps: Sequence[TopicPartition]) -> None:
                history.extend((name, "went", tp) for tp in tps)

            member.when_assigned, member.when_revoked = came, went

        note(a, "a")
        note(b, "b")
        await a.start()
        await until(lambda: shared(topic, 4, a), a)
        await b.start()
        await until(lambda: shared(topic, 4, a, b), a, b)
        await a.consumer.close()
        await until(lambda: shared(topic, 4, b), b)
        await b.consumer.close()
        owner: dict[TopicPartition, str] = {}
        for name, what, tp in history:
            if what == "came":
                assert tp not in owner, f"{tp} came to {name} while {owner[tp]} had it: {history}"
                owner[tp] = name
            else:
                assert owner.pop(tp) == name
        assert not owner


async def test_topics_with_as_many_partitions_land_together(log: Log) -> None:
    async with log.open() as broker:
        topics = [await log.topic(broker, 5) for _ in range(3)]
        group = log.name("g")
        members = [Member(broker, group, topics) for _ in range(3)]
        for member in members:
            await member.start()
        await until(lambda: all(shared(topic, 5, *members) for topic in topics), *members)
        for member in members:
            numbers = [{tp.partition for tp in member.owned if tp.topic == topic} for topic in topics]
            assert numbers[0] == numbers[1] == numbers[2]
            assert sorted(numbers[0]) == list(range(min(numbers[0]), max(numbers[0]) + 1))
        for member in members:
            await member.consumer.close()


async def test_only_what_moves_is_revoked(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker, 4)
        group = log.name("g")
        a, b = Member(broker, group, [topic]), Member(broker, group, [topic])
        await a.start()
        await until(lambda: shared(topic, 4, a), a)
        await b.start()
        await until(lambda: shared(topic, 4, a, b), a, b)
        assert sum((len(tps) for kind, tps in a.told if kind == "revoked"), 0) == 2
        await a.consumer.close()
        await b.consumer.close()


async def test_what_is_committed_while_revoked_is_where_the_next_owner_begins(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker, 2)
        producer = broker.producer()
        for i in range(20):
            producer.send(topic, None, b"%d" % i, i, partition=i % 2)
        await producer.flush()
        group = log.name("g")
        a, b = Member(broker, group, [topic]), Member(broker, group, [topic])

        async def commit(tps: Sequence[TopicPartition]) -> None:
            await a.consumer.commit({tp: Position(len(a.values[tp]), "handed over") for tp in tps})

        a.when_revoked = commit
        await a.start()
        await until(lambda: a.count == 20, a)
        await b.start()
        await until(lambda: shared(topic, 2, a, b), a, b)
        (moved,) = b.owned
        assert b.positions[moved] == Position(10, "handed over")
        producer.send(topic, None, b"after", 1, partition=moved.partition)
        await producer.flush()
        await until(lambda: b.count, a, b)
        assert b.values[moved] == [b"after"]
        await a.consumer.close()
        await b.consumer.close()
        await producer.close()


async def test_a_former_owner_commits_nothing(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker, 2)
        group = log.name("g")
        a, b = Member(broker, group, [topic]), Member(broker, group, [topic])
        await a.start()
        await until(lambda: shared(topic, 2, a), a)
        await b.start()
        await until(lambda: shared(topic, 2, a, b), a, b)
        (kept,), (gone,) = a.owned, b.owned
        with pytest.raises(NotOwner, match=str(gone)):
            await a.consumer.commit({kept: Position(1), gone: Position(1)})
        assert await a.consumer.committed([kept, gone]) == {kept: None, gone: None}
        await a.consumer.commit({kept: Position(1)})
        await a.consumer.close()
        await b.consumer.close()


async def test_who_left_commits_nothing(embedded_log: Log) -> None:
    async with embedded_log.open() as broker:
        topic = await embedded_log.topic(broker)
        member = await Member(broker, embedded_log.name("g"), [topic]).start()
        await until(lambda: member.owned, member)
        await member.consumer.close()
        with pytest.raises(NotOwner):
            await member.consumer.commit({TopicPartition(topic, 0): Position(1)})


async def test_the_first_batch_comes_after_the_listener_has_returned(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker)
        producer = broker.producer()
        producer.send(topic, None, b"v", 1)
        await producer.flush()
        member = Member(broker, log.name("g"), [topic])
        called, go_on = asyncio.Event(), asyncio.Event()

        async def slow(positions: Mapping[TopicPartition, Position | None]) -> None:
            called.set()
            await go_on.wait()

        member.when_assigned = slow
        starting = asyncio.ensure_future(member.start())
        await until(called.is_set)
        assert await member.consumer.poll(0.3) == []
        go_on.set()
        await starting
        await until(lambda: member.count == 1, member)
        await member.consumer.close()
        await producer.close()


async def test_a_listener_may_seek_before_the_first_batch(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker)
        producer = broker.producer()
        for i in range(10):
            producer.send(topic, None, b"%d" % i, 1)
        await producer.flush()
        member = Member(broker, log.name("g"), [topic])

        async def seek(positions: Mapping[TopicPartition, Position | None]) -> None:
            await member.consumer.seek(dict.fromkeys(positions, 7))

        member.when_assigned = seek
        await member.start()
        await until(lambda: member.count == 3, member)
        assert member.values[TopicPartition(topic, 0)] == [b"7", b"8", b"9"]
        await member.consumer.close()
        await producer.close()


async def test_seek_goes_back_and_forth(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker)
        tp = TopicPartition(topic, 0)
        producer = broker.producer()
        for i in range(10):
            producer.send(topic, None, b"%d" % i, 1)
        await producer.flush()
        member = await Member(broker, log.name("g"), [topic]).start()
        await until(lambda: member.count == 10, member)
        for at in (4, 0, 9):
            member.values.clear()
            await member.consumer.seek({tp: at})
            await until(lambda at=at: member.count == 10 - at, member)
            assert member.values[tp] == [b"%d" % i for i in range(at, 10)]
        await member.consumer.close()
        await producer.close()


async def test_a_paused_partition_gives_nothing_and_loses_nothing(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker, 2)
        still, running = TopicPartition(topic, 0), TopicPartition(topic, 1)
        member = await Member(broker, log.name("g"), [topic]).start()
        await until(lambda: len(member.owned) == 2, member)
        member.consumer.pause([still])
        producer = broker.producer()
        for i in range(100):
            producer.send(topic, None, b"%d" % i, 1, partition=i % 2)
        await producer.flush()
        await until(lambda: len(member.values[running]) == 50, member)
        await member.poll()
        assert not member.values[still]
        member.consumer.resume([still])
        await until(lambda: len(member.values[still]) == 50, member)
        assert member.values[still] == [b"%d" % i for i in range(0, 100, 2)]
        await member.consumer.close()
        await producer.close()


async def test_an_end_is_reported_once_and_again_when_it_has_changed(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker, 2)
        member = await Member(broker, log.name("g"), [topic]).start()
        await until(lambda: len(member.ended) == 2, member)
        assert sorted(member.ended.values()) == [0, 0]
        for _ in range(3):
            await member.poll()
        assert len(member.batches) == 2
        producer = broker.producer()
        producer.send(topic, None, b"v", 1, partition=1)
        await producer.flush()
        await until(lambda: member.ended[TopicPartition(topic, 1)] == 1, member)
        assert member.ended[TopicPartition(topic, 0)] == 0
        await member.consumer.close()
        await producer.close()


async def test_a_topic_that_does_not_exist_is_an_error_at_start(embedded_log: Log) -> None:
    async with embedded_log.open() as broker:
        unknown, group = embedded_log.name("unknown"), embedded_log.name("g")
        member = Member(broker, group, [unknown])
        with pytest.raises(UnknownTopic, match=unknown):
            await member.start()
        await member.consumer.close()
        assert (await broker.describe_group(group)).members == {}


async def test_members_that_want_other_topics_are_refused(embedded_log: Log) -> None:
    async with embedded_log.open() as broker:
        topic, other = await embedded_log.topic(broker), await embedded_log.topic(broker)
        group = embedded_log.name("g")
        first = await Member(broker, group, [topic]).start()
        with pytest.raises(BrokerError, match=other):
            await Member(broker, group, [topic, other]).start()
        await first.consumer.close()
        second = await Member(broker, group, [topic, other]).start()
        await until(lambda: len(second.owned) == 2, second)
        await second.consumer.close()


async def test_a_second_member_with_a_live_static_id_is_fenced(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker)
        group = log.name("g")
        first = await Member(broker, group, [topic], instance="one").start()
        await until(lambda: first.owned, first)
        second = Member(broker, group, [topic], instance="one")
        with pytest.raises(Fenced, match="one"):
            await second.start()
            await until(lambda: second.owned, first, second)
        await first.poll()
        await first.consumer.commit({TopicPartition(topic, 0): Position(1)})
        assert [kind for kind, _ in first.told] == ["assigned"]
        await first.consumer.close()


async def test_a_static_member_that_comes_back_gets_its_partitions_and_others_keep_theirs(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker, 4)
        group = log.name("g")
        a = await Member(broker, group, [topic], instance="a").start()
        b = await Member(broker, group, [topic], instance="b").start()
        await until(lambda: shared(topic, 4, a, b), a, b)
        had, others, told = set(a.owned), set(b.owned), list(b.told)
        await a.consumer.close()
        await b.poll()
        again = await Member(broker, group, [topic], instance="a").start()
        await until(lambda: shared(topic, 4, again, b), again, b)
        assert again.owned == had
        assert b.owned == others
        assert b.told == told
        await again.consumer.close()
        await b.consumer.close()


async def test_a_member_that_was_taken_for_dead_is_told_and_joins_again(embedded_log: Log) -> None:
    async with embedded_log.open() as broker:
        topic = await embedded_log.topic(broker)
        tp = TopicPartition(topic, 0)
        producer = broker.producer()
        producer.send(topic, None, b"v", 1)
        await producer.flush()
        group = embedded_log.name("g")
        member = await Member(broker, group, [topic]).start()
        await until(lambda: member.count == 1, member)
        await embedded_log.expel(broker, group, member.consumer.member)  # type: ignore[attr-defined]
        with pytest.raises(NotOwner):
            await member.consumer.commit({tp: Position(1)})
        await until(lambda: member.count == 2, member)
        assert [kind for kind, _ in member.told] == ["assigned", "lost", "assigned"]
        assert member.positions == {tp: None}
        await member.consumer.commit({tp: Position(1)})
        await member.consumer.close()


async def test_a_failing_listener_fails_the_poll(embedded_log: Log) -> None:
    async with embedded_log.open() as broker:
        topic = await embedded_log.topic(broker)
        member = Member(broker, embedded_log.name("g"), [topic])

        async def fail(positions: Mapping[TopicPartition, Position | None]) -> None:
            raise ValueError("the listener's own")

        member.when_assigned = fail
        await member.start()
        with pytest.raises(ValueError, match="the listener's own"):
            await until(lambda: member.count, member)


async def test_two_groups_do_not_know_of_each_other(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker)
        producer = broker.producer()
        producer.send(topic, None, b"v", 1)
        await producer.flush()
        members = [await Member(broker, log.name("g"), [topic]).start() for _ in range(2)]
        await until(lambda: all(member.count == 1 for member in members), *members)
        await members[0].consumer.commit({TopicPartition(topic, 0): Position(1)})
        assert await members[1].consumer.committed([TopicPartition(topic, 0)]) == {(topic, 0): None}
        for member in members:
            await member.consumer.close()
        await producer.close()


async def test_a_member_knows_what_the_group_calls_it(log: Log) -> None:
    async with log.open() as broker:
        topic = await log.topic(broker, 2)
        group = log.name("g")
        members = [await Member(broker, group, [topic]).start() for _ in range(3)]
        await until(lambda: sum(len(member.owned) for member in members) == 2, *members)
        described = (await broker.describe_group(group)).members
        assert {await member.consumer.member_id(): member.owned for member in members} == {
            name: set(owned) for name, owned in described.items()
        }
        for member in members:
            await member.consumer.close()


@pytest.mark.parametrize("instances", ["-----", "decab"])
async def test_where_the_partitions_of_one_that_leaves_go_can_be_told_before(log: Log, instances: str) -> None:
    """With more members than partitions: of those that own nothing the first named is the first to get some."""
    if log.kind == "memory" and instances != "-----":
        pytest.skip("without other processes nothing wakes a member when the lease of a static one is over")
    async with log.open() as broker:
        topic = await log.topic(broker, 3)
        group = log.name("g")
        ids = [None if instance == "-" else f"{group}-{instance}" for instance in instances]
        members = [await Member(broker, group, [topic], instance=id_, session_timeout=1.5).start() for id_ in ids]
        names = {str(await member.consumer.member_id()): member for member in members}
        for _ in range(2):
            ranks = ranked(await at_rest(broker, group, 3, names))
            (heir,) = heirs(0, 3, ranks, 1)
            await names.pop(owner(0, 3, ranks)).consumer.close()
            await until(lambda heir=heir: TopicPartition(topic, 0) in names[heir].owned, *names.values())
        for member in names.values():
            await member.consumer.close()
