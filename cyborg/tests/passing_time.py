# SPDX-License-Identifier: Apache-2.0
"""Time that passes for audits of hosts."""

from __future__ import annotations

from cyborg import db
from cyborg.db import models


@db.retry
def let_seconds_pass(seconds: int) -> None:
    """Make the last audit of every host so much older."""
    with db.writer() as session:
        host = models.Host
        db.update(session, host, audited_ms=host.audited_ms - seconds * 1000)
