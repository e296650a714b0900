"""The embedded log as a broker: ``local://DIR``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentic.brokers.embedded.broker import EmbeddedBroker
from agentic.brokers.embedded.store import Store
from agentic.brokers.local.environment import Environment
from agentic.brokers.local.store import LocalStore
from agentic.errors import BrokerError, ConfigurationError

#: Bytes that a record may have unless the option ``record_limit`` says otherwise.
RECORD_LIMIT = 64 << 20


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
        self._record_limit = _bytes(url, limits, "record_limit", RECORD_LIMIT)
        self._map_size = _bytes(url, limits, "map_size", None)
        if limits:
            raise ConfigurationError(
                f"broker {url!r}: no option {next(iter(limits))!r}; there are record_limit and map_size"
            )
        self._local: LocalStore | None = None

    @property
    def _store(self) -> Store:
        if self._local is None:
            raise BrokerError(f"{self.url}: not open; await open() first")
        return self._local

    async def open(self, timeout: float) -> None:
        if self._local is None:
            self._local = LocalStore(
                Environment.acquire(self._directory, self._map_size), self.url, self._record_limit or RECORD_LIMIT
            )

    async def close(self) -> None:
        store, self._local = self._local, None
        if store is not None:
            store.environment.release()


def _bytes(url: str, options: dict[str, object], name: str, default: int | None) -> int | None:
    value = options.pop(name, default)
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ConfigurationError(f"broker {url!r}: {name} {value!r}: must be a number of bytes, at least 1")
    return value
