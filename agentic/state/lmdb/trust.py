"""Whether a store's file can be trusted: after the machine went down, and after damage was met.

A store's writes are not waited for by the disk. While the machine lives that loses nothing,
whatever becomes of the process. When the machine goes down, the kernel may have written some
pages and not others, in any order. So a store that is open has a file beside it that names
the boot of the machine, on disk before the first write, and taken away after all has been
synced. Who finds that file, and another boot in it, empties the store: the changelog fills it again.

Damage shows when a damaged page is read, which may be long after the file was opened. It is noted in
another file, so that the next to open the store knows at once, and can repair it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from agentic.lmdbfile import DATA_FILE, LOCK_FILE
from agentic.machine import boot_id

OPEN_FILE = "open"
DAMAGED_FILE = "damaged"

log = logging.getLogger(__name__)


def is_stale(directory: Path) -> bool:
    """Was the store open when the machine went down?"""
    try:
        opened = (directory / OPEN_FILE).read_text()
    except FileNotFoundError:
        return False
    # What can't be known is not to be trusted.
    return not opened or opened != boot_id()


def begin(directory: Path) -> bool:
    """Note that the store is open, on disk; before that, empty it if it can't be trusted. Was it emptied?"""
    stale = is_stale(directory)
    if stale:
        log.warning(
            "%s: the store was open when the machine went down, and is emptied; the changelog restores it", directory
        )
        for name in (DATA_FILE, LOCK_FILE, DAMAGED_FILE):
            (directory / name).unlink(missing_ok=True)
    path = directory / OPEN_FILE
    draft = path.with_suffix(".new")
    with open(draft, "w") as file:
        file.write(boot_id())
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    _sync_directory(directory)
    return stale


def end(directory: Path) -> None:
    """Note that the store is closed, with all that it has on disk."""
    (directory / OPEN_FILE).unlink(missing_ok=True)


def note_damage(directory: Path, words: str) -> None:
    """Note that damage was met, and how it was told of."""
    try:
        (directory / DAMAGED_FILE).write_text(words)
    except OSError as error:
        log.warning("%s: can't note that the store is damaged (%s)", directory, error.strerror)


def damage(directory: Path) -> str | None:
    """Return how damage was told of that was met earlier; None where there was none."""
    try:
        return (directory / DAMAGED_FILE).read_text()
    except FileNotFoundError:
        return None


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
