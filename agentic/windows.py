"""Windowed tables as an app declares them: an aggregation of each key's events by their time.

``app.table("views", key=str, value=int).tumbling(timedelta(minutes=1)).count()`` is declared in three steps: the
table, its windows, what becomes of a window's values. Agents write by `add`, and others read what
comes out: `emit_final` gives each window once, when it is closed; `emit_update` each change.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Protocol, TypeVar, cast

import msgspec

from agentic.core.calendar import CalendarWindows
from agentic.core.sessions import SessionWindows
from agentic.core.sliding import SlidingWindows
from agentic.core.times import timestamp_ms
from agentic.core.windows import Aggregate, TimeWindows, Windowing
from agentic.errors import ConfigurationError
from agentic.stream import Event
from agentic.table import Changes, Inner, Table, View
from agentic.topic import Home, is_async, name_of

K = TypeVar("K")
V = TypeVar("V")

_MS = timedelta(milliseconds=1)

Mode = Literal["final", "update", "late"]


class Window(msgspec.Struct, Generic[K, V], frozen=True):
    """A window of a key, and what is in it.

    Attributes:
        start: in ms since the epoch.
        end: of tumbling, hopping and calendar windows the first time that is not in it; of sliding windows and
            sessions the last one that is.
        value: the aggregate; None where an update says that the window is gone.
        timestamp: the greatest timestamp of an event in it, in ms.
        old: of an update, the aggregate before; None where there was none.
        correction: a final result that replaces an earlier one (``late="reopen"``).
    """

    key: K
    start: int
    end: int
    value: V
    timestamp: int
    old: V | None = None
    correction: bool = False

    @property
    def start_time(self) -> datetime:
        """The start as an aware datetime in UTC."""
        return datetime.fromtimestamp(self.start / 1000, UTC)

    @property
    def end_time(self) -> datetime:
        """The end as an aware datetime in UTC."""
        return datetime.fromtimestamp(self.end / 1000, UTC)


class Late(msgspec.Struct, Generic[K], frozen=True):
    """A value that came after its window was closed.

    Attributes:
        timestamp: the value's, in ms.
        start, end: of the window.
        by: how much too late it was, in ms of stream time; below zero where ``on_close=`` had closed it early.
    """

    key: K
    value: Any
    timestamp: int
    start: int
    end: int
    by: int


class WindowView(View, Protocol):
    """A windowed table as one task sees it; times in ms."""

    def add(self, key: Any, value: Any, timestamp: int | None) -> None:
        """See `WindowedTable.add`."""

    def add_many(self, events: Iterable[Event]) -> None:
        """See `WindowedTable.add_many`."""

    def windows(self, key: Any, start: int, end: int) -> list[Window[Any, Any]]:
        """Return the windows of a key that start between two times, both included, by their starts."""

    def all_windows(self, start: int, end: int) -> list[Window[Any, Any]]:
        """Return the windows of all keys that start between two times, by start and key."""

    def sessions(self, earliest_end: int, latest_end: int) -> list[Window[Any, Any]]:
        """Return the windows of all keys that end between two times, by end, start and key."""


class Emissions(Changes[K]):
    """What comes out of a windowed table: a source for agents."""

    def __init__(
        self,
        table: WindowedTable[K, Any],
        mode: Mode,
        *,
        on_close: Callable[[Window[Any, Any]], object] | None = None,
        within: int | None = None,
    ) -> None:
        self.table = table
        self.mode = mode
        self.on_close = on_close
        self.within = within
        self._topic = Inner(Home(table.home.app), table.name, key=table.key)
        # No topic can have such a name.
        self._topic.name = f"{'late values' if mode == 'late' else mode + ' windows'} of {table.name}"


class Windows(Generic[K]):
    """A table with its windows: say what becomes of their values."""

    def __init__(self, table: Table[K, Any], windowing: Windowing, options: dict[str, Any]) -> None:
        self._table = table
        self._windowing = windowing
        self._options = options

    if not TYPE_CHECKING:  # a type checker finds by itself what is missing

        def __getattr__(self, name: str) -> NoReturn:
            """Say what is missing to whoever takes this for the table: its declaration is not complete.

            Raises:
                AttributeError: always.
            """
            if name.startswith("__"):
                raise AttributeError(name)
            raise AttributeError(
                f"table {self._table.name!r}: no {name!r} before it says what is kept of the values of a window: write "
                "count(), sum(fn), min(fn), max(fn), mean(fn), collect(limit), top(n), distinct(fn), reduce(fn) or "
                "aggregate(initial, fn) behind its windows"
            )

    def count(self) -> WindowedTable[K, int]:
        """Count the values."""
        return self._declare("count", Aggregate(int, _count, _plus, first=_one, counts=True), int)

    def sum(self, fn: Callable[[Any], Any] | None = None) -> WindowedTable[K, Any]:
        """Add up the values, or what `fn` gives of each; the table's ``value=`` is the sum's type, int by default."""
        of = self._plain("sum", fn)
        return self._declare("sum", Aggregate(_nothing, partial(_sum, of), _plus, first=of), int)

    def min(self, fn: Callable[[Any], Any] | None = None) -> WindowedTable[K, Any]:
        """Keep the least of the values, or of what `fn` gives."""
        of = self._plain("min", fn)
        return self._declare("min", Aggregate(_nothing, partial(_least, of), min, first=of), int)

    def max(self, fn: Callable[[Any], Any] | None = None) -> WindowedTable[K, Any]:
        """Keep the greatest of the values, or of what `fn` gives."""
        of = self._plain("max", fn)
        return self._declare("max", Aggregate(_nothing, partial(_greatest, of), max, first=of), int)

    def mean(self, fn: Callable[[Any], float] | None = None) -> WindowedTable[K, Any]:
        """Keep the mean of the values, or of what `fn` gives."""
        of = self._plain("mean", fn)
        aggregate = Aggregate(_no_mean, partial(_mean, of), _two_means)
        return self._declare("mean", aggregate, tuple[float, int], shown=_shown_mean)

    def collect(self, limit: int | None = None, fn: Callable[[Any], Any] | None = None) -> WindowedTable[K, Any]:
        """Keep the values, or what `fn` gives of each, in a list, as they came; the first `limit`."""
        of = self._plain("collect", fn)
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise self._wrong("collect", f"limit={limit!r} must be a number, at least 1")
        aggregate = Aggregate(list, partial(_collect, of, limit), partial(_joined, limit))
        return self._declare("collect", aggregate, list)

    def top(self, n: int, key: Callable[[Any], Any] | None = None) -> WindowedTable[K, Any]:
        """Keep the `n` greatest values, the greatest first, by what `key` gives of each."""
        if not isinstance(n, int) or n < 1:
            raise self._wrong("top", f"n={n!r} must be a number, at least 1")
        by = self._plain("top", key)
        return self._declare("top", Aggregate(list, partial(_top, by, n), partial(_two_tops, by, n)), list)

    def distinct(self, fn: Callable[[Any], Any] | None = None) -> WindowedTable[K, Any]:
        """Count the different values, or what `fn` gives of each: approximately, within about two per cent.

        By a HyperLogLog of 4,096 registers; up to some hundreds of values the count is nearly exact.
        """
        from agentic.core import distinct

        of = self._plain("distinct", fn)
        aggregate = Aggregate(distinct.empty, partial(_distinct, of), distinct.merge)
        return self._declare("distinct", aggregate, bytes, shown=distinct.estimate)

    def reduce(self, fn: Callable[[Any, Any], Any]) -> WindowedTable[K, Any]:
        """Make one value of all: ``fn(total, value)`` is the next total, and the first value the first total."""
        if not callable(fn) or is_async(fn):
            raise self._wrong("reduce", f"{name_of(fn)} is no plain function of the total and the value")
        return self._declare("reduce", Aggregate(_nothing, fn, fn, first=_itself), None)

    def aggregate(
        self,
        initial: Callable[[], Any],
        fn: Callable[[Any, Any], Any],
        merge: Callable[[Any, Any], Any] | None = None,
    ) -> WindowedTable[K, Any]:
        """Make a total of the values.

        Args:
            initial: gives the total of no values.
            fn: ``fn(total, value)`` gives the next total; None erases the window.
            merge: ``merge(older, newer)`` makes one total of two sessions'. Sessions need it.

        Raises:
            ConfigurationError: one of them is no plain function, or `merge` is missing.
        """
        for name, each in (("initial", initial), ("fn", fn), ("merge", merge)):
            optional = name == "merge" and each is None
            if not optional and (not callable(each) or is_async(each)):
                raise self._wrong("aggregate", f"{name}={name_of(each)} is no plain function")
        return self._declare("aggregate", Aggregate(initial, fn, merge), None)

    def _plain(self, what: str, fn: Callable[..., Any] | None) -> Callable[..., Any]:
        if fn is None:
            return _itself
        if not callable(fn) or is_async(fn):
            raise self._wrong(what, f"{name_of(fn)} is no plain function of the value")
        return fn

    def _wrong(self, what: str, why: str) -> ConfigurationError:
        return ConfigurationError(f"table {self._table.name!r}: {what}(): {why}")

    def _declare(
        self, what: str, aggregate: Aggregate, value: Any, shown: Callable[[Any], Any] | None = None
    ) -> WindowedTable[K, Any]:
        if aggregate.merge is None and isinstance(self._windowing, SessionWindows):
            raise self._wrong(what, "sessions grow together: say by merge= what becomes of two totals")
        return WindowedTable(self._table, self._windowing, aggregate, value, shown, self._options)


class _OfKey(list[Any]):
    """The windows of a key. Who adds to them as ``table[key] += 1`` means the table, and is told so."""

    def __init__(self, table: WindowedTable[Any, Any], windows: Iterable[Window[Any, Any]]) -> None:
        super().__init__(windows)
        self._table = table

    def __iadd__(self, other: object) -> NoReturn:  # type: ignore[misc]  # nothing can be added to them
        raise self._table._written()


class WindowedTable(Table[K, V]):
    """A table of windows. Made by `Table.tumbling` and the others; see `Windows` for what is kept of a window's values.

    Attributes:
        windowing: the kind of windows.
        aggregate: what becomes of a window's values.
        shown: makes what is shown of what is kept; None where they are the same.
        retention: how long after its start, in stream time, a window can be read at least, in ms.
        least_retention: for how long windows are kept that are kept no longer than they are written to.
        idle_after: how long a quiet task waits before its event time moves on, in ms; None: as the app says.
        late: what becomes of a value whose window is closed: "drop", or "reopen".
    """

    def __init__(
        self,
        table: Table[K, Any],
        windowing: Windowing,
        aggregate: Aggregate,
        value: Any,
        shown: Callable[[Any], Any] | None,
        options: dict[str, Any],
    ) -> None:
        declared = table.value_type if table.value_type is not None and shown is None else value
        super().__init__(
            table.home,
            table.name,
            key=table.key_type,
            value=declared,
            changelog=table.changelog,
            check_keys=table.check_keys,
        )
        self.windowing = windowing
        self.aggregate = aggregate
        self.shown = shown
        self.retention: int = options["retention"]
        self.least_retention: int = options["least"]
        self.idle_after: int | None = options["idle_after"]
        self.late_policy: Literal["drop", "reopen"] = options["late"]
        self._sources: dict[str, Emissions[K]] = {}
        # The table that the windows were asked of is no table of its own.
        table.home.tables[table.name] = self

    @property
    def shape(self) -> str:
        return f"{self.windowing!r} of {super().shape}"

    # -- writing ------------------------------------------------------------------------------

    def add(self, key: K, value: Any = None, timestamp: int | datetime | None = None) -> None:
        """Put a value into the windows of a key that contain its time.

        A window that is closed takes none: the value is counted as dropped for reason ``late``, once for
        each such window, and comes out of `late`. A null key is dropped and counted, too.

        Args:
            timestamp: ms or an aware datetime; by default the event's.

        Raises:
            WrongPartition: the key belongs to another task.
            CodecError: key or aggregate are not of the table's types.
            ValueError, TypeError: a timestamp that can't be.
        """
        self._windows().add(key, value, None if timestamp is None else timestamp_ms(timestamp))

    def add_many(self, events: Iterable[Event]) -> None:
        """Put the values of many events into windows, each by its own key and timestamp: as `add` for each, faster."""
        self._windows().add_many(events)

    # -- reading ------------------------------------------------------------------------------

    def fetch(self, key: K, start: int | datetime, end: int | datetime) -> list[Window[K, V]]:
        """Return the windows of a key that start between two times, both included, the earliest first."""
        return self._windows().windows(key, timestamp_ms(start), timestamp_ms(end))

    def __getitem__(self, key: K) -> Any:
        """Return the windows of a key, the newest first."""
        return _OfKey(self, self._windows().windows(key, 0, LAST)[::-1])

    def get(self, key: K, default: Any = None) -> Any:
        """Return the windows of a key, the newest first; `default` where there is none."""
        return self[key] or default

    def all(self, start: int | datetime = 0, end: int | datetime | None = None) -> list[Window[K, V]]:
        """Return the windows of all keys of the task that start between two times, by start and key."""
        return self._windows().all_windows(timestamp_ms(start), LAST if end is None else timestamp_ms(end))

    def sessions(self, earliest_end: int | datetime, latest_end: int | datetime) -> list[Window[K, V]]:
        """Return the windows of all keys of the task that end between two times, both included.

        By their ends, their starts, and their keys. Source: KIP-825, ``findSessions``.
        """
        return self._windows().sessions(timestamp_ms(earliest_end), timestamp_ms(latest_end))

    # -- what comes out -----------------------------------------------------------------------

    def emit_final(self, *, on_close: Callable[[Window[K, V]], object] | None = None) -> Emissions[K]:
        """Return as a source: each window once, when it is closed, in the order of their ends.

        Args:
            on_close: closes a window early: called after each change of it, with the `Window`; when it returns
                something true, the window comes out and takes nothing more.
        """
        if on_close is not None and (not callable(on_close) or is_async(on_close)):
            raise ConfigurationError(
                f"table {self.name!r}: on_close={name_of(on_close)} is no plain function of the window"
            )
        found = self._source("final")
        if on_close is not None and not (isinstance(self.windowing, CalendarWindows) or _tumbles(self.windowing)):
            raise ConfigurationError(
                f"table {self.name!r}: on_close= is for tumbling and calendar windows, of which a time is in one"
            )
        if on_close is not None and on_close is not found.on_close:
            if found.on_close is not None:
                raise ConfigurationError(
                    f"table {self.name!r}: on_close={name_of(on_close)}, and {name_of(found.on_close)} was given "
                    "before: a window is closed once, for all that read it; make one function of the two"
                )
            found.on_close = on_close
        return found

    def emit_update(self, *, within: timedelta | None = None) -> Emissions[K]:
        """Return as a source: each change of a window.

        Args:
            within: the changes of a window are merged for up to so long, on the wall clock, or until the next commit.
        """
        found = self._source("update")
        if within is not None:
            if not isinstance(within, timedelta) or within < _MS:
                raise ConfigurationError(
                    f"table {self.name!r}: within={within!r} must be a timedelta of at least a millisecond"
                )
            found.within = within // _MS
        return found

    @property
    def late(self) -> Emissions[K]:
        """What came too late, as a source: a `Late` for each window that was closed."""
        return self._source("late")

    def _source(self, mode: Mode) -> Emissions[K]:
        found = self._sources.get(mode)
        if found is None:
            found = self._sources[mode] = Emissions(self, mode)
        return found

    # -- what a windowed table is not ---------------------------------------------------------

    def _windows(self) -> WindowView:
        return cast(WindowView, self._view())

    def __setitem__(self, key: K, value: V) -> None:
        raise self._written()

    def __delitem__(self, key: K) -> None:
        raise self._written()

    def __contains__(self, key: object) -> bool:
        return bool(self[cast(K, key)])

    def __iter__(self) -> Iterator[K]:
        raise self._no_mapping("iterate over all()")

    def __reversed__(self) -> Iterator[K]:
        raise self._no_mapping("iterate over all()")

    def pop(self, key: K, default: Any = None) -> Any:
        raise self._written()

    def setdefault(self, key: K, default: Any = None) -> Any:
        raise self._written()

    def items(self) -> ItemsView[K, V]:
        raise self._no_mapping("iterate over all()")

    def keys(self) -> KeysView[K]:
        raise self._no_mapping("iterate over all()")

    def values(self) -> ValuesView[V]:
        raise self._no_mapping("iterate over all()")

    def range(self, start: K | None = None, stop: K | None = None, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        raise self._no_mapping("iterate over all(start, end)")

    def prefix(self, prefix: Any, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        raise self._no_mapping("iterate over all()")

    def group_by(self, fn: Callable[..., Any], *, key: Any) -> Any:
        raise ConfigurationError(
            f"table {self.name!r} has windows: send what emit_update() or emit_final() gives to a topic, and group that"
        )

    def _written(self) -> TypeError:
        return self._no_mapping(f"write by {self.name}.add(key, value)")

    def _no_mapping(self, way: str) -> TypeError:
        return TypeError(f"table {self.name!r} has windows, and is no plain mapping: {way}")

    def changes(self) -> Changes[K]:
        raise ConfigurationError(f"table {self.name!r} has windows: read emit_update(), emit_final() or late")


#: Later than any window.
LAST = (1 << 62) - 1


def _tumbles(windowing: Windowing) -> bool:
    return isinstance(windowing, TimeWindows) and windowing.size == windowing.advance


def _itself(value: Any) -> Any:
    return value


def _nothing() -> None:
    return None


def _one(value: Any) -> int:
    return 1


def _count(total: int, value: Any) -> int:
    return total + 1


def _plus(one: Any, other: Any) -> Any:
    return one + other


def _sum(of: Callable[[Any], Any], total: Any, value: Any) -> Any:
    return total + of(value)


def _least(of: Callable[[Any], Any], least: Any, value: Any) -> Any:
    return min(least, of(value))


def _greatest(of: Callable[[Any], Any], greatest: Any, value: Any) -> Any:
    return max(greatest, of(value))


def _no_mean() -> tuple[float, int]:
    return 0.0, 0


def _mean(of: Callable[[Any], float], total: tuple[float, int], value: Any) -> tuple[float, int]:
    return total[0] + of(value), total[1] + 1


def _two_means(one: tuple[float, int], other: tuple[float, int]) -> tuple[float, int]:
    return one[0] + other[0], one[1] + other[1]


def _shown_mean(total: tuple[float, int]) -> float:
    return total[0] / total[1]


def _collect(of: Callable[[Any], Any], limit: int | None, values: list[Any], value: Any) -> list[Any]:
    return values if limit is not None and len(values) >= limit else [*values, of(value)]


def _joined(limit: int | None, one: list[Any], other: list[Any]) -> list[Any]:
    return [*one, *other][:limit]


def _top(by: Callable[[Any], Any], n: int, values: list[Any], value: Any) -> list[Any]:
    return sorted([*values, value], key=by, reverse=True)[:n]


def _two_tops(by: Callable[[Any], Any], n: int, one: list[Any], other: list[Any]) -> list[Any]:
    return sorted([*one, *other], key=by, reverse=True)[:n]


def _distinct(of: Callable[[Any], Any], registers: bytes, value: Any) -> bytes:
    from agentic.core import distinct

    return distinct.add(registers, repr(of(value)).encode())


class Windowable(Table[K, V]):
    """A table that may be given windows, in place of rows by key alone. What `App.table` makes.

    Each of its methods takes ``grace=`` (how long after its end, in stream time, a window still takes values; 0 by
    default), ``retention=`` (how long a window can be read), ``idle_after=`` (after how long of quiet event time moves
    on by itself) and ``late=``: "drop" what comes too late, or "reopen" a window that is still kept, whose
    final result then comes again, marked as a correction.
    """

    def tumbling(self, size: timedelta, **options: Any) -> Windows[K]:
        """Give it windows of one size, each beginning where the last one ends.

        Raises:
            ConfigurationError: a duration that can't be; `retention` is less than the windows need.
        """
        width, grace = _duration(self, "size", size, least=1), _grace(self, options)
        return Windows(self, TimeWindows(width, width, grace), _options(self, options, width + grace))

    def hopping(self, size: timedelta, *, every: timedelta, **options: Any) -> Windows[K]:
        """Give it windows of one size, one beginning `every` so often. Errors as for `tumbling`."""
        width, advance = _duration(self, "size", size, least=1), _duration(self, "every", every, least=1)
        if advance > width:
            raise ConfigurationError(
                f"table {self.name!r}: every={every} is more than size={size}: times between would be in no window"
            )
        grace = _grace(self, options)
        return Windows(self, TimeWindows(width, advance, grace), _options(self, options, width + grace))

    def sliding(self, size: timedelta, **options: Any) -> Windows[K]:
        """Give it a window for each set of values that lie within `size` of each other. Errors as for `tumbling`."""
        width, grace = _duration(self, "size", size, least=1), _grace(self, options)
        return Windows(self, SlidingWindows(width, grace), _options(self, options, 2 * width + grace))

    def session(self, gap: timedelta, **options: Any) -> Windows[K]:
        """Give it windows that grow as long as values come within `gap` of each other. Errors as for `tumbling`."""
        if options.get("late") == "reopen":
            raise ConfigurationError(
                f"table {self.name!r}: late='reopen' is for windows of fixed bounds: a session grows into another, "
                "whose result would stand beside that of the first"
            )
        width, grace = _duration(self, "gap", gap, least=0), _grace(self, options)
        return Windows(self, SessionWindows(width, grace), _options(self, options, width + grace))

    def calendar(self, unit: Literal["day", "week", "month"], *, zone: str = "UTC", **options: Any) -> Windows[K]:
        """Give it days, weeks (from Monday on) or months of a time zone, daylight saving time included.

        Raises:
            ConfigurationError: the unit or the zone is unknown; as for `tumbling`.
        """
        longest = {"day": 1, "week": 7, "month": 31}.get(unit)
        if longest is None:
            raise ConfigurationError(f"table {self.name!r}: calendar({unit!r}): it is 'day', 'week' or 'month'")
        grace = _grace(self, options)
        try:
            windowing = CalendarWindows(unit, zone, grace)
        except (LookupError, ValueError, TypeError, OSError) as error:
            raise ConfigurationError(
                f"table {self.name!r}: zone={zone!r} is no time zone; write one such as 'Europe/Berlin'"
            ) from error
        longest_ms = (timedelta(days=longest) + timedelta(hours=25)) // _MS
        return Windows(self, windowing, _options(self, options, longest_ms + grace))


def _duration(table: Table[Any, Any], option: str, given: Any, *, least: int) -> int:
    if not isinstance(given, timedelta) or given < least * _MS:
        raise ConfigurationError(
            f"table {table.name!r}: {option}={given!r} must be a timedelta"
            + (" of at least a millisecond" if least else ", 0 or more")
        )
    if given % _MS:
        raise ConfigurationError(f"table {table.name!r}: {option}={given}: times are in whole milliseconds")
    return given // _MS


def _grace(table: Table[Any, Any], options: dict[str, Any]) -> int:
    grace = options.get("grace")
    return 0 if grace is None else _duration(table, "grace", grace, least=0)


def _options(table: Table[Any, Any], options: dict[str, Any], least: int) -> dict[str, Any]:
    unknown = set(options) - {"grace", "retention", "idle_after", "late"}
    if unknown:
        raise ConfigurationError(
            f"table {table.name!r}: windows take grace=, retention=, idle_after= and late=, not {sorted(unknown)}"
        )
    retention, idle_after, late = options.get("retention"), options.get("idle_after"), options.get("late", "drop")
    kept = least if retention is None else _duration(table, "retention", retention, least=0)
    if kept < least:
        raise ConfigurationError(
            f"table {table.name!r}: retention={retention} is less than {timedelta(milliseconds=least)}, for which its "
            "windows are still written to; give more, or leave it out"
        )
    if late not in ("drop", "reopen"):
        raise ConfigurationError(f"table {table.name!r}: late={late!r}: it is 'drop' or 'reopen'")
    if table.source is not None or table.versioned is not None or table.ttl is not None or table.default is not None:
        raise ConfigurationError(
            f"table {table.name!r} has windows: source=, versioned=, ttl= and default= are for tables without; "
            "agents write by add(), and retention= says how long windows are kept"
        )
    return {
        "retention": kept,
        "least": least,
        "idle_after": None if idle_after is None else _duration(table, "idle_after", idle_after, least=0),
        "late": late,
    }
