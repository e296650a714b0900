"""What the events of a random history do, and the options of the agent that works on them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentic.execution import Emit, HotKey, OnExhausted, Order

KEYS = ("a", "b", "c", "d", "e")
ORDERS: Sequence[Order] = ("key", "key", "key", "partition", "none")
EMITS: Sequence[Emit] = ("completion", "completion", "offset")
WITHOUT: Sequence[OnExhausted] = ("dead_letter", "dead_letter", "skip")
WITH_DEFERRAL: Sequence[OnExhausted] = (*WITHOUT, "defer")
#: How an attempt that is not the last may end.
TROUBLE = ("fail", "fail", "fail", "hang", "stubborn", "later", "defer", "pass by")


@dataclass
class Act:
    """What one attempt does: after so many seconds it ends so; `after` is how long it puts the event off."""

    how: str
    latency: float
    after: float = 0.0


@dataclass
class Input:
    """An event. Its attempts do what the plan says, one after the other; those beyond it succeed."""

    name: int
    key: str | None
    timestamp: int
    plan: list[Act]
    partition: int = -1
    offset: int = -1
    #: What attempts did so far.
    acts: list[str] = field(default_factory=list)
    #: What its attempts met with, if others that were taken with it said how they end.
    met: set[str] = field(default_factory=set)
    #: What the stream has said of each: the how many-th it is.
    counted: list[int] = field(default_factory=list)

    def next_act(self, timeout: float | None) -> Act:
        act = self.act(len(self.acts))
        self.acts.append("late" if timeout is not None and act.latency >= timeout else act.how)
        return act

    def act(self, number: int) -> Act:
        return self.plan[number] if number < len(self.plan) else Act("ok", 0.0)


@dataclass
class Options:
    """Of the agent, and of what happens to it."""

    delivery: str
    order: Order
    emit: Emit
    concurrency: int | Literal["auto"]
    attempts: int
    timeout: float | None
    on_exhausted: OnExhausted
    deferral: bool
    hot_key: HotKey
    take: int
    partitions: int
    table: bool
    commit_interval: float
    rate: str | None
    in_flight_bytes: int | None
    pin_limit: float | None

    @classmethod
    def random(cls, chance: random.Random) -> Options:
        order: Order = chance.choice(ORDERS)
        deferral = chance.random() < 0.5
        return cls(
            delivery=chance.choice(("at_least_once", "exactly_once")),
            order=order,
            emit=chance.choice(EMITS),
            concurrency=chance.choice((1, 2, 3, 8, 64, "auto")),
            attempts=chance.choice((1, 2, 3, 5)),
            timeout=chance.choice((None, 1.5, 4.0)),
            on_exhausted=chance.choice(WITH_DEFERRAL if deferral else WITHOUT),
            deferral=deferral,
            hot_key="park" if deferral and order == "key" and chance.random() < 0.2 else "wait",
            take=chance.choice((1, 1, 1, 1, 2, 3)),
            partitions=chance.choice((1, 1, 2, 3)),
            table=order != "none" and chance.random() < 0.6,
            commit_interval=chance.choice((1.0, 5.0, 20.0)),
            rate=chance.choice((None, None, None, None, "2/s")),
            in_flight_bytes=chance.choice((None, None, None, 1, 30)),
            pin_limit=chance.choice((None, None, None, 8.0)),
        )


def random_plan(chance: random.Random, options: Options) -> list[Act]:
    """Return what the attempts on an event do, one after the other."""

    def latency() -> float:
        return chance.choice((0.0, 0.0, 0.0, 0.1, 0.3, 1.0, 2.0))

    plan = []
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2, 4))):
        how = chance.choice(TROUBLE)
        if how in ("defer", "pass by") and not options.deferral:
            how = "fail"
        if how == "later" and options.attempts == 1:
            how = "fail"  # it is tried again although nothing was declared, within bounds of its own
        if how in ("hang", "stubborn"):
            plan.append(Act(how, 6.0))
        else:
            plan.append(Act(how, latency(), chance.choice((0.0, 0.7, 3.0, 40.0))))
    last = chance.choice(("ok",) * 16 + ("poison", "reject", "reject", "fatal" if chance.random() < 0.2 else "ok"))
    return [*plan, Act(last, latency())]
