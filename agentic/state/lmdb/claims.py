"""The copies of a task's state on this machine, and who has which.

A copy is a directory, ``<state_dir>/<app>/state/<task>/<number>``, and beside it a file
``<number>.lock``, locked as long as a process has the copy, whatever ends it. Workers may
share a state directory: one has the task and another keeps a standby of it, or the last
owner hangs, still holding its copy. So each takes a copy of its own: of the free ones that
which is furthest, and if there is none a new one.

A copy that nobody wanted for `KEPT` seconds, while there was a better one, is removed. Lock
files stay: a process that waits for one that is gone would wait for nothing.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from agentic.errors import AgenticError, BrokerError
from agentic.state.lmdb.store import RESIDENT_LIMIT, LmdbStore

#: The mark that says how far a copy is: a big-endian integer of any length.
ADVANCE = "advance"
#: Seconds for which a free copy is kept beside a better one: the workers of a machine do not all start at once.
KEPT = 24 * 3600
#: Seconds to wait for another process that is choosing: it reads some marks and is done, if it does not hang.
CHOOSING = 5.0
_POLL = 0.02


@dataclass(frozen=True)
class Copy:
    """A copy of a task's state on this machine.

    Attributes:
        task: the task's name.
        number: which of its copies.
        directory: where its store is.
    """

    task: str
    number: int
    directory: Path


class ClaimedStore(LmdbStore):
    """A store in a copy that this process has claimed; closing it frees the copy.

    Attributes:
        claim: the descriptor of the locked file. A process that inherits it has the claim as well, as long as it lives.
    """

    _lock_file: int | None = None

    @property
    def claim(self) -> int:
        assert self._lock_file is not None, "claimed, and not closed"
        return self._lock_file

    def close(self) -> None:
        try:
            super().close()
        finally:
            if self._lock_file is not None:
                os.utime(self._lock_file)
                os.close(self._lock_file)
                self._lock_file = None


def claim(
    state_dir: str | os.PathLike[str],
    app: str,
    task: str,
    tables: Mapping[str, str],
    *,
    map_size: int | None = None,
    resident_limit: int = RESIDENT_LIMIT,
) -> LmdbStore:
    """Open a copy of a task's state that no other process has: of the free ones the furthest, else a new one.

    How far a copy is says its mark `ADVANCE`. The copy is freed when the store is closed, or the process ends.

    Args:
        state_dir: the app's state directory; made if it is missing.
        tables: as for `LmdbStore.open`.

    Raises:
        StateMismatch, StorageCorrupt, StorageFull, BrokerError: as `LmdbStore.open` does.
    """
    directory = _task_directory(state_dir, app, task)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _choosing(directory):
            number, lock = _choose(directory)
    except OSError as error:
        raise BrokerError(
            f"{directory}: can't keep state here ({error.strerror}); set state_dir to a directory that can be written"
        ) from error
    try:
        store = ClaimedStore.open(
            directory / str(number),
            identity={"app": app, "task": task},
            tables=tables,
            map_size=map_size,
            resident_limit=resident_limit,
        )
    except BaseException:
        os.close(lock)
        raise
    store._lock_file = lock
    return store


def copies(state_dir: str | os.PathLike[str], app: str) -> list[Copy]:
    """Return the copies of all tasks of an app on this machine, to be opened by `LmdbStore.open_readonly`."""
    root = _app_directory(state_dir, app)
    if not root.is_dir():
        return []
    tasks = sorted(path for path in root.iterdir() if path.is_dir())
    return [Copy(unquote(path.name), number, path / str(number)) for path in tasks for number in _numbers(path)]


def in_use(copy: Copy) -> bool:
    """Does a process have this copy now?

    Raises:
        BrokerError: that can't be seen, for want of the right to write there.
    """
    with _taken(copy) as taken:
        return not taken


def move_aside(copy: Copy, why: str = "damaged") -> Path:
    """Take a copy out of the way, and return where it is now; the task's next claim begins with another.

    Args:
        why: a word for the directory's new name.

    Raises:
        BrokerError: a process has it, or the directory can't be written.
    """
    with _taken(copy) as taken:
        if not taken:
            raise BrokerError(f"{copy.directory}: a worker has it open; stop that worker first")
        aside = copy.directory.with_name(f"{copy.number}.{why}-{time.strftime('%Y%m%d-%H%M%S')}")
        copy.directory.rename(aside)
        return aside


@contextmanager
def _taken(copy: Copy) -> Iterator[bool]:
    """Take a copy for a moment, if no process has it; no claim passes it over meanwhile."""
    directory = copy.directory.parent
    try:
        with _choosing(directory):
            lock = _try_lock(_lock_path(directory, copy.number))
            try:
                yield lock is not None
            finally:
                if lock is not None:
                    os.close(lock)
    except OSError as error:
        raise BrokerError(f"{copy.directory}: no access to it ({error.strerror}); check its owner and mode") from error


def _app_directory(state_dir: str | os.PathLike[str], app: str) -> Path:
    return Path(state_dir) / app / "state"


def _task_directory(state_dir: str | os.PathLike[str], app: str, task: str) -> Path:
    # Without dots: two of them are a directory already.
    return _app_directory(state_dir, app) / quote(task, safe=" ,;=+@").replace(".", "%2E")


def _numbers(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in directory.iterdir() if re.fullmatch(r"\d+", path.name) and path.is_dir())


def _lock_path(directory: Path, number: int) -> Path:
    return directory / f"{number}.lock"


def _try_lock(path: Path) -> int | None:
    """Lock a file and return its descriptor; None while another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def _choosing(directory: Path) -> Iterator[None]:
    """Keep other processes from choosing too, which would take the copies looked at for taken ones.

    One that hangs is not waited for: then at worst a copy is made that was not needed.
    """
    deadline = time.monotonic() + CHOOSING
    while (lock := _try_lock(directory / "choosing.lock")) is None and time.monotonic() < deadline:
        time.sleep(_POLL)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _choose(directory: Path) -> tuple[int, int]:
    """Lock a copy; return its number and the lock."""
    numbers = _numbers(directory)
    free = {number: lock for number in numbers if (lock := _try_lock(_lock_path(directory, number))) is not None}
    best = max(free, key=lambda number: (_advance(directory / str(number)), -number), default=None)
    if best is not None:
        chosen = free.pop(best)
        for number, lock in free.items():
            if time.time() - os.fstat(lock).st_mtime > KEPT:
                shutil.rmtree(directory / str(number))
            os.close(lock)
        os.utime(chosen)
        return best, chosen
    number = 0
    while number in numbers or (lock := _try_lock(_lock_path(directory, number))) is None:
        number += 1
    os.utime(lock)
    return number, lock


def _advance(directory: Path) -> int:
    """How far a free copy is; -1 for one that can't be read, which is then found out by opening it."""
    try:
        with closing(LmdbStore.open_readonly(directory)) as store:
            mark = store.mark(ADVANCE)
    except AgenticError:
        return -1
    return int.from_bytes(mark or b"", "big")
