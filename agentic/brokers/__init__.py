"""Drivers for a log: Kafka, the embedded log, and memory for tests.

`connect` picks the driver by the scheme of a URL and imports it only then, so that nobody
pays for a client that is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from agentic.brokers.base import Broker
from agentic.errors import ConfigurationError

#: scheme -> (module, class) of its driver.
DRIVERS = {
    "kafka": ("agentic.brokers.kafka", "KafkaBroker"),
    "local": ("agentic.brokers.local", "LocalBroker"),
    "memory": ("agentic.brokers.memory", "MemoryBroker"),
}


def connect(url: str, options: Mapping[str, object] | None = None) -> Broker:
    """Return the driver for a URL, without any I/O.

    Args:
        url: ``kafka://HOST:PORT[,HOST:PORT…]``, ``local://DIRECTORY`` or ``memory://[NAME]``.
        options: further settings for the driver; for Kafka, librdkafka properties.

    Raises:
        ConfigurationError: the URL has no scheme, or one that no driver has.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in DRIVERS:
        raise ConfigurationError(
            f"broker {url!r}: no such scheme; write local://DIRECTORY, kafka://HOST:PORT or memory://"
        )
    module, name = DRIVERS[scheme]
    driver = getattr(import_module(module), name)
    return cast(Broker, driver(url, dict(options or {})))
