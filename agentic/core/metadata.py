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
====  ============  =====================================================================

Sections 2 and 3 say the same and exclude each other; the shorter one is written. A reader
skips sections that it does not know, so that a newer writer may add some. Whatever is not
ours means "nothing is known beyond the base"; Kafka Streams' own metadata (version byte 1
or 2) still gives its partition time. Source: spec, "The ledger", rules 4 and 5.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

MAGIC = 0xA6
VERSION = 1
#: Characters that a broker keeps for a commit: Kafka's ``offset.metadata.max.bytes`` is 4,096 by
#: default, and 4,096 itself is refused.
MAX_LENGTH = 4095

_STREAM_TIME, _RUNS, _BITS = 1, 2, 3

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


def encode(base: int, progress: Progress) -> str:
    """Return the metadata string for a commit at `base`. Empty when there is nothing to say.

    Raises:
        ValueError: it would be longer than `MAX_LENGTH`; can't happen with at most 500
            unfinished offsets in a span below 2^21, or with any in a span up to 24,000.
    """
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
    if not sections:
        return ""
    text = base64.b64encode(bytes([MAGIC, VERSION]) + sections).decode("ascii")
    if len(text) > MAX_LENGTH:
        raise ValueError(
            f"commit metadata of {len(text)} characters, a broker takes {MAX_LENGTH}: "
            f"{len(progress.unfinished)} unfinished offsets over a span of {progress.known_to - base}"
        )
    return text


def decode(base: int, text: str) -> Progress:
    """Read the metadata of a commit at `base`; whatever is not ours says that nothing is known."""
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
    stream_time: int | None = None
    unfinished: tuple[int, ...] = ()
    known_to = base
    try:
        for kind, body in _sections(data[2:]):
            if kind == _STREAM_TIME and len(body) == 8:
                stream_time = int.from_bytes(body, "big", signed=True)
            elif kind == _RUNS:
                unfinished, known_to = _from_runs(base, body)
            elif kind == _BITS:
                unfinished, known_to = _from_bits(base, body)
    except _Truncated:
        return unknown
    return Progress(stream_time, unfinished, known_to)


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
            if length > MAX_LENGTH * 8:
                raise _Truncated  # no writer leaves so many unfinished: don't let damage eat the memory
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
