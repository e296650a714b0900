"""Workers of `async_app`: a fleet that is killed at random, and a scene whose workers come and go one by one."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import async_account
import table_account
from async_account import Diary, Outputs, Replays
from fleet import PARTITIONS, Fleet
from scene import PATIENCE, Scene
from table_account import key_of

from agentic.core.partitioning import partition_of


def _hear(outputs: Outputs, topic: str, value: bytes) -> int:
    if topic.endswith("-refused"):
        n = int(value)
        outputs.letters[n] += 1
        return n
    n, times, total, pid = json.loads(value)
    outputs.hear_output(n, (times, total, pid))
    return int(n)


class AsyncFleet(Fleet):
    """Workers that are killed with much in flight.

    Attributes:
        heard: what came out.
        diary: what the workers have done.
    """

    app = "async_app.py"
    keys = async_account.KEYS
    outputs = ("out", "refused")
    patience = 90.0

    def __init__(
        self, url: str, directory: pathlib.Path, *, delivery: str, extra: dict[str, str] | None = None, **how: Any
    ) -> None:
        path = directory / "diary"
        extra = {"AGENTIC_COMMIT_INTERVAL": "100ms", "CHAOS_DIARY": str(path), **(extra or {})}
        super().__init__(url, directory, delivery=delivery, extra=extra, **how)
        self.diary = Diary(path)
        self.heard = Outputs(self.keys)

    def number(self, topic: str, key: bytes | None, value: bytes) -> int:
        return _hear(self.heard, topic, value)


def verify(fleet: AsyncFleet, delivery: str) -> Replays:
    """Each number is accounted for as a plain loop does it, and nothing began again that was committed."""
    assert fleet.killed >= fleet.kills
    wrong = fleet.heard.wrong(fleet.count, delivery)
    assert wrong is None, f"{wrong}\n{fleet.logs()}"
    changelogs = table_account.read_all(fleet.url, fleet.topic, async_account.TABLES)
    _check_tables(changelogs, fleet.topic, fleet.count, fleet.keys, delivery)
    replays = async_account.replays(fleet.diary)
    assert not replays.wrong, f"{len(replays.wrong)} began that should not: {replays.wrong[:10]}"
    assert replays.repeated <= replays.owed
    print(f"{fleet.killed} kills, {fleet.count} records, {replays}")
    return replays


def _check_tables(changelogs: table_account.Changelogs, app: str, count: int, keys: int, delivery: str) -> None:
    sums: dict[str, list[int]] = {}
    for tp, changelog in changelogs.items():
        rows = changelog.fold()
        if tp.topic == f"{app}-sums-changelog":
            sums |= {key.decode(): json.loads(value) for key, (value, _) in rows.items()}
        else:
            assert not rows, f"{tp}: put off for ever: {rows}"
    wrong = async_account.wrong_sums(sums, count, keys, delivery)
    assert wrong is None, wrong


class AsyncScene(Scene):
    """Workers with much in flight that come and go one by one.

    Args:
        keys: how many the numbers have.
    """

    module = "async_app.py"
    outputs = ("out", "refused")

    def __init__(
        self,
        url: str,
        directory: pathlib.Path,
        delivery: str,
        extra: dict[str, str] | None = None,
        *,
        keys: int = async_account.KEYS,
    ) -> None:
        path = directory / "diary"
        super().__init__(url, directory, delivery, {"CHAOS_DIARY": str(path), **(extra or {})})
        self.keys = keys
        self.diary = Diary(path)
        self.heard = Outputs(keys)

    async def members(self) -> set[str]:
        """Return the ids of the group's members."""
        return set((await self._broker.describe_group(self.app)).members)

    async def until(self, what: Callable[[], object], otherwise: str) -> None:
        """Return when something is so; it takes a look at the outputs meanwhile."""
        deadline = time.monotonic() + PATIENCE
        while not what():
            assert time.monotonic() < deadline, f"{otherwise}:{self._told(*self._workers)}"
            await self._read(0.05)

    def numbers_of(self, partitions: Iterable[int], numbers: Iterable[int]) -> list[int]:
        """Return those of some numbers that belong to some partitions."""
        wanted = set(partitions)
        return [n for n in numbers if partition_of(key_of(n, self.keys).encode(), PARTITIONS) in wanted]

    def workers_of(self, numbers: Iterable[int]) -> set[int]:
        """Return the processes whose outputs there are of numbers."""
        return {pid for n in numbers for _, _, pid in self.heard.said.get(n, ())}

    def hear(self, topic: str, value: bytes) -> None:
        self.said.setdefault(_hear(self.heard, topic, value), [])

    async def verify(self) -> None:
        await self._read_on()
        wrong = self.heard.wrong(self.sent, self.delivery)
        assert wrong is None, wrong
        changelogs = await table_account.read(self._broker, self.app, with_open=True, names=async_account.TABLES)
        _check_tables(changelogs, self.app, self.sent, self.keys, self.delivery)
        found = async_account.replays(self.diary)
        assert not found.wrong, f"{len(found.wrong)} began that should not: {found.wrong[:10]}"
