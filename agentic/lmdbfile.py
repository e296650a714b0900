"""What an LMDB file's errors mean, and whether it is whole: for all that keeps something in one.

LMDB says little of what went wrong: a full disk is an I/O error, a truncated file ends the
process by a signal when its missing pages are read. Here each gets an error on one line that
names the file and the way out.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

try:
    import resource
except ImportError:  # a platform without limits
    resource = None  # type: ignore[assignment]

from agentic.errors import BrokerError, StorageCorrupt, StorageFull

#: Bytes of address space to reserve, and what to fall back to where so much is refused.
MAP_SIZES = (64 << 30, 8 << 30, 1 << 30, 256 << 20)
#: What LMDB puts into a directory.
DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"

#: A bad transaction is one that met damage before: nothing of ours goes on with one that failed.
_DAMAGE = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.PanicError, lmdb.BadTxnError)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SHORT = {errno.EIO}
#: Bytes to write to find out whether there is space: what a write that failed may have left.
PROBE = 1 << 20


@dataclass(frozen=True)
class LmdbFile:
    """A file of ours, with what to say of it.

    Attributes:
        path: the file with the data.
        repair: what to do about a damaged one, as the end of a sentence.
        shrink: what to do about one that is too large for a write, as the end of a sentence.
    """

    path: Path
    repair: str
    shrink: str

    @property
    def directory(self) -> Path:
        return self.path.parent

    def open(self, map_size: int | None = None, **options: Any) -> Any:
        """Open the environment, with the largest map that the system gives; LMDB's errors as they are."""
        sizes = MAP_SIZES if map_size is None else (map_size,)
        for size in sizes:
            try:
                return lmdb.open(str(self.directory), map_size=size, **options)
            except lmdb.MemoryError:
                if size == sizes[-1]:
                    raise
        raise AssertionError("there is a size")

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Turn LMDB's errors into ours.

        Args:
            what: what could not be done, as in "can't be opened".

        Raises:
            StorageFull: the disk, a limit of it or the map is full.
            StorageCorrupt: damaged, or of another version of LMDB.
            BrokerError: all else.
        """
        try:
            yield
        except _DAMAGE as error:
            raise StorageCorrupt(f"{self.path}: damaged ({error}); {self.repair}") from error
        except lmdb.VersionMismatchError as error:
            raise StorageCorrupt(
                f"{self.path}: written by another version of LMDB ({error}); use that one, or move the file away"
            ) from error
        except lmdb.MapFullError as error:
            raise StorageFull(
                f"{self.path}: a write was larger than the map has room for; nothing was written: {self.shrink}"
            ) from error
        except OSError as error:
            if error.errno in _FULL:
                raise self._full() from error
            raise BrokerError(
                f"{self.path}: can't {what} ({error.strerror}); check its owner, mode and disk"
            ) from error
        except lmdb.Error as error:
            if isinstance(error, lmdb.DiskError) or _says(error, _FULL) or (_says(error, _SHORT) and self._is_full()):
                raise self._full() from error
            raise BrokerError(f"{self.path}: can't {what} ({error}); check its owner, mode and disk") from error

    def _full(self) -> StorageFull:
        return StorageFull(
            f"{self.path}: no space left on the device; nothing was half-written: free some, or raise the"
            " limit of a file's size"
        )

    def _is_full(self) -> bool:
        """Was it for want of space that a write was cut short? LMDB calls that an I/O error."""
        if resource is not None:
            limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            if limit != resource.RLIM_INFINITY and self.path.stat().st_size + PROBE >= limit:
                return True
        try:
            with tempfile.TemporaryFile(dir=self.directory) as probe:
                probe.write(bytes(PROBE))
        except OSError as error:
            return error.errno in _FULL
        return False

    def missing(self, env: Any) -> int:
        """Return by how many bytes the file is shorter than LMDB counts it."""
        # In this order: a file only grows, and its pages are written before they are counted.
        counted = int((env.info()["last_pgno"] + 1) * env.stat()["psize"])
        return max(0, counted - os.stat(self.path).st_size)

    def check_length(self, env: Any) -> None:
        """Refuse a truncated file, which would end the process by a signal when it is read.

        Shorter than LMDB counts it is no proof: pages that a transaction took at the end and gave
        back again are never written. So what is missing is looked for, with the writers kept out.

        Raises:
            StorageCorrupt: pages are missing that are in use.
        """
        if self.missing(env) == 0:
            return
        with env.begin(write=True):
            missing = self.missing(env)
            if missing and self.is_damaged():
                raise StorageCorrupt(f"{self.path}: truncated, {missing} bytes are missing; {self.repair}")
            self.lengthen(env)

    def lengthen(self, env: Any) -> None:
        """Make the file as long as LMDB counts it, so that the next to open it need not wonder. For writers alone."""
        if missing := self.missing(env):
            os.truncate(self.path, os.stat(self.path).st_size + missing)

    def is_damaged(self) -> bool:
        """Walk the whole file, without LMDB: is a page wrong, or missing that is in use?"""
        # Seldom needed, and not cheap to import.
        from lmdb.verify import VerifyError, verify

        try:
            return bool(verify(str(self.path)))  # type: ignore[no-untyped-call]
        except VerifyError:
            return True


def _says(error: lmdb.Error, codes: set[int]) -> bool:
    """Does the error have one of these codes? The binding keeps the system's words for it alone."""
    return any(os.strerror(code) in str(error) for code in codes)
