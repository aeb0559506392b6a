"""A reverse proxy small enough to see what it does: it changes the path and passes on the rest."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from tornado.iostream import IOStream, StreamClosedError
from tornado.netutil import bind_sockets
from tornado.tcpserver import TCPServer

__all__ = ["TinyProxy"]


class TinyProxy(TCPServer):
    """Passes one request of each connection on, WebSockets too.

    Parameters
    ----------
    target
        A port of loopback, or the path of a UNIX socket.
    takes
        What it takes off the front of every path.
    puts
        What it puts there instead.
    how
        What a ``TCPServer`` takes, such as ``ssl_options``.
    """

    def __init__(self, target: int | str, *, takes: str = "", puts: str = "", **how: Any) -> None:
        super().__init__(**how)
        self._target = target
        self._takes, self._puts = takes.encode(), puts.encode()
        found = bind_sockets(0, "127.0.0.1")
        self.port = int(found[0].getsockname()[1])
        self.add_sockets(found)

    async def handle_stream(self, stream: IOStream, address: Any) -> None:
        """Serve one connection until either side ends it."""
        near, far = stream, self._stream()
        try:
            method, path, rest = (await near.read_until(b"\r\n\r\n")).split(b" ", 2)
            await far.connect(("127.0.0.1", self._target) if self._by_port else self._target)
            path = self._puts + path.removeprefix(self._takes)
            await far.write(b" ".join((method, path, rest)))
        except StreamClosedError:
            near.close()
            return
        await asyncio.gather(_copy(near, far), _copy(far, near))

    @property
    def _by_port(self) -> bool:
        return isinstance(self._target, int)

    def _stream(self) -> IOStream:
        family = socket.AF_INET if self._by_port else socket.AF_UNIX
        return IOStream(socket.socket(family))


async def _copy(one: IOStream, other: IOStream) -> None:
    try:
        while True:
            await other.write(await one.read_bytes(1 << 16, partial=True))
    except StreamClosedError:
        other.close()
