"""What travels in a commit's metadata string: the time of a partition, and what is done beyond the base.

Base64 of ``0xA6``, a version, and sections of (type, length, bytes); all integers big-endian,
counts as unsigned LEB128 varints.

====  ============  =====================================================================
type  name          bytes
====  ============  =====================================================================
1     stream time   i64, milliseconds
2     runs          varints: lengths of runs of offsets from the base on, by turns
                    unfinished and finished, an unfinished one first
3     bits          varint n, then n bits, most significant first: 1 = finished
4     reader        6 bytes that stand for its name, then sections 1 to 3 of its own
====  ============  =====================================================================

Sections 2 and 3 say the same and exclude each other; the shorter one is written. Whoever
reads the string skips sections that it does not know, so that a newer writer may add some.
Whatever is not ours means "nothing is known beyond the base"; Kafka Streams' own metadata
(version byte 1 or 2) still gives its partition time. Source: spec, "The ledger", rules 4 and 5.

Where several readers share the position, sections 1 to 3 say what all of them have finished,
which holds for a reader that was not there as well. A reader that has finished more has a
section 4: its own sections reach up to some offset, and from there on what is said of all
is true of it too. Readers that work in order so cost a few bytes each.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

MAGIC = 0xA6
VERSION = 1
#: Characters that a broker keeps for a commit: Kafka's ``offset.metadata.max.bytes`` is 4,096 by
#: default, and 4,096 itself is refused.
MAX_LENGTH = 4095

#: Bytes that are left for sections, behind what says that the string is ours.
ROOM = MAX_LENGTH // 4 * 3 - 2
#: More than what a reader costs beside the offsets themselves: heads, name, time, two numbers.
READER_COST = 40
#: Unfinished offsets that a run of a damaged string may claim at most: they must not eat the memory.
MOST = 1 << 21

_STREAM_TIME, _RUNS, _BITS, _READER = 1, 2, 3, 4
_NAME = 6

#: A stretch of offsets: first, and one past the last.
Run = tuple[int, int]


class Progress(NamedTuple):
    """What a metadata string says.

    Attributes:
        stream_time: the partition's time in ms; None when unknown.
        unfinished: offsets at or above the base, below `known_to`, that were not finished; rising.
        known_to: below it every offset is either in `unfinished` or done; the base when nothing is known.
    """

    stream_time: int | None
    unfinished: tuple[int, ...]
    known_to: int


def shared(progresses: Collection[Progress]) -> Progress:
    """Return what all of some readers have finished."""
    known_to = min(progress.known_to for progress in progresses)
    unfinished = sorted({offset for each in progresses for offset in each.unfinished if offset < known_to})
    while unfinished and unfinished[-1] == known_to - 1:
        # At the end "not finished" is the same as "not known".
        known_to = unfinished.pop()
    times = [progress.stream_time for progress in progresses]
    known = [time for time in times if time is not None]
    return Progress(min(known) if len(known) == len(times) else None, tuple(unfinished), known_to)


def encode(base: int, progress: Progress, readers: Mapping[str, Progress] | None = None) -> str:
    """Return the metadata string for a commit at `base`. Empty when there is nothing to say.

    Args:
        progress: what has been finished, by all readers.
        readers: by name what each has finished, where they are several: all of `progress`, and more.

    Raises:
        ValueError: it would be longer than `MAX_LENGTH`; can't happen for one reader with at most 500
            unfinished offsets in a span below 2^21, or with any in a span up to 24,000.
    """
    sections = _sections_of(base, progress)
    for name, own in (readers or {}).items():
        if more := _sections_of(base, _beyond(progress, own)):
            sections += _section(_READER, _stands_for(name) + more)
    if not sections:
        return ""
    text = base64.b64encode(bytes([MAGIC, VERSION]) + sections).decode("ascii")
    if len(text) > MAX_LENGTH:
        raise ValueError(
            f"commit metadata of {len(text)} characters, a broker takes {MAX_LENGTH}: "
            f"{len(progress.unfinished)} unfinished offsets over a span of {progress.known_to - base}"
        )
    return text


def _beyond(progress: Progress, own: Progress) -> Progress:
    """Return the part of a reader's progress that what all have finished does not say already."""
    time = own.stream_time if own.stream_time != progress.stream_time else None
    if own.known_to > progress.known_to:
        return Progress(time, own.unfinished, own.known_to)
    i, j = len(progress.unfinished), len(own.unfinished)
    while i and j and progress.unfinished[i - 1] == own.unfinished[j - 1]:
        i, j = i - 1, j - 1
    # Beyond the last offset that this one has finished and another has not, they are the same.
    return Progress(time, own.unfinished[:j], progress.unfinished[i - 1] + 1 if i else 0)


def _stands_for(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=_NAME).digest()


