"""Keys go where Kafka's clients put them."""

from __future__ import annotations

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.core.partitioning import murmur2, partition_of


@given(st.binary(max_size=70), st.integers(1, 1000))
def test_partitions_are_those_of_librdkafka(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) == confluent_kafka.murmur2(key, partitions)


@pytest.mark.parametrize(
    ("key", "expected"),
    # From the unit test of Kafka's own Utils.murmur2, as signed integers.
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)],
)
def test_hashes_are_those_of_the_java_client(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % 2**32
