"""The embedded log as a broker: ``local://DIR``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from agentic.brokers.embedded.broker import RECORD_LIMIT, EmbeddedBroker, byte_option
from agentic.brokers.embedded.store import Store
from agentic.brokers.local.environment import Environment
from agentic.brokers.local.housekeeping import Housekeeper
from agentic.brokers.local.store import LocalStore
from agentic.errors import BrokerError, ConfigurationError


class LocalBroker(EmbeddedBroker):
    """See `agentic.brokers.base.Broker`.

    Args:
        url: ``local://DIR``; the directory is made when the broker is opened.
        options: ``record_limit``, bytes of key, value and headers of one record;
            ``map_size``, bytes of address space to begin with.

    Raises:
        ConfigurationError: no directory, or an unknown option.
    """

    def __init__(self, url: str, options: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self.url = url
        directory = url.removeprefix("local://")
        if not directory:
            raise ConfigurationError(f"broker {url!r}: no directory; write local://DIR")
        self._directory = Path(directory).expanduser()
        limits = dict(options or {})
        self._record_limit = byte_option(url, limits, "record_limit") or RECORD_LIMIT
        self._map_size = byte_option(url, limits, "map_size")
        if limits:
            raise ConfigurationError(
                f"broker {url!r}: no option {next(iter(limits))!r}; there are record_limit and map_size"
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
            environment = Environment.acquire(self._directory, self._map_size)
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
