"""What a store's file says of itself: its format, whose it is, and of which types its tables are."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from agentic.errors import BrokerError, StateMismatch, StorageCorrupt

FORMAT = 1
META = b"meta"
MARKS = b"marks"
#: How many databases there are beside those of the tables.
DATABASES = 2

_FORMAT_KEY = b"format"
_IDENTITY_KEY = b"identity"
_LONG_KEY = b"long"
_TYPE = b"type:"

_u32 = struct.Struct(">I")
_identity = msgspec.json.Decoder(dict[str, str])
_names = msgspec.json.Decoder(set[str])

#: By the format that it starts from, what makes a store of it one of the next: called with the
#: environment, a write transaction and the handle of META. All steps are one transaction.
MIGRATIONS: dict[int, Callable[[Any, Any, Any], None]] = {}


@dataclass(frozen=True)
class Described:
    """What a file says of itself.

    Attributes:
        identity: whose it is.
        tables: types by table, of those that are declared; of all where nothing is declared.
        long: tables that have, or had, a long key.
    """

    identity: dict[str, str]
    tables: dict[str, str]
    long: set[str]


def database(table: str) -> bytes:
    """Return the name of a table's database."""
    return b"table:" + table.encode()


def read(env: Any, path: Path) -> Described:
    """Return what a file says, with all its tables.

    Raises:
        BrokerError: there is nothing in it yet.
        StorageCorrupt: of another program, of a format that is not this one's.
    """
    with env.begin() as txn:
        names = {bytes(name) for name in txn.cursor().iternext(values=False)}
        if not names:
            # A worker is about to fill it, or died before it could.
            raise BrokerError(f"{path}: no state here yet; start the worker, it restores the state from the changelog")
        if META not in names:
            raise _foreign(path)
    db = env.open_db(META, create=False)
    with env.begin() as txn:
        version = _version(txn, db, path)
        if version < FORMAT:
            raise StorageCorrupt(
                f"{path}: format {version}, written by an older agentic; start the worker once, it brings it up to"
                f" format {FORMAT}"
            )
        return _described(txn, db)


def settle(env: Any, path: Path, identity: Mapping[str, str], tables: Mapping[str, str]) -> Described:
    """Make a file that is empty ours, or see that it is; bring it to this format, add the tables that it lacks.

    All of it is one transaction.

    Raises:
        StateMismatch: of another app or task, with a table that was declared otherwise, or of a newer format.
        StorageCorrupt: of another program.
    """
    with env.begin(write=True) as txn:
        names = {bytes(name) for name in txn.cursor().iternext(values=False)}
        if names and META not in names:
            raise _foreign(path)
        db = env.open_db(META, txn=txn)
        env.open_db(MARKS, txn=txn)
        if not names:
            txn.put(_FORMAT_KEY, _u32.pack(FORMAT), db=db)
            txn.put(_IDENTITY_KEY, msgspec.json.encode(dict(identity)), db=db)
        _migrate(env, txn, db, path)
        found = _described(txn, db)
        _compare(path, found, identity, tables)
        for table, types in tables.items():
            env.open_db(database(table), txn=txn)
            txn.put(_TYPE + table.encode(), types.encode(), db=db)
        return Described(found.identity, dict(tables), found.long)


def note_long(txn: Any, db: Any, long: set[str]) -> None:
    """Note which tables have long keys, with the rows that made it so."""
    if long:
        txn.put(_LONG_KEY, msgspec.json.encode(sorted(long)), db=db)


def _migrate(env: Any, txn: Any, db: Any, path: Path) -> None:
    version = _version(txn, db, path)
    while version < FORMAT:
        if version not in MIGRATIONS:
            raise StorageCorrupt(
                f"{path}: format {version}, which this agentic no longer reads; move it away, the changelog restores it"
            )
        MIGRATIONS[version](env, txn, db)
        version += 1
        txn.put(_FORMAT_KEY, _u32.pack(version), db=db)


def _version(txn: Any, db: Any, path: Path) -> int:
    found = txn.get(_FORMAT_KEY, db=db)
    if found is None or len(found) != _u32.size:
        raise _foreign(path)
    version: int = _u32.unpack(found)[0]
    if version > FORMAT:
        raise StateMismatch(
            f"{path}: the state has format {version}, written by a newer agentic, and this one reads up to {FORMAT};"
            " upgrade agentic, or give another state_dir"
        )
    return version


def _described(txn: Any, db: Any) -> Described:
    types = {key.removeprefix(_TYPE).decode(): value.decode() for key, value in txn.cursor(db) if key.startswith(_TYPE)}
    long = txn.get(_LONG_KEY, db=db)
    return Described(
        _identity.decode(txn.get(_IDENTITY_KEY, db=db)), types, set() if long is None else _names.decode(long)
    )


def _compare(path: Path, found: Described, identity: Mapping[str, str], tables: Mapping[str, str]) -> None:
    for what in {**found.identity, **identity}:
        theirs, ours = found.identity.get(what), identity.get(what)
        if theirs != ours:
            raise StateMismatch(
                f"{path}: the state of {what} {theirs!r}, not of {ours!r}; move its directory away, "
                "the changelog restores what belongs here, or give another state_dir"
            )
    for table, types in tables.items():
        theirs = found.tables.get(table, types)
        if theirs != types:
            raise StateMismatch(
                f"{path}: table {table!r} was declared as {theirs}, and is now {types}; run 'agentic reset', or give "
                "another state_dir"
            )


def _foreign(path: Path) -> StorageCorrupt:
    return StorageCorrupt(f"{path}: an LMDB file of another program; give another state_dir")
