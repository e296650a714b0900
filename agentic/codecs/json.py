"""JSON values: untyped, or checked against a declared type while they are decoded.

Decoding is msgspec's in all cases: unlike orjson it keeps integers of more than 64 bits as
they are (orjson makes floats of them), at the same speed. Encoding of plain containers is
orjson's, with msgspec for what orjson does not know (big integers, Decimal, sets). NaN and
infinities have no JSON; both write null for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import msgspec.inspect
import orjson

from agentic.errors import CodecError, ConfigurationError

_encoder = msgspec.json.Encoder()


def _encode(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except RecursionError:
        raise CodecError("it contains itself, or is nested too deep for JSON") from None


class Json:
    """Any JSON value."""

    declared = None

    def __init__(self) -> None:
        self.decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode
        self.encode: Callable[[Any], bytes] = _encode


class Container:
    """A dict or a list of JSON values.

    Args:
        declared: ``dict`` or ``list``.
    """

    def __init__(self, declared: type) -> None:
        self.declared = declared
        self.decode: Callable[[bytes], Any] = msgspec.json.Decoder(declared).decode

    def encode(self, value: Any, /) -> bytes:
        if value.__class__ is not self.declared and not isinstance(value, self.declared):
            raise CodecError(f"give a {self.declared.__name__}")
        try:
            return orjson.dumps(value)
        except TypeError:
            return _encode(value)


class Typed:
    """A type that msgspec knows: Struct, dataclass, TypedDict, attrs, NamedTuple, Enum, scalars, unions of these.

    Raises:
        ConfigurationError: msgspec does not know the type.
    """

    def __init__(self, declared: Any) -> None:
        self.declared = declared
        try:
            self.decode: Callable[[bytes], Any] = msgspec.json.Decoder(declared).decode
        except TypeError as error:
            raise ConfigurationError(
                f"no codec for type {declared!r}: {error}; give a codec= object with decode(bytes) and encode(value)"
            ) from None
        if (foreign := _foreign(msgspec.inspect.type_info(declared))) is not None:
            raise ConfigurationError(
                f"no codec for type {declared!r}: nothing says how a {foreign.__name__} is written as JSON; make it a "
                "dataclass or a msgspec Struct, or give a codec= object with decode(bytes) and encode(value)"
            )
        self._exact = declared if isinstance(declared, type) else None

    def encode(self, value: Any, /) -> bytes:
        if value.__class__ is self._exact:
            return _encode(value)
        return _encode(self._checked(value))

    def _checked(self, value: Any) -> Any:
        """Let pass what the declared type takes: a subclass, a TypedDict's dict, a member of a union."""
        if not isinstance(value, bool):  # to Python a bool is an int; to a topic of ints it is not
            try:
                if isinstance(value, self.declared):
                    return value
            except TypeError:  # no class but a TypedDict or a generic alias: msgspec decides
                return self._converted(value)
            if self._exact is not None and self._exact is not float:
                raise CodecError(f"give a {self._exact.__name__}")
        return self._converted(value)

    def _converted(self, value: Any) -> Any:
        try:
            return msgspec.convert(value, self.declared)
        except msgspec.ValidationError as error:
            raise CodecError(str(error)) from None


def _foreign(info: Any, seen: tuple[Any, ...] = ()) -> type | None:
    """The class within a type that msgspec lets pass, and could never decode: each record would be refused."""
    if isinstance(info, msgspec.inspect.CustomType):
        return info.cls
    if info in seen:
        return None
    parts = [getattr(info, part, None) for part in ("item_type", "key_type", "value_type")]
    parts += [*getattr(info, "item_types", ()), *getattr(info, "types", ())]
    # A field that has a default may never come.
    parts += [field.type for field in getattr(info, "fields", ()) if field.required]
    found = (_foreign(part, (*seen, info)) for part in parts if part is not None)
    return next((cls for cls in found if cls is not None), None)


class Model:
    """A pydantic model."""

    def __init__(self, declared: Any) -> None:
        self.declared = declared
        self.decode: Callable[[bytes], Any] = declared.model_validate_json

    def encode(self, value: Any, /) -> bytes:
        if not isinstance(value, self.declared):
            raise CodecError(f"give a {self.declared.__name__}")
        text: str = value.model_dump_json()
        return text.encode()
