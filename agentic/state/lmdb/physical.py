"""Keys as LMDB takes them: of 1 to 511 bytes.

LMDB's engine 0.9, which py-lmdb makes new files with, takes 511 bytes. Its engine 1.0 takes
1,978 in pages of the same size, at the same speed but for scans, which it runs at two thirds of
the speed; both are short of the 64 KiB that a record's key may have, a file can't be changed from one
to the other, and the tools that people have read 0.9. So the engine is 0.9, and a rule
is needed in any case:

* A key of up to 495 bytes stands as it is.
* Of a longer one there stand the first 495 bytes and a digest of 16: 511, a length that no
  other has. The whole key stands before the value. Between keys with the same first 495 bytes
  the digests sort as they like: a scan puts them in order.
* A key of zeros alone, the empty one above all, gets one more zero: LMDB has no empty key, and
  ``0`` for ``""`` moves all the others of this kind up by one without touching the order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from itertools import chain

#: The longest key that stands as it is.
SHORT = 495
DIGEST = 16
#: The length of what stands for a longer one: the most that LMDB's engine 0.9 takes.
LONG = SHORT + DIGEST
#: Whatever sorts up to this, and is no longer than `SHORT`, is zeros alone.
ZEROS = bytes(SHORT)
#: The same of what stands for them in LMDB.
ESCAPED_ZEROS = bytes(SHORT + 1)

_LAST_DIGEST = b"\xff" * DIGEST
#: Ends a run of rows: no stored key is empty.
_END = ((b"", b""),)

_length = struct.Struct(">I")


def physical(key: bytes) -> bytes:
    """Return what stands for a key in LMDB."""
    if len(key) > SHORT:
        return key[:SHORT] + blake2b(key, digest_size=DIGEST).digest()
    return key if key > ZEROS else key + b"\x00"


def pack(key: bytes, value: bytes) -> bytes:
    """Return what stands for a value: behind its key, if that is a long one."""
    return _length.pack(len(key)) + key + value if len(key) > SHORT else value


def key_of(stored: bytes, packed: bytes) -> bytes:
    """Return the key of a stored row."""
    if len(stored) == LONG:
        return packed[_length.size : _length.size + _length.unpack_from(packed)[0]]
    return stored if stored > ESCAPED_ZEROS else stored[:-1]


def value_of(stored: bytes, packed: bytes) -> bytes:
    """Return the value of a stored row."""
    return packed[_length.size + _length.unpack_from(packed)[0] :] if len(stored) == LONG else packed


def bounds(start: bytes, stop: bytes | None) -> tuple[bytes, bytes | None]:
    """Return between which stored keys all keys with ``start <= key < stop`` stand, and perhaps a few others."""
    low = physical(start) if len(start) <= SHORT else start[:SHORT]
    if stop is None or len(stop) <= SHORT:
        return low, None if stop is None else physical(stop)
    return low, stop[:SHORT] + _LAST_DIGEST


def in_order(
    rows: Iterable[tuple[bytes, bytes]],
    fetch: Callable[[bytes], bytes],
    start: bytes,
    stop: bytes | None,
    reverse: bool,
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows with ``start <= key < stop`` of stored rows, in the order of their keys.

    Args:
        rows: as they are stored, in the order of the stored keys, or against it.
        fetch: what stands for the value under a stored key.
    """
    group: list[tuple[bytes, bytes]] = []
    for stored, packed in chain(rows, _END):
        is_long = len(stored) == LONG
        if group and not (is_long and stored[:SHORT] == group[0][1][:SHORT]):
            for key, name in sorted(group, reverse=reverse):
                yield key, value_of(name, fetch(name))
            group = []
        key = key_of(stored, packed)
        if key < start or (stop is not None and key >= stop):
            continue
        if is_long:
            # Without the value: there may be many to a group, and large ones.
            group.append((key, stored))
        elif stored:
            yield key, packed
