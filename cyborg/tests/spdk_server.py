# SPDX-License-Identifier: Apache-2.0
"""An SPDK target as its JSON-RPC clients meet it, on a socket, with one state of its own.

Answers and errors are SPDK's: a host that may connect cannot be added again, nor one removed that
may not, and an answer is followed by a line break. Its keyring takes the path of a file that only
its own user may read, by a name that it does not have yet, and reads the key when a host connects.
How it misbehaves is up to the test.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import os
import pathlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

TARGET = pathlib.Path(__file__).parent / "data" / "spdk" / "target.json"
HOST = "nqn.2014-08.org.nvmexpress:uuid:5b0f3c1e-0000-4000-8000-000000000001"
OTHER = "nqn.2014-08.org.nvmexpress:uuid:5b0f3c1e-0000-4000-8000-000000000002"

_PARAMETERS: dict[str, set[str]] = {
    "nvmf_get_subsystems": set(),
    "bdev_get_bdevs": set(),
    "nvmf_subsystem_add_host": {"nqn", "host"},
    "nvmf_subsystem_remove_host": {"nqn", "host"},
    "keyring_get_keys": set(),
    "keyring_file_add_key": {"name", "path"},
    "keyring_file_remove_key": {"name"},
}
#: What may be left out; methods of the keyring know no target.
_OPTIONAL: dict[str, set[str]] = {
    "nvmf_subsystem_add_host": {"tgt_name", "dhchap_key"},
    "nvmf_subsystem_remove_host": {"tgt_name"},
    "nvmf_get_subsystems": {"tgt_name"},
}
_INVALID_PARAMETERS = (-32602, "Invalid parameters")
_INTERNAL = (-32603, "Internal error")


class _Fault(Exception):
    """What is answered with an error: its code and message."""


class SpdkServer:
    """A target that listens at ``address``, a path or ``127.0.0.1:port``.

    ``calls`` has the methods called. ``before``, where set, is called with each method before it
    is carried out. ``send`` writes an answer to the client's socket, and may do so badly.
    """

    def __init__(self, path: pathlib.Path | None = None) -> None:
        told = json.loads(TARGET.read_text())
        self.subsystems: list[dict[str, Any]] = told["subsystems"]
        self.bdevs: list[dict[str, Any]] = told["bdevs"]
        self.configured = copy.deepcopy(self.subsystems)
        #: The files of its keys, by name.
        self.keys: dict[str, str] = {}
        self.calls: list[str] = []
        self.before: Callable[[str], None] = lambda method: None
        self.send: Callable[[socket.socket, bytes], None] = socket.socket.sendall
        self._path = path
        self._clients: set[socket.socket] = set()
        self.start()

    def start(self) -> None:
        """Listen, for the first time or again."""
        if self._path is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        else:
            self._path.unlink(missing_ok=True)
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(self._path))
            self._listener.listen()
            self.address = str(self._path)
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def stop(self) -> None:
        """End, as a process does: everybody who is connected is cut off."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in list(self._clients):
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def restart(self) -> None:
        """Begin with what is configured: who may connect was said to the process before."""
        self.stop()
        self.keys = {}
        self.subsystems = copy.deepcopy(self.configured)
        self.start()

    def subsystem(self, number: int) -> dict[str, Any]:
        """The subsystem of that number."""
        return self._find(f"nqn.2016-06.io.spdk:cnode{number}")

    def hosts(self, number: int) -> list[str]:
        """Who may connect to the subsystem of that number."""
        return [host["nqn"] for host in self.subsystem(number)["hosts"]]

    def connect(self, number: int, host: str, secret: str | None = None) -> bool:
        """Whether a host that says this name, and has this secret, gets in."""
        for each in self.subsystem(number)["hosts"]:
            if each["nqn"] == host:
                key = each.get("dhchap_key")
                return key is None or pathlib.Path(self.keys[key]).read_text() == secret
        return False

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._clients.add(client)
            threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Answer what arrives; requests too come in pieces."""
        received = ""
        # A client that has had enough closes its end while it is being answered.
        with client, contextlib.suppress(OSError):
            while chunk := client.recv(4096):
                received += chunk.decode()
                with contextlib.suppress(json.JSONDecodeError):
                    request, end = json.JSONDecoder().raw_decode(received)
                    received = received[end:].lstrip()
                    self.send(client, json.dumps(self._answer(request)).encode() + b"\n")
        self._clients.discard(client)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(request["method"])
        self.before(request["method"])
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            return answer | {"result": self._do(request["method"], request.get("params", {}))}
        except _Fault as exc:
            code, message = exc.args
            return answer | {"error": {"code": code, "message": message}}

    def _do(self, method: str, params: dict[str, Any]) -> Any:
        if method not in _PARAMETERS:
            raise _Fault(-32601, "Method not found")
        if params.keys() - _OPTIONAL.get(method, set()) != _PARAMETERS[method]:
            raise _Fault(*_INVALID_PARAMETERS)
        if params.get("tgt_name", "nvmf_tgt") != "nvmf_tgt":
            raise _Fault(-32603, "Unable to find a target.")
        match method:
            case "nvmf_get_subsystems":
                return self.subsystems
            case "bdev_get_bdevs":
                return self.bdevs
            case "nvmf_subsystem_add_host":
                return self._add(self._find(params["nqn"])["hosts"], params)
            case "nvmf_subsystem_remove_host":
                return self._remove(self._find(params["nqn"])["hosts"], params["host"])
            case _:
                return self._keyring(method, params)

    def _keyring(self, method: str, params: dict[str, Any]) -> Any:
        match method:
            case "keyring_get_keys":
                return [
                    {"name": name, "module": "keyring_file", "removed": False, "path": path}
                    for name, path in self.keys.items()
                ]
            case "keyring_file_add_key":
                return self._add_key(params["name"], pathlib.Path(params["path"]))
            case _:
                if self.keys.pop(params["name"], None) is None:
                    raise _Fault(-errno.ENOKEY, os.strerror(errno.ENOKEY))
                return True

    def _add_key(self, name: str, path: pathlib.Path) -> bool:
        if name in self.keys:
            raise _Fault(-errno.EEXIST, os.strerror(errno.EEXIST))
        found = path.stat()
        if not path.is_absolute() or found.st_mode & 0o077 or found.st_uid != os.getuid():
            raise _Fault(-errno.EPERM, os.strerror(errno.EPERM))
        self.keys[name] = str(path)
        return True

    def _find(self, nqn: str) -> dict[str, Any]:
        for subsystem in self.subsystems:
            if subsystem["nqn"] == nqn:
                return subsystem
        raise _Fault(*_INVALID_PARAMETERS)

    def _add(self, hosts: list[dict[str, str]], params: dict[str, str]) -> bool:
        if any(each["nqn"] == params["host"] for each in hosts):
            raise _Fault(*_INTERNAL)
        key = params.get("dhchap_key")
        if key is not None and key not in self.keys:
            raise _Fault(*_INVALID_PARAMETERS)
        hosts.append({"nqn": params["host"]} | ({"dhchap_key": key} if key else {}))
        return True

    def _remove(self, hosts: list[dict[str, str]], host: str) -> bool:
        if not any(each["nqn"] == host for each in hosts):
            raise _Fault(*_INTERNAL)
        hosts[:] = [each for each in hosts if each["nqn"] != host]
        return True


@pytest.fixture
def spdk(tmp_path: pathlib.Path) -> Iterator[SpdkServer]:
    """A target with three subsystems, on a socket of its own."""
    server = SpdkServer(tmp_path / "spdk.sock")
    yield server
    server.stop()
