"""What the tests of stores share: a store to open, and rows to write."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from agentic.state.lmdb import LmdbStore

IDENTITY = {"app": "shop", "task": "0-3"}
TABLES = {"t": "key str, value int", "u": "key str, value dict"}


def open_store(directory: Path, **options: Any) -> LmdbStore:
    return LmdbStore.open(directory, **{"identity": IDENTITY, "tables": TABLES, **options})


def run(program: str, *arguments: object, failing: bool = False) -> str:
    """Run a program in a process of its own, and return what it said."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert failing or done.returncode == 0, done.stderr
    return done.stdout


def changes_of(number: int) -> dict[bytes, bytes | None]:
    """What a writer's write of this number changes: short keys and long ones, some rows to be deleted."""
    choose = random.Random(number)
    return {
        b"%d" % choose.randrange(400) * choose.choice([1, 300]): choose.choice([None, b"%d" % number * 40])
        for _ in range(300)
    }


#: Keys around every border that a store has: none, zeros alone, as long as LMDB takes, longer, and alike for long.
keys = st.one_of(
    st.binary(max_size=4),
    st.integers(0, 3).map(bytes),
    st.integers(493, 513).map(bytes),
    st.builds(
        lambda byte, length, tail: byte * length + tail,
        st.sampled_from([b"\x00", b"a", b"\xff"]),
        st.integers(493, 513),
        st.binary(max_size=2),
    ),
)
