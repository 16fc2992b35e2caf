# SPDX-License-Identifier: Apache-2.0
"""The real servers that ``services`` tests need, found by environment variables.

``tools/services.sh`` starts them and prints the variables. A missing one skips the test on a
developer's machine and fails it where ``CI`` is set: a skip there would hide a failure.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

DATABASES = ("mysql", "postgresql")

VARIABLES = {
    "mysql": "CYBORG_TEST_MYSQL_URL",
    "postgresql": "CYBORG_TEST_POSTGRESQL_URL",
    "rabbitmq": "CYBORG_TEST_RABBITMQ_URL",
}


def url_of(server: str) -> str:
    """The URL of a server, or the end of the test where there is none."""
    variable = VARIABLES[server]
    url = os.environ.get(variable)
    if url:
        return url
    sentence = f"{variable} is not set; run: eval $(tools/services.sh env)"
    if os.environ.get("CI"):
        pytest.fail(sentence)
    pytest.skip(sentence)


@contextlib.contextmanager
def new_database(server: str, name: str) -> Iterator[str]:
    """Make an empty database on the server, yield its URL and drop it."""
    admin_url = sa.make_url(url_of(server))
    engine = sa.create_engine(admin_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    try:
        yield admin_url.set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            force = " WITH (FORCE)" if server == "postgresql" else ""
            connection.execute(sa.text(f"DROP DATABASE {name}{force}"))
        engine.dispose()
