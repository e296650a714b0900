"""Values that are not JSON: bytes as they are, text as UTF-8."""

from __future__ import annotations

from agentic.errors import CodecError


class Raw:
    """Bytes as they are."""

    declared = bytes

    def decode(self, data: bytes, /) -> bytes:
        return data

    def encode(self, value: bytes, /) -> bytes:
        if not isinstance(value, bytes):
            raise CodecError("give bytes")
        return value


class Text:
    """A str as UTF-8, without quotes."""

    declared = str

    def __init__(self) -> None:
        # bytes.decode in its own right is called faster than through a method of ours.
        self.decode = bytes.decode

    def encode(self, value: str, /) -> bytes:
        if not isinstance(value, str):
            raise CodecError("give a str")
        return value.encode()
