"""Kafka through librdkafka: ``kafka://HOST:PORT[,HOST:PORT…]``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from agentic.brokers.base import GroupInfo, Position, TopicInfo, TopicPartition, TopicSpec
from agentic.brokers.kafka import config
from agentic.brokers.kafka.admin import Admin
from agentic.brokers.kafka.consumer import KafkaConsumer
from agentic.brokers.kafka.incident import Incidents
from agentic.brokers.kafka.member import Member, Protocols
from agentic.brokers.kafka.poller import Lot
from agentic.brokers.kafka.producer import KafkaProducer
from agentic.brokers.kafka.reader import KafkaReader
from agentic.brokers.kafka.transactions import TransactionalProducer
from agentic.errors import BrokerError, BrokerUnavailable


class KafkaBroker:
    """See `agentic.brokers.base.Broker`.

    Args:
        url: the bootstrap servers; a port left out is 9092.
        options: librdkafka properties for all clients.

    Raises:
        ConfigurationError: an address that is none, or a property whose change would break a promise.
    """

    creates_topics = False

    def __init__(self, url: str, options: Mapping[str, object]) -> None:
        self.url = url
        self._options = dict(options)
        self._servers = config.address(url)
        config.check(options)
        self._protocols = Protocols(options)
        self._open_admin: Admin | None = None
        self._incidents: Incidents | None = None
        self._last_error: Any = None

    async def open(self, timeout: float) -> None:
        try:
            admin = Admin({**config.common(self._servers, self._options), "error_cb": self._heard}, self.url)
        except (KafkaException, ValueError, TypeError) as problem:
            raise config.refused(problem, self.url) from problem
        try:
            await admin.metadata(timeout=timeout)
        except BrokerUnavailable:
            raise self._unreachable(timeout) from None
        self._open_admin = admin
        self._incidents = Incidents(admin, self.url)

    def _heard(self, error: Any) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last_error = error
        if self._incidents is not None:
            self._incidents.error_cb(error)

    def _unreachable(self, timeout: float) -> BrokerError:
        error = self._last_error
        if error is not None and error.code() == KafkaError._AUTHENTICATION:
            return BrokerError(
                f"{self.url}: {error.str()}; check the sasl.* and ssl.* properties of the setting 'kafka'"
            )
        reason = f" ({error.str()})" if error is not None else ""
        return BrokerUnavailable(
            f"{self.url}: no broker answered within {timeout:g} s{reason};"
            " check that it runs, the address, and security.protocol"
        )

    async def close(self) -> None:
        if self._incidents is not None:
            self._incidents.close()
        self._incidents = self._open_admin = None

    @property
    def _admin(self) -> Admin:
        if self._open_admin is None:
            raise BrokerError(f"{self.url}: not open; await open() first")
        return self._open_admin

    def consumer(
        self,
        group: str,
        topics: Sequence[str],
        *,
        instance: str | None = None,
        offset_reset: str = "earliest",
        session_timeout: float = 45.0,
    ) -> KafkaConsumer:
        def settings(classic: bool) -> config.Config:
            return config.member(self._servers, self._options, group, instance, session_timeout, classic)

        def member(
            loop: asyncio.AbstractEventLoop,
            owner: KafkaConsumer,
            deliver: Callable[[Lot], None],
            fail: Callable[[BaseException], None],
        ) -> Member:
            return Member(
                group,
                topics,
                loop,
                owner,
                deliver,
                fail,
                instance=instance,
                offset_reset=offset_reset,
                session=session_timeout,
                protocols=self._protocols,
                make_config=settings,
                error_cb=self._heard,
            )

        return KafkaConsumer(group, member)

    def reader(self, offsets: Mapping[TopicPartition, int], *, bulk: bool = False) -> KafkaReader:
        settings = config.consumer(self._servers, self._options, "agentic-reader", bulk=bulk)
        return KafkaReader(offsets, {**settings, "error_cb": self._heard})

    def producer(self, *, transactional_id: str | None = None) -> KafkaProducer:
        settings = config.producer(self._servers, self._options, transactional_id)
        if transactional_id is None:
            return KafkaProducer(settings, self.url, self._heard)
        return TransactionalProducer(settings, self.url, self._heard)

    async def topics(self) -> dict[str, int]:
        return await self._admin.topics()

    async def describe_topic(self, name: str) -> TopicInfo:
        return await self._admin.describe_topic(name)

    async def create_topics(self, specs: Iterable[TopicSpec]) -> None:
        await self._admin.create_topics(specs)

    async def delete_topics(self, names: Iterable[str]) -> None:
        await self._admin.delete_topics(names)

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], *, with_open: bool = False
    ) -> dict[TopicPartition, int]:
        return await self._admin.end_offsets(partitions, with_open=with_open)

    async def delete_records(self, offsets: Mapping[TopicPartition, int]) -> None:
        await self._admin.delete_records(offsets)

    async def groups(self) -> list[str]:
        return await self._admin.groups()

    async def describe_group(self, name: str) -> GroupInfo:
        return await self._admin.describe_group(name)

    async def delete_group(self, name: str) -> None:
        await self._admin.delete_group(name)

    async def set_positions(self, group: str, positions: Mapping[TopicPartition, Position | None]) -> None:
        await self._admin.set_positions(group, positions)
