"""The LMDB environment of a directory: one per process, opened, grown, synced and closed here.

Durability: a write is in the file (the kernel's page cache) when its transaction commits, so
a process that is killed loses nothing of it. A thread has the file synced about every
`SYNC_EVERY` seconds while there is something to sync: a machine that loses power loses about
that much, if its file system writes pages in the order in which they changed. Where it does
not, the file may be damaged by it, as LMDB's manual says of MDB_NOSYNC. With ``sync`` each
commit waits for the disk: then a power cut takes nothing that was acknowledged, and no order
is relied on, for some tenths of a millisecond to some milliseconds a write.

The map, LMDB's address space, is reserved large and sparse; before a write that could pass its
end it is made larger, and other processes follow when they meet the larger file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from agentic.brokers.local import creation
from agentic.brokers.local.creation import OWN_FILES
from agentic.brokers.local.layout import DATABASES, FORMAT, FORMAT_KEY, U64
from agentic.errors import BrokerError, StorageCorrupt, StorageFull
from agentic.lmdbfile import DATA_FILE, LOCK_FILE, LmdbFile

#: Bytes that must be left in the map before a write begins, beside twice what it is to write:
#: pages are copied on their way to the tree's root.
ROOM = 32 << 20
SYNC_EVERY = 0.1
MAX_READERS = 1_024


class Environment:
    """An open environment. Got by `acquire`, given back by `release`."""

    def __init__(self, directory: Path, map_size: int | None, sync: bool) -> None:
        self.directory = directory
        self.file = directory / DATA_FILE
        self._lock_file = directory / LOCK_FILE
        self._data = LmdbFile(
            self.file,
            repair="restore it from a backup, or move it away to begin anew",
            shrink="send in smaller parts",
        )
        self._users = 0
        self._map_size = map_size
        self._sync = sync
        with self._data.errors("be opened"):
            self.lmdb = self._open()
        try:
            with self._data.errors("be opened"):
                self._opened, self._length = self._look()
                self._data.check_length(self.lmdb)
                self.lmdb.reader_check()
                self.db = self._databases()
        except BaseException:
            self.lmdb.close()
            raise
        self._dirty = threading.Event()
        self._stop = threading.Event()
        self._sync_error: OSError | lmdb.Error | None = None
        self._syncer = threading.Thread(target=self._sync_often, name=f"sync {directory}", daemon=True)
        self._syncer.start()

    def _open(self) -> Any:
        self._check_directory()
        return self._data.open(
            self._map_size, sync=self._sync, max_dbs=len(DATABASES), max_readers=MAX_READERS, max_spare_txns=4
        )

    def _check_directory(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            names = set(os.listdir(self.directory))
        except OSError as error:
            raise BrokerError(
                f"{self.directory}: can't be a directory for the log ({error.strerror}); give another: local://DIR"
            ) from error
        foreign = sorted(names - OWN_FILES)
        if foreign and DATA_FILE not in names:
            raise StorageCorrupt(
                f"{self.directory}: not a log, it has other files ({foreign[0]}); give an empty or new directory"
            )
        creation.make(self.directory)
        if os.stat(self.file).st_size == 0:
            # LMDB would make a new one of it, and nobody would miss the records.
            raise StorageCorrupt(
                f"{self.file}: truncated, it has no bytes left; restore it from a backup, or remove it to begin anew"
            )

    def _databases(self) -> dict[bytes, Any]:
        with self.lmdb.begin() as txn:
            names = {bytes(key) for key in txn.cursor().iternext(values=False)}
        if b"meta" not in names:
            raise StorageCorrupt(f"{self.file}: an LMDB file of another program; give another directory: local://DIR")
        meta = self.lmdb.open_db(b"meta", create=False)
        with self.lmdb.begin() as txn:
            found = txn.get(FORMAT_KEY, db=meta)
        if found is None or len(found) != U64.size:
            raise StorageCorrupt(f"{self.file}: an LMDB file of another program; give another directory: local://DIR")
        version = U64.unpack(found)[0]
        if version > FORMAT:
            raise StorageCorrupt(
                f"{self.file}: the log has format {version}, written by a newer agentic, and this one reads up to"
                f" {FORMAT}; upgrade agentic"
            )
        return {name: self.lmdb.open_db(name, create=False) for name in DATABASES}

    def _look(self) -> tuple[tuple[int, int, int], int]:
        """Which files stand in the directory now, and how long the log is."""
        log, lock = os.stat(self.file), os.stat(self._lock_file)
        return (log.st_dev, log.st_ino, lock.st_ino), log.st_size

    def _check_there(self) -> None:
        """What is written to a file that was removed is lost, and a page beyond the end of one that was
        cut ends the process by a signal. A look costs some microseconds.
        """
        try:
            opened, length = self._look()
        except (FileNotFoundError, NotADirectoryError):
            opened, length = None, 0
        if opened != self._opened:
            raise StorageCorrupt(
                f"{self.directory}: the log was {'replaced' if opened else 'removed'} while it was in use; put the"
                " directory back, or start again to begin anew"
            )
        if length < self._length:
            raise StorageCorrupt(
                f"{self.file}: truncated while it was in use, from {self._length} bytes to {length}; restore it from a"
                " backup, or move it away"
            )
        self._length = length

    @contextmanager
    def read(self) -> Iterator[Any]:
        with self._data.errors("be read"):
            self._check_there()
            try:
                txn = self.lmdb.begin()
            except lmdb.MapResizedError:
                self.lmdb.set_mapsize(0)
                txn = self.lmdb.begin()
            with txn:
                yield txn

    @contextmanager
    def write(self, size: int = 0) -> Iterator[Any]:
        """A write transaction with room for `size` bytes; committed at the end, undone by an exception.

        Raises:
            StorageFull: the disk, or the address space, is full. Nothing was written.
        """
        if self._sync_error is not None:
            error, self._sync_error = self._sync_error, None
            raise BrokerError(f"{self.file}: the disk failed to keep what was written ({error}); check it")
        with self._data.errors("be written"):
            self._check_there()
            txn = self._begin(2 * size + ROOM)
            with txn:
                yield txn
        if not self._sync:
            self._dirty.set()

    def _begin(self, room: int) -> Any:
        while True:
            try:
                txn = self.lmdb.begin(write=True)
            except lmdb.MapResizedError:
                self.lmdb.set_mapsize(0)
                continue
            info = self.lmdb.info()
            used = (info["last_pgno"] + 1) * self.lmdb.stat()["psize"]
            if info["map_size"] - used >= room:
                try:
                    self._data.lengthen(self.lmdb)
                except OSError:
                    txn.abort()
                    raise
                return txn
            txn.abort()
            try:
                self.lmdb.set_mapsize(max(2 * info["map_size"], used + 2 * room))
            except lmdb.Error as error:
                raise StorageFull(
                    f"{self.file}: no address space beyond {info['map_size']} bytes ({error}); nothing was written:"
                    " let topics expire (retention), or raise the limit of virtual memory"
                ) from error

    def clear_readers(self) -> None:
        """Free the reader slots of processes that died: each pins the pages that it could still read."""
        with self._data.errors("be read"):
            self.lmdb.reader_check()

    def txnid(self) -> int:
        """Which transaction was the last, of any process."""
        return int(self.lmdb.info()["last_txnid"])

    def _sync_often(self) -> None:
        while not self._stop.is_set():
            self._dirty.wait()
            self._dirty.clear()
            try:
                self.lmdb.sync(True)
            except lmdb.Error as error:
                self._sync_error = error
            self._stop.wait(SYNC_EVERY)

    def _close(self) -> None:
        self._stop.set()
        self._dirty.set()
        self._syncer.join()
        with self._data.errors("be synced"):
            try:
                self.lmdb.sync(True)
            finally:
                self.lmdb.close()

    def release(self) -> None:
        """Give it back; the last one to do so closes it, synced."""
        with _lock:
            self._users -= 1
            if self._users == 0:
                _open.pop((os.getpid(), self.directory), None)
                self._close()

    @classmethod
    def acquire(cls, directory: Path, map_size: int | None = None, sync: bool = False) -> Environment:
        """Open the environment of a directory, or share the one that this process has.

        Raises:
            StorageCorrupt: damaged, foreign, or of a newer format.
            BrokerError: the directory can't be made, read or written, or is open already without `sync`.
        """
        directory = Path(os.path.realpath(directory))
        with _lock:
            environment = _open.get((os.getpid(), directory))
            if environment is None:
                environment = _open[(os.getpid(), directory)] = cls(directory, map_size, sync)
            elif sync and not environment._sync:
                raise BrokerError(
                    f"{directory}: open in this process already, without sync; give all its brokers the same URL"
                )
            environment._users += 1
            return environment


#: LMDB allows one environment per file and process. A forked child has another pid, and opens its own.
_open: dict[tuple[int, Path], Environment] = {}
_lock = threading.Lock()
