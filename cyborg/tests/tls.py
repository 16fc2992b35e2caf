# SPDX-License-Identifier: Apache-2.0
"""A TLS end in front of a plain server on this machine, with a certificate made for the test."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import ssl
import threading
from collections.abc import Iterator

import trustme


class Authority:
    """Signs certificates; :attr:`file` is what clients must trust."""

    def __init__(self, folder: pathlib.Path, name: str = "ca.pem") -> None:
        self._authority = trustme.CA()
        self.file = folder / name
        self._authority.cert_pem.write_to_path(str(self.file))

    def client_file(self) -> pathlib.Path:
        """A client's certificate and its key."""
        file = self.file.with_name("client.pem")
        made = self._authority.issue_cert("client.example")
        made.private_key_and_cert_chain_pem.write_to_path(str(file))
        return file

    def server_context(self, *names: str) -> ssl.SSLContext:
        """For a server with these names, or one on the loopback."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._authority.issue_cert(*(names or ("127.0.0.1", "localhost"))).configure_cert(context)
        return context


@contextlib.contextmanager
def in_front_of(port: int, context: ssl.SSLContext) -> Iterator[int]:
    """While the block runs, the port that is given speaks TLS and leads to ``port``."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def relay(near: asyncio.StreamReader, near_end: asyncio.StreamWriter) -> None:
        far, far_end = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_pump(near, far_end), _pump(far, near_end))

    async def listen() -> int:
        server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
        return int(server.sockets[0].getsockname()[1])

    yield asyncio.run_coroutine_threadsafe(listen(), loop).result()
    asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()
