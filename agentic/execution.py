"""How an agent's events are worked on, and what becomes of one that fails: the options of `App.agent`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from agentic.core.breaker import Breaker
from agentic.core.rate import parse_rate
from agentic.core.retry import Retry
from agentic.core.times import seconds
from agentic.errors import ConfigurationError
from agentic.topic import Topic

Order = Literal["key", "partition", "none"]
Emit = Literal["completion", "offset"]
OnExhausted = Literal["dead_letter", "stop", "skip", "defer"]
HotKey = Literal["wait", "park"]

#: Events of one partition that may be unfinished beyond the commit position, so that its metadata has room for
#: them. Source: spec, rule 4.
MOST_IN_FLIGHT = 500
#: Seconds that an event may keep the commit position back; then it is put off, given up, or stops the worker.
PIN_LIMIT = 300.0
#: Seconds up to which a delay is waited for in memory; a longer one is put off, where the agent may put off.
INLINE = 30.0


@dataclass(frozen=True)
class Execution:
    """How one agent works. Durations are seconds or timedeltas, kept as seconds.

    Attributes:
        concurrency: events that one task's part of the agent works on at once, 1 to 500; or "auto".
        order: what keeps its order: the events of a key, all of a partition, or nothing.
        emit: effects leave as events are completed, or in the order of their offsets.
        retry: when and how often a failed event is tried again; None: never.
        timeout: how long one attempt may take, None for as long as it likes.
        dead_letter: the topic for events that are given up, None for the app's.
        on_exhausted: what becomes of an event that has failed for good; None: "dead_letter" where the agent
            declares one, else what the app's ``on_error`` says.
        threads: the function is a plain one, and runs in threads.
        rate: events that may begin in a second, in one worker.
        max_in_flight_bytes: bytes of values of the events that are worked on, in one task.
        breaker: stops beginning events while too many fail.
        deferral: events may be put off (`Stream.defer`), which takes a table; None: where the code says so.
        pin_limit: how long an event may keep the commit position back.
        hot_key: what happens to further events of a key that has many waiting: they wait in their
            partition, with all behind them, or are parked in the table of deferred events.
        replies: the agent answers who asks it, and needs no topic to yield to.
    """

    concurrency: int | Literal["auto"] = 1
    order: Order = "key"
    emit: Emit = "completion"
    retry: Retry | None = None
    timeout: float | None = None
    dead_letter: Topic[Any, Any] | None = None
    on_exhausted: OnExhausted | None = None
    threads: bool = False
    rate: float | None = None
    max_in_flight_bytes: int | None = None
    breaker: Breaker | None = None
    deferral: bool | None = None
    pin_limit: float = PIN_LIMIT
    hot_key: HotKey = "wait"
    replies: bool = False

    @classmethod
    def declare(
        cls,
        agent: str,
        *,
        concurrency: Any = 1,
        order: Any = None,
        emit: Any = None,
        retry: Any = None,
        timeout: Any = None,
        dead_letter: Any = None,
        on_exhausted: Any = None,
        threads: Any = False,
        rate_limit: Any = None,
        max_in_flight_bytes: Any = None,
        breaker: Any = None,
        deferral: Any = None,
        pin_limit: Any = None,
        hot_key: Any = None,
        replies: Any = False,
    ) -> Execution:
        """Check the options of an agent and record them.

        Raises:
            ConfigurationError: one that can't be; names the agent, the option, the value and the way out.
        """

        def refuse(option: str, value: object, way: str) -> ConfigurationError:
            return ConfigurationError(f"agent {agent!r}: {option}={value!r}: {way}")

        def duration(option: str, value: Any) -> float:
            try:
                given = seconds(value)
            except (TypeError, ValueError) as error:
                raise refuse(option, value, str(error)) from None
            if given <= 0:
                raise refuse(option, value, "give a timedelta or seconds above 0")
            return given

        def choice(option: str, value: Any, kind: Any, default: Any) -> Any:
            if value is None:
                return default
            if value not in get_args(kind):
                raise refuse(option, value, f"it is one of {', '.join(map(repr, get_args(kind)))}")
            return value

        def flag(option: str, value: Any) -> bool:
            if not isinstance(value, bool):
                raise refuse(option, value, "it is True or False")
            return value

        def instance(option: str, value: Any, kind: type) -> Any:
            if value is not None and not isinstance(value, kind):
                raise refuse(option, value, f"write {option}={kind.__name__}(…)")
            return value

        if concurrency != "auto" and (
            not isinstance(concurrency, int) or isinstance(concurrency, bool) or not 1 <= concurrency <= MOST_IN_FLIGHT
        ):
            raise refuse(
                "concurrency",
                concurrency,
                f'give 1 to {MOST_IN_FLIGHT}, or "auto"; it is for each partition, and what a commit says of one has '
                f"room for {MOST_IN_FLIGHT} unfinished events: for more at once, give the topic more partitions",
            )
        if dead_letter is not None and not isinstance(dead_letter, Topic):
            raise refuse("dead_letter", dead_letter, "it is no topic; make one by app.topic(…)")
        if max_in_flight_bytes is not None and (
            not isinstance(max_in_flight_bytes, int) or isinstance(max_in_flight_bytes, bool) or max_in_flight_bytes < 1
        ):
            raise refuse("max_in_flight_bytes", max_in_flight_bytes, "give a number of bytes, at least 1")
        if deferral is not None:
            flag("deferral", deferral)
        exhausted = choice("on_exhausted", on_exhausted, OnExhausted, None)
        hot = choice("hot_key", hot_key, HotKey, "wait")
        if hot == "park" and order not in (None, "key"):
            raise refuse("hot_key", hot_key, f"keys have no order of their own with order={order!r}; leave one out")
        if deferral is False and (exhausted == "defer" or hot == "park"):
            which = "on_exhausted='defer'" if exhausted == "defer" else "hot_key='park'"
            raise ConfigurationError(f"agent {agent!r}: {which} puts events off, and deferral=False forbids it")
        return cls(
            concurrency=concurrency,
            order=choice("order", order, Order, "key"),
            emit=choice("emit", emit, Emit, "completion"),
            retry=instance("retry", retry, Retry),
            timeout=None if timeout is None else duration("timeout", timeout),
            dead_letter=dead_letter,
            on_exhausted=exhausted,
            threads=flag("threads", threads),
            rate=None if rate_limit is None else _rate(agent, rate_limit),
            max_in_flight_bytes=max_in_flight_bytes,
            breaker=instance("breaker", breaker, Breaker),
            deferral=True if exhausted == "defer" or hot == "park" else deferral,
            pin_limit=PIN_LIMIT if pin_limit is None else duration("pin_limit", pin_limit),
            hot_key=hot,
            replies=flag("replies", replies),
        )

    @property
    def concurrent(self) -> bool:
        """May several events be worked on at once?"""
        return self.concurrency != 1

    @property
    def in_flight(self) -> int:
        """How many events may be worked on at once at the most."""
        return MOST_IN_FLIGHT if self.concurrency == "auto" else self.concurrency

    @property
    def plain(self) -> bool:
        """Is one event after the other worked on, and a failed one done with at once?"""
        return self == Execution(
            # What makes no difference to that.
            order=self.order,
            emit=self.emit,
            dead_letter=self.dead_letter,
            on_exhausted=self.on_exhausted,
            replies=self.replies,
            deferral=False if self.deferral is False else None,
        )


def _rate(agent: str, given: Any) -> float:
    try:
        return parse_rate(given)
    except ConfigurationError as error:
        raise ConfigurationError(f"agent {agent!r}: rate_limit={given!r}: {error}") from None


#: One event after the other, and a failed one meets the app's ``on_error``.
SERIAL = Execution()
