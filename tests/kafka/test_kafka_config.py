"""Addresses and librdkafka properties: what is refused, and that it says why."""

from __future__ import annotations

import asyncio

import pytest

from agentic.brokers.kafka import KafkaBroker, config
from agentic.errors import BrokerUnavailable, ConfigurationError

NOBODY = "kafka://127.0.0.1:1"


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("kafka://one", "one:9092"),
        ("kafka://one:1234,two.example:9,10.0.0.1/", "one:1234,two.example:9,10.0.0.1:9092"),
        ("kafka://[::1]:9092", "[::1]:9092"),
    ],
)
def test_an_address_may_leave_out_the_port(url: str, servers: str) -> None:
    assert config.address(url) == servers


@pytest.mark.parametrize("url", ["kafka://", "kafka://one,,two", "kafka://one:x", "kafka://one:70000", "kafka://a b:1"])
def test_an_address_that_is_none_is_refused_with_the_way_to_write_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match="write kafka://HOST:PORT"):
        KafkaBroker(url, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable.auto.commit", True),
        ("enable.auto.offset.store", "true"),
        ("isolation.level", "read_uncommitted"),
        ("partition.assignment.strategy", "cooperative-sticky"),
        ("group.remote.assignor", "uniform"),
        ("partitioner", "consistent_random"),
        ("enable.idempotence", False),
        ("acks", 1),
        ("group.id", "mine"),
        ("bootstrap.servers", "elsewhere:9092"),
        ("transactional.id", "mine"),
        ("group.protocol", "streams"),
    ],
)
def test_a_property_that_would_break_a_promise_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=name):
        KafkaBroker(NOBODY, {name: value})


def test_a_property_may_repeat_what_holds_anyway() -> None:
    KafkaBroker(NOBODY, {"enable.auto.commit": False, "acks": "all", "partitioner": "murmur2_random"})


@pytest.mark.parametrize(("name", "value"), [("no.such.property", 1), ("fetch.wait.max.ms", "soon")])
def test_a_property_that_librdkafka_refuses_is_named_when_the_broker_is_opened(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=name):
        asyncio.run(KafkaBroker(NOBODY, {name: value}).open(1))


def test_properties_of_the_classic_protocol_are_refused_with_the_new_one() -> None:
    with pytest.raises(ConfigurationError, match=r"session\.timeout\.ms"):
        KafkaBroker(NOBODY, {"group.protocol": "consumer", "session.timeout.ms": 10_000})


def test_a_users_property_wins_over_a_default_of_ours() -> None:
    settings = config.consumer("one:9092", {"fetch.wait.max.ms": 7, "client.id": "me"}, "group")
    assert (settings["fetch.wait.max.ms"], settings["client.id"]) == (7, "me")


def test_a_session_timeout_goes_to_the_classic_protocol_alone() -> None:
    classic = config.member("one:9092", {}, "group", "slot-1", 6.0, classic=True)
    assert (classic["session.timeout.ms"], classic["heartbeat.interval.ms"]) == (6_000, 2_000)
    assert classic["partition.assignment.strategy"] == "range"
    new = config.member("one:9092", {}, "group", "slot-1", 6.0, classic=False)
    assert not set(config.CLASSIC_ONLY) & new.keys()
    assert (new["group.remote.assignor"], new["group.instance.id"]) == ("range", "slot-1")


def test_a_transactions_records_may_not_outlive_it() -> None:
    settings = config.producer("one:9092", {"transaction.timeout.ms": 5_000}, "id")
    assert settings["message.timeout.ms"] <= settings["transaction.timeout.ms"] == 5_000


def test_a_broker_that_is_not_there_is_named_within_the_time_given() -> None:
    with pytest.raises(BrokerUnavailable, match=r"kafka://127\.0\.0\.1:1: no broker answered within 0\.3 s"):
        asyncio.run(KafkaBroker(NOBODY, {}).open(0.3))
