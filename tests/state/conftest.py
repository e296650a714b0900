from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from store_support import open_store

from agentic.state.base import Store
from agentic.state.memory import MemoryStore


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else open_store(tmp_path / "store")
    yield made
    made.close()
