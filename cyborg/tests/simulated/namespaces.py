# SPDX-License-Identifier: Apache-2.0
"""Into the namespaces of another process, and TCP connections out of its network namespace."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import socket
import threading
from collections.abc import Iterator

_NEWNS, _NEWNET = 0x00020000, 0x40000000


def enter(pid: int) -> None:
    """Move this process, which has one thread, to the namespaces of another."""
    here = pathlib.Path.cwd()
    _enter(f"/proc/{pid}/ns/net", _NEWNET)
    _enter(f"/proc/{pid}/ns/mnt", _NEWNS)
    os.chdir(here)


@contextlib.contextmanager
def forwarded(pid: int, port: int) -> Iterator[None]:
    """Let 127.0.0.1 and this port lead from the process's network namespace to our own."""
    listener = _listen_inside(pid, port)
    try:
        threading.Thread(target=_accept, args=(listener, port), daemon=True).start()
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _enter(path: str, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(path, os.O_RDONLY)
    try:
        if libc.setns(file, kind):
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    finally:
        os.close(file)


def _listen_inside(pid: int, port: int) -> socket.socket:
    made: list[socket.socket | OSError] = []

    def listen() -> None:
        # A thread has a network namespace of its own, and a socket keeps the one it was made in.
        try:
            _enter(f"/proc/{pid}/ns/net", _NEWNET)
            made.append(socket.create_server(("127.0.0.1", port)))
        except OSError as exc:
            made.append(exc)

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    (result,) = made
    if isinstance(result, OSError):
        raise result
    return result


def _accept(listener: socket.socket, port: int) -> None:
    while True:
        try:
            inside, _address = listener.accept()
        except OSError:  # the listener was closed
            return
        try:
            outside = socket.create_connection(("127.0.0.1", port))
        except OSError:
            inside.close()
            continue
        for one, other in ((inside, outside), (outside, inside)):
            threading.Thread(target=_copy, args=(one, other), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    # The other direction ends too, as it would if the two were one connection.
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
