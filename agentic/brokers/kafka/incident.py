"""One line when the broker is gone, one when it is back."""

from __future__ import annotations

import asyncio
from typing import Any

from confluent_kafka import KafkaError

from agentic.brokers.kafka.admin import Admin
from agentic.brokers.kafka.config import log
from agentic.brokers.kafka.offloop import post
from agentic.errors import BrokerError

#: Seconds a probe may take, and between two.
PROBE = 2.0
PAUSE = 0.5


class Incidents:
    """Watches for all clients of a broker. They only hear that connections broke; a probe tells whether it matters."""

    def __init__(self, admin: Admin, url: str) -> None:
        self._admin = admin
        self._url = url
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._last = ""
        self._closed = False

    def error_cb(self, error: Any) -> None:
        """Take what a client reports, in whichever thread."""
        code = error.code()
        if code in (KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT, KafkaError._AUTHENTICATION):
            self._last = error.str()
        if code in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._TIMED_OUT):
            post(self._loop, self._suspect)

    def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()

    def _suspect(self) -> None:
        if not self._closed and (self._task is None or self._task.done()):
            self._task = self._loop.create_task(self._watch())

    async def _watch(self) -> None:
        if await self._answers():
            return
        since = self._loop.time()
        log.warning(
            "%s: no broker answers (%s); trying again until one does", self._url, self._last or "no reason given"
        )
        while True:
            await asyncio.sleep(PAUSE)
            if await self._answers():
                break
        log.warning("%s: answers again after %.1f s", self._url, self._loop.time() - since)

    async def _answers(self) -> bool:
        try:
            await self._admin.metadata(timeout=PROBE)
        except BrokerError:
            return False
        return True
