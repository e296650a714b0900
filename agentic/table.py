"""Tables as an app declares them: a dict that is partitioned, durable and backed by a changelog.

Inside an agent a table is the mapping of the task's own partition. What an event writes is
seen by that event at once, and by everyone else when the event is complete; if the agent
raises, nothing of it is left. The classes here say what a table promises; the worker has the
*views* that do it.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from contextvars import ContextVar
from datetime import datetime, timedelta
from math import isfinite
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from agentic import codecs
from agentic.brokers.base import ANY_TIME_CONFIG, TopicSpec
from agentic.codecs import Codec
from agentic.codecs.base import type_name
from agentic.core.times import timestamp_ms
from agentic.errors import CodecError, ConfigurationError, TableUnavailable
from agentic.stream import Event
from agentic.topic import TOPIC_NAME, Home, Source, Topic, is_async

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class _Missing:
    """Stands for a row that is not there."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()


class Change(NamedTuple):
    """A row before and after an event; None where there was, or is, none."""

    key: Any
    old: Any
    new: Any


class Inner(Topic[Any, Any]):
    """What an agent reads inside of its task, named and typed like a topic; no broker has it."""


class Changes(Source[K, Change]):
    """The changes of a table: see `Table.changes`."""

    def __init__(self, table: Table[K, Any]) -> None:
        self.table = table
        self._topic = Inner(Home(), table.name, key=table.key)
        # No topic can have such a name.
        self._topic.name = f"changes of {table.name}"

    @property
    def topic(self) -> Topic[K, Change]:
        return self._topic

    def group_by(self, fn: Callable[..., Any], **options: Any) -> Topic[Any, Any]:
        raise ConfigurationError(
            f"table {self.table.name!r}: changes are not regrouped one by one, since a row's old and new value "
            "belong together; aggregate them: table.group_by(…).count(…)"
        )


class View(Protocol):
    """A table as one agent's instance sees it in one task."""

    def get(self, key: Any) -> Any:
        """Return the value of a key, `MISSING` without any."""

    def set(self, key: Any, value: Any) -> None: ...

    def remove(self, key: Any) -> bool:
        """Delete a row; return whether there was one."""

    def scan(self, start: Any, stop: Any, prefix: Any, reverse: bool) -> Iterator[tuple[Any, Any]]:
        """Iterate over rows in the order of the keys; `MISSING` for a bound means none."""

    def count(self) -> int:
        """Return the number of rows."""

    def at(self, key: Any, timestamp: int) -> Any:
        """Return the value as of `timestamp`, `MISSING` without any."""

    def feed(self, event: Event) -> None:
        """Take a record of the topic that fills the table."""


#: What the code that runs can see: set by the worker around each agent.
current_views: ContextVar[Mapping[Table[Any, Any], View]] = ContextVar("agentic_views")
#: In a thread beside the loop: makes a view that is looked at in the loop. Not set elsewhere.
looked_at_in_loop: ContextVar[Callable[[View], View]] = ContextVar("agentic_looked_at_in_loop")


