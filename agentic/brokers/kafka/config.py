"""librdkafka properties: what we set, what a user may change, and what would break a promise."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from agentic.brokers.kafka.errors import cause
from agentic.errors import BrokerError, ConfigurationError

log = logging.getLogger("agentic.kafka")

Config = dict[str, Any]

#: A worker that finds its broker again goes on within about a second; librdkafka's default is 10 s.
RECONNECT_MAX_MS = 1_000

#: What waits inside librdkafka, per consumer. 4 MiB of records are a sixth of a second at full
#: speed, and cost up to five times that in memory when the records are small.
QUEUED_KBYTES = 4 * 1024
#: Fetch more of a partition when fewer than this wait. Small enough to bound memory by itself
#: with small records, large enough to bridge a commit.
QUEUED_MESSAGES = 5_000

#: The same for who reads very many records, and is busy with those before for up to a second.
BULK: Config = {"queued.min.messages": 100_000, "queued.max.messages.kbytes": 32 * 1024}

#: Records a producer may hold. The worker waits at a lower mark (see producer.READY_BELOW), so
#: that this limit is met only by a burst of sends between two waits.
PRODUCER_QUEUE = 200_000
#: A record waits for its broker as long as it takes: one that timed out would be lost for good.
#: The backlog is bounded, so that what waits is too. (0: for ever.)
DELIVERY_TIMEOUT_MS = 0
#: Longer than a broker's failover (some 10 s), shorter than the default session timeout (45 s): a dead
#: worker's open transaction is gone before another one has its partitions and its readers wait for it.
TRANSACTION_TIMEOUT_MS = 30_000

_COMMON: Config = {
    "client.id": "agentic",
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
    "log.connection.close": False,
    "socket.keepalive.enable": True,
    # As in Kafka's own clients; a broker that stands still counts as away after this.
    "socket.timeout.ms": 30_000,
    # How long a topic that was just made may be unknown to a broker; a misspelt one is told after this.
    "topic.metadata.propagation.max.ms": 5_000,
}

_CONSUMER: Config = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    # An offset that is gone comes as an error, so that the reset can be logged.
    "auto.offset.reset": "error",
    # At its default of 1,000 a full queue rests for a second.
    "fetch.queue.backoff.ms": 10,
    # How long a resumed partition may wait for the fetch that is under way.
    "fetch.wait.max.ms": 50,
    "queued.min.messages": QUEUED_MESSAGES,
    "queued.max.messages.kbytes": QUEUED_KBYTES,
}

_PRODUCER: Config = {
    "enable.idempotence": True,
    "acks": "all",
    "partitioner": "murmur2_random",
    "linger.ms": 5,
    # Null keys stay with one partition for so long: full batches, and yet an even spread within a moment.
    "sticky.partitioning.linger.ms": 1,
    "queue.buffering.max.messages": PRODUCER_QUEUE,
    "delivery.report.only.error": True,
}

#: property -> (the values that keep the promise, why no other does).
_FIXED: dict[str, tuple[tuple[str, ...], str]] = {
    "bootstrap.servers": ((), "the address stands in the broker's URL"),
    "metadata.broker.list": ((), "the address stands in the broker's URL"),
    "group.id": ((), "the group is named for the app"),
    "group.instance.id": ((), "use the setting 'instance'"),
    "transactional.id": ((), "it is chosen for each worker; use the setting 'delivery'"),
    "auto.offset.reset": ((), "use the setting 'offset_reset'"),
    "enable.auto.commit": (("false",), "offsets are committed when their events are done"),
    "enable.auto.offset.store": (("false",), "offsets are committed when their events are done"),
    "enable.partition.eof": (("true",), "a quiet stream is told by its end"),
    "isolation.level": (("read_committed",), "an aborted transaction must not be read"),
    "partition.assignment.strategy": (("range",), "only range brings co-partitioned topics together"),
    "group.remote.assignor": (("range",), "only range brings co-partitioned topics together"),
    "partitioner": (("murmur2_random", "murmur2"), "a key must go where Kafka's own clients send it"),
    "enable.idempotence": (("true",), "a retry must neither double nor reorder records"),
    "acks": (("all", "-1"), "an acknowledged record must survive its broker"),
    "request.required.acks": (("all", "-1"), "an acknowledged record must survive its broker"),
    "delivery.report.only.error": (("true",), "reports of success are not read"),
    "on_delivery": ((), "delivery is watched by the producer"),
    "dr_cb": ((), "delivery is watched by the producer"),
    "error_cb": ((), "errors are logged by agentic.kafka and raised"),
    "on_commit": ((), "commits are answered by the consumer"),
    "logger": ((), "librdkafka's lines go to the logger agentic.kafka.librdkafka"),
}

#: The KIP-848 protocol refuses these: there the broker decides. Who sets one means the classic protocol.
CLASSIC_ONLY = ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy", "group.protocol.type")


class _ClientLog:
    """Takes librdkafka's own lines: all at DEBUG, since what matters is raised or logged once by us."""

    def __init__(self) -> None:
        self._log = logging.getLogger("agentic.kafka.librdkafka")

    def log(self, level: int, form: str, *values: object) -> None:
        self._log.debug(form, *values)


