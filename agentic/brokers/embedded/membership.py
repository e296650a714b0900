"""Who is in a consumer group, and who owns which partition: values in, values out.

The target is a pure function of the members and the topics: `range`, per topic contiguous
runs over the members in the order in which they came, so that topics with the same number of
partitions line up. Members move towards it one by one, as in KIP-848: an owner first gives up
what is no longer its target, and only what nobody owns is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from agentic.brokers.base import TopicPartition
from agentic.errors import BrokerError, Fenced, NotOwner


class Process(msgspec.Struct, frozen=True, array_like=True):
    """Which process a member lives in: enough to tell that it has died, never enough to be wrong about it."""

    pid: int
    #: When the process started, in the platform's own unit; tells a reused pid from the old process.
    started: str
    #: Machine, boot and pid namespace: a pid means something only within the same.
    space: str


class Member(msgspec.Struct, array_like=True):
    """One member. `epoch` is the generation it joined in: it tells a member from its former life."""

    epoch: int
    #: Rank in the assignment; a static member keeps it over a restart.
    joined: int
    timeout: float
    #: Seconds on the store's clock until which it counts as alive without a sign.
    deadline: float
    process: Process | None = None
    static: bool = False
    #: A static member that closed: its share is kept until the deadline.
    away: bool = False


class Membership(msgspec.Struct, array_like=True):
    """A group's state but for its committed positions."""

    generation: int = 0
    topics: tuple[str, ...] = ()
    members: dict[str, Member] = {}
    #: topic -> partition -> member that owns it now.
    owners: dict[str, dict[int, str]] = {}

    def copy(self) -> Membership:
        members = {name: msgspec.structs.replace(member) for name, member in self.members.items()}
        return Membership(self.generation, self.topics, members, {t: dict(o) for t, o in self.owners.items()})

    def join(
        self,
        group: str,
        member: str,
        topics: Sequence[str],
        now: float,
        timeout: float,
        *,
        process: Process | None,
        static: bool,
        dead: Callable[[Process], bool],
    ) -> int:
        """Add a member, or give a static one its former place; return its epoch.

        Raises:
            BrokerError: the group reads other topics.
            Fenced: a live member has this static id.
        """
        wanted = tuple(sorted(set(topics)))
        joined = self.generation + 1
        former = self.members.get(member)
        if former is not None:
            gone = former.away or expired(former, now) or (former.process is not None and dead(former.process))
            if not gone:
                where = f" (process {former.process.pid})" if former.process is not None else ""
                raise Fenced(
                    f"group {group!r}: a live member has the static id {member!r}{where}; give each member its own"
                )
            joined = former.joined
            self._release_all(member)
        # The share of a static member that is gone waits for it, and says nothing about topics.
        others = [
            other
            for name, other in self.members.items()
            if name != member and not other.away and not (other.process is not None and dead(other.process))
        ]
        if others and self.topics != wanted:
            raise BrokerError(
                f"group {group!r} reads {', '.join(self.topics)}, and a new member wants {', '.join(wanted)};"
                " give all members the same topics, or another group"
            )
        self.topics = wanted
        self.generation += 1
        self.members[member] = Member(self.generation, joined, timeout, now + timeout, process, static)
        return self.generation

    def renew(self, member: str, now: float) -> None:
        row = self.members[member]
        row.deadline = now + row.timeout

    def leave(self, member: str, now: float) -> None:
        """Take a member out; a static one keeps its share until its deadline."""
        row = self.members[member]
        self._release_all(member)
        if row.static:
            row.away = True
            row.deadline = now + row.timeout
        else:
            del self.members[member]
            self.generation += 1

    def evict(self, now: float, dead: Callable[[Process], bool]) -> bool:
        """Take out who is dead: silent beyond its lease, or of a process that is no more.

        A static member is waited for until its lease ends: its restart is to get its share back.
        """
        gone = [
            name
            for name, member in self.members.items()
            if expired(member, now) or (not member.static and member.process is not None and dead(member.process))
        ]
        for name in gone:
            self.expel(name)
        return bool(gone)

    def expel(self, member: str) -> None:
        self._release_all(member)
        del self.members[member]
        self.generation += 1

    def clear(self) -> None:
        """Become a group that nobody ever joined, but for the generation: no epoch of a former member comes again."""
        self.generation += 1
        self.topics, self.members, self.owners = (), {}, {}

    @property
    def joined(self) -> bool:
        """Has any member joined since the beginning, or since it was cleared?"""
        return bool(self.topics)

    def _release_all(self, member: str) -> None:
        self.owners = {
            topic: kept
            for topic, owners in self.owners.items()
            if (kept := {n: owner for n, owner in owners.items() if owner != member})
        }

    def owner(self, tp: TopicPartition) -> str | None:
        return self.owners.get(tp.topic, {}).get(tp.partition)

    def take(self, member: str, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self.owners.setdefault(tp.topic, {})[tp.partition] = member

    def release(self, member: str, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            if self.owner(tp) == member:
                del self.owners[tp.topic][tp.partition]

    def owned(self, member: str) -> list[TopicPartition]:
        return [
            TopicPartition(topic, n)
            for topic, owners in self.owners.items()
            for n, owner in owners.items()
            if owner == member
        ]

    def check(self, group: str, member: str, epoch: int, tps: Iterable[TopicPartition]) -> None:
        """Raises `NotOwner` unless this life of the member owns all of these."""
        row = self.members.get(member)
        if row is None or row.epoch != epoch:
            raise NotOwner(
                f"group {group!r}: member {member!r} was taken for dead and its partitions given away;"
                " nothing was committed"
            )
        if foreign := [tp for tp in tps if self.owner(tp) != member]:
            raise NotOwner(
                f"group {group!r}: {', '.join(map(str, foreign))} is not ours any more; nothing was committed"
            )

    def live(self, now: float) -> list[str]:
        return [name for name, member in self.members.items() if not member.away and not expired(member, now)]


def expired(member: Member, now: float) -> bool:
    """Is the lease over? One that ends later than it can was given by a clock of another boot."""
    return not now <= member.deadline <= now + member.timeout + 1.0


def target(membership: Membership, partitions: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """Return what each member is to own: Kafka's range assignor, members in the order they joined."""
    ranked = sorted(membership.members, key=lambda name: (membership.members[name].joined, name))
    shares: dict[str, list[TopicPartition]] = {name: [] for name in ranked}
    for topic in membership.topics:
        each, over = divmod(partitions.get(topic, 0), len(ranked) or 1)
        first = 0
        for rank, name in enumerate(ranked):
            size = each + (rank < over)
            shares[name].extend(TopicPartition(topic, n) for n in range(first, first + size))
            first += size
    return shares