class Table(MutableMapping[K, V]):
    """A table: rows by key, each task its own partition. Made by `App.table`; does no I/O.

    Iteration goes in the order of the keys: numbers by size, text by code points, bytes and
    other keys by their bytes. A value got from a table is the caller's: changing it in place
    changes nothing until it is assigned.

    Attributes:
        name: unique in the app.
        key, value: the codecs; they make the changelog's records.
        default: gives the value of a key without a row, for ``table[key]``.
        ttl: how long a row lives after its last update, by the task's clock; None: for ever.
        source: the topic that fills the table and serves as its changelog, None for a table of agents.
        versioned: how far back its rows are known, None for a table that knows only the last ones.
        changelog: whether its rows survive the loss of the worker's disk.
        check_keys: whether a key that belongs to another partition is refused.
    """

    def __init__(
        self,
        home: Home,
        name: str,
        *,
        key: Any = None,
        value: Any = None,
        default: Callable[[], V] | None = None,
        ttl: timedelta | None = None,
        source: Topic[Any, Any] | None = None,
        changelog: bool = True,
        versioned: timedelta | None = None,
        check_keys: bool = True,
    ) -> None:
        if not isinstance(name, str) or not TOPIC_NAME.fullmatch(name):
            raise ConfigurationError(f"table name {name!r}: use 1 to 249 of the characters A-Z a-z 0-9 . _ -")
        if default is not None and not callable(default):
            raise ConfigurationError(
                f"table {name!r}: default={default!r} is no function; write default=int, or a lambda"
            )
        if ttl is not None and (not isinstance(ttl, timedelta) or ttl < timedelta(milliseconds=1)):
            raise ConfigurationError(f"table {name!r}: ttl={ttl!r} must be a timedelta of at least a millisecond")
        if versioned is not None and (not isinstance(versioned, timedelta) or versioned < timedelta(0)):
            raise ConfigurationError(
                f"table {name!r}: versioned={versioned!r} must be a timedelta, how far back it knows"
            )
        if ttl is not None and (versioned is not None or source is not None):
            other = "versioned=" if versioned is not None else "source="
            raise ConfigurationError(f"table {name!r}: ttl= and {other} exclude each other")
        if source is not None and not isinstance(source, Topic):
            raise ConfigurationError(f"table {name!r}: source={source!r} is no topic; make one by app.topic(…)")
        if source is not None and not changelog:
            raise ConfigurationError(f"table {name!r}: source= is its changelog; changelog=False contradicts it")
        if source is not None and not (source.key_declared or key is not None):
            raise ConfigurationError(f"table {name!r}: say the type of its keys: app.topic({source.name!r}, key=…)")
        self.name = name
        self.key_type = key
        self.value_type = value
        self.key: Codec[Any] = source.key if source is not None and key is None else codecs.key_codec(key)
        self.value: Codec[Any] = source.value if source is not None and value is None else codecs.value_codec(value)
        self.default = default
        self.ttl = ttl
        self.source = source
        self.changelog = changelog
        self.versioned = versioned
        self.check_keys = check_keys
        self.home = home
        self._changes: Changes[K] | None = None
        if (spec := self.spec(1)) is not None and not TOPIC_NAME.fullmatch(spec.name):
            raise ConfigurationError(
                f"table {name!r}: its changelog would be {spec.name!r}, of {len(spec.name)} characters, and a topic's "
                "name has at most 249: shorten the app's name or the table's"
            )

    @property
    def ttl_ms(self) -> int | None:
        """The time to live in milliseconds."""
        return None if self.ttl is None else self.ttl // timedelta(milliseconds=1)

    @property
    def history_ms(self) -> int | None:
        """How far back it knows its rows, in milliseconds."""
        return None if self.versioned is None else self.versioned // timedelta(milliseconds=1)

    @property
    def changelog_topic(self) -> str | None:
        """The name of the topic that has all its rows; None for scratch state."""
        if self.source is not None:
            return self.source.name
        return f"{self.home.app}-{self.name}-changelog" if self.changelog else None

    def spec(self, partitions: int) -> TopicSpec | None:
        """Return what its changelog is to be like where it is made; None where nothing is to be made."""
        if self.source is not None or self.changelog_topic is None:
            return None
        return TopicSpec(self.changelog_topic, partitions, compacted=True, config=ANY_TIME_CONFIG)

    @property
    def shape(self) -> str:
        """What the rows of its store are: rows of another shape are not taken for its own."""
        kind = "" if self.versioned is None else "versions of "
        return f"{_declared(self.key)} to {kind}{_declared(self.value)}"

    def changes(self) -> Changes[K]:
        """Return its changes as a source: a `Change` (key, old, new) for each row that an event wrote.

        A change is part of the event that made it: it has its timestamp and offset, and the event is
        finished, and its offset committed, when the agents have finished with its changes.
        """
        if self._changes is None:
            self._changes = Changes(self)
        return self._changes

    def group_by(self, fn: Callable[[K, V], Any], *, key: Any) -> Grouped[K, V]:
        """Return the table's rows grouped by another key, to be aggregated.

        Args:
            fn: gives the group's key of a row, from its key and value; None leaves the row out.
            key: the type of the groups' keys.

        Raises:
            ConfigurationError: `fn` is no plain function, or the type is missing.
        """
        if self.ttl is not None:
            raise ConfigurationError(
                f"table {self.name!r}: group_by() can't take rows out of their groups when they expire, since that is "
                "no change of theirs; leave out ttl=, or delete rows where they end"
            )
        if not callable(fn) or is_async(fn):
            raise ConfigurationError(
                f"table {self.name!r}: group_by() takes a plain function of key and value, not {fn!r}"
            )
        if key is None:
            raise ConfigurationError(f"table {self.name!r}: group_by() needs the type of the groups' keys: key=str")
        return Grouped(self, fn, key)

    # -- the mapping --------------------------------------------------------------------------

    def _view(self) -> View:
        try:
            return current_views.get()[self]
        except LookupError:
            raise self._unavailable() from None

    def _unavailable(self) -> TableUnavailable:
        if current_views.get(None) is None:
            return TableUnavailable(
                f"table {self.name!r}: outside of an agent there is no partition to look into; use it in an agent's "
                "loop, or look from outside with 'agentic tables'"
            )
        return TableUnavailable(
            f"table {self.name!r}: that this agent uses it can't be seen from its code; "
            f"declare it: @app.agent(…, tables=[…])"
        )

    def __getitem__(self, key: K) -> V:
        try:
            view = current_views.get()[self]
        except LookupError:
            raise self._unavailable() from None
        value: V = view.get(key)
        return self._missing(key) if value is MISSING else value

    def _missing(self, key: K) -> V:
        """Return the default for a key without a row, or raise KeyError where there is none."""
        if self.default is None:
            raise KeyError(key)
        return self.default()

    def __setitem__(self, key: K, value: V) -> None:
        try:
            view = current_views.get()[self]
        except LookupError:
            raise self._unavailable() from None
        view.set(key, value)

    def __delitem__(self, key: K) -> None:
        if not self._view().remove(key):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return self._view().get(key) is not MISSING

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self._view().scan(MISSING, MISSING, MISSING, False))

    def __reversed__(self) -> Iterator[K]:
        return (key for key, _ in self._view().scan(MISSING, MISSING, MISSING, True))

    def __len__(self) -> int:
        return self._view().count()

    def __bool__(self) -> bool:
        # A declaration is never empty, and `if table` must not count rows by accident.
        return True

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of `key`, or `default`; the table's own default is not asked."""
        value = self._view().get(key)
        return default if value is MISSING else value

    def pop(self, key: K, default: Any = MISSING) -> Any:
        """Remove a row and return its value; `default` without a row, or KeyError where none is given."""
        view = self._view()
        value = view.get(key)
        view.remove(key)
        if value is not MISSING:
            return value
        if default is MISSING:
            raise KeyError(key)
        return default

    def setdefault(self, key: K, default: Any = None) -> Any:
        """Return the value of `key`; without a row, write `default` (or the table's own) first."""
        view = self._view()
        value = view.get(key)
        if value is MISSING:
            value = self.default() if default is None and self.default is not None else default
            view.set(key, value)
        return value

    def clear(self) -> None:
        """Remove all rows of this task's partition."""
        # One scan: the mixin's popitem() would look for the first row over and over, past all that it has removed.
        for key in list(self):
            del self[key]

    def at(self, key: K, timestamp: int | datetime, default: Any = None) -> Any:
        """Return the value that `key` had as of a time; `default` where it had none, or that is known no more.

        Args:
            timestamp: milliseconds since the epoch, or an aware datetime.

        Raises:
            TypeError: the table keeps no history; declare ``versioned=``.
        """
        value = self._view().at(key, timestamp_ms(timestamp))
        return default if value is MISSING else value

    def items(self) -> ItemsView[K, V]:
        """The rows of this task's partition, in the order of the keys."""
        return _Items(self)

    def keys(self) -> KeysView[K]:
        """The keys of this task's partition, in order."""
        return _Keys(self)

    def values(self) -> ValuesView[V]:
        """The values of this task's partition, in the order of the keys."""
        return _Values(self)

    def range(self, start: K | None = None, stop: K | None = None, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Iterate over the rows with ``start <= key < stop``, in the order of the keys.

        Args:
            start, stop: keys; None: no bound.
            reverse: from the last to the first.
        """
        return self._view().scan(
            MISSING if start is None else start, MISSING if stop is None else stop, MISSING, reverse
        )

    def prefix(self, prefix: Any, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Iterate over the rows whose key begins with `prefix`: for str, bytes and tuple keys.

        Args:
            prefix: the beginning of a str or bytes key, or the first parts of a tuple key.
            reverse: from the last to the first.

        Raises:
            TypeError: keys of this type have no beginning.
        """
        return self._view().scan(MISSING, MISSING, prefix, reverse)

    # A declaration is itself, whatever rows it has at some place.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"<Table {self.name}>"

    def feed(self, event: Event) -> None:
        """Take a record of the source. The worker calls it."""
        self._view().feed(event)

    # -- what views need ----------------------------------------------------------------------

    def encode_key(self, encode: Callable[[Any], bytes], key: Any) -> bytes:
        """Return a key's bytes, or raise a `CodecError` that names the table, the type wanted and the type got."""
        if key is None:
            raise CodecError(f"table {self.name!r}: None is no key")
        try:
            return encode(key)
        except (TypeError, ValueError, CodecError):
            # Said again in words: the codec names what it wants.
            codecs.encode(self.key, key, f"key of table {self.name!r}")
            raise

    def encode_value(self, value: Any) -> bytes:
        """Return a value's bytes, or raise a `CodecError` that names the table, the type wanted and the type got."""
        if value is None:
            raise CodecError(f"table {self.name!r}: None is no value: del table[key] removes a row")
        if value.__class__ is float and not isfinite(value):
            raise CodecError(f"value of table {self.name!r}: {value} has no JSON, and would be read back as null")
        return codecs.encode(self.value, value, f"value of table {self.name!r}")


class GlobalTable(Table[K, V]):
    """A table of which each worker has the whole. Made by `App.global_table`; agents and tasks only read it.

    It follows its topic as fast as that can be read, without regard to the times of events. What a
    read finds is what the topic's last record of the key said a moment ago.

    Attributes:
        source_topic: the topic that fills it.
        copy: this worker's copy, while one runs.
    """

    def __init__(self, home: Home, name: str, topic: Topic[Any, Any], **options: Any) -> None:
        super().__init__(home, name, key=options.get("key") or topic.key, value=options.get("value") or topic.value)
        if not topic.key_declared and options.get("key") is None:
            raise ConfigurationError(f"table {name!r}: say the type of its keys: app.topic({topic.name!r}, key=…)")
        self.source_topic = topic
        self.default = options.get("default")
        self.copy: View | None = None

    def _view(self) -> View:
        if self.copy is None:
            raise TableUnavailable(f"table {self.name!r}: no worker of its app runs here")
        through = looked_at_in_loop.get(None)
        return self.copy if through is None else through(self.copy)

    def __getitem__(self, key: K) -> V:
        value: V = self._view().get(key)
        return self._missing(key) if value is MISSING else value

    def __setitem__(self, key: K, value: V) -> None:
        self._view().set(key, value)

    @property
    def changelog_topic(self) -> str | None:
        return self.source_topic.name

    def spec(self, partitions: int) -> TopicSpec | None:
        return None

    def changes(self) -> Changes[K]:
        raise ConfigurationError(
            f"table {self.name!r}: each worker has all of a global table, so each would see all of its changes; "
            f"read topic {self.source_topic.name!r}, or fill a table of tasks by it: app.table(…, source=…)"
        )

    def group_by(self, fn: Callable[[K, V], Any], *, key: Any) -> Grouped[K, V]:
        raise ConfigurationError(
            f"table {self.name!r}: a global table is not aggregated, each worker would do it; fill a table of tasks "
            "by its topic: app.table(…, source=…)"
        )


class Grouped(Generic[K, V]):
    """The rows of a table, grouped by another key: made by `Table.group_by`.

    Whichever way a row changes, its old value is taken out of the group that it was in and its new
    one put into the group that it is in now. Source: spec, D.9.
    """

    def __init__(self, table: Table[K, V], fn: Callable[[K, V], Any], key: Any) -> None:
        self._table = table
        self._fn = fn
        self._key = key

    def count(self, name: str) -> Table[Any, int]:
        """Declare a table with the number of rows in each group; a group that has lost all its rows has 0.

        Args:
            name: the new table's.
        """
        return self.aggregate(name, int, lambda n, _: n + 1, lambda n, _: n - 1, value=int)

    def sum(self, name: str, fn: Callable[[V], Any], *, value: Any = int) -> Table[Any, Any]:
        """Declare a table with the sum of ``fn(row)`` over the rows of each group.

        Args:
            name: the new table's.
            value: the type of the sums.
        """
        zero = value if isinstance(value, type) else int
        return self.aggregate(name, zero, lambda n, row: n + fn(row), lambda n, row: n - fn(row), value=value)

    def aggregate(
        self,
        name: str,
        initial: Callable[[], Any],
        add: Callable[[Any, V], Any],
        subtract: Callable[[Any, V], Any],
        *,
        value: Any,
    ) -> Table[Any, Any]:
        """Declare a table with a total of each group.

        Args:
            name: the new table's.
            initial: gives the total of a group without rows.
            add, subtract: give the total after a row has come to a group or left it. None removes the total.
            value: the type of the totals.

        Raises:
            ConfigurationError: there is a table of this name.
        """
        home = self._table.home
        if name in home.tables:
            raise ConfigurationError(f"table {name!r} is declared twice; give one of them another name")
        total: Table[Any, Any] = Table(home, name, key=self._key, value=value)
        topic = home.internal_topic(f"{name}-repartition", key=self._key, codec=Halves(self._table.value))
        home.tables[name] = total
        home.aggregations.append(Aggregation(self._table, self._fn, topic, total, initial, add, subtract))
        return total


class Aggregation(NamedTuple):
    """A table that is made of another by another key."""

    table: Table[Any, Any]
    fn: Callable[[Any, Any], Any]
    topic: Topic[Any, Any]
    total: Table[Any, Any]
    initial: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    subtract: Callable[[Any, Any], Any]


class Halves:
    """The codec of a row on its way to its group: what is to be taken out of it, what is to be put in, or both.

    The length of the old value's bytes, plus one so that 0 says that there is none, comes first;
    what is left when they are read is the new value, behind a byte that says whether there is one.
    """

    def __init__(self, codec: Codec[Any]) -> None:
        self._codec = codec

    def encode(self, halves: tuple[Any, Any], /) -> bytes:
        old, new = halves
        before = b"" if old is None else self._codec.encode(old)
        after = b"\0" if new is None else b"\1" + self._codec.encode(new)
        return (0 if old is None else len(before) + 1).to_bytes(4, "big") + before + after

    def decode(self, data: bytes, /) -> tuple[Any, Any]:
        length = int.from_bytes(data[:4], "big")
        end = 4 + max(0, length - 1)
        if len(data) <= end:
            raise ValueError("a row on its way to its group is cut short")
        old = self._codec.decode(data[4:end]) if length else None
        return old, self._codec.decode(data[end + 1 :]) if data[end] else None


class _Keys(KeysView[K]):
    """Keys in either order, as a dict's."""

    def __init__(self, table: Table[K, Any]) -> None:
        super().__init__(table)
        self._table = table

    def __reversed__(self) -> Iterator[K]:
        return reversed(self._table)


class _Items(ItemsView[K, V]):
    """Rows by one scan instead of a lookup a key."""

    def __init__(self, table: Table[K, V]) -> None:
        super().__init__(table)
        self._table = table

    def __contains__(self, item: object) -> bool:
        # Not by `table[key]`, which gives the default for a key without a row.
        if not isinstance(item, tuple) or len(item) != 2:
            return False
        key, value = item
        return bool(self._table.get(key, MISSING) == value)

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._table._view().scan(MISSING, MISSING, MISSING, False)

    def __reversed__(self) -> Iterator[tuple[K, V]]:
        return self._table._view().scan(MISSING, MISSING, MISSING, True)


class _Values(ValuesView[V]):
    """Values by one scan instead of a lookup a key."""

    def __init__(self, table: Table[Any, V]) -> None:
        super().__init__(table)
        self._table = table

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._table._view().scan(MISSING, MISSING, MISSING, False))

    def __reversed__(self) -> Iterator[V]:
        return (value for _, value in self._table._view().scan(MISSING, MISSING, MISSING, True))


def _declared(codec: Codec[Any]) -> str:
    return type_name(getattr(codec, "declared", type(codec)))
