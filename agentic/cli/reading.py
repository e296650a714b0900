"""Reading a stretch of partitions to its end, or an error where the broker sends no more of it."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping

from agentic.brokers.base import Batch, Broker, TopicPartition
from agentic.errors import BrokerUnavailable

#: Seconds without any news after which a partition that has not come to its end is given up.
PATIENCE = 15.0


async def between(
    broker: Broker, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> AsyncIterator[Batch]:
    """Yield the records of partitions between two offsets each.

    Raises:
        BrokerUnavailable: for `PATIENCE` seconds nothing came of what is missing.
    """
    left = {tp: start for tp, start in starts.items() if start < ends[tp]}
    if not left:
        return
    reader = broker.reader(left)
    deadline = time.monotonic() + PATIENCE
    try:
        while left:
            batches = await reader.poll(1.0)
            if batches:
                deadline = time.monotonic() + PATIENCE
            elif time.monotonic() > deadline:
                waiting = ", ".join(f"{tp} at {offset}" for tp, offset in left.items())
                raise BrokerUnavailable(f"{broker.url} sends nothing more of {waiting} for {PATIENCE:g} s; try again")
            for batch in batches:
                if batch.tp not in left:
                    continue
                yield _until(batch, ends[batch.tp])
                left[batch.tp] = batch.position
                if batch.position >= ends[batch.tp]:
                    del left[batch.tp]
    finally:
        await reader.close()


def _until(batch: Batch, end: int) -> Batch:
    if batch.position <= end:
        return batch
    size = bisect_left(batch.offsets, end)
    columns = (batch.offsets, batch.timestamps, batch.keys, batch.values, batch.headers)
    offsets, timestamps, keys, values, headers = (column[:size] for column in columns)
    return Batch(batch.tp, offsets, timestamps, keys, values, headers, end, batch.end)  # type: ignore[arg-type]
