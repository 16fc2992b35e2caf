# SPDX-License-Identifier: Apache-2.0
"""What one client of the built-in server can do to the others: nothing."""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import pytest
import requests
import sqlalchemy as sa
import trustme
import webob
from oslo_config import cfg

from cyborg.api import app, connections, middleware, server
from cyborg.tests import crowd, messages
from cyborg.tests.service import until

pytestmark = pytest.mark.slow

#: Seconds within which an answer comes, even on a busy machine.
SOON = 60
LIMIT = 4096
LARGE = b" " * (LIMIT + 1)

Start = Callable[[WSGIApplication], int]

GET = b"GET /v2/devices HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v2/device_profiles HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SMUGGLED = b"DELETE /v2/device_profiles/p HTTP/1.1\r\nHost: localhost\r\n\r\n"

#: Beginnings of requests that never end.
SLOW = [
    b"\r\nG",
    b"G",
    GET[:-1],
    GET[:-2] + b"X-More: ",
    POST + b"Content-Length: 100\r\n\r\n[",
    POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n[",
    POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n[\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n[\r\n0\r\n",
]


@pytest.fixture
def start(conf: cfg.ConfigOpts) -> Iterator[Start]:
    """``start(application)`` is the port of a server with one thread for requests."""
    options = {"threads": 1, "request_timeout": 600, "max_request_body_size": LIMIT}
    for name, value in options.items():
        conf.set_override(name, value, group="api")
    with contextlib.ExitStack() as stack:

        def starting(application: WSGIApplication) -> int:
            http = server.Server(conf, application, "127.0.0.1", 0)
            port = http.listen()
            http.start()
            stack.callback(http.stop)
            return port

        yield starting


@pytest.fixture
def port(conf: cfg.ConfigOpts, database: sa.Engine, start: Start) -> Iterator[int]:
    """The API without authentication."""
    conf.set_override("auth_strategy", "noauth", group="api")
    with messages.transport(conf, "memory"):
        yield start(app.load(conf))


def connect(port: int, sent: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
    one = socket.create_connection(("127.0.0.1", port), SOON, source_address=(source, 0))
    one.sendall(sent)
    return one


def read_all(one: socket.socket) -> bytes:
    """What the server says until it closes the connection."""
    with one:
        return b"".join(iter(lambda: one.recv(65536), b""))


def statuses(answer: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)


def devices(port: int) -> int:
    return requests.get(f"http://127.0.0.1:{port}/v2/devices", timeout=SOON).status_code


def test_slow_requests_hold_no_thread_and_have_to_arrive_in_time(port, conf) -> None:
    conf.set_override("max_connections_per_peer", 0, group="api")
    with contextlib.ExitStack() as stack:
        for sent in SLOW * 10:
            stack.enter_context(connect(port, sent))
        for _ in range(10):
            assert devices(port) == 200
    conf.set_override("request_timeout", 0.3, group="api")
    for sent in SLOW:
        answer = read_all(connect(port, sent))
        assert statuses(answer) == [b"408"]
        assert b"within 0.3 seconds" in answer
    assert read_all(connect(port)) == b""


def test_a_request_that_comes_in_pieces_is_answered_when_it_ends(port) -> None:
    bodies = [b'[{"name": "p%d", "groups": [{}]}]' % number for number in range(2)]
    asked = GET.replace(b"Host", b"Connection: close\r\nHost")
    post = POST + b"Connection: close\r\n"
    wholes = {
        b"\r\n" + asked: b"200",
        asked: b"200",
        post + b"Content-Length: %d\r\n\r\n%b" % (len(bodies[0]), bodies[0]): b"201",
        post
        + b"Transfer-Encoding: chunked\r\n\r\n1\r\n[\r\n"
        + b"%x;x=y\r\n%b\r\n0\r\nA: b\r\n\r\n" % (len(bodies[1]) - 1, bodies[1][1:]): b"201",
    }
    for whole, status in wholes.items():
        with connect(port) as one:
            for number in range(len(whole)):
                one.sendall(whole[number : number + 1])
            assert statuses(read_all(one)) == [status], whole


def test_empty_lines_before_a_request_gain_no_time(port: int, conf: cfg.ConfigOpts) -> None:
    conf.set_override("request_timeout", 0.5, group="api")
    with connect(port, b"\r\n") as one:
        for _ in range(7):
            time.sleep(0.2)
            if multiprocessing.connection.wait([one], 0):
                return
            one.sendall(b"\r\n")
    pytest.fail("it was waited for all the time")


def test_one_address_has_so_many_connections_without_a_request(port, conf) -> None:
    conf.set_override("max_connections_per_peer", 3, group="api")
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(connect(port, b"GET", source="127.0.0.2"))
        silent = stack.enter_context(connect(port))
        mine = [stack.enter_context(connect(port, b"GET")) for _ in range(5)]
        assert read_all(silent) == b""
        assert [statuses(read_all(one)) for one in mine[:2]] == [[b"503"]] * 2
        for one in (other, *mine[2:]):
            one.sendall(GET[3:])
            assert one.recv(12) == b"HTTP/1.1 200"


def test_nothing_is_answered_behind_a_body_that_was_not_read(port) -> None:
    for body in (
        b"Content-Length: %d\r\n\r\n" % len(LARGE) + LARGE,
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(LARGE), LARGE),
        b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * (LIMIT + 1) + b"0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"x: y\r\n\r\n",
    ):
        answer = read_all(connect(port, POST + body + SMUGGLED))
        assert len(statuses(answer)) == 1, body[:80]
        assert b"Connection: close" in answer
        assert (b" 413 " in answer) == (len(body) > LIMIT)


def test_a_large_body_is_not_read(port) -> None:
    piece = b" " * 1_000_000
    for length in (b"Content-Length: 200000000", b"Transfer-Encoding: chunked\r\n\r\nbebc200"):
        sent = 0
        with connect(port, POST + length + b"\r\n") as one, contextlib.suppress(OSError):
            one.sendall(b"\r\n" if length.startswith(b"Content") else b"")
            for _ in range(200):
                one.sendall(piece)
                sent += len(piece)
        assert sent < 100_000_000, length


def test_without_a_token_a_body_is_not_read_either(conf, database, start) -> None:
    with messages.transport(conf, "memory"):
        middleware.service_token_roles(conf)  # registers the options
        conf.set_override("www_authenticate_uri", "http://keystone", group="keystone_authtoken")
        port = start(app.load(conf))
        body = b"Content-Length: %d\r\n\r\n" % len(LARGE) + LARGE
        answer = read_all(connect(port, POST + body + SMUGGLED))
    assert statuses(answer) == [b"401"]
    assert b'\r\nwww-authenticate: keystone uri="http://keystone"\r\n' in answer.lower()


def test_a_request_without_a_clear_end_is_refused(port) -> None:
    for head, status in {
        b"Content-Length: 5\r\nTransfer-Encoding: chunked": b"400",
        b"Content-Length: 5\r\nContent-Length: 0": b"400",
        b"Content-Length: +5": b"400",
        b"Content-Length : 5": b"400",
        b"Content-Length: 5\n": b"400",
        b"X: y\r\n Content-Length: 5": b"400",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked": b"400",
        b"Transfer-Encoding: gzip, chunked": b"501",
        b"Content_Length: 5": b"400",
        b"X: " + b"y" * 200_000: b"431",
    }.items():
        answer = read_all(connect(port, POST + head + b"\r\n\r\n" + b"[    " + SMUGGLED))
        assert statuses(answer)[0] == status, head[:80]
        assert len(statuses(answer)) == 1 or head.startswith(b"Content_Length")
    # Trailers have a bound.
    sent = POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n"
    answer = read_all(connect(port, sent + b"X: y\r\n" * 2000))
    assert statuses(answer) == [b"400"]
    assert b"around the chunks" in answer


def test_two_requests_at_once_are_answered_in_turn(port: int) -> None:
    with connect(port, b"\r\n" + GET + POST + b"Content-Length: 2\r\n\r\n[]" + GET) as one:
        one.shutdown(socket.SHUT_WR)
        assert statuses(read_all(one)) == [b"200", b"400", b"200"]


def test_a_connection_outlives_an_answer_without_a_body(start) -> None:
    """Nova deletes the ARQs of each instance so."""
    port = start(webob.Response(status=204))
    for asks, ends in ((b"", [b"204", b"204"]), (b"Connection: close\r\n", [b"204"])):
        with connect(port, 2 * (SMUGGLED[:-2] + asks + b"\r\n")) as one:
            one.shutdown(socket.SHUT_WR)
            assert statuses(read_all(one)) == ends


class Heard:
    """An application that tells what it was asked for."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str]] = []

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        token = environ.get("HTTP_X_AUTH_TOKEN", "")
        self.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], token))
        return webob.Response("heard")(environ, start)


def test_empty_lines_hide_no_request_and_make_none_of_its_body(start: Start) -> None:
    heard = Heard()
    port = start(heard)
    body = b"DELETE /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    head = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connect(port, b"\r\n" * 4 + head) as one:
        time.sleep(0.1)
        one.sendall(body + b"GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert statuses(read_all(one)) == [b"200", b"200"]
    assert [each[:2] for each in heard.requests] == [("POST", "/a"), ("GET", "/b")]


def test_who_asks_to_continue_without_a_body_is_answered(start) -> None:
    heard = Heard()
    port = start(heard)
    last = b"GET /b HTTP/1.1\r\nHost: y\r\nX-Auth-Token: two\r\nConnection: close\r\n\r\n"
    for method in (b"GET", b"DELETE"):
        head = method + b" /a HTTP/1.1\r\nHost: x\r\nX-Auth-Token: one\r\n"
        with connect(port, head + b"Expect: 100-continue\r\n\r\n") as one:
            time.sleep(0.1)
            one.sendall(last)
            assert statuses(read_all(one)) == [b"200", b"200"]
    assert [each[1:] for each in heard.requests] == 2 * [("/a", "one"), ("/b", "two")]


def test_one_that_fails_ends_no_other(start, monkeypatch, caplog) -> None:
    port = start(Heard())

    def fail(_connection: connections.Connection) -> bool:
        monkeypatch.undo()
        raise OSError("The connection is gone.")

    with connect(port, GET):
        monkeypatch.setattr(connections.Connection, "readable", fail)
        for _ in range(3):
            assert requests.get(f"http://127.0.0.1:{port}/", timeout=SOON).text == "heard"
    assert "A connection has failed" in caplog.text


def test_a_client_may_ask_whether_to_send_its_body(port: int) -> None:
    with connect(port, POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n") as one:
        assert one.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        one.sendall(b"[]")
        assert statuses(one.recv(4096)) == [b"400"]
    with connect(port, POST + b"Expect: 100-continue\r\nContent-Length: 99999\r\n\r\n") as one:
        assert statuses(read_all(one)) == [b"413"]


class Busy:
    """An application that answers health checks, or not even them, and others when told to."""

    def __init__(self, *, healthy: bool = True) -> None:
        self.healthy = healthy
        self.asked = threading.Semaphore(0)
        self.go_on = threading.Event()

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/healthcheck" or not self.healthy:
            self.asked.release()
            self.go_on.wait(SOON)
        return webob.Response("it is me")(environ, start)


def test_a_health_check_is_answered_while_all_threads_are_busy(start: Start) -> None:
    busy = Busy()
    port = start(busy)
    with connect(port, GET) as waits:
        assert busy.asked.acquire(timeout=SOON)
        for _ in range(3):
            answer = requests.get(f"http://127.0.0.1:{port}/healthcheck", timeout=SOON)
            assert answer.text == "it is me"
        busy.go_on.set()
        assert waits.recv(12) == b"HTTP/1.1 200"


def test_more_requests_than_can_wait_for_a_thread_are_sent_away(start, monkeypatch) -> None:
    monkeypatch.setattr(server, "_QUEUE_MAX", 2)
    busy = Busy()
    port = start(busy)
    with contextlib.ExitStack() as stack:
        served = [stack.enter_context(connect(port, GET))]
        assert busy.asked.acquire(timeout=SOON)
        others = [connect(port, GET) for _ in range(5)]
        for one in _answered(others, 3):
            answer = read_all(one)
            assert statuses(answer) == [b"503"]
            assert b"Connection: close" in answer
            assert b"try again later" in answer
        busy.go_on.set()
        served += [stack.enter_context(one) for one in others if one.fileno() >= 0]
        assert [one.recv(12) for one in served] == [b"HTTP/1.1 200"] * 3


def _answered(connections: list[socket.socket], count: int) -> list[socket.socket]:
    """So many connections with an answer, as soon as they have one."""

    def answered() -> list[socket.socket] | None:
        ready = multiprocessing.connection.wait(connections, 1)
        return None if len(ready) < count else [one for one in connections if one in ready]

    return until(answered)


def test_all_that_arrives_has_a_bound(port, conf, monkeypatch) -> None:
    monkeypatch.setattr(server, "_HELD_MAX", 4 * LIMIT)
    kinds = [
        POST + b"Content-Length: %d\r\n\r\n" % LIMIT + b" " * (LIMIT - 1),
        POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % LIMIT + b" " * (LIMIT - 1),
        GET[:-2] + b"X-More: " + b" " * LIMIT,
    ]
    with contextlib.ExitStack() as stack:
        mine = [stack.enter_context(connect(port, sent)) for sent in kinds * 5]
        for one in _answered(mine, len(mine) - 4):
            answer = read_all(one)
            assert statuses(answer) == [b"503"]
            assert b"try again later" in answer
            mine.remove(one)
        # Who holds little is served, and what is left is answered when all of it is there.
        for _ in range(3):
            assert devices(port) == 200
        last = []
        for one in mine:
            one.sendall(b" \r\n0\r\n\r\n")
            last.append(statuses(one.recv(65536))[0])
        # With what frames them, four are a little too much.
        assert last.count(b"503") <= 1
        assert set(last) <= {b"200", b"400", b"503"}


def test_what_is_around_chunks_is_not_kept(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HELD_MAX", 4 * LIMIT)
    body, around = b'[{"name": "p", "groups": [{}]}]', b"1;" + b"x" * 200 + b"\r\n"
    chunks = b"".join(around + body[each : each + 1] + b"\r\n" for each in range(len(body)))
    spaces = around + b" \r\n"
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    with connect(port, head + spaces * 200 + chunks) as one:
        one.sendall(b"0\r\nX-Trailer: y\r\n")
        assert devices(port) == 200
        one.sendall(b"\r\n")
        assert statuses(read_all(one)) == [b"201"]


def narrow(port: int, sent: bytes = GET, source: str = "127.0.0.1") -> socket.socket:
    """A connection of which the kernel keeps little."""
    one = crowd.narrow(port, source, buffer=4096, segment=1000)
    one.sendall(sent)
    return one


def test_an_answer_has_to_be_taken_in_time(start, conf, monkeypatch, caplog) -> None:
    monkeypatch.setattr(connections, "_BYTES_PER_SECOND", 200_000)
    port = start(webob.Response(b"x" * 5_000_000))
    conf.set_override("request_timeout", 0.5, group="api")
    said = "A connection from 127.0.0.1 is closed: it leaves"
    with narrow(port) as one:
        until(lambda: said in caplog.text or not one.recv(200))
    assert said in caplog.text
    assert "[api] request_timeout" in caplog.text


def test_who_takes_an_answer_steadily_gets_all_of_it(start: Start, conf: cfg.ConfigOpts) -> None:
    whole = 300_000
    port = start(webob.Response(b"x" * whole))
    conf.set_override("request_timeout", 0.5, group="api")
    began = time.monotonic()
    with narrow(port, GET[:-2] + b"Connection: close\r\n\r\n") as one:
        content = b""
        while part := one.recv(20_000):
            content += part
            time.sleep(0.05)
    assert len(content) > whole
    # Otherwise this has shown nothing.
    assert time.monotonic() - began > 1


def test_who_does_not_read_holds_no_thread(start) -> None:
    port = start(webob.Response(b"x" * 300_000))
    for path in (b"/v2/devices", b"/healthcheck"):
        asked = GET.replace(b"/v2/devices", path)
        with contextlib.ExitStack() as stack:
            waits = [stack.enter_context(narrow(port, asked * 3)) for _ in range(6)]
            for _ in range(5):
                url = f"http://127.0.0.1:{port}{path.decode()}"
                assert len(requests.get(url, timeout=SOON).content) == 300_000
            # The next request is answered when the last answer was taken.
            content = b""
            while len(content) < 900_000 or content.count(b"HTTP/1.1 200") < 3:
                content += waits[0].recv(65536)
            assert statuses(content) == [b"200"] * 3


def read_answer(one: socket.socket) -> bytes:
    """An answer of 300,000 bytes, or what is left of it."""
    content = b""
    with contextlib.suppress(ConnectionError):
        while len(content) < 300_000 and (part := one.recv(65536)):
            content += part
    return content


def test_what_is_not_taken_has_a_bound(start, monkeypatch, caplog) -> None:
    monkeypatch.setattr(server, "_HELD_MAX", 1_000_000)
    port = start(webob.Response(b"x" * 300_000))
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(narrow(port, source="127.0.0.2"))
        mine = [stack.enter_context(narrow(port)) for _ in range(10)]
        assert mine[-1].recv(1)
        until(lambda: "its address has most" in caplog.text)
        wholes = [len(read_answer(one)) > 300_000 for one in (*mine[:-1], other)]
    # Of the address that leaves most, the oldest ones.
    assert wholes[:5] == [False] * 5
    assert wholes[-1]


def test_answers_are_sent_before_the_end(conf: cfg.ConfigOpts) -> None:
    http = server.Server(conf, webob.Response(b"x" * 3_000_000), "127.0.0.1", 0)
    port = http.listen()
    http.start()
    with narrow(port) as one:
        content = one.recv(1)
        stopping = threading.Thread(target=http.stop)
        stopping.start()
        while part := one.recv(65536):
            content += part
    stopping.join()
    assert len(content) > 3_000_000


def test_requests_that_are_being_answered_count_for_their_address(start, conf, caplog) -> None:
    conf.set_override("max_connections_per_peer", 3, group="api")
    conf.set_override("threads", 3, group="api")
    busy = Busy()
    port = start(busy)
    last = GET[:-2] + b"Connection: close\r\n\r\n"
    with contextlib.ExitStack() as stack:
        mine = [stack.enter_context(connect(port, GET)) for _ in range(3)]
        for _ in mine:
            assert busy.asked.acquire(timeout=SOON)
        for _ in range(5):
            answer = read_all(connect(port, last))
            assert statuses(answer) == [b"503"]
            assert b"try again later" in answer
        said = [line.message for line in caplog.records if "max_connections_per" in line.message]
        assert len(said) == 1
        assert "127.0.0.1 has more connections" in said[0]
        other = stack.enter_context(connect(port, GET, source="127.0.0.2"))
        busy.go_on.set()
        assert [one.recv(12) for one in (*mine, other)] == [b"HTTP/1.1 200"] * 4
        for one in mine:
            one.close()
        # Their places are free again, if not at once.
        until(lambda: statuses(read_all(connect(port, last))) == [b"200"])


def test_health_checks_are_answered_in_turn(start) -> None:
    busy = Busy(healthy=False)
    port = start(busy)
    check = GET.replace(b"/v2/devices", b"/healthcheck")
    with contextlib.ExitStack() as stack:
        stack.enter_context(connect(port, check))
        assert busy.asked.acquire(timeout=SOON)
        mine = [connect(port, check) for _ in range(40)]
        other = stack.enter_context(connect(port, check, source="127.0.0.2"))
        busy.go_on.set()
        assert other.recv(12) == b"HTTP/1.1 200"
        for one in mine:
            one.close()


def test_a_client_that_is_silent_about_tls_stops_nobody(conf, start, tmp_path) -> None:
    authority, own, above = trustme.CA(), tmp_path / "server.pem", tmp_path / "ca.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(own)
    authority.cert_pem.write_to_path(str(above))
    conf.set_override("enable_ssl_api", True, group="api")
    for name in ("cert_file", "key_file"):
        conf.set_override(name, str(own), group="ssl")
    port = start(webob.Response("x" * 3_000_000))
    with connect(port), connect(port, b"\x16\x03\x01"):
        for _ in range(3):
            answer = requests.get(f"https://localhost:{port}/", verify=str(above), timeout=SOON)
            assert len(answer.text) == 3_000_000
        assert b"HTTPS only" in read_all(connect(port, GET))
        plain = connect(port)
        with ssl.create_default_context(cafile=above).wrap_socket(
            plain, server_hostname="localhost"
        ) as one:
            one.sendall(POST + b"Content-Length: 9999\r\n\r\n" + b" " * 9999 + SMUGGLED)
            assert len(statuses(one.recv(4096))) == 1
    conf.set_override("max_connections_per_peer", 1, group="api")
    trusting = ssl.create_default_context(cafile=above)
    # No connection from above counts for this address.
    address = "127.0.0.2"
    first = narrow(port, b"", address)
    with trusting.wrap_socket(first, server_hostname="localhost") as one:
        one.sendall(GET)
        assert statuses(one.recv(4096)) == [b"200"]
        last = connect(port, source=address)
        another = trusting.wrap_socket(last, server_hostname="localhost")
        assert statuses(read_all(another)) == [b"503"]
