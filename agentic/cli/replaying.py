"""Dead letters as a topic has them, and how records are sent back from there.

What was sent back is remembered as a worker remembers what it has done: a consumer group, named
after the dead letter topic, has for each partition the offset below which nothing is left, and in
the metadata of that what was sent back beyond. So a second replay sends none of them again,
whoever starts it, from whichever machine, with or without the app.

While it sends, a replay is the group's only member, and each lot goes out in one transaction with
what is to be remembered of it: a replay that is killed has sent a lot and knows it, or neither.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from agentic.brokers.base import Broker, Consumer, Position, Producer, TopicInfo, TopicPartition
from agentic.cli.lookup import partitions_of
from agentic.cli.reading import between
from agentic.cli.tail import Row, rows_of
from agentic.core.metadata import Progress, decode, encode
from agentic.errors import AgenticError, BrokerError, ConfigurationError, many
from agentic.runtime.letters import STORY, Story

#: Letters of one transaction.
LOT = 1_000
#: Seconds of silence after which a replay that was killed does not count as under way any more.
SESSION = 10.0
#: Seconds to wait for all partitions: a replay that was killed has them for a session.
PATIENCE = 3 * SESSION

#: A letter's place: partition and offset.
Place = tuple[int, int]


class Letter(NamedTuple):
    """A dead letter.

    Attributes:
        row: the record as it stands in the dead letter topic.
        story: what its headers say.
        replayed: was it sent back?
    """

    row: Row
    story: Story
    replayed: bool


@dataclass(frozen=True)
class Wanted:
    """Which letters are meant; what is None, or empty, excludes none.

    Attributes:
        agent: who gave it up.
        error: a part of the reason, in any case of letters.
        since: the least timestamp of the event, in ms.
        places: partitions with offsets.
    """

    agent: str | None = None
    error: str | None = None
    since: int | None = None
    places: frozenset[Place] = frozenset()

    def __call__(self, letter: Letter) -> bool:
        row, story = letter.row, letter.story
        return (
            (self.agent is None or self.agent == story.agent)
            and (self.error is None or self.error.casefold() in story.error.casefold())
            and (self.since is None or story.timestamp >= self.since)
            and (not self.places or (row.partition, row.offset) in self.places)
        )


class Account:
    """What was sent back of a topic.

    Args:
        positions: what the group has committed.
        ends: where the partitions end; a position beyond that is of a topic of this name that is gone.
    """

    def __init__(self, positions: Mapping[TopicPartition, Position], ends: Mapping[int, int]) -> None:
        self.positions = {tp: at for tp, at in positions.items() if at.offset <= ends.get(tp.partition, -1)}
        self._known: dict[int, tuple[int, int, frozenset[int]]] = {}
        for tp, (base, metadata) in self.positions.items():
            progress = decode(base, metadata)
            self._known[tp.partition] = (base, progress.known_to, frozenset(progress.unfinished))

    def has(self, partition: int, offset: int) -> bool:
        """Was the letter at this place sent back?"""
        base, known_to, left = self._known.get(partition, (0, 0, frozenset()))
        return offset < base or (offset < known_to and offset not in left)

    def known_to(self, partition: int) -> int:
        """Return the offset beyond which nothing was sent back."""
        return self._known.get(partition, (0, 0, frozenset()))[1]


@dataclass
class Plan:
    """What a replay is to do.

    Attributes:
        chosen: by partition the offsets of what is sent, rising.
        left: likewise of what may be sent another time.
        targets: how many go to each topic.
        missing: how many came from topics that are not there.
        before: how many are left out since they were sent back before.
        known: what was remembered when the plan was made.
    """

    chosen: dict[int, list[int]] = field(default_factory=dict)
    left: dict[int, list[int]] = field(default_factory=dict)
    targets: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    before: int = 0
    known: Mapping[TopicPartition, Position] = field(default_factory=dict)


class Letters:
    """The dead letters of one topic, as far as it went when this was made.

    Attributes:
        found: letters read so far.
        others: records read so far that are no letters.
    """

    def __init__(self, broker: Broker, info: TopicInfo, kept: Mapping[TopicPartition, Position]) -> None:
        self._broker = broker
        self._info = info
        self._ends = {n: end for n, (_, end) in info.offsets.items()}
        self._account = Account(kept, self._ends)
        self.topic = info.name
        self._partitions = [TopicPartition(info.name, n) for n in info.offsets]
        self.found = 0
        self.others = 0

    @classmethod
    async def of(cls, topic: str, broker: Broker) -> Letters:
        """Look at a topic. Raises `UnknownTopic`."""
        await partitions_of(topic, broker)
        info = await broker.describe_topic(topic)
        kept = (await broker.describe_group(group_of(topic))).positions
        return cls(broker, info, kept)

    async def read(self) -> AsyncIterator[Letter]:
        """Yield the letters, those of a partition in the order of their offsets."""
        self.found = self.others = 0
        starts = {TopicPartition(self.topic, n): start for n, (start, _) in self._info.offsets.items()}
        ends = {TopicPartition(self.topic, n): end for n, (_, end) in self._info.offsets.items()}
        async for batch in between(self._broker, starts, ends):
            for row in rows_of(batch):
                if letter := self._letter(row):
                    yield letter

    async def at(self, place: Place) -> Letter:
        """Return the letter at a place.

        Raises:
            ConfigurationError: there is no record, or it is no dead letter.
        """
        n, offset = place
        if n not in self._info.offsets:
            raise ConfigurationError(
                f"topic {self.topic!r} has no partition {n}, only 0 to {len(self._info.offsets) - 1}"
            )
        start, end = self._info.offsets[n]
        tp = TopicPartition(self.topic, n)
        if start <= offset < end:
            async for batch in between(self._broker, {tp: offset}, {tp: offset + 1}):
                for row in rows_of(batch):
                    if letter := self._letter(row):
                        return letter
                    raise ConfigurationError(f"{tp}@{offset} is no dead letter: its headers lack {', '.join(STORY)}")
        raise ConfigurationError(
            f"{tp} has no record at offset {offset}; see 'agentic dead-letters ls {self.topic}' for those there are"
        )

    def _letter(self, row: Row) -> Letter | None:
        story = Story.of(row.headers)
        if story is None:
            self.others += 1
            return None
        self.found += 1
        return Letter(row, story, self._account.has(row.partition, row.offset))

    def check(self) -> None:
        """Raise `ConfigurationError` where records were read, and none of them was a letter."""
        if self.others and not self.found:
            raise ConfigurationError(
                f"topic {self.topic!r} holds no dead letters: none of its {many(self.others, 'record')} has the "
                f"headers of one, {STORY[0]} and so on; name the topic that is declared as dead_letter="
            )

    # -- sending back -------------------------------------------------------------------------

    async def plan(self, wanted: Wanted, *, to: str | None, again: bool) -> Plan:
        """Say what a replay does.

        Args:
            to: where all go; None: each to the topic that it came from.
            again: those too that were sent back before.

        Raises:
            ConfigurationError: the topic holds no dead letters, or what is chosen is so scattered that
                it could not be remembered.
        """
        plan = Plan(known=self._account.positions)
        known = await self._broker.topics()
        async for letter in self.read():
            n, offset, target = letter.row.partition, letter.row.offset, to or letter.story.topic
            meant = wanted(letter)
            if meant and target in known and (again or not letter.replayed):
                plan.chosen.setdefault(n, []).append(offset)
                plan.targets[target] += 1
                continue
            if not letter.replayed:
                plan.left.setdefault(n, []).append(offset)
            if meant and letter.replayed and not again:
                plan.before += 1
            elif meant:
                plan.missing[target] += 1
        self.check()
        for n, chosen in plan.chosen.items():
            self._position(plan, n, len(chosen))
        return plan

    async def send(self, plan: Plan, *, to: str | None) -> int:
        """Send what was planned, and return how many that were.

        Raises:
            ConfigurationError: another replay of the topic is under way, or has been since the plan was made.
            BrokerError: one is refused; what was sent before it is remembered.
        """
        known = await self._broker.topics()
        chosen = {(n, offset) for n, offsets in plan.chosen.items() for offset in offsets}
        group = group_of(self.topic)
        sent: Counter[int] = Counter()
        async with _alone(self._broker, group, self._partitions) as (consumer, kept):
            if Account(kept, self._ends).positions != plan.known:
                raise ConfigurationError(f"another replay of {self.topic!r} has sent letters meanwhile; start again")
            producer = self._broker.producer(transactional_id=group)
            try:
                async for letter in self.read():
                    row, story = letter.row, letter.story
                    if (row.partition, row.offset) not in chosen:
                        continue
                    place = f"{self.topic}-{row.partition}@{row.offset}"
                    # Where it came from, it has its key's other records about it. Another topic may be laid out
                    # otherwise.
                    back = to is None and story.partition < known[story.topic]
                    try:
                        producer.send(
                            to or story.topic,
                            row.key,
                            row.value,
                            story.timestamp,
                            story.marked(place),
                            story.partition if back else -1,
                        )
                    except AgenticError as error:
                        await self._settle(producer, consumer, plan, sent)
                        went = many(sent.total(), "letter")
                        raise BrokerError(f"{place} can't be sent: {error}; {went} before it went out") from error
                    sent[row.partition] += 1
                    if sent.total() % LOT == 0:
                        await self._settle(producer, consumer, plan, sent)
                await self._settle(producer, consumer, plan, sent)
            finally:
                await producer.close()
        return sent.total()

    async def _settle(self, producer: Producer, consumer: Consumer, plan: Plan, sent: Mapping[int, int]) -> None:
        positions = {TopicPartition(self.topic, n): self._position(plan, n, count) for n, count in sent.items()}
        if positions:
            # What keeps us a member.
            await consumer.poll(0)
            await producer.commit_transaction(positions, consumer)

    def _position(self, plan: Plan, partition: int, count: int) -> Position:
        """Return what is to be remembered of a partition once so many of its chosen letters are sent."""
        chosen = plan.chosen[partition]
        known_to = max(self._account.known_to(partition), chosen[count - 1] + 1)
        # Of what is sent once more, it stays known that it was sent.
        fresh = [offset for offset in chosen[count:] if not self._account.has(partition, offset)]
        left = sorted(plan.left.get(partition, []) + fresh)
        base = min(left[0], known_to) if left else known_to
        progress = Progress(None, tuple(offset for offset in left if offset < known_to), known_to)
        try:
            position = Position(base, encode(base, progress))
        except ValueError:
            position = Position(-1)
        if decode(base, position.metadata) != progress:
            raise ConfigurationError(
                f"{self.topic}-{partition}: what would be sent back is too scattered among {many(len(left), 'letter')} "
                "that would stay, and could not be remembered; send back more at once: leave out --agent and --error"
            )
        return position


class _Owner:
    """Keeps what a member of a group owns: see `agentic.brokers.base.Listener`."""

    def __init__(self) -> None:
        self.kept: dict[TopicPartition, Position | None] = {}

    async def on_assigned(self, positions: Mapping[TopicPartition, Position | None]) -> None:
        self.kept.update(positions)

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            del self.kept[tp]

    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        await self.on_revoked(partitions)


@asynccontextmanager
async def _alone(
    broker: Broker, group: str, partitions: Iterable[TopicPartition]
) -> AsyncIterator[tuple[Consumer, dict[TopicPartition, Position]]]:
    """Be the owner of all partitions; yields the consumer, and what the group has committed.

    Raises:
        ConfigurationError: another member has some.
    """
    wanted = set(partitions)
    owner = _Owner()
    consumer = broker.consumer(group, sorted({tp.topic for tp in wanted}), session_timeout=SESSION)
    await consumer.start(owner)
    try:
        deadline = time.monotonic() + PATIENCE
        while set(owner.kept) != wanted:
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"group {group!r} has another member: a replay is under way; wait until it has ended"
                )
            await consumer.poll(0.1)
            # The letters are read apart.
            consumer.pause(owner.kept)
        yield consumer, {tp: at for tp, at in owner.kept.items() if at is not None}
    finally:
        await consumer.close()


def group_of(topic: str) -> str:
    """Return the name of the consumer group that remembers what was sent back of a dead letter topic."""
    return f"{topic}-replayed"
