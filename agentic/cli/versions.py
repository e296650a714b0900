"""Loading a table with versions: a line of a file is a version, a record of the changelog all versions of a key."""

from __future__ import annotations

from agentic.brokers.base import Headers, Producer
from agentic.core import versioned
from agentic.core.versioned import EMPTY, NOTHING_OBSERVED, Versions

#: Rows between two looks at the producer's backlog.
LOT = 1_000
#: In ms: while a row is put together no version is too old, the workers judge that.
_FOR_EVER = 1 << 64


class Gathering:
    """A `Sink` that puts the versions of each key together, in memory, and sends them as one record.

    Args:
        producer: takes the records; closed with this.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._rows: dict[tuple[str, bytes, int], Versions] = {}

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers | None = None,
        partition: int = -1,
    ) -> None:
        """Take a version over."""
        assert key is not None, "a line without a key is refused before"
        place = (topic, key, partition)
        put = versioned.put(
            self._rows.get(place, EMPTY), timestamp, value, observed=NOTHING_OBSERVED, history=_FOR_EVER
        )
        assert put is not None, "none is too old"
        self._rows[place] = put.versions

    async def ready(self) -> None:
        """Return at once: nothing is under way."""

    async def flush(self) -> None:
        """Send the rows; return when the broker has them."""
        for number, ((topic, key, partition), versions) in enumerate(self._rows.items(), 1):
            row = versioned.encode(versions)
            self._producer.send(topic, key, row, versions.timestamps[0], None, partition)
            if number % LOT == 0:
                await self._producer.ready()
        self._rows.clear()
        await self._producer.flush()

    async def close(self) -> None:
        """Stop; what was not flushed is lost."""
        await self._producer.close()
