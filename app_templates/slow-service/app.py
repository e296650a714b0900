"""PROJECT: has each payment assessed by a slow service, and counts what became of them.

    payments ──(a call over HTTP, many at once)──▶ assessed ──┐
        └──(refused, or failed too often)──▶ failed ──────────┴──▶ outcomes, a table

The service is slow, fails now and then, asks for patience or refuses a payment; see ``service.py``,
which is started here so that nothing else has to run. The log is embedded and lies in .agentic/.
"""

from contextlib import asynccontextmanager

import msgspec
from agentic import App, Poison, Retry, Retryable, RetryLater

import service
from client import Client


class Payment(msgspec.Struct, frozen=True):
    """What a customer pays. Amounts are in cents."""

    number: int
    amount: int
    currency: str


class Assessed(msgspec.Struct, frozen=True):
    """What the service says of a payment: its risk, from 0 to 100, and how often it was asked."""

    number: int
    risk: int
    attempts: int


app = App("PROJECT", delivery="exactly_once")
payments = app.topic("payments", key=str, value=Payment)
assessed = app.topic("assessed", key=str, value=Assessed)
failed = app.topic("failed", key=str, value=Payment, config={"retention.ms": "-1"})
outcomes = app.table("outcomes", key=str, value=int, default=int)

clients: dict[str, Client] = {}


@asynccontextmanager
async def connect():
    """Start the service and connect to it. One that runs elsewhere is only connected to."""
    async with service.running() as port:
        yield Client("127.0.0.1", port)


@app.lifespan
async def connected():
    """Have the service at hand while the worker works."""
    async with connect() as client:
        clients["risk"] = client
        yield


@app.agent(
    payments,
    to=assessed,
    # 16 calls at once for each partition; a customer's payments one after the other.
    concurrency=16,
    # No more than the service takes, whatever the partitions.
    rate_limit="200/s",
    # A call that takes longer has failed.
    timeout=1,
    # A failed one is made again, up to four times, and its customer's next payment waits for it.
    retry=Retry(attempts=5, first=0.1, max=1),
    # What fails for good comes here, with the reason in its headers.
    dead_letter=failed,
)
async def assess(stream):
    """Ask the service how risky a payment is."""
    async for payment in stream:
        answer = await clients["risk"].post(
            "/risk",
            msgspec.json.encode(payment),
            # The same for each attempt, also after a crash: the service knows a repetition by it.
            headers={"Idempotency-Key": stream.event.idempotency_key},
        )
        if answer.status == 429:
            raise RetryLater(float(answer.headers["retry-after"]), "the service is busy")
        if answer.status == 400:
            raise Poison(answer.body.decode())
        if answer.status != 200:
            raise Retryable(f"the service answered {answer.status}")
        yield Assessed(payment.number, int(answer.body), stream.attempt)


def how(done: Assessed) -> str:
    """Say how a payment came by its answer."""
    return "answered at once" if done.attempts == 1 else "answered after retries"


def given_up(payment: Payment) -> str:
    """Say what became of a dead letter."""
    return "dead-lettered"


@app.agent(assessed.group_by(how, key=str), failed.group_by(given_up, key=str))
async def count(stream):
    """Count each outcome."""
    async for _ in stream:
        outcomes[stream.event.key] += 1
