"""The store on disk: one LMDB environment a task, in it one database a table, one for marks and one for itself.

Each write is one transaction, and not waited for by the disk. A process that dies loses
nothing of it: it is in the kernel's cache. What a machine that dies leaves in the file is not
trusted (see `agentic.state.lmdb.trust`): the changelog is the truth, and brings the rows back.

Reads go through one transaction that lives until the next write, so that a read costs a search
and nothing else; an iterator keeps the one it began with. A lock, held for a read or a chunk
of a scan, keeps the map in place while it is looked at: a write that runs in another thread may
have to make the map larger, which moves it.

A write takes the interpreter's lock anew for each row. Beside a thread that computes, each of
these is a wait of up to `sys.getswitchinterval`: who wants a write to be quick has nobody compute meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import lmdb

from agentic.errors import BrokerError, StorageCorrupt, StorageFull
from agentic.lmdbfile import DATA_FILE, LmdbFile
from agentic.state.base import Rows
from agentic.state.lmdb import meta, trust
from agentic.state.lmdb.physical import ESCAPED_ZEROS, SHORT, ZEROS, bounds, in_order, key_of, pack, physical, value_of
from agentic.state.lmdb.resident import file_pages, give_back

#: How many bytes of files may be resident in the process before a store gives back its own. A write of
#: 30,000 rows all over a large file takes as much again for copies of pages: twice this does not make it faster.
RESIDENT_LIMIT = 128 << 20
#: How many reads between two looks at that: the kernel maps up to 64 KiB around each page read,
#: and what is longer counts for as many, by a shift.
READS_PER_LOOK = 256
BYTES_PER_READ = 16
#: How many rows are put between two looks: each reads a page, and copies it.
ROWS_PER_LOOK = 256
#: Rows of a scan that are read at once, at first and at most; a short scan reads few in vain.
FIRST_CHUNK = 16
LARGEST_CHUNK = 1_024
#: Bytes of values after which a chunk ends, where a table has values of more than half a page.
CHUNK_BYTES = 1 << 20
MAX_READERS = 1_024
#: Seconds between two looks for readers that died: each keeps the file from using its old pages again.
READERS_EVERY = 60.0

_REPAIR = "run the worker with --repair: it moves the file aside and restores the state from the changelog"
_SHRINK = "checkpoint more often (commit_interval), or let rows expire (ttl)"
#: Stands for the marks where the others are named by their table: no table has this name.
_key, _value = itemgetter(0), itemgetter(1)
_MARKS = "\0marks"


class _Snapshot:
    """A read transaction, and how many iterators are on it."""

    __slots__ = ("lost", "txn", "users")

    def __init__(self, txn: Any) -> None:
        self.txn = txn
        self.users = 0
        self.lost = False


class LmdbStore:
    """The rows and marks of one task on disk. Got by `open` or `open_readonly`.

    Attributes:
        directory: where it is.
        identity: whose it is, as given when it was made.
        tables: the tables that can be read, with what was said of their types.
        discarded: it was emptied on opening, since the machine went down while it was open.
    """

    def __init__(self, directory: Path, *, readonly: bool, map_size: int | None, resident_limit: int) -> None:
        self.directory = directory
        self.identity: dict[str, str] = {}
        self.tables: dict[str, str] = {}
        self.discarded = False
        self._file = LmdbFile(directory / DATA_FILE, _REPAIR, _SHRINK)
        self._readonly = readonly
        self._borrowed = False
        # A reader that stays keeps the pages that a writer would use again: the file grows by each write.
        self._brief = readonly
        self._resident_limit = resident_limit
        self._map_size = map_size
        self._max_dbs = 0
        self._env: Any = None
        self._dbs: dict[str, Any] = {}
        self._meta_db: Any = None
        # Tables that have, or had, a long key: a scan has to look at each row.
        self._long: set[str] = set()
        # One that its holder may take again: an iterator that is collected lets go, wherever that happens.
        self._lock = threading.RLock()
        self._writing = threading.Lock()
        self._txn: Any = None
        self._snapshot: _Snapshot | None = None
        self._held: set[_Snapshot] = set()
        self._reads_left = READS_PER_LOOK
        self._readers_checked = time.monotonic()

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        *,
        identity: Mapping[str, str],
        tables: Mapping[str, str],
        map_size: int | None = None,
        resident_limit: int = RESIDENT_LIMIT,
    ) -> Self:
        """Open the store of a directory for reading and writing; make it if there is none.

        No other process may have it open for writing: see `agentic.state.lmdb.claims.claim`.

        Args:
            identity: whose it is, such as ``{"app": "shop", "task": "0-3"}``.
            tables: the tables, each with a description of its types: a table keeps the one that it was made with.
            map_size: bytes of address space to begin with; it grows.
            resident_limit: bytes of files in resident memory above which pages are given back.

        Raises:
            StateMismatch: it belongs to another app or task, a table to another declaration, or its format is newer.
            StorageCorrupt: damaged, or of another program.
            StorageFull: no space to make it.
            BrokerError: the directory can't be made, read or written.
        """
        store = cls(Path(directory), readonly=False, map_size=map_size, resident_limit=resident_limit)
        with store._file.errors("be opened"):
            store.directory.mkdir(parents=True, exist_ok=True)
            store.discarded = trust.begin(store.directory)
            store._check_damage()
            store._open(identity, tables)
        return store

    @classmethod
    def borrow(
        cls, directory: str | os.PathLike[str], *, identity: Mapping[str, str], tables: Mapping[str, str]
    ) -> Self:
        """Open a store that another process has open, and lends: it does not write until this one is closed.

        Whether the file can be trusted stays that process's business, and so does bringing it to the disk.

        Raises:
            StateMismatch, StorageCorrupt, StorageFull, BrokerError: as `open` does.
        """
        store = cls(Path(directory), readonly=False, map_size=None, resident_limit=RESIDENT_LIMIT)
        store._borrowed = True
        with store._file.errors("be opened"):
            store._open(identity, tables)
        return store

    def lend(self) -> None:
        """Let go of what is kept of the file, so that who borrows it finds no reader in the way."""
        with self._lock:
            self._retire()
            self._brief = True

    def take_back(self) -> None:
        """Learn what the borrower has written."""
        with self._lock, self._errors("be read"):
            self._brief = False
            self._retire()
            self._begin()
            self._retire()
            self._long |= meta.read(self._env, self._file.path).long

    @classmethod
    def open_readonly(cls, directory: str | os.PathLike[str]) -> Self:
        """Open a store to look at it, beside the worker that has it or without one.

        While one of its iterators is open, the worker's file grows by what it writes: be quick.

        Raises:
            StateMismatch: of a newer format.
            StorageCorrupt: damaged, of another program, or left open when the machine went down.
            BrokerError: there is none, or it can't be read.
        """
        store = cls(Path(directory), readonly=True, map_size=None, resident_limit=RESIDENT_LIMIT)
        if not store._file.path.exists():
            raise BrokerError(f"{store.directory}: no state here; give the directory of a task's copy")
        if trust.is_stale(store.directory):
            raise StorageCorrupt(
                f"{store._file.path}: was open when the machine went down, and is not to be trusted; start the worker,"
                " it restores the state from the changelog"
            )
        store._check_damage()
        with store._file.errors("be opened"):
            store._open(None, {})
        return store

    def _open(self, identity: Mapping[str, str] | None, tables: Mapping[str, str]) -> None:
        self._max_dbs = len(tables) + meta.DATABASES
        self._env = self._environment(self._map_size)
        try:
            self._file.check_length(self._env) if not self._readonly else self._refuse_short()
            self._env.reader_check()
            if identity is None:
                described = meta.read(self._env, self._file.path)
                # Its number of tables was not known before.
                self._max_dbs += len(described.tables)
                self._env.close()
                self._env = self._environment(self._map_size)
            else:
                described = meta.settle(self._env, self._file.path, identity, tables)
            self.identity, self.tables, self._long = described.identity, described.tables, described.long
            self._open_dbs()
        except BaseException:
            self._env.close()
            raise

    def _environment(self, map_size: int | None) -> Any:
        return self._file.open(
            map_size,
            readonly=self._readonly,
            sync=False,
            max_dbs=self._max_dbs,
            max_readers=MAX_READERS,
            max_spare_txns=4,
        )

    def _refuse_short(self) -> None:
        """A reader can't keep writers out to look for what is missing, and must not touch it."""
        if (missing := self._file.missing(self._env)) and self._file.is_damaged():
            raise StorageCorrupt(f"{self._file.path}: truncated, {missing} bytes are missing; {_REPAIR}")

    def _check_damage(self) -> None:
        if (words := trust.damage(self.directory)) is not None:
            raise StorageCorrupt(words)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turn LMDB's errors into ours, and remember damage: it may lie where the next opening does not look."""
        try:
            with self._file.errors(what):
                yield
        except StorageCorrupt as error:
            # What else is called damage may be over when the file is opened anew.
            if not self._readonly and isinstance(error.__cause__, lmdb.CorruptedError | lmdb.PageNotFoundError):
                trust.note_damage(self.directory, str(error))
            raise

    def _open_dbs(self) -> None:
        self._meta_db = self._env.open_db(meta.META, create=False)
        self._dbs = {name: self._env.open_db(meta.database(name), create=False) for name in self.tables}
        self._dbs[_MARKS] = self._env.open_db(meta.MARKS, create=False)

    def get(self, table: str, key: bytes) -> bytes | None:
        if len(key) > SHORT or key <= ZEROS:
            stored = physical(key)
            packed = self._get(table, stored)
            return None if packed is None else value_of(stored, packed)
        return self._get(table, key)

    def _get(self, table: str, stored: bytes) -> bytes | None:
        with self._lock:
            try:
                value: bytes | None = (self._txn or self._begin()).get(stored, None, self._dbs[table])
            except lmdb.Error:
                with self._errors("be read"):
                    raise
            except KeyError:
                return None
            if value:
                self._reads_left -= 1 + (len(value) >> BYTES_PER_READ)
                if self._reads_left < 0:
                    self._relieve()
            if self._brief:
                self._retire()
            return value

    def get_many(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys or table not in self._dbs or max(map(len, keys)) > SHORT or min(keys) <= ZEROS:
            return [self.get(table, key) for key in keys]
        with self._lock:
            try:
                found = (self._txn or self._begin()).cursor(self._dbs[table]).getmulti(keys)
            except lmdb.Error:
                with self._errors("be read"):
                    raise
            self._reads_left -= len(found) + (sum(map(len, map(_value, found))) >> BYTES_PER_READ)
            if self._reads_left < 0:
                self._relieve()
            if self._brief:
                self._retire()
        if len(found) == len(keys):
            return list(map(_value, found))
        values = dict(found)
        return [values.get(key) for key in keys]

    def scan(
        self, table: str, start: bytes = b"", stop: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        if table not in self._dbs:
            return
        with self._lock:
            snapshot = self._hold()
        try:
            if table in self._long or len(start) > SHORT or (stop is not None and len(stop) > SHORT):
                low, high = bounds(start, stop)
                rows = chain.from_iterable(self._chunks(snapshot, table, low, high, reverse))
                yield from in_order(rows, lambda stored: self._value(snapshot, table, stored), start, stop, reverse)
            else:
                low, high = physical(start), None if stop is None else physical(stop)
                for chunk in self._chunks(snapshot, table, low, high, reverse):
                    if chunk and (chunk[-1] if reverse else chunk[0])[0] <= ESCAPED_ZEROS:
                        chunk = [(key_of(stored, value), value) for stored, value in chunk]
                    yield from chunk
        finally:
            with self._lock:
                self._let_go(snapshot)

    def _value(self, snapshot: _Snapshot, table: str, stored: bytes) -> bytes:
        with self._lock:
            try:
                value: bytes = self._of(snapshot).get(stored, None, self._dbs[table])
            except lmdb.Error:
                with self._errors("be read"):
                    raise
            return value

    def _chunks(
        self, snapshot: _Snapshot, table: str, low: bytes, high: bytes | None, reverse: bool
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        """Stored rows with ``low <= key < high``, some at a time."""
        size, last = FIRST_CHUNK, None
        while True:
            with self._lock:
                if self._reads_left < 0:
                    self._relieve()
                try:
                    rows = self._chunk(self._of(snapshot), self._dbs[table], low, high, reverse, last, size)
                except lmdb.Error:
                    with self._errors("be read"):
                        raise
                if not rows:
                    return
                self._reads_left -= 1 + (len(rows) * len(rows[-1][1]) >> BYTES_PER_READ)
            last = rows[-1][0]
            if reverse and last < low:
                yield [row for row in rows if row[0] >= low]
                return
            if not reverse and high is not None and last >= high:
                yield rows[: bisect_left(rows, (high,))]
                return
            yield rows
            size = min(size * 8, LARGEST_CHUNK)

    def _chunk(
        self, txn: Any, db: Any, low: bytes, high: bytes | None, reverse: bool, last: bytes | None, size: int
    ) -> list[tuple[bytes, bytes]]:
        cursor = txn.cursor(db)
        if reverse:
            bound = high if last is None else last
            there = cursor.prev() if bound is not None and cursor.set_range(bound) else cursor.last() and last is None
        else:
            there = cursor.set_range(low) if last is None else cursor.set_range(last) and cursor.next()
        if not there:
            return []
        rows = islice(cursor.iterprev() if reverse else cursor.iternext(), size)
        if not txn.stat(db)["overflow_pages"]:
            return list(rows)
        few, left = [], CHUNK_BYTES
        for row in rows:
            few.append(row)
            left -= len(row[1])
            if left < 0:
                break
        return few

    def count(self, table: str) -> int:
        return int(self.stat(table)["entries"]) if table in self._dbs else 0

    def stat(self, table: str) -> dict[str, int]:
        """Return what LMDB counts of a table: entries, depth, and its pages of `psize` bytes by kind."""
        with self._lock, self._errors("be read"):
            counts: dict[str, int] = (self._txn or self._begin()).stat(self._dbs[table])
            if self._brief:
                self._retire()
            return counts

    def mark(self, name: str) -> bytes | None:
        return self._get(_MARKS, name.encode())

    def marks(self) -> dict[str, bytes]:
        with self._lock, self._errors("be read"):
            found = {key.decode(): value for key, value in (self._txn or self._begin()).cursor(self._dbs[_MARKS])}
            if self._brief:
                self._retire()
            return found

    def write(self, rows: Mapping[str, Rows], marks: Mapping[str, bytes | None]) -> None:
        batches = [(table, *self._sorted_out(table, changes)) for table, changes in rows.items()]

        def change(txn: Any) -> None:
            # Each time anew: with another map come other handles.
            marks_db = self._dbs[_MARKS]
            for table, puts, deletes in batches:
                db = self._dbs[table]
                cursor = txn.cursor(db)
                for at in range(0, len(puts), ROWS_PER_LOOK):
                    cursor.putmulti(puts[at : at + ROWS_PER_LOOK])
                    self._look()
                for key in deletes:
                    txn.delete(key, db=db)
            for name, mark in marks.items():
                if mark is None:
                    txn.delete(name.encode(), db=marks_db)
                else:
                    txn.put(name.encode(), mark, db=marks_db)
            meta.note_long(txn, self._meta_db, self._long)

        self._change(change)

    def _sorted_out(self, table: str, changes: Rows) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Rows to put and keys to delete, as LMDB takes them."""
        rows = list(changes)
        # They come in the order of their keys: those that begin like what has another name are the first.
        first = 0
        while first < len(rows) and rows[first][0] <= ZEROS:
            first += 1
        if max(map(len, map(_key, rows)), default=0) > SHORT:
            # Before the row is there: to look in vain costs speed alone.
            self._long.add(table)
            first = len(rows)
        plain = rows[first:]
        deletes = [key for key, value in plain if value is None] if None in map(_value, plain) else []
        puts: Any = [row for row in plain if row[1] is not None] if deletes else plain
        for key, value in rows[:first]:
            other = len(key) > SHORT or key <= ZEROS
            stored = physical(key) if other else key
            if value is None:
                deletes.append(stored)
            else:
                puts.append((stored, pack(key, value) if other else value))
        return puts, deletes

    def clear(self, table: str) -> None:
        if table in self._dbs:
            self._change(lambda txn: txn.drop(self._dbs[table], delete=False))

    def _change(self, change: Any) -> None:
        """Do a write transaction whole, in a map that is made larger where it has to be."""
        if self._readonly:
            raise BrokerError(f"{self.directory}: opened to be read, not written")
        with self._writing, self._errors("be written"):
            self._check_open()
            if time.monotonic() >= self._readers_checked + READERS_EVERY:
                self._readers_checked = time.monotonic()
                self._env.reader_check()
            try:
                while True:
                    try:
                        with self._env.begin(write=True) as txn:
                            self._file.lengthen(self._env)
                            change(txn)
                        return
                    except (lmdb.MapFullError, lmdb.MapResizedError):
                        with self._lock:
                            self._remap(2 * self._env.info()["map_size"])
            finally:
                with self._lock:
                    self._retire()

    # What follows is called with the lock held.

    def _begin(self) -> Any:
        """The transaction to read with, which lives until the next write."""
        self._check_open()
        with self._errors("be read"):
            try:
                self._txn = self._env.begin()
            except lmdb.MapResizedError:
                self._remap(None)
                self._txn = self._txn or self._env.begin()
        return self._txn

    def _hold(self) -> _Snapshot:
        if self._snapshot is None:
            self._snapshot = _Snapshot(self._txn or self._begin())
        self._snapshot.users += 1
        self._held.add(self._snapshot)
        return self._snapshot

    def _of(self, snapshot: _Snapshot) -> Any:
        if snapshot.lost:
            raise BrokerError(f"{self.directory}: what an iterator was reading is gone; iterate anew")
        return snapshot.txn

    def _let_go(self, snapshot: _Snapshot) -> None:
        snapshot.users -= 1
        if snapshot.users == 0:
            self._held.discard(snapshot)
            if snapshot is self._snapshot:
                self._snapshot = None
                if self._brief:
                    self._retire()
            elif not snapshot.lost:
                snapshot.txn.abort()

    def _retire(self) -> None:
        """Read anew from here on; iterators keep what they have."""
        if self._txn is not None and self._snapshot is None:
            self._txn.abort()
        self._txn = self._snapshot = None

    def _remap(self, map_size: int | None) -> None:
        """Open the environment again with another map; iterators that are not behind a write go on."""
        current = self._snapshot
        if current is None:
            self._retire()
        for snapshot in list(self._held):
            snapshot.txn.abort()
            snapshot.lost = snapshot is not current
        self._txn = None
        smaller = self._env.info()["map_size"]
        self._env.close()
        try:
            self._env = self._environment(map_size)
        except lmdb.Error as error:
            self._env = self._environment(smaller)
            raise StorageFull(
                f"{self._file.path}: no address space beyond {smaller} bytes ({error}); nothing was written:"
                " raise the limit of virtual memory"
            ) from error
        finally:
            self._open_dbs()
            if current is not None:
                current.txn = self._txn = self._env.begin()

    def _relieve(self) -> None:
        self._reads_left = READS_PER_LOOK
        if file_pages() > self._resident_limit:
            give_back(self._file.path)

    # So far.

    def _check_open(self) -> None:
        if self._env is None:
            raise BrokerError(f"{self.directory}: the store is closed; open it again")

    def _look(self) -> None:
        with self._lock:
            self._relieve()

    def close(self) -> None:
        with self._writing, self._lock:
            if self._env is None:
                return
            self._retire()
            for snapshot in self._held:
                snapshot.lost = True
            with self._errors("be synced"):
                try:
                    if not (self._readonly or self._borrowed):
                        self._env.sync(True)
                        trust.end(self.directory)
                finally:
                    self._env.close()
                    self._env = None
