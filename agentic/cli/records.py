"""Records as people type them and as lines of JSON, to and from the bytes of a topic.

A line is ``{"key": …, "value": …, "timestamp": …, "headers": …, "partition": …}``; only ``value``
must be there. Bytes that are no UTF-8 are written ``{"base64": "…"}``.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from agentic import codecs
from agentic.app import App
from agentic.brokers.base import Headers
from agentic.codecs import Codec
from agentic.codecs.json import Container, Json, Model, Typed
from agentic.codecs.raw import Raw, Text
from agentic.core.times import timestamp_ms
from agentic.errors import CodecError, ConfigurationError

_JSON = (Json, Container, Typed, Model)


class Base64(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes within JSON."""

    base64: str


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """One line of a JSON lines file. Key and value stay JSON until their codecs are known."""

    value: msgspec.Raw
    key: msgspec.Raw = msgspec.Raw(b"null")
    timestamp: int | None = None
    headers: dict[str, str | Base64] | list[tuple[str, str | Base64]] | None = None
    partition: int | None = None


class Record(NamedTuple):
    """A record on its way out; timestamp None: now; partition -1: by the key."""

    key: bytes | None
    value: bytes | None
    timestamp: int | None
    headers: Headers | None
    partition: int


@dataclass(frozen=True)
class Form:
    """How a topic's keys and values are written: by the app's declaration, else bytes and JSON.

    Attributes:
        needs_key: a record without a key is refused, as in a changelog.
    """

    topic: str
    key: Codec[Any]
    value: Codec[Any]
    needs_key: bool = False

    @classmethod
    def of(cls, topic: str, app: App | None) -> Form:
        """Return the form of a topic. An app need not declare it: it may be another's."""
        declared = app.topics.get(topic) if app is not None else None
        if declared is None:
            return cls(topic, codecs.key_codec(None), codecs.value_codec(None))
        return cls(topic, declared.key, declared.value)


_line = msgspec.json.Decoder(Line)


def read_line(line: bytes, form: Form) -> Record:
    """Return the record of one line.

    Raises:
        ConfigurationError: it is no such line, or its key or value do not fit the topic.
    """
    try:
        parsed = _line.decode(line)
        key = _from_json(form.key, parsed.key)
        if key is None and form.needs_key:
            raise ValueError("it has no key, and a row has one")
        return Record(
            key,
            _from_json(form.value, parsed.value),
            None if parsed.timestamp is None else timestamp_ms(parsed.timestamp),
            _wire(parsed.headers),
            -1 if parsed.partition is None else _partition(parsed.partition),
        )
    except (ValueError, TypeError, CodecError) as error:
        raise ConfigurationError(str(error)) from error


def typed(codec: Codec[Any], text: str, what: str) -> bytes:
    """Return the bytes for what was typed: text as it stands, JSON where the codec is for JSON.

    Raises:
        ConfigurationError: it does not fit; names `what`.
    """
    # What was typed may be any bytes, and stands in `text` as Python gives it to a program.
    data = text.encode(errors="surrogateescape")
    if isinstance(codec, Raw):
        return data
    try:
        if isinstance(codec, Text):
            return text.encode()
        if not isinstance(codec, _JSON):
            return codec.encode(msgspec.json.decode(data))
        return codec.encode(_decoded(codec, data))
    except UnicodeError as error:
        raise ConfigurationError(f"{what} {text!r}: it is no UTF-8, as a text must be") from error
    except (ValueError, TypeError, CodecError) as error:
        raise ConfigurationError(f"{what} {text!r}: {error}; it is read as JSON: a text stands in quotes") from error


def _decoded(codec: Codec[Any], data: bytes) -> Any:
    try:
        return codec.decode(data)
    except ValueError:
        # A date, a UUID, an enum's name: typed without the quotes that JSON wants.
        if not isinstance(codec, Typed) or data[:1] in (b"{", b"[", b'"'):
            raise
        return codec.decode(msgspec.json.encode(data.decode()))


def _from_json(codec: Codec[Any], raw: msgspec.Raw) -> bytes | None:
    data = bytes(raw)
    if data == b"null":
        return None
    if isinstance(codec, Raw):
        value = msgspec.json.decode(data, type=str | Base64)
        return _bytes(value)
    if isinstance(codec, Text):
        return codec.encode(msgspec.json.decode(data, type=str))
    if isinstance(codec, _JSON):
        return codec.encode(codec.decode(data))
    return codec.encode(msgspec.json.decode(data))


def _bytes(value: str | Base64) -> bytes:
    if isinstance(value, str):
        return value.encode()
    try:
        return base64.b64decode(value.base64, validate=True)
    except ValueError as error:
        raise ValueError(f"base64 {value.base64!r}: {error}") from None


def _wire(headers: dict[str, str | Base64] | list[tuple[str, str | Base64]] | None) -> Headers | None:
    pairs = headers.items() if isinstance(headers, dict) else headers or ()
    return tuple((name, _bytes(value)) for name, value in pairs) or None


def _partition(partition: int) -> int:
    if partition < 0:
        raise ValueError(f"partition {partition} can't be; leave it out to go by the key")
    return partition


def shown(codec: Codec[Any], data: bytes | None) -> bytes:
    """Return a key or value as JSON, for people and for lines. What its codec can't read is shown as bytes."""
    if data is None:
        return b"null"
    try:
        if isinstance(codec, _JSON):
            return msgspec.json.format(data, indent=-1)
        if not isinstance(codec, Raw | Text):
            return msgspec.json.encode(codec.decode(data), enc_hook=repr)
    except (ValueError, TypeError, CodecError):
        return _bytes_as_json(data)
    return _bytes_as_json(data)


def _bytes_as_json(data: bytes) -> bytes:
    try:
        return msgspec.json.encode(data.decode())
    except UnicodeDecodeError:
        return msgspec.json.encode(Base64(base64.b64encode(data).decode()))


def line_of(
    form: Form,
    key: bytes | None,
    value: bytes | None,
    timestamp: int,
    headers: Sequence[tuple[str, bytes | None]],
    partition: int,
) -> bytes:
    """Return a record as a line that `read_line` takes."""
    pairs = [(name, msgspec.Raw(_bytes_as_json(content or b""))) for name, content in headers]
    line: dict[str, object] = {
        "key": msgspec.Raw(shown(form.key, key)),
        "value": msgspec.Raw(shown(form.value, value)),
        "timestamp": timestamp,
        "partition": partition,
    }
    if pairs:
        line["headers"] = pairs
    return msgspec.json.encode(line)


def when(text: str) -> int:
    """Return milliseconds from a number or an ISO 8601 time with its zone.

    Raises:
        ValueError: it is neither, or before 1970.
    """
    try:
        return timestamp_ms(int(text))
    except ValueError:
        if text.lstrip("-").isdigit():
            raise
    return timestamp_ms(datetime.fromisoformat(text))


def clock_time(timestamp: int) -> str:
    """Return a timestamp as people read it, in UTC; its milliseconds where no calendar has it."""
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    except (ValueError, OverflowError, OSError):
        return f"{timestamp} ms"
