"""Keys as bytes whose order is the order of the keys.

A key has two faces. On the *wire*, in a changelog record and before the partitioner, it is
what the key's codec makes of it, as on any topic. In a *store* it is bytes that sort as the
keys do, so that a scan runs in the order of the keys. For str and bytes both are the same.

    str         UTF-8, which sorts by code points, as Python does
    bytes       as they are
    int         sign and length, then the magnitude, big-endian; of any size
    float       the bits of IEEE 754, with the sign made to sort; finite ones only: JSON has no others
    bool        one byte
    datetime    naive or aware, then microseconds since the epoch; an aware one comes back in UTC, or in the next
                zone where UTC would need a year before 1 or after 9999
    date        the ordinal of the day
    UUID        its 16 bytes
    tuple       its parts, each ending itself; shorter before longer, as in Python
    others      the codec's bytes, in the order of these
"""

from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any, Protocol, get_args, get_origin
from uuid import UUID

from agentic.codecs import Codec
from agentic.codecs.base import encode as codec_encode
from agentic.codecs.base import explain, type_name
from agentic.errors import CodecError


class KeyFormat:
    """How the keys of a declared type are stored.

    Attributes:
        identity: stored bytes and wire bytes are the same, `from_wire` and `to_wire` need no call.
    """

    def __init__(self, declared: Any, codec: Codec[Any], part: _Part | None) -> None:
        self._declared = declared
        self._codec = codec
        self._part = part
        self.identity = part is None

    def encode(self, key: Any) -> bytes:
        """Return the stored bytes of a key.

        Raises:
            CodecError: the key is not of the declared type; names both.
        """
        if self._part is None:
            return codec_encode(self._codec, key, "key")
        try:
            return self._part.pack(key)
        except (TypeError, ValueError, OverflowError, struct.error) as error:
            raise CodecError(
                f"key: {key!r:.200} is a {type(key).__name__}, wanted {type_name(self._declared)}: {error}"
            ) from error

    def encode_prefix(self, prefix: Any) -> bytes:
        """Return the bytes with which the stored bytes of all keys begin that begin with `prefix`.

        Args:
            prefix: of str and bytes keys the beginning, of tuples the first parts.

        Raises:
            TypeError: keys of this type have no beginning.
            CodecError: the prefix is not of the keys' type.
        """
        if isinstance(self._part, _Tuple):
            return self._part.pack_prefix(prefix)
        if self._declared in (str, bytes, None):
            return self.encode(prefix)
        raise TypeError(f"keys of type {type_name(self._declared)} have no beginning; use a range of keys")

    def decode(self, stored: bytes) -> Any:
        """Return the key of stored bytes.

        Raises:
            CodecError: they are not a key's.
        """
        try:
            if self._part is None:
                return self._codec.decode(stored)
            key, end = self._part.unpack(stored, 0)
            if end != len(stored):
                raise ValueError(f"{len(stored) - end} bytes too many")
        except (ValueError, LookupError, OverflowError, struct.error) as error:
            raise explain(self._codec, stored, error) from error
        return key

    def from_wire(self, wire: bytes) -> bytes:
        """Return the stored bytes of a key, from those of its codec.

        Raises:
            CodecError: they are not a key's.
        """
        if self._part is None:
            return wire
        try:
            key = self._codec.decode(wire)
        except ValueError as error:
            raise explain(self._codec, wire, error) from error
        return self.encode(key)

    def to_wire(self, stored: bytes) -> bytes:
        """Return the codec's bytes of a key, from the stored ones.

        Raises:
            CodecError: they are not a key's.
        """
        if self._part is None:
            return stored
        return codec_encode(self._codec, self.decode(stored), "key")


def key_format(declared: Any, codec: Codec[Any]) -> KeyFormat:
    """Return how keys of a declared type are stored, beside the codec that writes them to the wire."""
    if declared is None or declared is bytes or declared is str:
        return KeyFormat(declared, codec, None)
    return KeyFormat(declared, codec, _part(declared))


class _Part(Protocol):
    """A key's bytes that end themselves, so that others can follow."""

    def pack(self, key: Any) -> bytes: ...
    def unpack(self, data: bytes, at: int) -> tuple[Any, int]:
        """Return the key that begins at a position, and where it ends."""


