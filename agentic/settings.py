"""An app's settings: declared once, and so known to code, environment, doctor and docs.

What stands in ``App(...)`` is the author's; the environment (``AGENTIC_<NAME>``) is the
operator's and wins over it; the command line wins over both.
"""

from __future__ import annotations

import difflib
import os
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Literal

from agentic.errors import ConfigurationError

PREFIX = "AGENTIC_"

#: Where local state is kept unless something else is said: the rows of one log are not those of another, so
#: that a module which has run on the embedded log needs no other setting than the broker to run on Kafka.
STATE_DIR = ".agentic/state"
KAFKA_STATE_DIR = ".agentic/kafka"

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _setting(default: Any, about: str) -> Any:
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={"about": about})
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True)
class Settings:
    """All settings of an `App`, checked. Durations are timedeltas; in the environment ``1.5``, ``500ms``, ``2m``."""

    name: str = field(metadata={"about": "The app's name: consumer group, and prefix of its internal topics."})
    broker: str = _setting("local://.agentic/log", "Where the log is: local://DIR, kafka://HOST:PORT,… or memory://.")
    state_dir: str = _setting(
        STATE_DIR,
        f"Directory of the worker's local state, which belongs to one broker. Unset on Kafka: {KAFKA_STATE_DIR}.",
    )
    delivery: Literal["at_least_once", "exactly_once"] = _setting(
        "at_least_once", "What a crash may do: repeat outputs, or neither lose nor repeat them."
    )
    commit_interval: timedelta = _setting(timedelta(seconds=1), "Time between two checkpoints.")
    topic_partitions: int = _setting(4, "Partitions of a topic that is made and says nothing else.")
    create_topics: bool | None = _setting(
        None, "Make missing source and sink topics. Unset: yes on local:// and memory://, no on Kafka."
    )
    on_error: Literal["stop", "skip", "dead_letter"] = _setting(
        "stop", "When an agent has failed on an event: stop the worker, skip the event, or send it to dead_letter."
    )
    on_decode_error: Literal["stop", "skip", "dead_letter"] = _setting(
        "stop", "When a record can't be decoded: stop the worker, skip it, or send its bytes to dead_letter."
    )
    dead_letter: str | None = _setting(None, "Topic for records that are given up, with where they came from.")
    max_idle: timedelta | None = _setting(
        timedelta(0),
        "How long a task with several sources waits for one that is read to its end; "
        "None: not even for what is known to come.",
    )
    idle_after: timedelta | None = _setting(
        None, "Quiet after which event time moves on by itself, so that last windows come out. Unset: it waits."
    )
    max_ahead: timedelta | None = _setting(
        None,
        "How far event time may be ahead of the wall clock; what is further is refused. Unset: as far as it likes.",
    )
    instance: str | None = _setting(
        None, "Static member id of this worker, unique in the group: a restart gets its partitions back."
    )
    offset_reset: Literal["earliest", "latest"] = _setting("earliest", "Where to begin without a committed offset.")
    session_timeout: timedelta = _setting(timedelta(seconds=45), "Silence after which a worker is taken for dead.")
    start_timeout: timedelta = _setting(timedelta(seconds=30), "How long a worker waits for its broker at start.")
    stop_timeout: timedelta = _setting(
        timedelta(seconds=30), "How long a stopping worker waits for the events that are under way."
    )
    max_buffered: int = _setting(4000, "Events that a worker takes ahead of its agents, over all partitions.")
    cache_bytes: int = _setting(64 << 20, "Memory for rows of tables that were read or written lately, about.")
    checkpoint_bytes: int = _setting(
        32 << 20, "Memory of rows not yet committed at which a checkpoint does not wait for its interval, about."
    )
    restore_processes: int | None = _setting(
        None,
        "Processes beside the worker that restore large tables, each on a core of its own. Unset: one for each core, "
        "four at most; 0: the worker does it itself.",
    )
    standbys: int = _setting(
        0, "Copies of each task's tables that other workers keep up to date, to take over without restoring them."
    )
    repair: bool = _setting(
        False,
        "Move a store of local state aside that is damaged, or whose changelog was made again, and restore its tables "
        "from their changelogs.",
    )
    log: Literal["text", "json"] = _setting("text", "Form of the log lines.")
    log_level: Literal["debug", "info", "warning", "error"] = _setting("info", "Least severe level that is logged.")
    kafka: Mapping[str, object] = _setting({}, "librdkafka properties for all clients; in the environment JSON.")

    #: setting -> "default", "app", "environment" or "command line"; for doctor.
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def broker_options(self) -> Mapping[str, object]:
        """What the broker's driver is told: on Kafka its properties; another driver has no use for them."""
        return self.kafka if self.broker.startswith("kafka://") else {}


