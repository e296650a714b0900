"""Values in their envelopes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic.errors import StorageCorrupt
from agentic.state import envelope
from agentic.state.envelope import HEAD, PLAIN, unwrap, wrap

TIMES = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.binary(max_size=30), TIMES, st.one_of(st.none(), TIMES))
def test_a_value_comes_back_with_its_times(value: bytes, timestamp: int, expiry: int | None) -> None:
    blob = wrap(value, timestamp, expiry)
    assert unwrap(blob) == (value, timestamp)
    assert envelope.expiry(blob) == expiry


@given(st.binary(max_size=30), TIMES)
def test_a_plain_envelope_can_be_sliced(value: bytes, timestamp: int) -> None:
    blob = wrap(value, timestamp)
    assert blob[:2] == PLAIN
    assert blob[HEAD:] == value


@pytest.mark.parametrize("head", [b"\x02\x00", b"\x01\x02", b"\xff\xff"])
@pytest.mark.parametrize("read", [unwrap, envelope.expiry])
def test_an_unknown_format_or_flag_is_named_as_newer(head: bytes, read: object) -> None:
    with pytest.raises(StorageCorrupt, match=r"written by a newer agentic.*upgrade agentic"):
        read(head + bytes(30))  # type: ignore[operator]


@pytest.mark.parametrize("blob", [b"", b"\x00" * 30, PLAIN, PLAIN + bytes(7), b"\x01\x01" + bytes(15)])
def test_what_is_no_envelope_is_refused(blob: bytes) -> None:
    with pytest.raises(StorageCorrupt, match="--repair"):
        unwrap(blob)
