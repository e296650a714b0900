"""Topics as an app declares them, and what agents can read: a topic, or a part of one."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from agentic import codecs
from agentic.brokers.base import ANY_TIME_CONFIG, Headers, TopicSpec
from agentic.codecs import Codec
from agentic.core.times import timestamp_ms
from agentic.errors import ConfigurationError
from agentic.settings import Settings
from agentic.stream import HeadersLike, Outlet, current_outlet

if TYPE_CHECKING:
    from agentic.asking import Asker

K = TypeVar("K")
V = TypeVar("V")

#: What brokers take for a name; `Topic` refuses "." and ".." besides.
TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")

#: A record on its way out: topic, key, value, timestamp, headers, partition (-1: by its key).
Outgoing = tuple[str, bytes | None, bytes | None, int, Headers | None, int]


class Home:
    """What the topics and tables of one app share.

    Attributes:
        app: its name.
        topics: those that are declared, by name.
        tables: likewise.
        regroupings: topics that are made of others by another key.
        aggregations: tables that are made of others by another key.
    """

    def __init__(self, app: str = "") -> None:
        self.app = app
        self.topics: dict[str, Topic[Any, Any]] = {}
        self.tables: dict[str, Any] = {}
        self.regroupings: list[Regrouping] = []
        self.aggregations: list[Any] = []
        #: Who sends and asks outside of agents; the last one that was opened is asked.
        self._open: list[tuple[Outlet, Asker]] = []

    def open(self, outlet: Outlet, asker: Asker) -> None:
        """A worker, session or client has begun: have it send and ask for code outside of agents."""
        self._open.append((outlet, asker))

    def shut(self, outlet: Outlet) -> None:
        """It is over; those that were opened before it, and after, go on."""
        self._open = [each for each in self._open if each[0] is not outlet]

    @property
    def outlet(self) -> Outlet | None:
        """Who sends for topics outside of agents; None while no worker, session or client of the app is there."""
        return self._open[-1][0] if self._open else None

    @property
    def asker(self) -> Asker | None:
        """Who asks agents; None while no worker, session or client of the app is there."""
        return self._open[-1][1] if self._open else None

    def internal_topic(self, name: str, **options: Any) -> Topic[Any, Any]:
        """Declare a topic of the app's own that holds events until they are read, however long that takes.

        Raises:
            ConfigurationError: there is one of this name.
        """
        full = f"{self.app}-{name}"
        if full in self.topics:
            raise ConfigurationError(f"topic {full!r} is declared twice; give one of them a name=")
        config = {"retention.ms": "-1", **ANY_TIME_CONFIG}
        topic = self.topics[full] = Topic(self, full, internal=True, config=config, **options)
        return topic


class Source(Generic[K, V]):
    """What an agent reads."""

    @property
    def topic(self) -> Topic[K, V]:
        """The topic that the records come from."""
        raise NotImplementedError

    @property
    def predicates(self) -> tuple[Callable[[V], object], ...]:
        """What a value must satisfy, all of them, to reach the agent."""
        return ()

    def filter(self, fn: Callable[[V], object]) -> Source[K, V]:
        """Return a source with only the events whose value `fn` finds true.

        The others are complete at once, and counted as dropped for reason ``filtered``.
        """
        return Filtered(self, fn)

    def group_by(
        self, fn: Callable[[V], Any], *, key: Any, name: str | None = None, partitions: int | None = None
    ) -> Topic[Any, V]:
        """Return a topic with the same events under another key, each in the partition of that key.

        The app writes and reads it itself; agents read it like any topic, and with tables whose keys
        are these. An event whose new key is None is dropped, and counted for reason ``null_key``.

        Args:
            fn: gives the new key of a value.
            key: the type of the new keys.
            name: says what the topic is for; part of its name, ``<app>-<name>-repartition``. By default
                made of the topic's and the function's names; for a lambda to be given.
            partitions: by default as many as the topics that it is used with, or as its source.

        Raises:
            ConfigurationError: `fn` is no plain function, or a lambda and there is no `name`.
        """
        source = self.topic.name
        if not callable(fn) or is_async(fn):
            raise ConfigurationError(f"topic {source!r}: group_by() takes a plain function of the value, not {fn!r}")
        if key is None:
            raise ConfigurationError(f"topic {source!r}: group_by() needs the type of the new keys: key=str")
        called = name or f"{source}-by-{name_of(fn)}"
        if name is None and not TOPIC_NAME.fullmatch(called):
            raise ConfigurationError(
                f"topic {source!r}: a lambda has no name for group_by() to call the topic by; give it a name="
            )
        home = self.topic.home
        topic = home.internal_topic(f"{called}-repartition", key=key, codec=self.topic.value, partitions=partitions)
        home.regroupings.append(Regrouping(self, fn, topic))
        return topic


class Regrouping(NamedTuple):
    """A topic that is made of a source by another key."""

    source: Source[Any, Any]
    fn: Callable[[Any], Any]
    topic: Topic[Any, Any]


class Filtered(Source[K, V]):
    """A source less the events that a predicate refuses."""

    def __init__(self, source: Source[K, V], fn: Callable[[V], object]) -> None:
        if not callable(fn):
            raise ConfigurationError(f"topic {source.topic.name!r}: filter() takes a function of the value, not {fn!r}")
        if is_async(fn):
            raise ConfigurationError(
                f"topic {source.topic.name!r}: filter() takes a plain function, and {name_of(fn)} is async: "
                "what it returns would be true for each value; leave out async, or decide in the agent"
            )
        self.source = source
        self._fn = fn

    @property
    def topic(self) -> Topic[K, V]:
        return self.source.topic

    @property
    def predicates(self) -> tuple[Callable[[V], object], ...]:
        return (*self.source.predicates, self._fn)


def unfiltered(source: Source[Any, Any]) -> Source[Any, Any]:
    """Return what a source is a part of; itself where it is whole."""
    while isinstance(source, Filtered):
        source = source.source
    return source


class Topic(Source[K, V]):
    """A topic with the types of its keys and values. Made by `App.topic`; does no I/O.

    Attributes:
        name: as the broker has it.
        key, value: the codecs.
        partitions: how many it has when it is made; None: the app's ``topic_partitions``.
        internal: it is the app's own and made for it, on any broker.
    """

    def __init__(
        self,
        home: Home,
        name: str,
        *,
        key: Any = None,
        value: Any = None,
        partitions: int | None = None,
        timestamp: Callable[[V], int | datetime] | None = None,
        codec: Codec[V] | None = None,
        internal: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(name, str) or not TOPIC_NAME.fullmatch(name) or name in (".", ".."):
            raise ConfigurationError(
                f"topic name {name!r}: use 1 to 249 of the characters A-Z a-z 0-9 . _ -, and not . or .. alone"
            )
        if partitions is not None and (not isinstance(partitions, int) or partitions is True or partitions < 1):
            raise ConfigurationError(f"topic {name!r}: partitions must be a number, at least 1, not {partitions!r}")
        if codec is not None and value is not None:
            raise ConfigurationError(f"topic {name!r}: value= and codec= exclude each other; a codec knows its type")
        if timestamp is not None and (not callable(timestamp) or is_async(timestamp)):
            raise ConfigurationError(
                f"topic {name!r}: timestamp= takes a plain function of the value that returns milliseconds "
                f"or an aware datetime, not {name_of(timestamp)}"
            )
        if codec is not None and (isinstance(codec, type) or not isinstance(codec, Codec)):
            raise ConfigurationError(
                f"topic {name!r}: codec= takes an object with decode(bytes) and encode(value), not {name_of(codec)}"
                + (f"; write {codec.__name__}()" if isinstance(codec, type) else "")
            )
        _check_config(name, config)
        self.home = home
        self.name = name
        self.key: Codec[Any] = codecs.key_codec(key)
        self.value: Codec[Any] = codecs.value_codec(codec if codec is not None else value)
        #: Keys of a topic that says nothing of them pass through as the bytes that they are.
        self.key_declared = key is not None
        self.partitions = partitions
        self.timestamp = timestamp
        self.internal = internal
        self.config = dict(config or {})

    @property
    def topic(self) -> Topic[K, V]:
        return self

    def spec(self, settings: Settings) -> TopicSpec:
        """Return what the topic is to be like where it has to be made."""
        return TopicSpec(self.name, self.partitions or settings.topic_partitions, config=self.config)

    def encode_key(self, key: K | None) -> bytes | None:
        """Return a key's bytes; None stays None. Raises `CodecError` for a key of another type."""
        return None if key is None else codecs.encode(self.key, key, f"key of topic {self.name!r}")

    def encode_value(self, value: V | None) -> bytes | None:
        """Return a value's bytes; None is a tombstone. Raises `CodecError` for a value of another type."""
        return None if value is None else codecs.encode(self.value, value, f"value of topic {self.name!r}")

    def outgoing(
        self,
        key: bytes | None,
        value: V | None,
        headers: HeadersLike | None,
        timestamp: int | datetime,
        partition: int | None = None,
    ) -> Outgoing:
        """Return a record of this topic as it goes to a producer.

        Raises:
            CodecError: the value is not of the declared type.
            ValueError: a timestamp or a partition that can't be.
        """
        if partition is not None and partition < 0:
            raise ValueError(f"topic {self.name!r}: partition {partition} can't be; leave it out to go by the key")
        return (
            self.name,
            key,
            self.encode_value(value),
            timestamp_ms(timestamp),
            wire_headers(headers),
            -1 if partition is None else partition,
        )

    def send(
        self,
        value: V | None = None,
        *,
        key: K | None = None,
        headers: HeadersLike | None = None,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
    ) -> Awaitable[None]:
        """Send a record, when what is returned is awaited.

        Inside an agent it is an effect of the current event: it goes out when the event is
        complete, or never. Elsewhere (tasks, lifespans, commands) it returns when the broker
        has the record.

        Args:
            value: of the declared type; None is a tombstone.
            key: of the declared type; None is a null key.
            headers: a mapping or pairs; str values are encoded as UTF-8.
            timestamp: milliseconds or an aware datetime; by default the event's inside an
                agent, else now.
            partition: a number; by default chosen by the key as Kafka's clients do.

        Raises:
            CodecError: key or value are not of the declared type.
            ValueError: a timestamp or a partition that can't be.
            RuntimeError: no worker or session of this app is running; or it is called in a thread of an agent,
                which can't await it: there `BlockingStream.send` takes its place.
            DeliveryFailed: the broker refused the record (outside of agents).
        """
        outlet = current_outlet.get(None)
        if outlet is not None:
            return outlet.send(self, key, value, headers, timestamp, partition)
        return self._send_outside(key, value, headers, timestamp, partition)

    async def _send_outside(
        self,
        key: K | None,
        value: V | None,
        headers: HeadersLike | None,
        timestamp: int | datetime | None,
        partition: int | None,
    ) -> None:
        outlet = self.home.outlet
        if outlet is None:
            raise RuntimeError(
                f"topic {self.name!r}: send() needs a running worker; outside of one, use agentic.runtime.session(app)"
            )
        await outlet.send(self, key, value, headers, timestamp, partition)

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"


