# SPDX-License-Identifier: Apache-2.0
"""What a balancer learns at ``/healthcheck``."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import threading
from collections.abc import Callable, Iterator
from wsgiref.types import WSGIApplication

import pytest
import sqlalchemy as sa
import webob
from oslo_config import cfg
from oslo_middleware.healthcheck import opts

from cyborg import db, rpc
from cyborg.api import app, health
from cyborg.tests import messages, servers
from cyborg.tests.service import until

pytestmark = pytest.mark.usefixtures("database")

Ask = Callable[..., webob.Response]


@pytest.fixture
def ask(conf: cfg.ConfigOpts) -> Iterator[Ask]:
    """``ask()`` is the answer of one API, made at the first call, to somebody without a token."""
    conf.register_opts(opts.HEALTHCHECK_OPTS, group="healthcheck")
    with messages.transport(conf, "memory"):

        def asking(path: str = "/healthcheck") -> webob.Response:
            if not made:
                rpc.configure(conf)
                made.append(app.load(conf))
            request = webob.Request.blank(path, accept="application/json")
            return request.get_response(made[0])

        made: list[WSGIApplication] = []
        yield asking


def healthy(ask: Ask) -> webob.Response:
    """The answer when all is well, which a busy machine may not say at once."""

    def answer() -> webob.Response | None:
        found = ask()
        return found if found.status_int == 200 else None

    return until(answer)


def reasons(answer: webob.Response) -> list[str]:
    return [item if isinstance(item, str) else item["reason"] for item in answer.json["reasons"]]


def failing(ask: Ask, *because: str) -> webob.Response:
    """The answer when that is wrong, before which a busy machine may say that it waits."""

    def answer() -> webob.Response | None:
        found = ask()
        settled = reasons(found) == list(because) and "no answer in" not in found.text
        return found if settled else None

    return until(answer)


ALL_WELL = ["database answers", "message broker answers"]


def test_all_is_well_and_nobody_needs_a_token(ask, conf, count_sql) -> None:
    conf.set_override("auth_strategy", "keystone", group="api")
    with count_sql() as counter:
        answer = healthy(ask)
        answers = [ask().status_int for _ in range(50)]
    assert reasons(answer) == ALL_WELL
    assert answer.json["detailed"] is False
    assert ask("/healthcheck/").status_int == 200
    # To ask all the time costs nearly nothing.
    assert 200 in answers
    assert len(counter.statements) < len(answers) / 2


@pytest.mark.makes_up_rows
def test_a_database_that_is_down(ask: Ask, conf: cfg.ConfigOpts, database_url: str) -> None:
    conf.set_override("connection", "mysql+pymysql://u:secret@127.0.0.1:1/none", group="database")
    db.configure(conf)
    conf.set_override("detailed", True, group="healthcheck")
    answer = failing(ask, "database does not answer", "message broker answers")
    assert answer.status_int == 503
    detail = answer.json["reasons"][0]["details"]
    assert detail == "The database cannot be reached at present; try again later."
    assert "secret" not in answer.text

    conf.set_override("connection", database_url, group="database")
    db.configure(conf)
    healthy(ask)


def test_a_broker_that_is_down(ask: Ask, conf: cfg.ConfigOpts) -> None:
    conf.set_override("transport_url", "rabbit://u:secret@127.0.0.1:1/")
    answer = failing(ask, "database answers", "message broker does not answer")
    assert answer.status_int == 503
    assert "127.0.0.1" not in answer.text
    assert "secret" not in answer.text


def test_the_operator_says_what_counts(ask, conf) -> None:
    conf.set_override("backends", ["cyborg_database"], group="healthcheck")
    conf.set_override("transport_url", "rabbit://127.0.0.1:1/")
    assert reasons(healthy(ask)) == ["database answers"]


def test_a_broker_that_is_silent_is_not_asked_each_time(ask, conf, monkeypatch) -> None:
    monkeypatch.setattr(health, "PATIENCE", 0.2)
    connections = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connections.append(listener.accept())

        threading.Thread(target=accept, daemon=True).start()
        port = listener.getsockname()[1]
        conf.set_override("transport_url", f"rabbit://u:p@127.0.0.1:{port}/")
        conf.set_override("detailed", True, group="healthcheck")
        until(lambda: ask().status_int == 503 and connections)
        answers = [ask() for _ in range(12)]
        waiting = [each for each in threading.enumerate() if each.name == "health"]
        assert 1 <= len(waiting) < len(answers) / 2
        detail = answers[-1].json["reasons"][1]["details"]
        assert detail == f"no answer in {health.PATIENCE:g} seconds"
        listener.shutdown(socket.SHUT_RDWR)
    for connection, _address in connections:
        connection.close()


@pytest.mark.services
def test_a_broker_that_goes_and_comes(ask: Ask, conf: cfg.ConfigOpts) -> None:
    wire = messages.Wire(servers.url_of("rabbitmq"))
    wire.join()
    conf.set_override("transport_url", wire.url)
    answer = healthy(ask)
    assert reasons(answer) == ALL_WELL
    wire.cut()
    until(lambda: ask().status_int == 503)
    wire.join()
    healthy(ask)
    wire.cut()


def test_the_file_for_operators_is_the_one_that_is_used(database: sa.Engine) -> None:
    root = pathlib.Path(app.__file__).parents[2]
    for name in ("api-paste.ini", "api_audit_map.conf"):
        shipped = pathlib.Path(app.__file__).with_name(name).read_text()
        assert (root / "etc/cyborg" / name).read_text() == shipped
