"""The embedded log as a broker: ``local://DIR``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl

from agentic.brokers.embedded.broker import RECORD_LIMIT, EmbeddedBroker, byte_option
from agentic.brokers.embedded.store import Store
from agentic.brokers.local.environment import Environment
from agentic.brokers.local.housekeeping import Housekeeper
from agentic.brokers.local.store import LocalStore
from agentic.errors import BrokerError, ConfigurationError


class LocalBroker(EmbeddedBroker):
    """See `agentic.brokers.base.Broker`.

    Args:
        url: ``local://DIR`` or, with options, ``local://DIR?sync=true&record_limit=1000000``; the
            directory is made when the broker is opened.
        options: ``sync``, true to have each write on the disk before it is acknowledged, so that a
            power cut takes nothing (see `agentic.brokers.local.environment`); ``record_limit``,
            bytes of key, value and headers of one record; ``map_size``, bytes of address space to
            begin with.

    Raises:
        ConfigurationError: no directory, or an unknown or impossible option.
    """

    def __init__(self, url: str, options: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self.url = url
        directory, _, query = url.removeprefix("local://").partition("?")
        if not directory:
            raise ConfigurationError(f"broker {url!r}: no directory; write local://DIR")
        self._directory = Path(directory).expanduser()
        given = {**_parsed(query), **(options or {})}
        self._record_limit = byte_option(url, given, "record_limit") or RECORD_LIMIT
        self._map_size = byte_option(url, given, "map_size")
        sync = given.pop("sync", False)
        if not isinstance(sync, bool):
            raise ConfigurationError(f"broker {url!r}: sync {sync!r}: must be true or false")
        self._sync = sync
        if given:
            raise ConfigurationError(
                f"broker {url!r}: no option {next(iter(given))!r}; there are sync, record_limit and map_size"
            )
        self._local: LocalStore | None = None
        self._housekeeping: asyncio.Task[None] | None = None

    @property
    def _store(self) -> Store:
        if self._local is None:
            raise BrokerError(f"{self.url}: not open; await open() first")
        return self._local

    async def open(self, timeout: float) -> None:
        if self._local is None:
            environment = Environment.acquire(self._directory, self._map_size, self._sync)
            self._local = LocalStore(environment, self.url, self._record_limit)
            housekeeper = Housekeeper(self._local)
            self._housekeeping = asyncio.create_task(housekeeper.run(), name=f"housekeeping of {self.url}")

    async def close(self) -> None:
        store, self._local = self._local, None
        if store is not None:
            if self._housekeeping is not None:
                self._housekeeping.cancel()
                await asyncio.wait([self._housekeeping])
            store.environment.release()


def _parsed(query: str) -> dict[str, object]:
    """The options of a URL: true, false, or a number, and what is neither as it stands."""
    words: dict[str, object] = {"true": True, "false": False}
    return {
        name: words.get(value, int(value) if value.isdecimal() else value)
        for name, value in parse_qsl(query, keep_blank_values=True)
    }
