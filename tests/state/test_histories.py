"""Histories of a store on disk: whatever is done, and however its process ends, it has what was acknowledged."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from store_support import changes_of, keys, open_store

from agentic.errors import BrokerError

tables = st.sampled_from(["t", "u"])
values = st.one_of(st.none(), st.binary(max_size=4), st.integers(1, 40_000).map(bytes))


class Histories(RuleBasedStateMachine):
    """A store beside dicts, with scans that are open meanwhile and see what was there when they began."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.rows: dict[str, dict[bytes, bytes]] = {"t": {}, "u": {}}
        self.marks: dict[str, bytes] = {}
        self.scans: list[tuple[Iterator[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]] = []
        self.open()

    def open(self) -> None:
        # So small that it has to grow.
        self.store = open_store(self.directory / "store", map_size=256 << 10)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)

    @rule(
        rows=st.dictionaries(tables, st.dictionaries(keys, values, max_size=6)),
        marks=st.dictionaries(st.sampled_from("abc"), st.one_of(st.none(), st.binary(max_size=3))),
    )
    def write(self, rows: dict[str, dict[bytes, bytes | None]], marks: dict[str, bytes | None]) -> None:
        self.store.write({table: sorted(changes.items()) for table, changes in rows.items()}, marks)
        for table, changes in rows.items():
            for key, value in changes.items():
                if value is None:
                    self.rows[table].pop(key, None)
                else:
                    self.rows[table][key] = value
        for name, mark in marks.items():
            if mark is None:
                self.marks.pop(name, None)
            else:
                self.marks[name] = mark

    @rule(table=tables)
    def clear(self, table: str) -> None:
        self.store.clear(table)
        self.rows[table] = {}

    @rule(table=tables, reverse=st.booleans())
    def begin_to_scan(self, table: str, reverse: bool) -> None:
        rows = sorted(self.rows[table].items(), reverse=reverse)
        if rows:
            scan = self.store.scan(table, reverse=reverse)
            assert next(scan) == rows.pop(0)
            self.scans.append((scan, rows))

    @precondition(lambda self: self.scans)
    @rule(data=st.data())
    def end_a_scan(self, data: st.DataObject) -> None:
        scan, rows = self.scans.pop(data.draw(st.integers(0, len(self.scans) - 1)))
        found = []
        try:
            for row in scan:
                found.append(row)
        except BrokerError as error:
            assert "iterate anew" in str(error)
        else:
            assert len(found) == len(rows)
        assert found == rows[: len(found)]

    @precondition(lambda self: self.scans)
    @rule()
    def give_up_a_scan(self) -> None:
        self.scans.pop()

    @rule()
    def close_and_open(self) -> None:
        self.store.close()
        self.open()

    @rule()
    def die_and_open(self) -> None:
        """What is in the file while the store is open is what a process that is killed leaves."""
        shutil.copytree(self.directory / "store", self.directory / "left", ignore=shutil.ignore_patterns("lock.mdb"))
        self.store.close()
        shutil.rmtree(self.directory / "store")
        (self.directory / "left").rename(self.directory / "store")
        self.open()

    @rule(table=tables, key=keys)
    def get(self, table: str, key: bytes) -> None:
        assert self.store.get(table, key) == self.rows[table].get(key)

    @rule(table=tables, start=keys, stop=st.one_of(st.none(), keys), reverse=st.booleans())
    def scan(self, table: str, start: bytes, stop: bytes | None, reverse: bool) -> None:
        wanted = [
            row for row in sorted(self.rows[table].items()) if row[0] >= start and (stop is None or row[0] < stop)
        ]
        assert list(self.store.scan(table, start, stop, reverse=reverse)) == (wanted[::-1] if reverse else wanted)

    @invariant()
    def everything_is_there(self) -> None:
        assert self.store.marks() == self.marks
        for table, rows in self.rows.items():
            assert self.store.count(table) == len(rows)
            assert list(self.store.scan(table)) == sorted(rows.items())


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


WRITER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from store_support import changes_of, open_store

store = open_store(Path(sys.argv[2]), map_size=1 << 20)
done = int.from_bytes(store.mark("done") or b"", "big")
while True:
    done += 1
    store.write({"t": sorted(changes_of(done).items())}, {"done": done.to_bytes(8, "big")})
    os.write(1, b"%d\\n" % done)
"""


def rows_after(writes: int) -> dict[bytes, bytes]:
    """What the writer's writes make."""
    rows: dict[bytes, bytes] = {}
    for done in range(1, writes + 1):
        for key, value in changes_of(done).items():
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_a_writer_killed_at_random_loses_nothing_that_it_acknowledged(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    for _ in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, Path(__file__).parent, tmp_path / "store"], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        acknowledged = 0
        for _ in range(choose.randrange(1, 30)):
            acknowledged = int(writer.stdout.readline())
        # Somewhere within the next write: how far it came does not matter.
        for _ in range(choose.randrange(3_000)):
            pass
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
        writer.wait()
        writer.stdout.close()
        store = open_store(tmp_path / "store", map_size=1 << 20)
        done = int.from_bytes(store.mark("done") or b"", "big")
        assert acknowledged <= done <= acknowledged + 1
        assert list(store.scan("t")) == sorted(rows_after(done).items())
        store.close()
