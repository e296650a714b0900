"""The slow service: says how risky a payment is, over HTTP on this machine alone.

It takes its time, fails now and then, sometimes asks to be left alone for a second, sometimes never answers,
refuses payments in a currency that it does not know, and breaks down over very large ones. Chance is drawn
from a payment's number and how often it has come, so that every run of the demo meets the same troubles.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

#: Seconds that an answer takes, at least and at the most.
LATENCY = (0.02, 0.1)
#: Shares of requests that meet trouble.
FAILING, BUSY, HANGING = 0.08, 0.03, 0.01
#: What the service knows.
CURRENCIES = {"EUR", "GBP", "USD"}
#: Cents from which it breaks down, each time.
TOO_LARGE = 100_000_000

REASONS = {200: "OK", 400: "Bad Request", 429: "Too Many Requests", 500: "Internal Server Error"}

#: How often each request has come, by its name.
_seen: Counter[str] = Counter()


@asynccontextmanager
async def running() -> AsyncIterator[int]:
    """Serve while the context lasts, on a port that is free; gives the port."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request and hang up."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        pairs = (line.partition(":") for line in head.split("\r\n")[1:])
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        payment = json.loads(await reader.readexactly(int(headers["content-length"])))
        name = headers["idempotency-key"]
        _seen[name] += 1
        chance = random.Random(f"{payment['number']} {_seen[name]}")
        trouble = chance.random()
        if trouble < HANGING:
            # Until the caller hangs up.
            await reader.read()
            return
        await asyncio.sleep(chance.uniform(*LATENCY))
        status, body, more = _judge(payment, trouble - HANGING)
        lines = [f"HTTP/1.1 {status} {REASONS[status]}", f"Content-Length: {len(body)}", "Connection: close", *more]
        writer.write("\r\n".join([*lines, "", body]).encode())
        await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        # The caller gave up, and nobody is there who could be answered.
        return
    finally:
        writer.close()


def _judge(payment: dict[str, Any], trouble: float) -> tuple[int, str, list[str]]:
    """Return status, body and further headers of an answer."""
    currency, amount = payment["currency"], payment["amount"]
    if currency not in CURRENCIES:
        return 400, f"currency {currency!r} is unknown", []
    if amount >= TOO_LARGE or trouble < FAILING:
        return 500, "", []
    if trouble < FAILING + BUSY:
        return 429, "", ["Retry-After: 1"]
    return 200, str(min(100, amount // 10_000)), []
