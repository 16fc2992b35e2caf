# SPDX-License-Identifier: Apache-2.0
"""A process that is killed between two statements, as far as its database sees it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import sqlalchemy as sa
from oslo_db import exception as db_exc


class Killed(Exception):
    """The process that made a change ends at this statement."""


@contextlib.contextmanager
def killing(engines: list[sa.Engine], number: int) -> Iterator[None]:
    """Kill this process, as far as the database sees it, before that statement or commit.

    A process is a thread here.
    """
    left, own = [number], threading.get_ident()

    def count(*_arguments: object) -> None:
        left[0] -= threading.get_ident() == own
        if left[0] == 0 and threading.get_ident() == own:
            raise Killed("here")

    for each in engines:
        sa.event.listen(each, "before_cursor_execute", count)
    try:
        yield
    except db_exc.DBError as exc:
        # oslo.db wraps what is raised there.
        raise Killed("here") from exc
    finally:
        for each in engines:
            sa.event.remove(each, "before_cursor_execute", count)
