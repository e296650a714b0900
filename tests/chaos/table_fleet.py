"""A fleet whose workers count in tables, which must come out as a plain loop makes them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import pathlib
import random
import shutil
from typing import Any

import table_account
from fleet import KEYS, PARTITIONS, Fleet

from agentic.brokers.base import TopicSpec
from agentic.state import lmdb


class TableFleet(Fleet):
    """Workers of `tables_app`.

    Args:
        shared: all workers keep their state in one directory; else each has one of its own.
        forgetful: the share of starts before which local state is deleted: a worker's own
            directory, or of the shared one what no worker has.
    """

    app = "tables_app.py"

    def __init__(
        self,
        url: str,
        directory: pathlib.Path,
        *,
        delivery: str,
        shared: bool = False,
        forgetful: float = 0.0,
        extra: dict[str, str] | None = None,
        **how: Any,
    ) -> None:
        super().__init__(
            url, directory, delivery=delivery, extra={"AGENTIC_COMMIT_INTERVAL": "100ms", **(extra or {})}, **how
        )
        self.forgotten = 0
        self.said: dict[int, list[tuple[int, int]]] = {}
        self._shared = shared
        self._forgetful = forgetful
        # Apart from the one that decides who dies, so that a run without forgetting is the same but for that.
        self._luck = random.Random(self.draw.random())

    def state_dir(self, slot: int) -> pathlib.Path:
        return self._directory / ("state" if self._shared else f"state-{slot}")

    @property
    def state_dirs(self) -> list[pathlib.Path]:
        return list(dict.fromkeys(self.state_dir(slot) for slot in range(len(self._slots))))

    def topics(self) -> list[TopicSpec]:
        # Compacted in mid-run: by the second of the records' time, and at once.
        quick = {"segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01"}
        names = [f"{self.topic}-{table}-changelog" for table in table_account.TABLES]
        return [TopicSpec(name, PARTITIONS, compacted=True, config=quick) for name in names]

    def environment(self, slot: int) -> dict[str, str]:
        if self._luck.random() < self._forgetful and self.state_dir(slot).exists():
            self._forget(slot)
        # Workers that share a directory also share the making of copies: there processes restore.
        apart = {"CHAOS_APART": "1", "AGENTIC_RESTORE_PROCESSES": "2"} if self._shared else {}
        return {**self._env, "AGENTIC_STATE_DIR": str(self.state_dir(slot)), **apart}

    def _forget(self, slot: int) -> None:
        if not self._shared:
            shutil.rmtree(self.state_dir(slot))
            self.forgotten += 1
            return
        for copy in lmdb.copies(self.state_dir(slot), self.topic):
            with contextlib.suppress(BlockingIOError), open(copy.directory.with_suffix(".lock"), "a") as lock:
                # As a worker claims it, so that none does meanwhile.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(copy.directory)
                self.forgotten += 1

    def number(self, topic: str, key: bytes | None, value: bytes) -> int:
        n, times, total = json.loads(value)
        self.said.setdefault(n, []).append((times, total))
        return int(n)


def verify(fleet: TableFleet, delivery: str) -> None:
    """Tables and outputs are what a plain loop makes; under at least once never less."""
    assert fleet.killed >= fleet.kills
    changelogs = table_account.read_all(fleet.url, fleet.topic)
    found = table_account.tables(changelogs, fleet.topic)
    wrong = table_account.wrong_outputs(fleet.said, fleet.count, KEYS, delivery)
    assert wrong is None, f"{wrong}\n{fleet.logs()}"
    wrong = table_account.wrong_tables(found, table_account.truth(range(fleet.count), KEYS), delivery)
    assert wrong is None, f"{wrong}\n{fleet.logs()}"
    assert table_account.check_stores(fleet.state_dirs, fleet.topic, changelogs, compacted=True)
