"""Groups of other programs: what these commit beside an offset need be no text."""

from __future__ import annotations

from typing import Any, cast

import pytest

from agentic.brokers.kafka.admin import metadata_of


class Committed:
    """A partition as the client tells of it, which decodes the metadata when it is asked for."""

    def __init__(self, metadata: bytes | None) -> None:
        self._metadata = metadata

    @property
    def metadata(self) -> str | None:
        return None if self._metadata is None else self._metadata.decode()


@pytest.mark.parametrize(("committed", "told"), [(None, ""), (b"", ""), (b"a1", "a1"), (b"\x02\x00\xe5\x01", "")])
def test_metadata_that_is_no_text_is_left_out(committed: bytes | None, told: str) -> None:
    assert metadata_of(cast(Any, Committed(committed))) == told