def names() -> list[str]:
    """Return the names of all settings in the order of their declaration."""
    return [f.name for f in fields(Settings) if f.name != "origins"]


def about(name: str) -> str:
    """Return the sentence that says what a setting is for."""
    return str(Settings.__dataclass_fields__[name].metadata["about"])


def default(name: str) -> object:
    """Return a setting's default; for `name`, which has none, an empty string."""
    return "" if name == "name" else getattr(Settings(name=""), name)


def resolve(
    given: Mapping[str, object], environ: Mapping[str, str] | None = None, override: Mapping[str, object] | None = None
) -> Settings:
    """Merge what an app gives with environment and command line, and check it all.

    Args:
        given: the keyword arguments of `App`.
        environ: the environment; by default the process's own.
        override: from the command line, by setting; wins over the rest.

    Raises:
        ConfigurationError: an unknown setting (with the nearest name), or a value that can't be;
            names the setting, the value and where it came from.
    """
    environ = os.environ if environ is None else environ
    known = names()
    hints = typing.get_type_hints(Settings)
    values: dict[str, object] = {}
    origins = dict.fromkeys(known, "default")
    for source, origin in ((given, "app"), (_environment(environ), "environment"), (override or {}, "command line")):
        for name, value in source.items():
            if name not in known:
                raise ConfigurationError(_unknown(name, origin, known))
            if origin != "app" and isinstance(value, str):
                value = _parse(name, value, hints[name], origin)
            _check(name, value, hints[name], origin)
            values[name] = value
            origins[name] = origin
    if not values.get("name"):
        raise ConfigurationError(f'{_shown("name", origins["name"])}: an app needs a name, as in App("shop")')
    if "state_dir" not in values and str(values.get("broker", "")).startswith("kafka://"):
        values["state_dir"] = KAFKA_STATE_DIR
    settings = Settings(**values, origins=origins)  # type: ignore[arg-type]
    _check_together(settings)
    return settings


#: Variables with our prefix that are not settings: the command line's own.
_OTHER_VARIABLES = {"AGENTIC_APP", "AGENTIC_DEBUG"}
#: Prefixes that belong to tests and tools.
_OTHER_PREFIXES = ("AGENTIC_TEST_", "AGENTIC_BENCH_", "AGENTIC_KAFKA_JARS")


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        variable[len(PREFIX) :].lower(): value
        for variable, value in environ.items()
        if variable.startswith(PREFIX) and variable not in _OTHER_VARIABLES and not variable.startswith(_OTHER_PREFIXES)
    }


def _shown(name: str, origin: str) -> str:
    return f"environment variable {PREFIX}{name.upper()}" if origin == "environment" else f"setting {name!r}"


def _unknown(name: str, origin: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1, 0.5)
    hint = f"did you mean {_shown(near[0], origin)}?" if near else f"there are {', '.join(known)}"
    return f"{_shown(name, origin)} is unknown; {hint}"


def _parse(name: str, text: str, hint: Any, origin: str) -> object:
    shown = _shown(name, origin)
    kinds = _kinds(hint)
    if types.NoneType in kinds and text == "":
        return None
    if timedelta in kinds:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", text.strip(), re.ASCII)
        if not match:
            raise ConfigurationError(f"{shown}: {_quoted(text)} is no duration; write seconds as 1.5, or 500ms, 2m, 1h")
        try:
            return timedelta(seconds=float(match[1]) * _UNITS[match[2] or "s"])
        except OverflowError:
            raise ConfigurationError(f"{shown}: {_quoted(text)}: {_TOO_LONG}") from None
    if bool in kinds:
        try:
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
        except KeyError:
            raise ConfigurationError(f"{shown}: {_quoted(text)} is not yes or no; write true or false") from None
    if int in kinds:
        try:
            return int(text)
        except ValueError:
            raise ConfigurationError(f"{shown}: {_quoted(text)} is no whole number") from None
    if dict in kinds or Mapping in kinds:
        import json

        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            # Not the text: there may be a password in it.
            raise ConfigurationError(f"{shown}: not a JSON object ({error})") from None
    return text


