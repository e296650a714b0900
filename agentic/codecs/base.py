"""What a codec is, and the words for what it can't do."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, runtime_checkable

from agentic.errors import CodecError

T = TypeVar("T")


@runtime_checkable
class Codec(Protocol[T]):
    """Turns values into bytes and back. Never sees a null: None and no bytes are each other's image.

    Both methods may be plain functions of a C library: the worker calls them for each record.
    """

    def decode(self, data: bytes, /) -> T:
        """Return the value. Raises ValueError (or a subclass) for bytes that are none."""

    def encode(self, value: T, /) -> bytes:
        """Return the bytes. Raises TypeError, ValueError or CodecError for a value that does not fit."""


def type_name(declared: object) -> str:
    """Return a type's name as a user would write it."""
    if declared is None:
        return "JSON"
    return declared.__qualname__ if isinstance(declared, type) else str(declared).removeprefix("typing.")


def explain(codec: Codec[Any], data: bytes, error: Exception) -> CodecError:
    """Return the error for bytes that a codec refused: the type wanted, the decoder's words, the bytes' beginning."""
    wanted = type_name(getattr(codec, "declared", type(codec)))
    beginning = data[:60]
    return CodecError(f"not {wanted}: {error} (bytes begin {beginning!r})")


def encode(codec: Codec[Any], value: Any, what: str) -> bytes:
    """Encode, or raise a `CodecError` that names `what`, the type wanted and the type got."""
    try:
        return codec.encode(value)
    except (TypeError, ValueError, CodecError) as error:
        wanted = type_name(getattr(codec, "declared", type(codec)))
        raise CodecError(f"{what}: {_shown(value)} is a {type(value).__name__}, wanted {wanted}: {error}") from error


def _shown(value: Any) -> str:
    """Return the beginning of how a value is written, if Python can write it at all."""
    try:
        return f"{value!r:.200}"
    except ValueError:  # an integer of more digits than are converted
        return "what is too long to be shown"
