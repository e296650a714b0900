"""Just enough of an HTTP client, so that the example needs nothing else; in your own app take httpx or aiohttp."""

import asyncio
from typing import NamedTuple


class Answer(NamedTuple):
    """What a service answers. The names of headers are in small letters."""

    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """Calls one service, with a connection for each call."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    async def post(self, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        """Post a body and return the answer.

        Raises:
            OSError: the service can't be reached, or hangs up without an answer.
        """
        reader, writer = await asyncio.open_connection(self.host, self.port)
        # Also when the call is given up: a time-out cancels what is awaited here.
        try:
            lines = [f"POST {path} HTTP/1.1", f"Host: {self.host}", "Connection: close", f"Content-Length: {len(body)}"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            await writer.drain()
            answer = await reader.read()
        finally:
            writer.close()
        if not answer:
            raise ConnectionError("the service hung up without an answer")
        head, _, content = answer.partition(b"\r\n\r\n")
        status, *rest = head.decode().split("\r\n")
        pairs = (line.partition(":") for line in rest)
        return Answer(int(status.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}, content)