def _part(declared: Any) -> _Part | None:
    if isinstance(declared, type) and declared in _PARTS:
        return _PARTS[declared]
    if get_origin(declared) is not tuple:
        return None
    types = get_args(declared)
    if len(types) == 2 and types[1] is ...:
        every = _part(types[0])
        return None if every is None else _Sequence(every)
    parts = [_part(part) for part in types]
    known = [part for part in parts if part is not None]
    return _Tuple(known) if len(known) == len(parts) else None


class _Int:
    """A byte that is 128 plus the length of the magnitude, then the magnitude; of a negative one the complement.

    Lengths above 126 bytes do not fit: 255, then four bytes of length.
    """

    LONGEST = 126

    def pack(self, key: int) -> bytes:
        if key.__class__ is not int and (isinstance(key, bool) or not isinstance(key, int)):
            raise TypeError("give an int")
        magnitude = -key if key < 0 else key
        size = (magnitude.bit_length() + 7) >> 3
        head = _HEADS[size] if size <= self.LONGEST else b"\xff" + size.to_bytes(4, "big")
        packed = head + magnitude.to_bytes(size, "big")
        return packed.translate(_COMPLEMENT) if key < 0 else packed

    def unpack(self, data: bytes, at: int) -> tuple[int, int]:
        negative = data[at] < 0x80
        start = at + 1
        size = (data[at] ^ 0xFF if negative else data[at]) - 0x80
        if size > self.LONGEST:
            start += 4
            length = data[at + 1 : start]
            size = int.from_bytes(length.translate(_COMPLEMENT) if negative else length, "big")
        end = start + size
        magnitude = data[start:end]
        if len(magnitude) < size:
            raise ValueError("cut short")
        if negative:
            return -int.from_bytes(magnitude.translate(_COMPLEMENT), "big"), end
        return int.from_bytes(magnitude, "big"), end


_COMPLEMENT = bytes(range(255, -1, -1))
_HEADS = [bytes((0x80 + size,)) for size in range(_Int.LONGEST + 1)]
_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_u64 = struct.Struct(">Q")
_f64 = struct.Struct(">d")


class _Float:
    """The bits of the number: with the sign bit set for a positive one, all turned round for a negative one."""

    def pack(self, key: float) -> bytes:
        if isinstance(key, bool) or not isinstance(key, int | float):
            raise TypeError("give a float")
        number = float(key)
        if not math.isfinite(number):
            raise ValueError("give a finite one, JSON has no others")
        # A dict holds 0.0 and -0.0 for the same key: the sum makes one of them.
        bits: int = _u64.unpack(_f64.pack(number + 0.0))[0]
        return _u64.pack(bits ^ _ALL if bits & _SIGN else bits | _SIGN)

    def unpack(self, data: bytes, at: int) -> tuple[float, int]:
        bits: int = _u64.unpack_from(data, at)[0]
        number: float = _f64.unpack(_u64.pack(bits ^ _SIGN if bits & _SIGN else bits ^ _ALL))[0]
        return number, at + 8


class _Bool:
    def pack(self, key: bool) -> bytes:
        if not isinstance(key, bool):
            raise TypeError("give a bool")
        return b"\x01" if key else b"\x00"

    def unpack(self, data: bytes, at: int) -> tuple[bool, int]:
        return bool((b"\x00", b"\x01").index(data[at : at + 1])), at + 1