def address(url: str) -> str:
    """Return the bootstrap servers of ``kafka://HOST:PORT[,HOST:PORT…]``.

    Raises:
        ConfigurationError: no host, or a port that is none.
    """
    servers = url.partition("://")[2].rstrip("/").split(",")
    for server in servers:
        match = re.fullmatch(r"([\w.-]+|\[[0-9A-Fa-f:.%\w]+\])(?::(\d+))?", server.strip())
        if not match or (match[2] and not 0 < int(match[2]) < 65536):
            raise ConfigurationError(f"broker {url!r}: {server!r} is no address; write kafka://HOST:PORT,HOST:PORT")
    return ",".join(server.strip() if re.search(r":\d+$", server) else f"{server.strip()}:9092" for server in servers)


def check(options: Mapping[str, object]) -> None:
    """Refuse properties whose change would break a promise.

    Raises:
        ConfigurationError: names the property, the value and why.
    """
    for name, value in options.items():
        if name not in _FIXED:
            continue
        allowed, why = _FIXED[name]
        text = str(value).lower()
        if text not in allowed:
            way = f"leave it out or write {allowed[0]!r}" if allowed else "leave it out"
            raise ConfigurationError(f"kafka property {name!r}: {value!r} can't be used: {why}; {way}")
    protocol = options.get("group.protocol")
    if protocol not in (None, "classic", "consumer"):
        raise ConfigurationError(f"kafka property 'group.protocol': {protocol!r} is neither 'classic' nor 'consumer'")
    if protocol == "consumer" and (given := [name for name in CLASSIC_ONLY if name in options]):
        raise ConfigurationError(
            f"kafka property {given[0]!r} can't be used with group.protocol=consumer: there the broker decides"
        )


def common(servers: str, options: Mapping[str, object]) -> Config:
    """Return the properties of every client."""
    return {"bootstrap.servers": servers, **_COMMON, **_user(options), "logger": _ClientLog()}


def consumer(servers: str, options: Mapping[str, object], group: str, *, bulk: bool = False) -> Config:
    """Return the properties of a consumer, without those of its membership."""
    return {**common(servers, {}), **_CONSUMER, **(BULK if bulk else {}), "group.id": group, **_user(options)}


def member(
    servers: str, options: Mapping[str, object], group: str, instance: str | None, session: float, classic: bool
) -> Config:
    """Return the properties of a group's member under the one protocol or the other."""
    config = consumer(servers, options, group)
    if instance is not None:
        config["group.instance.id"] = instance
    if classic:
        config["group.protocol"] = "classic"
        config["partition.assignment.strategy"] = "range"
        config.setdefault("session.timeout.ms", round(session * 1_000))
        config.setdefault("heartbeat.interval.ms", min(3_000, int(config["session.timeout.ms"]) // 3))
        config.setdefault("max.poll.interval.ms", max(300_000, int(config["session.timeout.ms"])))
    else:
        config["group.protocol"] = "consumer"
        config["group.remote.assignor"] = "range"
    return config


def producer(servers: str, options: Mapping[str, object], transactional_id: str | None) -> Config:
    """Return the properties of a producer."""
    config = {**common(servers, {}), **_PRODUCER, **_user(options)}
    timeout = DELIVERY_TIMEOUT_MS
    if transactional_id is not None:
        config["transactional.id"] = transactional_id
        config.setdefault("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
        timeout = int(config["transaction.timeout.ms"])
    if "delivery.timeout.ms" not in config:
        config.setdefault("message.timeout.ms", timeout)
    return config


def refused(problem: KafkaException | ValueError | TypeError, url: str) -> ConfigurationError | BrokerError:
    """Return the error to raise when a client can't be made."""
    error = cause(problem) if isinstance(problem, KafkaException) else None
    text = " ".join((error.str() if error else str(problem)).split())
    if error is None or error.code() in (KafkaError._INVALID_ARG, KafkaError._CONFLICT, KafkaError._NOT_IMPLEMENTED):
        return ConfigurationError(
            f"kafka properties: {text}; names and values are those of librdkafka's CONFIGURATION.md"
        )
    return BrokerError(f"{url}: a client can't be made: {text}")


def _user(options: Mapping[str, object]) -> Config:
    return dict(options)
