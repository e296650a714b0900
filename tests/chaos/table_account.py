"""What the tables of `tables_app` must be, what changelogs and outputs say they are, and what the local stores have."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from agentic import brokers
from agentic.brokers.base import Broker, TopicPartition
from agentic.errors import BrokerError
from agentic.state import lmdb
from agentic.state.envelope import unwrap

TABLES = ("sums", "latest")
#: Seconds for which what is committed may stay behind a changelog's end: a dead worker's transaction has to time out.
SETTLED = 60.0

#: The rows of both tables, by the table's name.
Tables = dict[str, dict[str, Any]]
#: For each number what its outputs said: how many its key had had by then, and their sum.
Said = Mapping[int, list[tuple[int, int]]]


def key_of(n: int, keys: int) -> str:
    """Return the key under which a number is sent."""
    return f"key-{n % keys}"


def truth(numbers: Iterable[int], keys: int) -> Tables:
    """Return the tables after these numbers, by a plain loop."""
    sums: dict[str, Any] = {}
    latest: dict[str, int] = {}
    for n in sorted(numbers):
        key = key_of(n, keys)
        times, total = sums.get(key, (0, 0))
        sums[key] = [times + 1, total + n]
        latest[key] = n
    return {"sums": sums, "latest": {f"{key}/{n}": n for key, n in latest.items()}}


@dataclass
class Changelog:
    """The committed records of a changelog's partition: offset, key, value, timestamp.

    Attributes:
        start: where the partition begins.
        end: up to where it was read.
    """

    start: int = 0
    end: int = 0
    records: list[tuple[int, bytes, bytes | None, int]] = field(default_factory=list)

    def fold(self, upto: int | None = None) -> dict[bytes, tuple[bytes, int]]:
        """Return the rows, value and timestamp, that the records below an offset make."""
        rows: dict[bytes, tuple[bytes, int]] = {}
        for offset, key, value, timestamp in self.records:
            if upto is not None and offset >= upto:
                break
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value, timestamp
        return rows


Changelogs = dict[TopicPartition, Changelog]


async def read(broker: Broker, app: str, *, with_open: bool, names: Iterable[str] = TABLES) -> Changelogs:
    """Read the changelogs of an app's tables.

    Args:
        names: of the tables.
        with_open: wait until each transaction that is open now has ended.
    """
    found: Changelogs = {}
    known = await broker.topics()
    for topic in (f"{app}-{table}-changelog" for table in names):
        if topic in known:
            for n, (start, _) in (await broker.describe_topic(topic)).offsets.items():
                found[TopicPartition(topic, n)] = Changelog(start)
    for tp, end in (await broker.end_offsets(found, with_open=with_open)).items():
        found[tp].end = end
    reader = broker.reader({tp: each.start for tp, each in found.items()})
    behind = {tp for tp, each in found.items() if each.start < each.end}
    try:
        async with asyncio.timeout(SETTLED):
            while behind:
                for batch in await reader.poll(0.2):
                    each = found[batch.tp]
                    for offset, key, value, timestamp in zip(batch.offsets, batch.keys, batch.values, batch.timestamps):
                        assert key is not None, f"{batch.tp} offset {offset} has no key"
                        each.records.append((offset, key, value, timestamp))
                    if batch.position >= each.end:
                        behind.discard(batch.tp)
    except TimeoutError:
        ends = {tp: found[tp].end for tp in sorted(behind)}
        raise AssertionError(f"after {SETTLED:g} s there is an open transaction still, before {ends}") from None
    finally:
        await reader.close()
    return found


def read_all(url: str, app: str, names: Iterable[str] = TABLES) -> Changelogs:
    """Read the changelogs of an app that has stopped, whatever its workers have left open."""

    async def work() -> Changelogs:
        broker = brokers.connect(url)
        await broker.open(30)
        try:
            return await read(broker, app, with_open=True, names=names)
        finally:
            await broker.close()

    return asyncio.run(work())


def tables(changelogs: Changelogs, app: str) -> Tables:
    """Return the tables that changelogs make, all partitions together."""
    found: Tables = {table: {} for table in TABLES}
    for tp, changelog in changelogs.items():
        table = tp.topic.removeprefix(f"{app}-").removesuffix("-changelog")
        for key, (value, _) in changelog.fold().items():
            assert key.decode() not in found[table], f"{table}: row {key!r} stands in two partitions"
            found[table][key.decode()] = json.loads(value)
    return found


def differences(found: Mapping[Any, Any], wanted: Mapping[Any, Any]) -> dict[Any, tuple[Any, Any]]:
    """Return what is not as wanted: by key, what is there and what should be."""
    keys = sorted(found.keys() | wanted.keys())
    return {key: (found.get(key), wanted.get(key)) for key in keys if found.get(key) != wanted.get(key)}


def wrong_outputs(said: Said, count: int, keys: int, delivery: str) -> str | None:
    """Say which outputs of the numbers below `count` are not what a plain loop makes, or less; None if none."""
    counts: dict[str, tuple[int, int]] = {}
    wrong = []
    for n in range(count):
        key = key_of(n, keys)
        times, total = counts.get(key, (0, 0))
        counts[key] = times + 1, total + n
        outputs = said.get(n, [])
        if delivery == "exactly_once":
            right = outputs == [counts[key]]
        else:
            right = bool(outputs) and all(a >= b for output in outputs for a, b in zip(output, counts[key]))
        if not right:
            wrong.append((n, key, outputs, counts[key]))
    return f"{len(wrong)} outputs are wrong; number, key, said, true: {wrong[:10]}" if wrong else None


def wrong_tables(found: Tables, wanted: Tables, delivery: str) -> str | None:
    """Say which rows are not what a plain loop makes; under at least once, which sums are less. None if none."""
    off = {table: differences(found[table], wanted[table]) for table in TABLES}
    if delivery != "exactly_once":
        off["sums"] = {
            key: (has, should)
            for key, (has, should) in off["sums"].items()
            if has is None or should is None or any(a < b for a, b in zip(has, should))
        }
    # Whatever was done again was done again in order, up to the latest: that table is the same in either case.
    return f"rows that the changelog has, and should have: {off}" if any(off.values()) else None


def marks(state_dirs: Iterable[pathlib.Path], app: str) -> dict[TopicPartition, int]:
    """Return for each changelog's partition how far the local copies that nobody has say to be, at most."""
    found: dict[TopicPartition, int] = {}
    with _free(state_dirs, app) as copies:
        for copy, store in copies:
            for table in TABLES:
                if (mark := store.mark(f"upto/{table}")) is not None:
                    tp = _log(app, table, copy)
                    found[tp] = max(found.get(tp, 0), int.from_bytes(mark))
    return found


