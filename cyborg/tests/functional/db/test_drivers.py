# SPDX-License-Identifier: Apache-2.0
"""Drivers of one server, which must not be told from each other."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import exception as db_exc

from cyborg import db
from cyborg.common import errors
from cyborg.db import connections, models
from cyborg.tests import boots, engine, hosts, servers, tls

pytestmark = pytest.mark.services

on_drivers = pytest.mark.parametrize(
    ("database_kind", "database_driver"), servers.DRIVERS, indirect=True
)
on_mysql = pytest.mark.parametrize("driver", ["pymysql", "mysqldb"])

#: Characters that a driver may take for its own, or not know how to send.
ODD = "100 % 'of\" \\ %s :x {} \N{PILE OF POO} \u00e9\n"
#: The type of a column with a date and a time, as servers of that kind number it.
_DATETIME = 12
MOMENT = datetime.datetime.fromisoformat("2026-02-03T04:05:06.000007")


def connect(conf: cfg.ConfigOpts, url: str) -> None:
    """Let this process reach its database by this URL."""
    conf.set_override("connection", url, group="database")
    db.configure(conf)


@on_drivers
def test_a_life_of_a_server(ctx, conf, database, database_driver) -> None:
    assert database.dialect.driver == database_driver
    hosts.apply(hosts.card("a"))
    instance, arqs = models.new_uuid(), boots.arqs(ctx)
    boots.bind(ctx, arqs, instance)
    engine.drain(conf)
    assert boots.states(ctx) == {arqs[0]: models.BOUND}


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_postgresql_compiles_no_statement(database: sa.Engine) -> None:
    with db.reader() as session:
        assert session.scalar(sa.text("SHOW jit")) == "off"


@on_drivers
def test_values_are_read_as_they_were_written(database: sa.Engine) -> None:
    given = {"name": ODD[:200], "description": ODD * 5000, "extra": {ODD: ODD}}
    with db.writer() as session:
        session.add(models.DeviceProfile(groups=[{"a": ODD}], created_at=MOMENT, **given))
    with db.reader() as session:
        found = session.scalars(sa.select(models.DeviceProfile)).one()
    assert {name: getattr(found, name) for name in given} == given
    assert (found.groups, found.created_at, found.enabled) == ([{"a": ODD}], MOMENT, True)


@on_drivers
def test_a_second_row_and_one_that_refers_to_none_are_told(database: sa.Engine) -> None:
    with pytest.raises(db_exc.DBDuplicateEntry), db.writer() as session:
        session.add_all(models.MadeName(path="/one", due_ms=0) for _ in range(2))
    path = {"host_id": 7, "device_id": 7, "cpid_type": "PCI", "cpid_info": "x"}
    with pytest.raises(db_exc.DBReferenceError), db.writer() as session:
        session.add(models.ControlPath(**path))


@on_drivers
def test_of_two_that_wait_for_each_other_one_is_run_again(database: sa.Engine) -> None:
    names, met, lost = ("one", "two"), threading.Barrier(2, timeout=30), list[str]()
    with db.writer() as session:
        session.add_all(models.MadeName(path=name, due_ms=0) for name in names)

    def lock_both(first: str, second: str) -> None:
        try:
            with db.writer() as session:
                row = models.MadeName
                db.update(session, row, row.path == first, due_ms=1)
                met.wait()
                db.update(session, row, row.path == second, due_ms=1)
        except db.LostRace:
            lost.append(first)

    other = threading.Thread(target=lock_both, args=names)
    other.start()
    lock_both(*reversed(names))
    other.join()
    assert len(lost) == 1


@pytest.mark.parametrize("driver", ["mysqldb", "psycopg2"])
def test_a_server_that_says_nothing_is_given_up(conf, driver, monkeypatch) -> None:
    monkeypatch.setattr(connections, "CONNECT_SECONDS", 2)
    kind = "postgresql" if driver == "psycopg2" else "mysql"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{kind}://u:p@127.0.0.1:{silent.getsockname()[1]}/x"
        connect(conf, servers.with_driver(url, driver))
        began = time.monotonic()
        with pytest.raises(errors.DatabaseUnreachable), db.reader() as session:
            session.execute(sa.text("SELECT 1"))
    assert time.monotonic() - began < 8


#: How MariaDB greets: it speaks TLS, if that bit is set, and knows all that a client may ask for.
_TLS = 0x0800
_CAPABILITIES = 0x000FF7FF & ~0x20


def _greeting(capabilities: int) -> bytes:
    seed = b"12345678", b"123456789012\0"
    parts = (
        b"\x0a10.11.0-MariaDB\0" + struct.pack("<I", 1) + seed[0] + b"\0",
        struct.pack("<HBHHB", capabilities & 0xFFFF, 45, 2, capabilities >> 16, 21),
        b"\0" * 10 + seed[1] + b"mysql_native_password\0",
    )
    body = b"".join(parts)
    return struct.pack("<I", len(body))[:3] + b"\0" + body


@contextlib.contextmanager
def greeting_server(context: ssl.SSLContext | None) -> Iterator[tuple[int, list[bytes]]]:
    """The port of a server that greets once; what clients say to it when they log in."""
    said: list[bytes] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listening.accept()
                with near, contextlib.suppress(OSError):
                    near.settimeout(10)
                    near.sendall(_greeting(_CAPABILITIES | (_TLS if context else 0)))
                    if context is None:
                        said.append(near.recv(4096))
                        continue
                    # The request for TLS, before which nothing is secret.
                    near.recv(36)
                    with context.wrap_socket(near, server_side=True) as secret:
                        said.append(secret.recv(4096))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1], said
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
    thread.join()


@on_mysql
@pytest.mark.parametrize(
    ("trusted", "names", "speaks_tls", "logs_in"),
    [
        (True, ("127.0.0.1", "localhost"), True, True),
        (False, ("127.0.0.1", "localhost"), True, False),
        (True, ("elsewhere.example",), True, False),
        (True, ("127.0.0.1",), False, False),
    ],
)
def test_a_server_is_believed_by_its_certificate(
    conf, tmp_path, driver, trusted, names, speaks_tls, logs_in
) -> None:
    signs, other = tls.Authority(tmp_path), tls.Authority(tmp_path, "other.pem")
    context = signs.server_context(*names) if speaks_tls else None
    with greeting_server(context) as (port, said):
        file = (signs if trusted else other).file
        url = f"mysql+{driver}://user:secret@127.0.0.1:{port}/cyborg?ssl_ca={file}"
        connect(conf, servers.with_driver(url, driver))
        with pytest.raises(errors.DatabaseUnreachable), db.reader() as session:
            session.execute(sa.text("SELECT 1"))
    assert any(b"user" in each for each in said) is logs_in, said


@on_mysql
def test_who_shows_a_certificate_logs_in_by_tls_only(conf, tmp_path, driver) -> None:
    own = tls.Authority(tmp_path).client_file()
    with greeting_server(None) as (port, said):
        url = f"mysql+{driver}://user:secret@127.0.0.1:{port}/cyborg?ssl_cert={own}&ssl_key={own}"
        connect(conf, servers.with_driver(url, driver))
        with pytest.raises(errors.DatabaseUnreachable), db.reader() as session:
            session.execute(sa.text("SELECT 1"))
    assert not any(b"user" in each for each in said), said


@pytest.mark.parametrize(
    ("database_kind", "database_driver"), servers.DRIVERS[:2], indirect=True
)
def test_times_are_parsed_by_python(database: sa.Engine) -> None:
    """A driver's own parser takes longer than all else of a row."""
    with database.connect() as connection:
        inner = connection.connection.dbapi_connection
    parsers = getattr(inner, "decoders", None) or getattr(inner, "converter", {})
    assert parsers[_DATETIME] == datetime.datetime.fromisoformat
