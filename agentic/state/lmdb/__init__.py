"""The store on disk, over LMDB: rows and marks of a task, in a copy that one process has at a time."""

from agentic.state.lmdb.claims import ADVANCE, Copy, claim, copies, in_use, move_aside
from agentic.state.lmdb.store import LmdbStore

__all__ = ["ADVANCE", "Copy", "LmdbStore", "claim", "copies", "in_use", "move_aside"]
