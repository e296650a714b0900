"""Blocking calls beside the event loop, in daemon threads: none can hold up the end of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def off_loop(fn: Callable[..., T], *args: object, name: str = "agentic-kafka-call") -> T:
    """Return ``fn(*args)``, called in a thread of its own; a cancelled caller leaves the call to end by itself."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def call() -> None:
        try:
            result = fn(*args)
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            post(loop, settle, done, None, error)
        else:
            post(loop, settle, done, result, None)

    threading.Thread(target=call, name=name, daemon=True).start()
    return await done


def post(loop: asyncio.AbstractEventLoop, fn: Callable[..., object], *args: object) -> None:
    """Call `fn` on the loop soon; a loop that is closed has nobody left who would want it."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(fn, *args)


def settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    """Give a future its result or its error, unless nobody waits for it any more."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
