"""Run relays of connections in a process of their own, until its stdin ends. It needs the standard library only.

TensorFlow holds the interpreter lock while it connects to the other tasks, so a thread of the rank could not relay.
Each line of stdin is a JSON list with a command and its arguments. Each line of stdout is the answer:

* ``["listen", target, address]``: accept connections at the address, and lead each to the target; the address
* ``["delay", seconds]``: deliver from now on each message later by this time; the number of open connections
* ``["reset"]``: reset all connections, so that both ends get an error; their number
* ``["cut", seconds]``: deliver nothing for this time, on open and on new connections; the number of open ones
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import sys

_CHUNK = 1 << 16
_UNDER_WAY = 64
"""Maximum number of chunks that are under way in one direction of a connection. The sender then waits."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Relays:
    """All relays of one process. The public methods are its commands."""

    def __init__(self) -> None:
        self._delay = 0.0
        self._through = asyncio.Event()
        self._through.set()
        self._ends: set[asyncio.StreamWriter] = set()

    async def listen(self, target: str, address: str) -> str:
        host, port = address.rsplit(":", 1)
        listener = socket.socket()
        # The port of an ended server may be in TIME_WAIT, in which TensorFlow can bind it too.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        await asyncio.start_server(lambda reader, writer: self._join(reader, writer, target), sock=listener)
        return f"{host}:{listener.getsockname()[1]}"

    async def delay(self, seconds: float) -> int:
        self._delay = seconds
        return len(self._ends) // 2

    async def reset(self) -> int:
        count = len(self._ends) // 2
        for writer in self._ends:
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()
        return count

    async def cut(self, seconds: float) -> int:
        self._through.clear()
        asyncio.get_running_loop().call_later(seconds, self._through.set)
        return len(self._ends) // 2

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str) -> None:
        """Lead one connection to the target until both ends have closed it, or one has reset it."""
        await self._through.wait()
        try:
            host, port = target.rsplit(":", 1)
            there, onward = await asyncio.open_connection(host, int(port))
        except OSError:
            # The target does not listen. The peer gets an error too, and tries again.
            writer.transport.abort()
            return
        ends = {writer, onward}
        self._ends |= ends
        try:
            await asyncio.gather(self._pump(reader, onward), self._pump(there, writer))
        except OSError:
            pass
        finally:
            self._ends -= ends
            for end in ends:
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Lead the data of one direction. Delayed messages overlap, as on a long line."""
        clock = asyncio.get_running_loop().time
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_UNDER_WAY)
        delivery = asyncio.ensure_future(self._deliver(under_way, writer))
        try:
            while data := await reader.read(_CHUNK):
                await under_way.put((clock() + self._delay, data))
            await under_way.put((clock() + self._delay, b""))
            await delivery
        finally:
            delivery.cancel()

    async def _deliver(self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due, data = await under_way.get()
            if (wait := due - clock()) > 0:
                await asyncio.sleep(wait)
            await self._through.wait()
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()


async def _serve() -> None:
    relays = Relays()
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        name, *arguments = json.loads(line)
        sys.stdout.write(json.dumps(await getattr(relays, name)(*arguments)) + "\n")
        sys.stdout.flush()
    # Open connections need no farewell: the process of the task has ended too.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_serve())
