# SPDX-License-Identifier: Apache-2.0
"""Time that passes for audits of hosts, and for providers that are to be deleted."""

from __future__ import annotations

from cyborg import db
from cyborg.db import models


@db.retry
def let_seconds_pass(seconds: int) -> None:
    """Make the last audit of every host so much older."""
    with db.writer() as session:
        host = models.Host
        db.update(session, host, audited_ms=host.audited_ms - seconds * 1000)


@db.retry
def let_nova_forget() -> None:
    """Make it so long since providers were taken out of their trees that they are deleted."""
    row = models.ResourceProvider
    with db.writer() as session:
        long_ago = row.detached_ms - 3_600_000
        db.update(session, row, row.detached_ms.is_not(None), detached_ms=long_ago)