class _Datetime:
    EPOCH = datetime(1970, 1, 1)
    AWARE_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
    MICROSECOND = timedelta(microseconds=1)
    #: The furthest that a zone is from UTC, in what JSON can say of one.
    FURTHEST = timedelta(hours=23, minutes=59)
    FIRST = datetime.min - EPOCH - FURTHEST
    LAST = datetime.max - EPOCH + FURTHEST
    _packed = struct.Struct(">BQ")

    def pack(self, key: datetime) -> bytes:
        if not isinstance(key, datetime):
            raise TypeError("give a datetime")
        aware = key.utcoffset() is not None
        since = key - self.AWARE_EPOCH if aware else key.replace(tzinfo=None) - self.EPOCH
        if not self.FIRST <= since <= self.LAST:
            raise ValueError("give one whose zone is less than a day from UTC, in whole minutes")
        return self._packed.pack(aware, since // self.MICROSECOND + _SIGN)

    def unpack(self, data: bytes, at: int) -> tuple[datetime, int]:
        aware, stored = self._packed.unpack_from(data, at)
        since, end = (stored - _SIGN) * self.MICROSECOND, at + self._packed.size
        if not aware:
            return self.EPOCH + since, end
        try:
            return self.AWARE_EPOCH + since, end
        except OverflowError:
            offset = self.FURTHEST if since < timedelta() else -self.FURTHEST
            return (self.EPOCH + (since + offset)).replace(tzinfo=timezone(offset)), end


class _Date:
    _packed = struct.Struct(">I")

    def pack(self, key: date) -> bytes:
        if not isinstance(key, date) or isinstance(key, datetime):
            raise TypeError("give a date")
        return self._packed.pack(key.toordinal())

    def unpack(self, data: bytes, at: int) -> tuple[date, int]:
        return date.fromordinal(self._packed.unpack_from(data, at)[0]), at + self._packed.size


class _Uuid:
    def pack(self, key: UUID) -> bytes:
        if not isinstance(key, UUID):
            raise TypeError("give a UUID")
        return key.bytes

    def unpack(self, data: bytes, at: int) -> tuple[UUID, int]:
        return UUID(bytes=data[at : at + 16]), at + 16


class _Bytes:
    """Bytes, ended as `composite` ends them."""

    def pack(self, key: bytes) -> bytes:
        if not isinstance(key, bytes):
            raise TypeError("give bytes")
        return _ended(key)

    def unpack(self, data: bytes, at: int) -> tuple[bytes, int]:
        return _until_end(data, at)


class _Str:
    def pack(self, key: str) -> bytes:
        if not isinstance(key, str):
            raise TypeError("give a str")
        return _ended(key.encode())

    def unpack(self, data: bytes, at: int) -> tuple[str, int]:
        text, end = _until_end(data, at)
        return text.decode(), end


class _Tuple:
    """Parts of declared types, one after the other."""

    def __init__(self, parts: list[_Part]) -> None:
        self._parts = parts

    def pack(self, key: tuple[Any, ...]) -> bytes:
        if not isinstance(key, tuple):
            raise TypeError("give a tuple")
        if len(key) != len(self._parts):
            raise ValueError(f"give {len(self._parts)} parts, not {len(key)}")
        return b"".join([part.pack(value) for part, value in zip(self._parts, key)])

    def pack_prefix(self, prefix: tuple[Any, ...]) -> bytes:
        """Return the bytes of the first parts of keys."""
        if not isinstance(prefix, tuple) or len(prefix) > len(self._parts):
            raise TypeError(f"give a tuple of at most {len(self._parts)} parts, the first ones")
        return b"".join([part.pack(value) for part, value in zip(self._parts, prefix)])

    def unpack(self, data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        values = []
        for part in self._parts:
            value, at = part.unpack(data, at)
            values.append(value)
        return tuple(values), at


class _Sequence:
    """Any number of parts of one type: 1 before each, 0 at the end, so that the shorter comes first."""

    def __init__(self, part: _Part) -> None:
        self._part = part

    def pack(self, key: tuple[Any, ...]) -> bytes:
        if not isinstance(key, tuple):
            raise TypeError("give a tuple")
        return b"".join([b"\x01" + self._part.pack(value) for value in key]) + b"\x00"

    def unpack(self, data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        values = []
        while data[at]:
            value, at = self._part.unpack(data, at + 1)
            values.append(value)
        return tuple(values), at + 1


_PARTS: dict[type, _Part] = {
    str: _Str(),
    bytes: _Bytes(),
    int: _Int(),
    float: _Float(),
    bool: _Bool(),
    datetime: _Datetime(),
    date: _Date(),
    UUID: _Uuid(),
}

_END = b"\x00\x00"
_ZERO = b"\x00\xff"


def _ended(key: bytes) -> bytes:
    """Bytes that end themselves and sort as before: a zero in them becomes 0 255, their end is 0 0."""
    return key.replace(b"\x00", _ZERO) + _END


def _until_end(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.index(_END, at)
    return data[at:end].replace(_ZERO, b"\x00"), end + 2


def composite(key: bytes, suffix: bytes) -> bytes:
    """Return a key made of a key and a suffix, sorted by the key first and then by the suffix.

    All suffixes of a table have one width, or sort as they should for themselves.
    """
    return key.replace(b"\x00", _ZERO) + _END + suffix


def composite_prefix(key: bytes) -> bytes:
    """Return what all composites of a key begin with, and no composite of another key."""
    return _ended(key)


def split(stored: bytes) -> tuple[bytes, bytes]:
    """Return key and suffix of a composite.

    Raises:
        ValueError: it is none.
    """
    key, end = _until_end(stored, 0)
    return key, stored[end:]


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the smallest key above all keys that begin with a prefix; None where there is no end."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None
