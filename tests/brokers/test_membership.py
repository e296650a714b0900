"""Who is in a group and what each is to own: the rules, without a log."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.brokers.base import TopicPartition
from agentic.brokers.embedded.membership import Membership, Process, target
from agentic.errors import BrokerError, Fenced, NotOwner

ALIVE, DEAD = Process(1, "start", "here"), Process(2, "start", "here")
TIMEOUT = 10.0


def join(
    group: Membership,
    member: str,
    topics: Sequence[str] = ("t",),
    now: float = 0.0,
    process: Process | None = ALIVE,
    static: bool = False,
) -> int:
    return group.join("g", member, topics, now, TIMEOUT, process=process, static=static, dead=is_dead)


def is_dead(process: Process) -> bool:
    return process == DEAD


def numbers(share: list[TopicPartition], topic: str) -> list[int]:
    return [tp.partition for tp in share if tp.topic == topic]


@given(
    members=st.lists(st.text(max_size=3), unique=True, min_size=1, max_size=7),
    partitions=st.dictionaries(st.sampled_from("abc"), st.integers(0, 20), min_size=1),
)
def test_every_partition_has_one_member_and_ranges_are_contiguous_and_fair(
    members: list[str], partitions: dict[str, int]
) -> None:
    group = Membership()
    for member in members:
        join(group, member, sorted(partitions))
    shares = target(group, partitions)
    for topic, count in partitions.items():
        ranges = [numbers(shares[member], topic) for member in members]
        assert [n for one in ranges for n in one] == list(range(count))
        assert all(len(a) - len(b) in (0, 1) for a, b in pairwise(ranges))


@given(members=st.integers(1, 5), count=st.integers(1, 12))
def test_topics_of_one_size_are_cut_at_the_same_places(members: int, count: int) -> None:
    group = Membership()
    for n in range(members):
        join(group, f"member-{n}", ["a", "b"])
    for share in target(group, {"a": count, "b": count}).values():
        assert numbers(share, "a") == numbers(share, "b")


def test_a_member_that_comes_last_is_ranked_last_whatever_its_name() -> None:
    group = Membership()
    join(group, "b")
    join(group, "a")
    assert [numbers(share, "t") for share in target(group, {"t": 2}).values()] == [[0], [1]]
    assert list(target(group, {"t": 2})) == ["b", "a"]


def test_a_member_that_is_silent_beyond_its_lease_is_evicted() -> None:
    group = Membership()
    epoch = join(group, "a")
    group.take("a", [TopicPartition("t", 0)])
    assert not group.evict(TIMEOUT, is_dead)
    assert group.evict(TIMEOUT + 0.1, is_dead)
    assert group.owner(TopicPartition("t", 0)) is None
    with pytest.raises(NotOwner, match="taken for dead"):
        group.check("g", "a", epoch, [TopicPartition("t", 0)])


def test_a_lease_from_before_the_machine_started_again_is_over() -> None:
    group = Membership()
    join(group, "a", now=1_000_000.0)
    assert group.evict(5.0, is_dead)


def test_a_member_of_a_dead_process_is_evicted_at_once_but_a_static_one_is_waited_for() -> None:
    group = Membership()
    join(group, "a", process=DEAD)
    join(group, "b", process=DEAD, static=True)
    assert group.evict(1.0, is_dead)
    assert list(group.members) == ["b"]


def test_a_static_member_is_fenced_while_its_namesake_lives_and_takes_its_place_when_it_died() -> None:
    group = Membership()
    join(group, "a", static=True)
    with pytest.raises(Fenced, match=r"'a' \(process 1\)"):
        join(group, "a", static=True)
    group.members["a"].process = DEAD
    join(group, "b", static=True)
    join(group, "a", static=True)
    assert list(target(group, {"t": 2})) == ["a", "b"]


def test_a_restarted_member_is_not_its_former_self() -> None:
    group = Membership()
    epoch = join(group, "a", process=DEAD, static=True)
    group.take("a", [TopicPartition("t", 0)])
    again = join(group, "a", static=True)
    with pytest.raises(NotOwner):
        group.check("g", "a", epoch, [])
    group.take("a", [TopicPartition("t", 0)])
    group.check("g", "a", again, [TopicPartition("t", 0)])


def test_members_must_want_the_same_topics() -> None:
    group = Membership()
    join(group, "a", ["t", "u"])
    with pytest.raises(BrokerError, match=r"t, u.*wants t;"):
        join(group, "b", ["t"])


def test_static_members_that_are_gone_do_not_hold_a_group_to_its_topics() -> None:
    group = Membership()
    join(group, "left", ["t"], static=True)
    group.leave("left", 0.0)
    join(group, "killed", ["t"], process=DEAD, static=True)
    join(group, "new", ["t", "u"], static=True)
    assert set(target(group, {"t": 3, "u": 3})) == {"left", "killed", "new"}
    join(group, "killed", ["u", "t"], static=True)


def test_only_the_owner_releases_a_partition() -> None:
    group = Membership()
    for member in ("a", "b"):
        join(group, member)
    group.take("a", [TopicPartition("t", 0)])
    group.release("b", [TopicPartition("t", 0)])
    assert group.owner(TopicPartition("t", 0)) == "a"
    assert group.owned("a") == [TopicPartition("t", 0)]