def check_stores(state_dirs: Iterable[pathlib.Path], app: str, changelogs: Changelogs, *, compacted: bool) -> int:
    """Compare each copy of local state that nobody has with its changelog; return how many tables were compared.

    A store has exactly the rows that are committed below some offset, which is not below the one that it names:
    a worker that dies may have written rows and not said so.

    Args:
        compacted: what rows were before they were written again may be missing from the changelogs; then only
            those are compared that were not.
    """
    compared = 0
    with _free(state_dirs, app) as copies:
        for copy, store in copies:
            for table in TABLES:
                changelog = changelogs.get(_log(app, table, copy), Changelog())
                compared += _check_store(f"{copy.directory}, table {table}", store, table, changelog, compacted)
    return compared


def _check_store(where: str, store: lmdb.LmdbStore, table: str, changelog: Changelog, compacted: bool) -> bool:
    """Check one table of one copy; False where it has to be restored whole, whatever it has."""
    mark = store.mark(f"upto/{table}")
    if mark is None:
        return False
    upto = int.from_bytes(mark)
    where = f"{where} up to {upto}; changelog up to {changelog.end}"
    assert upto <= changelog.end, f"the store claims what is not committed: {where}"
    rows = {key: unwrap(blob) for key, blob in store.scan(table)}
    wanted = changelog.fold(upto)
    tail = [record for record in changelog.records if record[0] >= upto]
    if compacted:
        for _, key, _, _ in tail:
            rows.pop(key, None)
            wanted.pop(key, None)
        tail = []
    wrong = differences(rows, wanted)
    assert not _never_right(wrong, rows, tail), (
        f"rows that the store has, and should have: {dict([*wrong.items()][:5])}: {where}"
    )
    return True


def _never_right(
    wrong: Mapping[bytes, Any],
    rows: Mapping[bytes, tuple[bytes, int]],
    tail: Iterable[tuple[int, bytes, bytes | None, int]],
) -> bool:
    """Are there wrong rows after each record of the tail?"""
    left = set(wrong)
    for _, key, value, timestamp in tail:
        if not left:
            break
        right = rows.get(key) == (None if value is None else (value, timestamp))
        (left.discard if right else left.add)(key)
    return bool(left)


@contextmanager
def _free(state_dirs: Iterable[pathlib.Path], app: str) -> Iterator[list[tuple[lmdb.Copy, lmdb.LmdbStore]]]:
    """Open the copies that nobody has; one whose maker died before it was filled is none yet."""
    with ExitStack() as stack:
        found = []
        for copy in (copy for state_dir in state_dirs for copy in lmdb.copies(state_dir, app)):
            if lmdb.in_use(copy):
                continue
            try:
                found.append((copy, stack.enter_context(closing(lmdb.LmdbStore.open_readonly(copy.directory)))))
            except BrokerError as error:
                if "no state here" not in str(error):
                    raise
        yield found


def _log(app: str, table: str, copy: lmdb.Copy) -> TopicPartition:
    return TopicPartition(f"{app}-{table}-changelog", int(copy.task.rpartition("-")[2]))
