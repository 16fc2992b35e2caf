# SPDX-License-Identifier: Apache-2.0
"""A process that dies as it sends a statement."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exc


class Killed(Exception):
    """The transaction in which it is raised is rolled back, as where a process is killed."""


#: oslo.db takes it for an error of the database.
KILLED = (Killed, db_exc.DBError)


@contextlib.contextmanager
def killed_at(engine: sa.Engine, statement: int) -> Iterator[None]:
    """Let the process die as it sends its next but so many statements."""
    left = [statement]

    def count(*_given: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed("now")

    sa.event.listen(engine, "before_cursor_execute", count)
    try:
        yield
    finally:
        sa.event.remove(engine, "before_cursor_execute", count)
