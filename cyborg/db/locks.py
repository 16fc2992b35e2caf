# SPDX-License-Identifier: Apache-2.0
"""Locks by name, for transactions of which one must see what the other has done."""

from __future__ import annotations

from sqlalchemy import orm

from cyborg import db
from cyborg.db import models

#: What is done one by one: a node is given to a host, a host gets a key, a function pool grows.
NODES = "nodes"
HOST_KEYS = "host keys"
FUNCTION_POOLS = "function pools"


def take(session: orm.Session, name: str) -> None:
    """Let nobody else take this lock until the caller's transaction ends.

    Something is written each time: of two transactions on two nodes of a Galera cluster, which do
    not wait for each other, the second fails at its end, and is tried again.
    """
    table = models.Brake
    row = {"name": name, "began_ms": 0, "used": 1, "created_at": models.utcnow()}
    db.upsert(session, table, [row], key=["name"], update={"used": table.used + 1})
