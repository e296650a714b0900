"""The store on disk, over LMDB: rows and marks of a task, in a copy that one process has at a time."""

from agentic.state.lmdb.claims import ADVANCE, ClaimedStore, Copy, claim, copies, in_use, move_aside
from agentic.state.lmdb.store import LmdbStore

__all__ = ["ADVANCE", "ClaimedStore", "Copy", "LmdbStore", "claim", "copies", "in_use", "move_aside"]
