# SPDX-License-Identifier: Apache-2.0
"""The real servers that ``services`` tests need, found by environment variables.

``tools/services.sh`` starts them and prints the variables. A missing one skips the test on a
developer's machine and fails it where ``CI`` is set: a skip there would hide a failure.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import uuid
from collections.abc import Iterator
from typing import NoReturn

import pytest
import sqlalchemy as sa

REPOSITORY = pathlib.Path(__file__).parents[2]

#: Part of what a test names in a server that all processes of a run share.
MINE = os.environ.get("PYTEST_XDIST_WORKER", "alone")

#: What the shipped script asks of rabbitmqctl, for the same server in a tenth of the time.
_QUICK = pathlib.Path(__file__).with_name("data") / "tools" / "rabbitmqctl"

DATABASES = ("mysql", "postgresql")

#: For ``parametrize`` with the fixtures ``database_kind`` and ``database_driver``, both indirect:
#: where a server's drivers may differ. By itself a test gets the driver of the server's URL.
DRIVERS = (("mysql", "pymysql"), ("mysql", "mysqldb"), ("postgresql", "psycopg2"))

VARIABLES = {
    "mysql": "CYBORG_TEST_MYSQL_URL",
    "postgresql": "CYBORG_TEST_POSTGRESQL_URL",
    "rabbitmq": "CYBORG_TEST_RABBITMQ_URL",
}


def url_of(server: str) -> str:
    """The URL of a server, or the end of the test where there is none."""
    variable = VARIABLES[server]
    url = os.environ.get(variable)
    if not url:
        end_without(f"{variable} is not set; run: eval $(tools/services.sh env)")
    return url


def with_driver(url: str, driver: str) -> str:
    """The URL with another driver, or the end of the test where that is not installed."""
    parts = sa.make_url(url)
    named = parts.set(drivername=f"{parts.get_backend_name()}+{driver}")
    try:
        named.get_dialect().import_dbapi()
    except ImportError as exc:
        end_without(f"{exc}; doc/source/contributor/testing.rst says how to install mysqlclient")
    return named.render_as_string(hide_password=False)


def end_without(sentence: str) -> NoReturn:
    """End a test that lacks something: it fails where all must run."""
    if os.environ.get("CI"):
        pytest.fail(sentence)
    pytest.skip(sentence)


@contextlib.contextmanager
def new_database(server: str, name: str) -> Iterator[str]:
    """Make an empty database on the server, yield its URL and drop it."""
    admin_url = sa.make_url(url_of(server))
    # Its connections need not outlive the test, in which the server may be replaced.
    engine = sa.create_engine(admin_url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    try:
        yield admin_url.set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            force = " WITH (FORCE)" if server == "postgresql" else ""
            connection.execute(sa.text(f"DROP DATABASE {name}{force}"))
        engine.dispose()


@contextlib.contextmanager
def new_vhost() -> Iterator[str]:
    """Make a vhost on RabbitMQ, yield its URL and delete it with all queues.

    Only on a server that ``tools/services.sh`` has started.
    """
    url = sa.make_url(url_of("rabbitmq"))
    name = f"cyborg-{uuid.uuid4().hex}"
    made, user, all_ = (f'<<"{text}">>' for text in (name, url.username, ".*"))
    who = f"{user}, {made}, {all_}, {all_}, {all_}, {user}"
    permit = f"rabbit_auth_backend_internal:set_permissions({who})"
    try:
        _evaluate(f"ok = rabbit_vhost:add({made}, {user}), {permit}.")
    except subprocess.CalledProcessError as exc:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"tools/services.sh evaluate: {exc}")
    try:
        yield url.set(database=name).render_as_string(hide_password=False)
    finally:
        _evaluate(f"rabbit_vhost:delete({made}, {user}).")


@contextlib.contextmanager
def user_of_agent(url: str, host: str, *more: str) -> Iterator[str]:
    """The URL of a vhost as the shipped script permits it to the agent of a host.

    ``more`` is what the script gets besides.
    """
    vhost = sa.make_url(url)
    name, password = f"cyborg-agent-{host}", uuid.uuid4().hex
    subprocess.run(
        [str(REPOSITORY / "etc/rabbitmq/permit-agent.sh"), host, str(vhost.database), *more],
        env=os.environ | {"RABBITMQCTL": str(_QUICK)},
        input=f"{password}\n",
        text=True,
        check=True,
    )
    try:
        yield vhost.set(username=name, password=password).render_as_string(hide_password=False)
    finally:
        subprocess.run([_QUICK, "delete_user", name], check=True)


def rabbitmqctl(*arguments: str) -> str:
    """What the command prints."""
    return _services("rabbitmqctl", *arguments)


def _evaluate(erlang: str) -> None:
    said = _services("evaluate", erlang)
    assert said == "{ok, ok}", said


def _services(*arguments: str) -> str:
    command = [str(REPOSITORY / "tools/services.sh"), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