def _sections_of(base: int, progress: Progress) -> bytes:
    sections = b""
    if progress.stream_time is not None:
        sections += _section(_STREAM_TIME, progress.stream_time.to_bytes(8, "big", signed=True))
    if progress.known_to > base:
        runs = b"".join(map(_varint, _runs(base, progress)))
        span = progress.known_to - base
        # A set bit costs an eighth of a byte, a run at least one byte: try bits only where they may win.
        if span // 8 < len(runs):
            bits = _bits(base, progress)
            runs_or_bits = _section(_BITS, bits) if len(bits) < len(runs) else _section(_RUNS, runs)
        else:
            runs_or_bits = _section(_RUNS, runs)
        sections += runs_or_bits
    return sections


def decode(base: int, text: str, reader: str = "") -> Progress:
    """Read the metadata of a commit at `base`; whatever is not ours says that nothing is known.

    Args:
        reader: whose progress is wanted. Of one that the string does not name, and of the empty
            name, it is what all have finished.
    """
    unknown = Progress(None, (), base)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return unknown
    if len(data) >= 9 and data[0] in (1, 2):
        # Kafka Streams' TopicPartitionMetadata: version, then the partition time (-1: none).
        time = int.from_bytes(data[1:9], "big", signed=True)
        return Progress(time if time >= 0 else None, (), base)
    if len(data) < 2 or data[0] != MAGIC or data[1] != VERSION:
        return unknown
    try:
        sections = list(_sections(data[2:]))
        progress = _from_sections(base, sections)
        name = _stands_for(reader)
        for kind, body in sections:
            if kind == _READER and body[:_NAME] == name:
                return _joined(_from_sections(base, _sections(body[_NAME:])), progress)
    except _Truncated:
        return unknown
    return progress


def _from_sections(base: int, sections: Iterable[tuple[int, bytes]]) -> Progress:
    progress = Progress(None, (), base)
    for kind, body in sections:
        if kind == _STREAM_TIME and len(body) == 8:
            progress = progress._replace(stream_time=int.from_bytes(body, "big", signed=True))
        elif kind in (_RUNS, _BITS):
            unfinished, known_to = (_from_runs if kind == _RUNS else _from_bits)(base, body)
            progress = progress._replace(unfinished=unfinished, known_to=known_to)
    return progress


def _joined(own: Progress, progress: Progress) -> Progress:
    """Return a reader's whole progress, from its own part and from what all have finished."""
    rest = progress.unfinished[bisect_left(progress.unfinished, own.known_to) :]
    time = progress.stream_time if own.stream_time is None else own.stream_time
    return Progress(time, own.unfinished + rest, max(own.known_to, progress.known_to))


class _Truncated(Exception):
    """The bytes end in the middle of something."""


def _section(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + _varint(len(body)) + body


def _sections(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        kind = data[at]
        length, at = _read_varint(data, at + 1)
        if at + length > len(data):
            raise _Truncated
        yield kind, data[at : at + length]
        at += length


def _varint(n: int) -> bytes:
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise _Truncated
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7


def _runs(base: int, progress: Progress) -> Iterable[int]:
    at = base
    for first, end in stretches(progress.unfinished):
        if first > at or at == base:
            # The first run is of unfinished offsets; where the base itself is done it has length 0.
            if at == base and first > at:
                yield 0
            if first > at:
                yield first - at
        yield end - first
        at = end
    if progress.known_to > at:
        if at == base:
            yield 0
        yield progress.known_to - at


def _from_runs(base: int, body: bytes) -> tuple[tuple[int, ...], int]:
    unfinished: list[int] = []
    offset = base
    at, done = 0, False
    while at < len(body):
        length, at = _read_varint(body, at)
        if not done:
            if length > MOST - len(unfinished):
                raise _Truncated
            unfinished.extend(range(offset, offset + length))
        offset += length
        done = not done
    return tuple(unfinished), offset


def _bits(base: int, progress: Progress) -> bytes:
    span = progress.known_to - base
    bits = (1 << span) - 1
    for offset in progress.unfinished:
        bits ^= 1 << (span - 1 - (offset - base))
    length = (span + 7) // 8
    return _varint(span) + (bits << (length * 8 - span)).to_bytes(length, "big")


def _from_bits(base: int, body: bytes) -> tuple[tuple[int, ...], int]:
    span, at = _read_varint(body, 0)
    length = (span + 7) // 8
    if len(body) - at != length:
        raise _Truncated
    bits = int.from_bytes(body[at:], "big") >> (length * 8 - span) if span else 0
    return tuple(base + i for i in range(span) if not bits >> (span - 1 - i) & 1), base + span


def stretches(offsets: Sequence[int]) -> Iterator[Run]:
    """Group rising offsets into runs without gaps."""
    first: int | None = None
    last = 0
    for offset in offsets:
        if first is None:
            first = offset
        elif offset != last + 1:
            yield first, last + 1
            first = offset
        last = offset
    if first is not None:
        yield first, last + 1
