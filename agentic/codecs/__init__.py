"""Bytes and values: which codec a declared type has."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from agentic.codecs.base import Codec, encode, explain
from agentic.codecs.json import Container, Json, Model, Typed
from agentic.codecs.raw import Raw, Text
from agentic.errors import ConfigurationError

__all__ = ["Codec", "encode", "explain", "key_codec", "value_codec"]


def key_codec(declared: Any) -> Codec[Any]:
    """Return the codec for keys of a declared type; None takes the bytes as they are.

    Raises:
        ConfigurationError: no codec takes this type.
    """
    return _codec(bytes if declared is None else declared)


def value_codec(declared: Any) -> Codec[Any]:
    """Return the codec for values of a declared type; None takes any JSON.

    Raises:
        ConfigurationError: no codec takes this type.
    """
    return _codec(declared)


def _codec(declared: Any) -> Codec[Any]:
    if not isinstance(declared, type) and isinstance(declared, Codec):
        return declared
    try:
        return _for_type(declared)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        raise ConfigurationError(f"no codec for {declared!r}: it is no type") from None


@cache
def _for_type(declared: Any) -> Codec[Any]:
    """One codec object a type: equal codecs are the same object."""
    if declared is None:
        return Json()
    if declared is bytes:
        return Raw()
    if declared is str:
        return Text()
    if declared is dict or declared is list:
        return Container(declared)
    # Whoever declares a pydantic model has imported pydantic: no need to do it for everyone else.
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(declared, type) and issubclass(declared, pydantic.BaseModel):
        return Model(declared)
    return Typed(declared)