def is_async(fn: Any) -> bool:
    """Would calling this only make a coroutine or an async generator?"""
    calls = [fn, getattr(fn, "__call__", None)]  # noqa: B004 - an object's own __call__ may be the async one
    return any(inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call) for call in calls)


def name_of(thing: Any) -> str:
    """What a message calls a thing that a user gave us: its own name, or how it is written."""
    return str(getattr(thing, "__name__", None) or repr(thing))


def _check_config(topic: str, config: object) -> None:
    if config is None:
        return
    if not isinstance(config, Mapping):
        raise ConfigurationError(
            f'topic {topic!r}: config={config!r} is no mapping; write config={{"retention.ms": "-1"}}'
        )
    for name, value in config.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigurationError(
                f"topic {topic!r}: config has {name!r}: {value!r}; Kafka's names and values are strings, as in "
                f'config={{"{name}": "{value}"}}'
            )


def wire_headers(headers: HeadersLike | None) -> Headers | None:
    """Return headers as they go on the wire; None for none.

    Raises:
        TypeError: a name is no str, or a value neither bytes nor str.
    """
    if not headers:
        return None
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    out = []
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, bytes | str):
            raise TypeError(f"header {name!r}: {value!r}: a name is a str, a value bytes or str")
        out.append((name, value.encode() if isinstance(value, str) else value))
    return tuple(out)


def nearest(name: str, known: list[str]) -> str:
    """Return words that point from a wrong name to the nearest right one, or list what there is."""
    near = difflib.get_close_matches(name, known, 1, 0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"there are {', '.join(sorted(known))}" if known else "there are none"
