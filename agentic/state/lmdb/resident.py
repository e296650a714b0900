"""Keeping a mapped file's share of resident memory small.

What is read of a mapped file counts as memory of the process, though the kernel may take it
back at any time: and who watches the process, or limits it, sees that sum and not what can be
taken back. Where the kernel says how much it is (Linux), a store gives its pages back when they pass
a limit. They stay in the kernel's cache: reading them again costs a minor fault. Elsewhere
(macOS) that is left to the kernel, which does it when memory is short.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from pathlib import Path
from typing import Any

STATM = "/proc/self/statm"
MAPS = "/proc/self/maps"


def file_pages() -> int:
    """Return how many bytes of files are in this process's resident memory; 0 where nobody says."""
    try:
        with open(STATM, "rb", buffering=0) as statm:
            return int(statm.read(200).split()[2]) * mmap.PAGESIZE
    except OSError:
        return 0


def give_back(file: Path) -> None:
    """Take a file's shared mappings out of resident memory; the mappings stay, and so does what they show.

    The caller sees to it that none is unmapped meanwhile.
    """
    for start, end in _mappings(file):
        # Of a shared mapping this forgets nothing: a page not written back is the kernel's to keep.
        _madvise()(ctypes.c_void_p(start), ctypes.c_size_t(end - start), ctypes.c_int(mmap.MADV_DONTNEED))


def _mappings(file: Path) -> list[tuple[int, int]]:
    inode = os.stat(file).st_ino
    found = []
    for line in Path(MAPS).read_text(errors="replace").splitlines():
        # start-end permissions offset device inode path
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and int(fields[4]) == inode and fields[1][3] == "s" and fields[5].endswith(file.name):
            start, end = fields[0].split("-")
            found.append((int(start, 16), int(end, 16)))
    return found


@cache
def _madvise() -> Any:
    return ctypes.CDLL(None).madvise