def _quoted(value: object) -> str:
    """A value as a message has it: what is wrong with a long one shows in its beginning."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _kinds(hint: Any) -> list[Any]:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(hint) for kind in _kinds(part)]
    if origin is Literal:
        return [str]
    if origin is not None:
        import collections.abc

        return [Mapping if origin is collections.abc.Mapping else origin]
    return [hint]


def _check(name: str, value: object, hint: Any, origin: str) -> None:
    shown = _shown(name, origin)
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            near = difflib.get_close_matches(str(value), choices, 1, 0.5)
            raise ConfigurationError(
                f"{shown}: {_quoted(value)} is none of {', '.join(map(repr, choices))}"
                + (f"; did you mean {near[0]!r}?" if near else "")
            )
        return
    kinds = _kinds(hint)
    # A bool is an int to Python, never to a reader of settings.
    fits = any(
        value is None
        if kind is types.NoneType
        else isinstance(value, kind) and (kind is bool or type(value) is not bool)
        for kind in kinds
    )
    if not fits:
        wanted = " or ".join(_KIND_NAMES.get(kind, kind.__name__) for kind in kinds)
        what = "it" if name == "kafka" else _quoted(value)  # there may be a password in it
        way = f": write timedelta(seconds={value})" if timedelta in kinds and type(value) in (int, float) else ""
        raise ConfigurationError(f"{shown}: {what} is a {type(value).__name__}, and must be {wanted}{way}")


#: How a message calls a type whose own name says less.
_KIND_NAMES: Mapping[Any, str] = {types.NoneType: "None", Mapping: "a mapping", timedelta: "a timedelta"}

#: setting -> the least duration that makes sense, in seconds, and why.
_LEAST = {
    "commit_interval": (0.01, "a checkpoint takes some milliseconds"),
    "max_idle": (0.0, "a wait can't be negative"),
    "session_timeout": (1.0, "a worker must be able to beat within it"),
    "start_timeout": (0.1, "a broker needs time to answer"),
    "stop_timeout": (0.0, "a wait can't be negative"),
}
#: What an event loop's clock, a thread's wait and a broker's milliseconds can all count.
LONGEST = timedelta(days=36_500)
_TOO_LONG = f"must be at most {LONGEST.days:,} days; clocks can't count much further"
#: By Kafka's rules, with room for what is put before or behind the name of an app.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
#: The schemes that a driver has; `agentic.brokers.DRIVERS` says which. Here, where the message can
#: tell where a wrong one came from.
SCHEMES = ("kafka", "local", "memory")


def _check_together(settings: Settings) -> None:
    def fail(name: str, why: str) -> typing.NoReturn:
        raise ConfigurationError(f"{_shown(name, settings.origins[name])}: {_quoted(getattr(settings, name))}: {why}")

    for name, (least, why) in _LEAST.items():
        duration = getattr(settings, name)
        if duration is not None and duration.total_seconds() < least:
            fail(name, f"must be at least {least:g} s: {why}")
        if duration is not None and duration > LONGEST:
            fail(name, _TOO_LONG)
    if not _NAME.fullmatch(settings.name):
        fail("name", "use 1 to 200 of the characters A-Z a-z 0-9 . _ -, since topics and the group are named for it")
    if settings.name in (".", ".."):
        fail("name", "a directory within state_dir is named for it, and that one stands for another")
    if settings.instance is not None and not _NAME.fullmatch(settings.instance):
        fail("instance", "use 1 to 200 of the characters A-Z a-z 0-9 . _ -")
    if settings.broker.partition("://")[0] not in SCHEMES or "://" not in settings.broker:
        fail("broker", "no such scheme; write local://DIRECTORY, kafka://HOST:PORT or memory://")
    if not settings.state_dir or "\0" in settings.state_dir:
        fail("state_dir", "must be a directory's name")
    if settings.topic_partitions < 1:
        fail("topic_partitions", "a topic has at least one partition")
    for name in ("cache_bytes", "checkpoint_bytes"):
        if getattr(settings, name) < 1 << 20:
            fail(name, "must be at least 1048576, a mebibyte")
    if settings.standbys < 0:
        fail("standbys", "a number of copies; 0 for none")
    if settings.restore_processes is not None and settings.restore_processes < 0:
        fail("restore_processes", "a number of processes; 0 for none")
    if settings.max_buffered < 1:
        fail("max_buffered", "a worker must be able to hold an event")
    for name in ("on_error", "on_decode_error"):
        if getattr(settings, name) == "dead_letter" and settings.dead_letter is None:
            fail(name, "needs the setting 'dead_letter', the topic to send to")
    if settings.dead_letter is not None and not _TOPIC_NAME.fullmatch(settings.dead_letter):
        fail("dead_letter", "a topic's name has 1 to 249 of the characters A-Z a-z 0-9 . _ -")
    _check_kafka(settings)


def _check_kafka(settings: Settings) -> None:
    """A property is a name with a text, a number or a switch; some of librdkafka's are functions of ours."""
    shown = _shown("kafka", settings.origins["kafka"])
    for name, value in settings.kafka.items():
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"{shown}: {_quoted(name)} is no property's name; names are strings")
        # Not shown: it may be a password.
        if not isinstance(value, str | int | float | bool) and not callable(value):
            raise ConfigurationError(
                f"{shown}: property {name!r} is a {type(value).__name__}; give a string, a number, or true or false"
            )
