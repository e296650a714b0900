"""Who asks agents: puts requests to their topics, and takes the answers from the app's topic for them.

Each asker has an address, a random one. It is the key of its answers, so they all come to one
partition of the topic; that one it reads, from where it ended before the first request, and
takes what has its own key. Nothing of it is committed anywhere: an asker that is gone waits for
nothing any more.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Iterator
from typing import Any

from agentic import codecs
from agentic.agent import Agent
from agentic.asking import Answer, Request, answer_codec, inlet, read_answer, replies_name, request_headers
from agentic.brokers.base import Batch, Broker, Headers, TopicPartition
from agentic.core.partitioning import partition_of
from agentic.errors import AskFailed, AskTimeout, BrokerUnavailable, CodecError, words
from agentic.runtime.outbox import AGAIN, AppOutlet
from agentic.stream import HeadersLike
from agentic.topic import Home

log = logging.getLogger("agentic.worker")

#: A reader wakes by itself when records come; this only bounds one wait, in seconds.
IDLE = 60.0


class Waiting:
    """One request, and what has come of its answers.

    Attributes:
        done: given the answers' bytes, or the failure.
    """

    def __init__(self, agent: str, every: bool) -> None:
        self.done: asyncio.Future[list[bytes | None]] = asyncio.get_running_loop().create_future()
        self._agent = agent
        self._every = every
        self._values: dict[int, bytes | None] = {}
        self._count: int | None = None

    def take(self, answer: Answer) -> None:
        """Take an answer; after a crash of the agent's worker it may be one that has come already."""
        if self.done.done():
            return
        if answer.kind == "failed":
            reason = (answer.value or b"").decode("utf-8", "replace")
            self.fail(AskFailed(f"agent {self._agent!r} has given the request up: {reason}"))
        elif answer.kind == "none":
            self.done.set_result([])
        else:
            self._values[answer.index] = answer.value
            self._count = answer.count if answer.count is not None else self._count
            wanted = self._count if self._every else 1
            if wanted is not None and all(n in self._values for n in range(wanted)):
                self.done.set_result([self._values[n] for n in range(wanted)])

    def fail(self, error: Exception) -> None:
        """There will be no answer."""
        if not self.done.done():
            self.done.set_exception(error)


class Asker:
    """See `agentic.asking.Asker`. It reads answers from its first request on.

    Args:
        home: the app's.
        outlet: sends the requests.
    """

    def __init__(self, home: Home, broker: Broker, outlet: AppOutlet) -> None:
        self._app = home.app
        self._topic = replies_name(home.app)
        self._broker = broker
        self._outlet = outlet
        self._loop = asyncio.get_running_loop()
        self._address = secrets.token_hex(8).encode()
        self._numbers = itertools.count()
        self._waiting: dict[bytes, Waiting] = {}
        self._one_at_a_time = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._closed = False
        self._over = f"app {home.app!r} has stopped here, and its answers are not read any more"

    async def ask(
        self,
        agent: Agent,
        value: Any,
        *,
        key: Any,
        timeout: float,
        headers: HeadersLike | None,
        timestamp: int | None,
        every: bool,
    ) -> list[Any]:
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                f"agent {agent.name!r} is asked in another event loop than that of its worker or client: in an agent "
                "with threads=True write stream.ask(agent, …), elsewhere use asyncio.run_coroutine_threadsafe"
            )
        correlation = b"%d" % next(self._numbers)
        sent = request_headers(agent.name, Request(self._address, correlation), headers)
        waiting = self._waiting[correlation] = Waiting(agent.name, every)
        try:
            async with asyncio.timeout(timeout) as bound:
                await self._begin()
                await self._outlet.send(inlet(agent), key, value, sent, timestamp, None)
                found = await waiting.done
        except TimeoutError as error:
            if not bound.expired():
                raise
            raise AskTimeout(
                f"agent {agent.name!r} has not answered within {timeout:g} s; see that a worker of app {self._app!r} "
                "runs and keeps up, or give it more time by timeout="
            ) from error
        finally:
            del self._waiting[correlation]
            # Of one that nobody waits for any more, a failure is nobody's concern.
            waiting.done.cancel()
        return list(_decoded(agent, found))

    async def _begin(self) -> None:
        """Read answers, from here on."""
        async with self._one_at_a_time:
            if self._reading is None or self._reading.done():
                partitions = (await self._broker.describe_topic(self._topic)).partitions
                tp = TopicPartition(self._topic, partition_of(self._address, partitions))
                start = (await self._broker.end_offsets([tp]))[tp]
                if self._closed:
                    raise AskFailed(self._over)
                self._reading = asyncio.create_task(self._read(tp, start), name="answers")

    async def _read(self, tp: TopicPartition, position: int) -> None:
        try:
            while True:
                reader = self._broker.reader({tp: position})
                try:
                    while True:
                        for batch in await reader.poll(IDLE):
                            self._take(batch)
                            position = batch.position
                except BrokerUnavailable as error:
                    log.warning("answers can't be read, tried again until they can: %s", error)
                    await asyncio.sleep(AGAIN)
                finally:
                    await reader.close()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - it is handed to those who wait; the next request begins anew
            self._fail(f"answers can't be read any more: {words(error)}", error)

    def _take(self, batch: Batch) -> None:
        for offset, key, value, headers in zip(batch.offsets, batch.keys, batch.values, batch.headers):
            if key != self._address:
                continue
            try:
                answer = read_answer(_plain(headers), value)
            except ValueError as error:
                log.warning("%s offset %d is no answer: %s", batch.tp, offset, error)
                continue
            waiting = self._waiting.get(answer.correlation)
            # Without anyone who waits: it came too late, or once more.
            if waiting is not None:
                waiting.take(answer)

    def _fail(self, why: str, cause: BaseException | None = None) -> None:
        for waiting in self._waiting.values():
            failure = AskFailed(why)
            failure.__cause__ = cause
            waiting.fail(failure)

    async def close(self) -> None:
        """Read no more; who still waits learns that it is in vain."""
        self._closed = True
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        self._fail(self._over)


def _plain(headers: Any) -> Headers:
    if headers is None or isinstance(headers, tuple):
        return headers or ()
    return tuple((name, value or b"") for name, value in headers.headers() or ())


def _decoded(agent: Agent, answers: list[bytes | None]) -> Iterator[Any]:
    codec = answer_codec(agent)
    for data in answers:
        try:
            yield None if data is None else codec.decode(data)
        except (ValueError, CodecError) as error:
            raise AskFailed(f"agent {agent.name!r}: its answer: {codecs.explain(codec, data or b'', error)}") from error
