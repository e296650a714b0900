"""Reading given partitions outside any group: for restoring tables, for `tail`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import confluent_kafka as ck
from confluent_kafka import KafkaException

from agentic.brokers.base import Batch, TopicPartition
from agentic.brokers.kafka import config
from agentic.brokers.kafka.config import Config
from agentic.brokers.kafka.consumer import CLOSE, Intake
from agentic.brokers.kafka.poller import Lot, Poller


class ReaderThread(Poller):
    """Owns a consumer that is assigned its partitions by hand."""

    def __init__(
        self,
        offsets: Mapping[TopicPartition, int],
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[Lot], None],
        fail: Callable[[BaseException], None],
        settings: Config,
    ) -> None:
        super().__init__("reader", loop, "earliest", deliver, fail)
        self._offsets = dict(offsets)
        self._settings = settings

    def _open(self) -> None:
        try:
            self._consumer = ck.Consumer(self._settings)
        except (KafkaException, ValueError, TypeError) as problem:
            raise config.refused(problem, self.about) from problem
        self._owned = {tp: ck.TopicPartition(tp.topic, tp.partition, at) for tp, at in self._offsets.items()}
        self._consumer.assign(list(self._owned.values()))


class KafkaReader:
    """See `agentic.brokers.base.Reader`."""

    def __init__(self, offsets: Mapping[TopicPartition, int], settings: dict[str, Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self._intake = Intake(self._loop)
        self._intake.live = dict.fromkeys(offsets, 0)
        self._thread = ReaderThread(offsets, self._loop, self._intake.deliver, self._intake.fail, settings)
        self._intake.poller = self._thread
        self._thread.start()

    async def poll(self, timeout: float) -> list[Batch]:
        return await self._intake.poll(timeout)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._intake.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._intake.resume(partitions)

    async def close(self) -> None:
        await self._thread.stop(CLOSE)
