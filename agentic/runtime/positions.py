"""Whether a group still has the positions that go with its tables' rows.

Rows and positions are of one commit. When the positions alone are gone, because somebody deleted
the group, or the broker forgot them after a long rest, reading begins anew, and the tables would
count all that is there a second time. A store that notes which positions were committed with its
rows is the proof. Rows in a changelog alone are none: they may have been loaded, or be of a
worker that died before its first commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from agentic.brokers.base import Broker, TopicInfo, TopicPartition
from agentic.errors import StateMismatch, named
from agentic.runtime.state import TaskState
from agentic.runtime.tails import Changelog

log = logging.getLogger("agentic.worker")


class Positions:
    """What is found out about the positions of tasks that are brought up together.

    Args:
        ids: of each source topic that was met; filled here, and shared by the worker's stores.
        without: the partitions that the group has no position for.
    """

    def __init__(self, broker: Broker, ids: dict[str, str], without: Iterable[TopicPartition]) -> None:
        self._broker = broker
        self._ids = ids
        self._without = frozenset(without)
        self._looked_at: dict[str, TopicInfo] = {}
        #: Partitions whose position is lost, with the offset up to which rows are known to go.
        self.lost: dict[TopicPartition, int] = {}
        #: Changelog partitions that have records, while nothing is committed of the task's sources.
        self.unsure: list[TopicPartition] = []

    async def look_at(self, state: TaskState, sources: Iterable[TopicPartition]) -> None:
        """See whether positions are lost that went with the rows of a store.

        Raises:
            BrokerUnavailable: try again.
        """
        state.sources = self._ids
        for tp in sources:
            topic = await self._topic(tp.topic)
            if state.closed:
                return  # the task has gone meanwhile
            counted = state.counted(tp.topic)
            # What a topic's own last records make is made again, whatever was read before.
            if tp not in self._without or counted is None or all(table.source is not None for table in state.buffers):
                continue
            offset, of_topic = counted
            start, _ = topic.offsets[tp.partition]
            # Of a topic that was made again, or has nothing left of what was counted, all is new.
            if of_topic == topic.id and start < offset:
                self.lost[tp] = offset

    def look_at_changelogs(self, sources: Iterable[TopicPartition], changelogs: Iterable[Changelog]) -> None:
        """Note what can't be told: rows without any position, and no store that knows of one."""
        tps = list(sources)
        if tps and self._without.issuperset(tps) and not self.lost.keys() & set(tps):
            self.unsure += [each.tp for each in changelogs if each.table.source is None and each.start < each.end]

    async def _topic(self, name: str) -> TopicInfo:
        if name not in self._looked_at:
            self._looked_at[name] = await self._broker.describe_topic(name)
            self._ids[name] = self._looked_at[name].id
        return self._looked_at[name]

    def check(self) -> None:
        """Refuse to count events a second time.

        Raises:
            StateMismatch: names the partitions, and what their positions should be.
        """
        if self.lost:
            raise StateMismatch(lost(self.lost))


def lost(positions: Mapping[TopicPartition, int]) -> str:
    """Return what to tell of positions that are gone, with the offsets up to which rows are known to go."""
    every = sorted(positions.items())
    lacking = named("partition", (str(tp) for tp, _ in every))
    return (
        f"the group has no position in {lacking} any more, and this app's tables have counted events of "
        f"{'them' if len(every) > 1 else 'it'}: read again, these would count twice; "
        f"'agentic groups set {' '.join(f'{tp}={offset}' for tp, offset in every)}' goes on after what the tables are "
        "known to have, 'agentic reset' begins anew with empty ones"
    )
