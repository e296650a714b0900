"""JSON values: untyped, or checked against a declared type while they are decoded.

Decoding is msgspec's in all cases: unlike orjson it keeps integers of more than 64 bits as
they are (orjson makes floats of them), at the same speed. Encoding of plain containers is
orjson's, with msgspec for what orjson does not know (big integers, Decimal, sets). NaN and
infinities have no JSON; both write null for them. Where a float is declared that null would
not be read back as what it was, if at all, and the value is refused; where anything may come,
null is as good as another value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any

import msgspec
import msgspec.inspect
import orjson

from agentic.errors import CodecError, ConfigurationError

_encoder = msgspec.json.Encoder()
#: Three times as fast as ``b"null" in data``, which first tries whether that is a number.
_null_in = re.compile(b"null").search


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

    def __reduce__(self) -> tuple[Any, ...]:
        return Json, ()


class Container:
    """A dict or a list of JSON values.

    Args:
        declared: ``dict`` or ``list``.
    """

    def __init__(self, declared: type) -> None:
        self.declared = declared
        self.decode: Callable[[bytes], Any] = msgspec.json.Decoder(declared).decode

    def __reduce__(self) -> tuple[Any, ...]:
        # A decoder can't be pickled.
        return Container, (self.declared,)

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
        info = msgspec.inspect.type_info(declared)
        if (foreign := _foreign(info)) is not None:
            raise ConfigurationError(
                f"no codec for type {declared!r}: nothing says how a {foreign.__name__} is written as JSON; make it a "
                "dataclass or a msgspec Struct, or give a codec= object with decode(bytes) and encode(value)"
            )
        self._exact = declared if isinstance(declared, type) else None
        self._floats = _has_floats(info, set())

    def __reduce__(self) -> tuple[Any, ...]:
        return Typed, (self.declared,)

    def encode(self, value: Any, /) -> bytes:
        data = _encode(value if value.__class__ is self._exact else self._checked(value))
        # To look at each float would cost more than the encoding.
        if self._floats and _null_in(data) and not self._comes_back(data, value):
            _refuse_nan(msgspec.to_builtins(value))
        return data

    def _comes_back(self, data: bytes, value: Any) -> bool:
        try:
            return bool(self.decode(data) == value)
        except ValueError:
            return False

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


def _has_floats(info: Any, seen: set[int]) -> bool:
    """Is a float declared anywhere within a type?"""
    if isinstance(info, msgspec.inspect.FloatType):
        return True
    # A type that contains itself is the same object again.
    if id(info) in seen:
        return False
    seen.add(id(info))
    parts = [getattr(info, part, None) for part in ("item_type", "key_type", "value_type")]
    parts += [*getattr(info, "item_types", ()), *getattr(info, "types", ())]
    parts += [field.type for field in getattr(info, "fields", ())]
    return any(_has_floats(part, seen) for part in parts if part is not None)


def _refuse_nan(value: Any) -> None:
    """Raise `CodecError` for a NaN or an infinity within plain containers."""
    parts: Iterable[Any] = ()
    if isinstance(value, float):
        if not isfinite(value):
            raise CodecError(f"it has {value}, for which there is no JSON, and would be read back as null")
    elif isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    for part in parts:
        _refuse_nan(part)


class Model:
    """A pydantic model."""

    def __init__(self, declared: Any) -> None:
        self.declared = declared
        self.decode: Callable[[bytes], Any] = declared.model_validate_json

    def encode(self, value: Any, /) -> bytes:
        if not isinstance(value, self.declared):
            raise CodecError(f"give a {self.declared.__name__}")
        text: str = value.model_dump_json()
        if "null" in text:
            _refuse_nan(value.model_dump())
        return text.encode()
