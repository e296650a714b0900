"""Rows out of a changelog's records, collected until they are written to a store together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentic.codecs import explain
from agentic.codecs.raw import Raw
from agentic.core import versioned
from agentic.errors import CodecError, StateMismatch
from agentic.runtime.tables import Layout
from agentic.state.base import Store
from agentic.state.envelope import unwrap, wrap, wrap_column
from agentic.table import Table

#: Rows as a replay gives them: by the key's bytes in the store, the blob that the store has; None to delete.
Replayed = Mapping[bytes, bytes | None]

Column = Sequence[bytes | None]


def replay(table: Table[Any, Any], layout: Layout, store: Store, observed: int) -> Replay:
    """Return what collects the rows of a table; `observed` is its stream time so far, if it has versions."""
    if table.source is None:
        return Replay(table, layout)
    return SourceReplay(table, layout) if table.versioned is None else VersionsReplay(table, layout, store, observed)


class Replay:
    """The rows of a table with a changelog of its own: the last record of a key is its row.

    Only the keys are decoded, so that those of another type are met here, and not by an agent later on.

    Attributes:
        size: bytes that the collected rows take, about.
        observed: the greatest timestamp met.
        overlaps: may rows be collected while those before them are still being written?
    """

    overlaps = True

    def __init__(self, table: Table[Any, Any], layout: Layout) -> None:
        self.size = 0
        self.observed = versioned.NOTHING_OBSERVED
        # Not the table itself: a replay may go to another process, which has no app.
        self._name = table.name
        self._changelog = table.changelog_topic
        self._codec = table.key
        self._keys = layout.keys
        #: Has a key that is stored as it comes to be looked at?
        self._checked = layout.keys.identity and not isinstance(table.key, Raw)
        self._rows: dict[bytes, bytes | None] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, keys: Column, values: Column, timestamps: Sequence[int]) -> None:
        """Take the records of a batch, in their order.

        Raises:
            StateMismatch: a key is not of the table's type.
        """
        self.size += sum(map(len, filter(None, values))) + 48 * len(keys)
        self.observed = max(self.observed, max(timestamps, default=self.observed))
        blobs = wrap_column(values, timestamps)
        there: Sequence[Any] = keys
        if None in keys:
            blobs = [blob for key, blob in zip(keys, blobs) if key is not None]
            there = [key for key in keys if key is not None]
        if self._checked:
            self._check(self._codec.decode, there)
        if not self._keys.identity:
            try:
                there = list(map(self._keys.from_wire, there))
            except CodecError as error:
                raise self._mismatch(error) from error
        self._rows.update(zip(there, blobs))

    def _check(self, decode: Callable[[bytes], Any], keys: Sequence[bytes]) -> None:
        passing = map(decode, keys)
        passed = 0
        try:
            for passed, _ in enumerate(passing, 1):  # noqa: B007 (used where it ends)
                pass
        except (ValueError, CodecError) as error:
            raise self._mismatch(explain(self._codec, keys[passed], error)) from error

    def _mismatch(self, error: CodecError) -> StateMismatch:
        return StateMismatch(
            f"changelog {self._changelog!r} has a key that is {error}: it was written when table {self._name!r} "
            "had keys of another type; declare that one again, give the table another name, or let 'agentic reset' "
            "delete it with the app's state"
        )

    def take(self) -> Replayed:
        """Return what was collected, and begin anew."""
        rows, self._rows, self.size = self._rows, {}, 0
        return rows


class SourceReplay(Replay):
    """The rows of a table that a topic fills: what can't be decoded was given up by the task's policy."""

    def __init__(self, table: Table[Any, Any], layout: Layout) -> None:
        super().__init__(table, layout)
        # They pass below, with their values.
        self._checked = False
        self._values = table.value

    def add(self, keys: Column, values: Column, timestamps: Sequence[int]) -> None:
        whole = [i for i, (key, value) in enumerate(zip(keys, values)) if self._decodes(key, value)]
        if len(whole) < len(keys):
            keys, values, timestamps = ([column[i] for i in whole] for column in (keys, values, timestamps))  # type: ignore[assignment]
        super().add(keys, values, timestamps)

    def _decodes(self, key: bytes | None, value: bytes | None) -> bool:
        try:
            if key is not None:
                self._codec.decode(key)
            if value is not None:
                self._values.decode(value)
        except (ValueError, CodecError):
            return False
        return True


class VersionsReplay(SourceReplay):
    """The rows of a table with versions that a topic fills: each record is a version, put again in its order."""

    overlaps = False

    def __init__(self, table: Table[Any, Any], layout: Layout, store: Store, observed: int) -> None:
        super().__init__(table, layout)
        self.observed = observed
        self._store = store
        self._versions: dict[bytes, versioned.Versions] = {}
        history = table.history_ms
        assert history is not None, "it has versions"
        self._history = history

    def __len__(self) -> int:
        return len(self._versions)

    def add(self, keys: Column, values: Column, timestamps: Sequence[int]) -> None:
        for key, value, timestamp in zip(keys, values, timestamps):
            if key is None or not self._decodes(key, value):
                continue
            raw = self._keys.from_wire(key)
            versions = self._versions.get(raw)
            if versions is None:
                versions = self._stored(raw)
            put = versioned.put(versions, timestamp, value, observed=self.observed, history=self._history)
            if put is not None:
                self.observed = put.observed
                self._versions[raw] = put.versions
                self.size += len(value or b"") + 48

    def _stored(self, raw: bytes) -> versioned.Versions:
        blob = self._store.get(self._name, raw)
        return versioned.EMPTY if blob is None else versioned.decode(unwrap(blob)[0])

    def take(self) -> Replayed:
        rows: dict[bytes, bytes | None] = {
            raw: wrap(versioned.encode(versions), versions.timestamps[0]) if versions.timestamps else None
            for raw, versions in self._versions.items()
        }
        self._versions = {}
        self.size = 0
        return rows
