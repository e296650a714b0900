"""Making a new log: the file comes to its place whole, or not at all.

LMDB takes a file without bytes for a new one, and would so begin anew where a log lost all that it
had. Here no crash leaves such a file: a new one is made beside its place, under a lock that dies
with its holder, and moved there when all is in it. So one that is empty was a log once.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from agentic.brokers.local.layout import DATABASES, FORMAT, FORMAT_KEY, LOG_ID_KEY, U64
from agentic.lmdbfile import DATA_FILE, LOCK_FILE

#: Where a new log is made, within its directory. What stands there without the lock is a dead process's.
WORKSHOP = ".new"
#: What we and LMDB put into a directory.
OWN_FILES = {DATA_FILE, LOCK_FILE, WORKSHOP}
#: Random bytes of a log's id: so many that no two logs ever have the same.
ID_BYTES = 8
#: Bytes of address space for the making; whoever opens the log says what it wants.
MAP_SIZE = 1 << 20


def make(directory: Path) -> None:
    """Make an empty log in a directory that has none; do nothing where there is one.

    Raises:
        OSError, lmdb.Error: it can't be written; the directory has no log then.
    """
    file = directory / DATA_FILE
    if file.exists():
        return
    with _alone(directory):
        if file.exists():
            return
        workshop = directory / WORKSHOP
        shutil.rmtree(workshop, ignore_errors=True)
        workshop.mkdir()
        _fill(workshop)
        # One that is left here counts the transactions of a log that is gone.
        (directory / LOCK_FILE).unlink(missing_ok=True)
        (workshop / DATA_FILE).rename(file)
        shutil.rmtree(workshop)


def _fill(directory: Path) -> None:
    with lmdb.open(str(directory), map_size=MAP_SIZE, max_dbs=len(DATABASES)) as environment:
        with environment.begin(write=True) as txn:
            made = {name: environment.open_db(name, txn=txn) for name in DATABASES}
            txn.put(FORMAT_KEY, U64.pack(FORMAT), db=made[b"meta"])
            txn.put(LOG_ID_KEY, secrets.token_hex(ID_BYTES).encode(), db=made[b"meta"])
        environment.sync(True)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Keep other processes from making a log in this directory."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
