# SPDX-License-Identifier: Apache-2.0
"""Calls to an SPDK application, whose answers come in pieces, late, wrong or never."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from cyborg.drivers.nvme import spdk_rpc
from cyborg.tests.spdk_server import SpdkServer

Send = Callable[[socket.socket, bytes], None]


def listed(spdk: SpdkServer, *, timeout: float = 60) -> Any:
    """The subsystems of the target."""
    with spdk_rpc.connected(spdk.address, timeout) as target:
        return target.call("nvmf_get_subsystems")


def test_calls_follow_each_other_on_one_connection(spdk: SpdkServer) -> None:
    with spdk_rpc.connected(spdk.address, 60) as target:
        assert target.call("nvmf_get_subsystems") == spdk.subsystems
        with pytest.raises(spdk_rpc.JsonRpcError, match=r"Method not found \(-32601\)"):
            target.call("bdev_eat")
        assert target.call("bdev_get_bdevs") == spdk.bdevs
    assert spdk.calls == ["nvmf_get_subsystems", "bdev_eat", "bdev_get_bdevs"]


def test_an_application_is_reached_over_tcp_as_well() -> None:
    server = SpdkServer()
    assert listed(server) == server.subsystems
    server.stop()


def _in_pieces(size: int) -> Send:
    def send(client: socket.socket, answer: bytes) -> None:
        for begin in range(0, len(answer), size):
            client.sendall(answer[begin : begin + size])

    return send


def _raw(client: socket.socket, answer: bytes) -> None:
    """As some applications write: no escapes, and with line breaks."""
    client.sendall(json.dumps(json.loads(answer), ensure_ascii=False, indent=1).encode())


@pytest.mark.parametrize("send", [_in_pieces(1), _in_pieces(7), _in_pieces(4096), _raw])
def test_an_answer_may_come_in_any_pieces_and_be_written_in_any_way(
    spdk: SpdkServer, send: Send
) -> None:
    spdk.subsystem(1)["model_number"] = "half a ß}"
    spdk.send = send
    assert listed(spdk) == spdk.subsystems


def test_a_large_answer_is_read_whole(spdk: SpdkServer) -> None:
    spdk.subsystems *= 2000
    assert listed(spdk) == spdk.subsystems


def _cut(client: socket.socket, answer: bytes) -> None:
    client.sendall(answer[: len(answer) // 2])
    client.shutdown(socket.SHUT_RDWR)


def _of_another(client: socket.socket, answer: bytes) -> None:
    client.sendall(answer.replace(b'"id": 1', b'"id": 7'))


def _says(text: bytes) -> Send:
    def send(client: socket.socket, answer: bytes) -> None:
        # What is too long is refused before its end.
        with contextlib.suppress(OSError):
            client.sendall(text)

    return send


_ODD_ERROR = b'{"jsonrpc": "2.0", "id": null, "error": "out of order"}'
_MANY = b'{"a": [' + b"{}," * 3_100_000 + b"{}]}"


@pytest.mark.parametrize(
    ("send", "sentence"),
    [
        (_says(b'{"a": ' * 50_000 + b"1" + b"}" * 50_000), "the answer cannot be read"),
        (_says(_MANY), "has more than 3000000 values"),
        (_cut, "closed before the end of the answer"),
        (_of_another, "one to another request"),
        (_says(b"HTTP/1.1 400 Bad Request\r\n\r\n{}"), "does not begin as a JSON object"),
        (_says(b'{"jsonrpc": "2.0", "id": 1}'), "the answer has no result"),
        (_says(_ODD_ERROR), "out of order"),
    ],
    ids=["deep", "many", "cut", "of another", "no object", "no result", "odd error"],
)
def test_what_is_no_answer_is_an_error(spdk: SpdkServer, send: Send, sentence: str) -> None:
    spdk.send = send
    with pytest.raises(spdk_rpc.SpdkError, match=f"SPDK at .*: nvmf_get_subsystems: .*{sentence}"):
        listed(spdk)


def _hang(client: socket.socket, answer: bytes) -> None:
    client.sendall(answer[: len(answer) // 2])
    client.recv(1)


def test_an_answer_that_does_not_end_is_given_up(spdk: SpdkServer) -> None:
    spdk.send = _hang
    with pytest.raises(spdk_rpc.SpdkError, match=r"no answer within 0\.2 seconds"):
        listed(spdk, timeout=0.2)


def test_an_application_that_is_not_there_cannot_be_reached(spdk, tmp_path) -> None:
    spdk.stop()
    for address in (spdk.address, str(tmp_path / "none.sock")):
        with (
            pytest.raises(spdk_rpc.SpdkError, match=f"SPDK at {address} cannot be reached"),
            spdk_rpc.connected(address, 60),
        ):
            pass


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("/var/run/spdk.sock", "/var/run/spdk.sock"),
        ("storage-1:5260", ("storage-1", 5260)),
        ("[2001:db8::1]:5260", ("2001:db8::1", 5260)),
    ],
)
def test_addresses(address: str, place: object) -> None:
    assert spdk_rpc.parse(address) == place
